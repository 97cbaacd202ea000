//! Statuses as columns of small numbers.

use std::collections::HashMap;

use justitia_api::{
    AgentUsage, AppStatus, Decision, DemandModel, Evidence, ExternalKnob, KnobOwner, KnobStatus,
    LatencyStatus, MemoryStatus, Reason, Status, TenantStatus, WeightSource,
};
use justitia_share::num::{to_f64, to_u64};
use serde::{Deserialize, Serialize};

/// Steps to a doubling: neighbours are 1.1 % apart.
const STEPS: f64 = 64.0;
/// The amount from which on the precision holds, bytes.
const PAGE: f64 = 4096.0;
/// Figures of a status.
const OF_ALL: usize = 14;
/// Figures of a tenant.
const OF_ONE: usize = 26;
/// As many of them had the first recordings, which do not say how many they have. What a recording lacks is 0.
const AT_LEAST: usize = 23;
/// A recording of a later version may have so many. What is not known here is passed over.
const AT_MOST: usize = 100;

/// Tenants of a block. The agent tells 10,000 cgroups apart; in a minute some may have come and gone.
const MOST_TENANTS: usize = 50_000;

/// What a block says once is at most this long, bytes: an answer of the agent is half of it.
const MOST_SAID: usize = 32 << 20;

/// What a block says once.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Once {
    version: String,
    /// Figures of a tenant.
    #[serde(default = "at_least")]
    figures: usize,
    #[serde(default)]
    demand: DemandModel,
    observe: bool,
    window: f64,
    tenants: Vec<Name>,
    strings: Vec<String>,
    decisions: Vec<Decision>,
    #[serde(alias = "yielded")]
    external: Vec<ExternalKnob>,
    #[serde(alias = "limits")]
    limitations: Vec<String>,
    #[serde(alias = "blind")]
    app_io_unavailable: Option<String>,
}

const fn at_least() -> usize {
    AT_LEAST
}

#[derive(Debug, Serialize, Deserialize)]
struct Name {
    path: String,
    id: u64,
    parent: Option<usize>,
    leaf: bool,
    from: WeightSource,
}

/// A block in the making.
#[derive(Debug, Default)]
pub struct Columns {
    once: Once,
    places: HashMap<(u64, String), usize>,
    strings: HashMap<String, i64>,
    all: Vec<[i64; OF_ALL]>,
    /// By tenant: figures by status, and the first status that has them.
    ones: Vec<(usize, Vec<[i64; OF_ONE]>)>,
}

