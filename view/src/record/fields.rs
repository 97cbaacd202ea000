//! The columns of a block, in the order of the file: each figure is named once, with how it is stored.
//!
//! New columns go to the end: a block says how many a tenant has, and what it lacks is 0.

use justitia_api::{
    AppStatus, Evidence, KnobOwner, KnobStatus, LatencyStatus, Reason, Status, TenantStatus,
};
use justitia_share::PAGE_SIZE;

use super::numbers::{
    ByteRate, Bytes, Codec, Count, EventRate, Exact, Fraction, MaybeBytes, Millis, Seconds, Small,
};

/// A column of the statuses.
pub(super) struct StatusColumn {
    /// The figure of a status.
    pub(super) get: fn(&Status) -> i64,
    /// Puts a figure into a status.
    pub(super) set: fn(&mut Status, i64),
}

/// A column of a tenant.
pub(super) struct TenantColumn {
    /// The figure of a tenant; the number is that of its exemption among the block's texts, 0 for none.
    pub(super) get: fn(&TenantStatus, i64) -> i64,
    /// Puts a figure into a tenant; the block's texts are those that exemptions refer to.
    pub(super) set: fn(&mut TenantStatus, i64, &[String]),
}

/// A column that is a field.
macro_rules! status {
    ($codec:ty, $($field:ident).+) => {
        StatusColumn {
            get: |status| <$codec>::encode(status.$($field).+),
            set: |status, figure| status.$($field).+ = <$codec>::decode(figure),
        }
    };
}

/// The same of a tenant.
macro_rules! tenant {
    ($codec:ty, $field:ident) => {
        TenantColumn {
            get: |tenant, _| <$codec>::encode(tenant.$field),
            set: |tenant, figure, _| tenant.$field = <$codec>::decode(figure),
        }
    };
}

/// The same of a tenant's applications, where they are seen: see [`FLAGS`].
macro_rules! app {
    ($codec:ty, $field:ident) => {
        TenantColumn {
            get: |tenant, _| <$codec>::encode(tenant.app.unwrap_or_default().$field),
            set: |tenant, figure, _| {
                if let Some(app) = &mut tenant.app {
                    app.$field = <$codec>::decode(figure);
                }
            },
        }
    };
}

/// The same of their latencies.
macro_rules! latency {
    ($field:ident) => {
        TenantColumn {
            get: |tenant, _| Small::encode(latency(tenant).$field),
            set: |tenant, figure, _| {
                if let (Some(app), Some(value)) = (&mut tenant.app, Small::decode(figure)) {
                    app.latency.get_or_insert_default().$field = Some(value);
                }
            },
        }
    };
}

fn latency(tenant: &TenantStatus) -> LatencyStatus {
    let app = tenant.app.unwrap_or_default();
    app.latency.unwrap_or_default()
}

/// The statuses' columns.
pub(super) const STATUS: [StatusColumn; 14] = [
    status!(Millis, time),
    status!(Millis, uptime),
    status!(Bytes, memory.total),
    status!(Bytes, memory.free),
    status!(Bytes, memory.free_headroom),
    status!(Bytes, memory.consumption_rate),
    status!(Bytes, memory.cache_divisible),
    status!(Small, pv),
    status!(Small, pv_top),
    status!(Millis, agent_usage.cpu),
    status!(Millis, agent_usage.cpu_loop),
    status!(Bytes, agent_usage.resident),
    status!(Exact, agent_usage.knobs),
    status!(Exact, agent_usage.errors),
];

