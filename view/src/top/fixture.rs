//! Statuses that are made up, the same ones every time: for tests and for measuring.

use justitia_api::{
    Action, AgentUsage, AppStatus, Decision, ExcessReason, KnobOwner, KnobStatus, MemoryStatus,
    ProtectionReason, ReclaimExemption, Rule, Status, TenantStatus, WeightSource,
};
use justitia_share::num::{to_f64, to_u64};

const MIB: u64 = 1 << 20;

/// A machine of `tenants` containers in slices of eight, `second` seconds after the agent's start. Every
/// container's figures move every second, those of a busy one by more.
#[must_use]
pub fn status(tenants: usize, second: usize) -> Status {
    let now = to_f64(u64::try_from(second).unwrap_or(0));
    let mut all = Vec::new();
    let mut slice = 0;
    for n in 0..tenants {
        if n % 8 == 0 {
            slice = all.len();
            all.push(TenantStatus {
                path: format!("slice{}.slice", n / 8),
                id: 1_000_000 + u64::try_from(n).unwrap_or(0),
                weight: 100,
                ..TenantStatus::default()
            });
        }
        let leaf = container(n, slice, now);
        if let Some(parent) = all.get_mut(slice) {
            add(parent, &leaf);
            parent.pv = Some(0.2 + 0.1 * (now / 7.0).sin());
        }
        all.push(leaf);
    }
    all.push(TenantStatus {
        path: "-".to_owned(),
        working_set_unknown: true,
        weight: 100,
        leaf: true,
        usage: 40 * MIB,
        entitlement: 60 * MIB,
        idle: now,
        ..TenantStatus::default()
    });
    let busy = all.iter().filter(|t| t.backlogged && t.leaf);
    let decisions = busy.map(|t| reclaim(t, now));
    Status {
        version: "0.1.0".to_owned(),
        uptime: now,
        time: 1_800_000_000.0 + now,
        window: 10.0,
        pv: Some(0.23),
        pv_top: Some(0.2),
        memory: MemoryStatus {
            total: 4096 * MIB,
            free: wave(64.0, now, 3.0) * MIB,
            free_headroom: 16 * MIB,
            consumption_rate: 0,
            cache_divisible: 2048 * MIB,
            ..MemoryStatus::default()
        },
        decisions: decisions.take(1000).collect(),
        tenants: all,
        agent_usage: AgentUsage {
            cpu: 0.004 * now,
            cpu_loop: 0.003 * now,
            resident: 12 * MIB,
            ..AgentUsage::default()
        },
        ..Status::default()
    }
}

/// Adds a container's figures to its slice's.
fn add(parent: &mut TenantStatus, leaf: &TenantStatus) {
    parent.usage += leaf.usage;
    parent.entitlement += leaf.entitlement;
    parent.protected += leaf.protected;
    parent.working_set += leaf.working_set;
    parent.backlogged |= leaf.backlogged;
    let sum = parent.app.get_or_insert_default();
    sum.read_rate += leaf.app.unwrap_or_default().read_rate;
    sum.write_rate += leaf.app.unwrap_or_default().write_rate;
}

fn reclaim(tenant: &TenantStatus, now: f64) -> Decision {
    Decision {
        at: now - 1.0,
        since: now - 4.0,
        path: tenant.path.clone(),
        action: Action::Reclaim {
            bytes: (1000 + tenant.usage % 999) << 10,
        },
        steps: 4,
        dry_run: false,
        reason: Rule::Excess(ExcessReason {
            usage: 300 * MIB,
            entitlement: 100 * MIB,
            orphaned: false,
            free: 10 * MIB,
            free_headroom: 16 * MIB,
        })
        .into(),
    }
}

/// Around `middle`, a little up and down.
fn wave(middle: f64, now: f64, period: f64) -> u64 {
    to_u64(middle * (1.0 + 0.05 * (now / period).sin()))
}

fn container(n: usize, parent: usize, now: f64) -> TenantStatus {
    const NAMES: [&str; 8] = [
        "db", "web", "batch", "mail", "search", "backup", "cache", "ci",
    ];
    let id = u64::try_from(n).unwrap_or(0) + 1;
    let kind = n % 8;
    // Three of eight are busy, as much as a tenant can be: everything about them moves each second.
    let busy = kind < 3;
    let noise = noise(id, now);
    let jitter = if busy {
        1.0 + to_f64(noise) / 2000.0
    } else {
        1.0
    };
    let weight = 100 << (kind % 4);
    let usage = if busy {
        to_u64(to_f64(wave(200.0, now + to_f64(id), 5.0) * MIB) * jitter)
    } else {
        (30 + id % 50) * MIB
    };
    let entitled = to_u64(to_f64(180 * MIB) * to_f64(weight) / 400.0);
    let rate = if busy {
        to_f64(weight * MIB) / 20.0 * jitter
    } else {
        0.0
    };
    let name = NAMES.get(kind).copied().unwrap_or_default();
    TenantStatus {
        path: format!("slice{}.slice/docker-{id:04}-{name}.scope", n / 8),
        id,
        parent: Some(parent),
        weight,
        weight_source: WeightSource::Cgroup,
        leaf: true,
        usage,
        entitlement: entitled,
        protected: entitled.min(usage),
        idle: if busy { 0.0 } else { now },
        working_set: if busy { usage / 4 * 3 } else { 0 },
        observed_for: now,
        growing: busy,
        exempt: (kind == 2).then(|| ReclaimExemption::NoProgress.into()),
        reclaimed: if busy { to_u64(now * rate / 100.0) } else { 0 },
        other: 20 * MIB,
        refaults: if busy {
            to_u64(now * 120.0 * jitter)
        } else {
            7
        },
        app: Some(AppStatus {
            read_rate: rate,
            write_rate: rate / 4.0,
            miss_rate: rate / 40_000.0,
            hit_ratio: busy.then(|| 1.0 - to_f64(noise) / 4000.0),
            io_stalled: Some(if busy { 0.5 } else { 0.0 }),
            ..AppStatus::default()
        }),
        backlogged: busy,
        knobs: vec![memory_low(entitled)],
        ..TenantStatus::default()
    }
}

/// From 0 to 999, another each second.
fn noise(id: u64, now: f64) -> u64 {
    let product = id.wrapping_mul(2_654_435_761);
    product.wrapping_add(to_u64(now) * 40_503) % 1000
}

fn memory_low(bytes: u64) -> KnobStatus {
    KnobStatus {
        knob: "memory.low".to_owned(),
        value: (bytes / 4096 * 4096).to_string(),
        owner: KnobOwner::Agent,
        original: Some("0".to_owned()),
        reason: Some(
            Rule::Protection(ProtectionReason {
                protected: 180 * MIB,
                other: 20 * MIB,
            })
            .into(),
        ),
    }
}