impl Columns {
    /// How many statuses there are.
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a block should hold no more: it has as many statuses as it may, or half as many tenants, or figures (of a
    /// byte or two each) that take half of its length.
    pub fn is_full(&self) -> bool {
        let rows: usize = self.ones.iter().map(|(_, rows)| rows.len()).sum();
        self.len() >= super::BLOCK
            || self.ones.len() > MOST_TENANTS / 2
            || rows * OF_ONE > super::LARGEST / 4
    }

    /// Adds a status; `told` is the last decision that an earlier block has, seconds since the agent's start.
    pub fn push(&mut self, status: &Status, told: f64) {
        let at = self.all.len();
        self.all.push(of_all(status));
        self.once.version.clone_from(&status.version);
        self.once.figures = OF_ONE;
        self.once.demand = status.demand;
        self.once.observe = status.observe;
        self.once.window = status.window;
        self.once.external.clone_from(&status.external);
        self.once.limitations.clone_from(&status.limitations);
        self.once
            .app_io_unavailable
            .clone_from(&status.app_io_unavailable);
        let news = status.decisions.iter().filter(|d| d.at > told);
        self.once.decisions = news.cloned().collect();
        let mut places: Vec<usize> = Vec::with_capacity(status.tenants.len());
        for tenant in &status.tenants {
            let key = (tenant.id, tenant.path.clone());
            let place = *self.places.entry(key).or_insert_with(|| {
                self.once.tenants.push(Name {
                    path: tenant.path.clone(),
                    id: tenant.id,
                    parent: tenant.parent.and_then(|p| places.get(p).copied()),
                    leaf: tenant.leaf,
                    from: tenant.weight_source,
                });
                self.ones.push((at, Vec::new()));
                self.ones.len() - 1
            });
            places.push(place);
            let spared = tenant.exempt.as_ref().map_or(0, |why| {
                let next = i64::try_from(self.strings.len()).unwrap_or(0) + 1;
                let mut kept = why.to_string();
                while kept.len() > REASON {
                    kept.pop();
                }
                *self.strings.entry(kept.clone()).or_insert_with(|| {
                    self.once.strings.push(kept);
                    next
                })
            });
            let figures = of_one(tenant, spared);
            if let Some((first, rows)) = self.ones.get_mut(place) {
                // Absent meanwhile: as before, and not there.
                while *first + rows.len() < at {
                    let mut gone = rows.last().copied().unwrap_or_default();
                    gone[0] = 0;
                    rows.push(gone);
                }
                rows.push(figures);
            }
        }
    }

    /// The block's payload, not yet compressed.
    pub fn bytes(&self) -> Vec<u8> {
        let once = serde_json::to_vec(&self.once).unwrap_or_default();
        let mut out = Vec::new();
        put(&mut out, count(once.len()));
        out.extend(once);
        put(&mut out, count(self.all.len()));
        for column in 0..OF_ALL {
            let figures = self.all.iter().map(|row| row[column]);
            changes(&mut out, figures);
        }
        for (first, rows) in &self.ones {
            put(&mut out, count(*first));
            put(&mut out, count(rows.len()));
        }
        for column in 0..OF_ONE {
            for (_, rows) in &self.ones {
                changes(&mut out, rows.iter().map(|row| row[column]));
            }
        }
        out
    }
}

/// The longest reason that a tenant is spared, bytes: each of many tenants may have the same.
const REASON: usize = 512;

/// What a payload says, as columns: a status of it is made when it is wanted.
#[derive(Debug)]
pub struct Columned {
    once: Once,
    all: Vec<[i64; OF_ALL]>,
    /// By tenant: the first status that has it, and its figures from then on.
    ones: Vec<(usize, Vec<[i64; OF_ONE]>)>,
}

impl Columned {
    /// Reads a payload. What it takes in memory is bounded by the payload's own length, whatever it says.
    ///
    /// # Errors
    /// What was expected where it holds something else.
    pub fn read(payload: &[u8]) -> Result<Self, &'static str> {
        let mut from = payload;
        let length = size(&mut from)?;
        if length > MOST_SAID {
            return Err("names of at most 32 MiB");
        }
        let once = from.get(..length).ok_or("the names' length")?;
        from = &from[length..];
        let once: Once = serde_json::from_slice(once).map_err(|_| "names")?;
        if once.tenants.len() > MOST_TENANTS {
            return Err("at most 50,000 tenants");
        }
        if !(AT_LEAST..=AT_MOST).contains(&once.figures) {
            return Err("23 to 100 figures of a tenant");
        }
        if once.strings.iter().any(|why| why.len() > REASON) {
            return Err("reasons of at most 512 bytes");
        }
        let length = size(&mut from)?;
        if length > super::BLOCK {
            return Err("at most 60 statuses");
        }
        let mut all = vec![[0; OF_ALL]; length];
        for column in 0..OF_ALL {
            let mut last = 0i64;
            for row in &mut all {
                last = last.wrapping_add(get(&mut from)?);
                row[column] = last;
            }
        }
        let mut spans: Vec<(usize, usize)> = Vec::with_capacity(once.tenants.len());
        for name in &once.tenants {
            let (first, rows) = (size(&mut from)?, size(&mut from)?);
            let whole = first.checked_add(rows).is_some_and(|end| end <= length);
            if !whole || name.parent.is_some_and(|p| p >= spans.len()) {
                return Err("tenants, parents first, within the block");
            }
            spans.push((first, rows));
        }
        let rows: usize = spans.iter().map(|(_, rows)| rows).sum();
        // A figure takes a byte at least: before there is room for them, they must be there.
        if rows * once.figures > from.len() {
            return Err("more figures");
        }
        let mut ones: Vec<(usize, Vec<[i64; OF_ONE]>)> = spans
            .into_iter()
            .map(|(first, rows)| (first, vec![[0; OF_ONE]; rows]))
            .collect();
        for column in 0..once.figures {
            for (_, rows) in &mut ones {
                let mut last = 0i64;
                for row in rows {
                    last = last.wrapping_add(get(&mut from)?);
                    if let Some(figure) = row.get_mut(column) {
                        *figure = last;
                    }
                }
            }
        }
        Ok(Self { once, all, ones })
    }