/// A tenant's columns. Those of applications and of `memory.low` depend on one before them.
pub(super) const TENANT: [TenantColumn; 26] = [
    FLAGS,
    tenant!(Exact, weight),
    tenant!(Bytes, usage),
    tenant!(Bytes, entitlement),
    tenant!(Bytes, protected),
    tenant!(Bytes, minimum),
    tenant!(Seconds, idle),
    EXEMPTION,
    tenant!(Bytes, reclaimed),
    tenant!(Bytes, unreclaimable),
    tenant!(Bytes, other),
    tenant!(Count, refaults),
    tenant!(Small, pv),
    LOW_OWNER,
    LOW,
    app!(ByteRate, read_rate),
    app!(ByteRate, write_rate),
    app!(EventRate, miss_rate),
    app!(Fraction, hit_ratio),
    app!(Fraction, io_stalled),
    latency!(read_p99),
    latency!(write_p99),
    latency!(sync_p99),
    tenant!(Bytes, working_set),
    tenant!(Seconds, observed_for),
    tenant!(MaybeBytes, demand),
];

/// The bit of [`FLAGS`] that says that the tenant exists in this status.
pub(super) const EXISTS: i64 = 1;
const GROWING: i64 = 2;
const BACKLOGGED: i64 = 4;
const HAS_APP: i64 = 8;
const BY_ACCESSES: i64 = 16;
const WORKING_SET_UNKNOWN: i64 = 32;

/// Bits.
const FLAGS: TenantColumn = TenantColumn {
    get: |tenant, _| {
        let flags = [
            (EXISTS, true),
            (GROWING, tenant.growing),
            (BACKLOGGED, tenant.backlogged),
            (HAS_APP, tenant.app.is_some()),
            (BY_ACCESSES, tenant.evidence == Evidence::Accesses),
            (WORKING_SET_UNKNOWN, tenant.working_set_unknown),
        ];
        flags.iter().filter(|(_, on)| *on).map(|(bit, _)| bit).sum()
    },
    set: |tenant, flags, _| {
        let has = |bit: i64| flags & bit != 0;
        tenant.growing = has(GROWING);
        tenant.backlogged = has(BACKLOGGED);
        tenant.app = has(HAS_APP).then(AppStatus::default);
        tenant.working_set_unknown = has(WORKING_SET_UNKNOWN);
        tenant.evidence = if has(BY_ACCESSES) {
            Evidence::Accesses
        } else {
            Evidence::Lists
        };
    },
};

/// Why nothing is reclaimed, as the number of a text.
const EXEMPTION: TenantColumn = TenantColumn {
    get: |_, number| number,
    set: |tenant, number, texts| {
        let index = number.checked_sub(1).and_then(|i| usize::try_from(i).ok());
        let text = index.and_then(|i| texts.get(i));
        tenant.exempt = text.map(|text| Reason::Text(text.clone()));
    },
};

/// Who wrote `memory.low`, the only knob that is recorded.
const LOW_OWNER: TenantColumn = TenantColumn {
    get: |tenant, _| match low(tenant).map(|knob| knob.owner) {
        None => 0,
        Some(KnobOwner::Agent) => 1,
        Some(KnobOwner::Proposed) => 2,
        Some(KnobOwner::External) => 3,
        Some(KnobOwner::GivenUp) => 4,
    },
    set: |tenant, figure, _| {
        let owner = match figure {
            1 => KnobOwner::Agent,
            2 => KnobOwner::Proposed,
            3 => KnobOwner::External,
            4 => KnobOwner::GivenUp,
            _ => return,
        };
        tenant.knobs.push(KnobStatus {
            knob: "memory.low".to_owned(),
            value: String::new(),
            owner,
            original: None,
            reason: None,
        });
    },
};

/// Its value.
const LOW: TenantColumn = TenantColumn {
    get: |tenant, _| {
        let value = low(tenant).and_then(|knob| knob.value.parse().ok());
        Bytes::encode(value.unwrap_or(0))
    },
    set: |tenant, figure, _| {
        if let Some(knob) = tenant.knobs.first_mut() {
            knob.value = (Bytes::decode(figure) / PAGE_SIZE * PAGE_SIZE).to_string();
        }
    },
};

fn low(tenant: &TenantStatus) -> Option<&KnobStatus> {
    tenant.knobs.iter().find(|knob| knob.knob == "memory.low")
}