    /// When the status at `at` was told, seconds since 1970.
    pub fn time(&self, at: usize) -> Option<f64> {
        self.all.get(at).map(time)
    }

    /// The status at `at`, if there are so many.
    pub fn status(&self, at: usize) -> Option<Status> {
        let all = self.all.get(at)?;
        let mut places: Vec<Option<usize>> = Vec::with_capacity(self.ones.len());
        let mut tenants = Vec::new();
        // What is outside is last, whenever its name came.
        let (outside, inside): (Vec<_>, Vec<_>) = self
            .once
            .tenants
            .iter()
            .zip(&self.ones)
            .partition(|(name, _)| name.id == 0);
        for (name, (first, rows)) in inside.into_iter().chain(outside) {
            let row = at.checked_sub(*first).and_then(|at| rows.get(at));
            let parent = name.parent.map(|p| places.get(p).copied().flatten());
            let there = row.filter(|row| row[0] & 1 == 1 && parent != Some(None));
            places.push(there.map(|_| tenants.len()));
            if let Some(row) = there {
                tenants.push(TenantStatus {
                    path: name.path.clone(),
                    id: name.id,
                    parent: parent.flatten(),
                    leaf: name.leaf,
                    weight_source: name.from,
                    ..tenant(row, &self.once.strings)
                });
            }
        }
        let time = time(all);
        let uptime = to_f64(all[1].unsigned_abs()) / 1000.0;
        let told = |d: &&Decision| d.at <= uptime;
        Some(Status {
            demand: self.once.demand,
            status_version: justitia_api::STATUS_VERSION,
            version: self.once.version.clone(),
            observe: self.once.observe,
            window: self.once.window,
            app_io_unavailable: self.once.app_io_unavailable.clone(),
            time,
            uptime,
            memory: MemoryStatus {
                total: amount(all[2]),
                free: amount(all[3]),
                free_headroom: amount(all[4]),
                consumption_rate: amount(all[5]),
                cache_divisible: amount(all[6]),
            },
            pv: maybe(all[7]),
            pv_top: maybe(all[8]),
            agent_usage: AgentUsage {
                cpu: to_f64(all[9].unsigned_abs()) / 1000.0,
                cpu_loop: to_f64(all[10].unsigned_abs()) / 1000.0,
                resident: amount(all[11]),
                knobs: all[12].unsigned_abs(),
                reclaimed: 0,
                errors: all[13].unsigned_abs(),
            },
            tenants,
            external: self.once.external.clone(),
            decisions: self.once.decisions.iter().filter(told).cloned().collect(),
            limitations: self.once.limitations.clone(),
            // `limits` say what was lost.
            probe_drops: Vec::new(),
        })
    }
}

fn time(all: &[i64; OF_ALL]) -> f64 {
    to_f64(all[0].unsigned_abs()) / 1000.0
}

fn of_all(status: &Status) -> [i64; OF_ALL] {
    let (memory, cost) = (&status.memory, &status.agent_usage);
    [
        millis(status.time),
        millis(status.uptime),
        step(memory.total),
        step(memory.free),
        step(memory.free_headroom),
        step(memory.consumption_rate),
        step(memory.cache_divisible),
        some(status.pv),
        some(status.pv_top),
        millis(cost.cpu),
        millis(cost.cpu_loop),
        step(cost.resident),
        count(usize::try_from(cost.knobs).unwrap_or(usize::MAX)),
        count(usize::try_from(cost.errors).unwrap_or(usize::MAX)),
    ]
}

/// The first figure is a set of flags: there, growing, contends, applications seen, use known by accesses.
fn of_one(tenant: &TenantStatus, spared: i64) -> [i64; OF_ONE] {
    let flags = [
        true,
        tenant.growing,
        tenant.backlogged,
        tenant.app.is_some(),
        tenant.evidence == Evidence::Accesses,
    ];
    let flags = (0u32..)
        .zip(flags)
        .map(|(bit, on)| i64::from(on) << bit)
        .sum();
    let app = tenant.app.unwrap_or_default();
    let latency = app.latency.unwrap_or_default();
    let low = tenant.knobs.iter().find(|k| k.knob == "memory.low");
    let holder = low.map_or(0, |k| match k.owner {
        KnobOwner::Agent => 1,
        KnobOwner::Proposed => 2,
        KnobOwner::External => 3,
    });
    let stands = low.and_then(|k| k.value.parse().ok()).unwrap_or(0);
    [
        flags,
        i64::try_from(tenant.weight).unwrap_or(0),
        step(tenant.usage),
        step(tenant.entitlement),
        step(tenant.protected),
        step(tenant.floor),
        stepped(tenant.idle, 1.0),
        spared,
        step(tenant.reclaimed),
        step(tenant.unreclaimable),
        step(tenant.other),
        stepped(to_f64(tenant.refaults), 1.0),
        some(tenant.pv),
        holder,
        step(stands),
        stepped(app.read_rate, PAGE),
        stepped(app.write_rate, PAGE),
        stepped(app.miss_rate, 0.1),
        part(app.hit_ratio),
        part(app.io_stalled),
        some(latency.read_p99),
        some(latency.write_p99),
        some(latency.sync_p99),
        step(tenant.working_set),
        stepped(tenant.observed_for, 1.0),
        tenant.demand.map_or(0, |demand| 1 + step(demand)),
    ]
}

fn tenant(row: &[i64; OF_ONE], strings: &[String]) -> TenantStatus {
    let by = match row[13] {
        1 => Some(KnobOwner::Agent),
        2 => Some(KnobOwner::Proposed),
        3 => Some(KnobOwner::External),
        _ => None,
    };
    let low = by.map(|by| KnobStatus {
        knob: "memory.low".to_owned(),
        value: (amount(row[14]) / 4096 * 4096).to_string(),
        owner: by,
        original: None,
        reason: None,
    });
    let latency = LatencyStatus {
        read_p99: maybe(row[20]),
        write_p99: maybe(row[21]),
        sync_p99: maybe(row[22]),
        ..LatencyStatus::default()
    };
    let app = AppStatus {
        read_rate: unstepped(row[15], PAGE),
        write_rate: unstepped(row[16], PAGE),
        miss_rate: unstepped(row[17], 0.1),
        hit_ratio: unpart(row[18]),
        io_stalled: unpart(row[19]),
        latency: (latency != LatencyStatus::default()).then_some(latency),
        ..AppStatus::default()
    };
    let spared = row[7].checked_sub(1).and_then(|i| usize::try_from(i).ok());
    let by = if row[0] & 16 != 0 {
        Evidence::Accesses
    } else {
        Evidence::Lists
    };
    TenantStatus {
        growing: row[0] & 2 != 0,
        backlogged: row[0] & 4 != 0,
        app: (row[0] & 8 != 0).then_some(app),
        weight: row[1].unsigned_abs(),
        usage: amount(row[2]),
        entitlement: amount(row[3]),
        protected: amount(row[4]),
        floor: amount(row[5]),
        idle: unstepped(row[6], 1.0),
        exempt: spared
            .and_then(|i| strings.get(i))
            .map(|why| Reason::Text(why.clone())),
        reclaimed: amount(row[8]),
        unreclaimable: amount(row[9]),
        other: amount(row[10]),
        refaults: to_u64(unstepped(row[11], 1.0)),
        pv: maybe(row[12]),
        working_set: amount(row[23]),
        evidence: by,
        observed_for: unstepped(row[24], 1.0),
        demand: (row[25] > 0).then(|| amount(row[25] - 1)),
        knobs: low.into_iter().collect(),
        ..TenantStatus::default()
    }
}

/// The step on a logarithmic scale; 0 stays 0, `base` is where it begins to be logarithmic.
fn stepped(value: f64, base: f64) -> i64 {
    let step = to_u64(STEPS * (1.0 + value.max(0.0) / base).log2());
    i64::try_from(step).unwrap_or(0)
}

fn unstepped(step: i64, base: f64) -> f64 {
    base * ((to_f64(step.unsigned_abs()) / STEPS).exp2() - 1.0)
}

fn step(amount: u64) -> i64 {
    stepped(to_f64(amount), PAGE)
}

fn amount(step: i64) -> u64 {
    to_u64(unstepped(step, PAGE))
}

/// A small number that may be missing: 0 says so.
fn some(value: Option<f64>) -> i64 {
    value.map_or(0, |v| 1 + stepped(v, 1e-5))
}

fn maybe(step: i64) -> Option<f64> {
    (step > 0).then(|| unstepped(step - 1, 1e-5))
}

/// A part, 0 to 1, in steps of half a percent.
fn part(value: Option<f64>) -> i64 {
    value.map_or(0, |v| {
        1 + i64::try_from(to_u64(200.0 * v.clamp(0.0, 1.0))).unwrap_or(0)
    })
}

fn unpart(step: i64) -> Option<f64> {
    (step > 0).then(|| to_f64(step.unsigned_abs() - 1) / 200.0)
}

fn millis(seconds: f64) -> i64 {
    i64::try_from(to_u64(seconds * 1000.0)).unwrap_or(0)
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A column: the first figure, then changes.
fn changes(out: &mut Vec<u8>, figures: impl Iterator<Item = i64>) {
    let mut last = 0i64;
    for figure in figures {
        put(out, figure.wrapping_sub(last));
        last = figure;
    }
}

/// Seven bits a byte, small numbers of either sign short.
fn put(out: &mut Vec<u8>, value: i64) {
    let mut rest = (value << 1 ^ value >> 63).cast_unsigned();
    while rest >= 128 {
        out.push(u8::try_from(rest & 127).unwrap_or(0) | 128);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or(0));
}

fn get(from: &mut &[u8]) -> Result<i64, &'static str> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first().ok_or("more figures")?;
        *from = rest;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
    }
    Err("figures of at most ten bytes")
}

fn size(from: &mut &[u8]) -> Result<usize, &'static str> {
    usize::try_from(get(from)?).map_err(|_| "a number of things")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for value in [0, 1, -1, 63, 64, -64, -65, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(get(&mut out.as_slice()), Ok(value));
        }
        assert!(get(&mut &[255u8; 20][..]).is_err());
        assert!(get(&mut &[][..]).is_err());
    }

    #[test]
    fn amounts_come_back_within_their_precision() {
        for n in 13..60 {
            let x = (1u64 << n) + 12_345;
            let back = amount(step(x));
            assert!(
                to_f64(back.abs_diff(x)) < 0.006 * to_f64(x + 4096),
                "{x} {back}"
            );
        }
        assert_eq!(amount(step(0)), 0);
        assert_eq!((maybe(some(None)), unpart(part(None))), (None, None));
        assert_eq!(unpart(part(Some(1.0))), Some(1.0));
        assert!((maybe(some(Some(0.25))).unwrap() - 0.25).abs() < 0.003);
    }
}
