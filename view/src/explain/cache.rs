//! What a tenant holds of the page cache, what it is entitled to, and what would be reclaimed from it.

use justitia_api::units::{bytes, seconds};
use justitia_api::{DemandModel, EstimateBasis, MemoryStatus, Status, TenantStatus};
use justitia_share::num::to_f64;
use std::fmt::Write;

pub(super) fn entitlement(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let of = match tenant.parent.and_then(|p| status.tenants.get(p)) {
        Some(parent) => format!("the {} of {}", bytes(parent.entitlement), parent.path),
        None => format!(
            "{} ({})",
            bytes(status.memory.cache_divisible),
            divided(&status.memory)
        ),
    };
    let over = tenant.usage.saturating_sub(tenant.entitlement);
    let _ = writeln!(
        out,
        "\nPage cache: holds {}, entitled to {} of {of}",
        bytes(tenant.usage),
        bytes(tenant.entitlement)
    );
    let _ = writeln!(
        out,
        "  rule: a cgroup's entitlement is divided by weight among its children that demand page cache; what one does \
         not demand goes to its siblings"
    );
    if tenant.slab > 0 || tenant.mapped > 0 {
        let slab_cap = status.memory.slab_cap.map(|cap| {
            let held = bytes(status.memory.slab);
            format!(" (all hold {held}, the cap is {})", bytes(cap))
        });
        let _ = writeln!(
            out,
            "  of that {} are mapped, and {} are reclaimable slab{}",
            bytes(tenant.mapped),
            bytes(tenant.slab),
            slab_cap.unwrap_or_default()
        );
    }
    if let Some(part) = part_of_siblings(status, tenant) {
        let _ = writeln!(out, "  now: {part}");
    }
    let demand = demand(status, tenant);
    let _ = writeln!(out, "  {demand}");
    if over > 0 && tenant.leaf {
        let _ = writeln!(
            out,
            "  {} above its entitlement: this excess is reclaimed when memory is short, before anybody's entitlement",
            bytes(over)
        );
    }
    if tenant.minimum > 0 {
        let _ = writeln!(
            out,
            "  the agent reclaims nothing below its minimum of {}",
            bytes(tenant.minimum)
        );
    }
}

/// What of the memory is divided.
fn divided(memory: &MemoryStatus) -> String {
    match memory.unmapped_cap {
        None => "all file pages, and the free memory above the headroom".to_owned(),
        Some(cap) => format!(
            "all file pages, and the free memory above the headroom, but of what no process has mapped {} at most: it holds \
             {}",
            bytes(cap),
            bytes(memory.unmapped)
        ),
    }
}

/// What a tenant demands: its working set, then the rest.
fn demand(status: &Status, tenant: &TenantStatus) -> String {
    if !tenant.leaf {
        return "demand: that of its children".to_owned();
    }
    let unsure = tenant.observed_for < status.policy.min_observation;
    let rest = match (tenant.growing, status.demand_model, unsure) {
        (true, ..) => "its cache grows, so it demands all that it can get",
        (false, DemandModel::Use, false) => {
            "its cache does not grow, so it demands no more than that"
        }
        (false, ..) => "its cache does not grow, so it demands no more than it holds",
    };
    if status.demand_model == DemandModel::Usage {
        return rest.to_owned();
    }
    if tenant.path == "-" {
        return format!(
            "accesses of what runs in no managed cgroup are not seen. While its cache grows, and for two minutes after, its \
             share by weight is divided first: {}\n  the rest, divided second: {rest}",
            bytes(tenant.working_set)
        );
    }
    if tenant.working_set_unknown {
        return format!(
            "working set: not known; its accesses are not sampled, and the kernel's lists do not tell. What its processes \
             have mapped is divided first: {}\n  the rest, divided second: {rest}",
            bytes(tenant.working_set)
        );
    }
    let by = match tenant.evidence {
        EstimateBasis::Accesses => format!(
            "from its sampled accesses of the last {}",
            seconds(tenant.observed_for.min(600.0))
        ),
        // They have no window: what they show is as of now.
        EstimateBasis::Lists if tenant.idle < 1.0 => "from the kernel's LRU lists".to_owned(),
        EstimateBasis::Lists => format!(
            "from the kernel's LRU lists; idle for {}",
            seconds(tenant.idle)
        ),
    };
    format!(
        "working set, divided first: {} ({by})\n  the rest, divided second: {rest}",
        bytes(tenant.working_set),
    )
}

/// What is reclaimed from it, and when.
pub(super) fn taking(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let memory = &status.memory;
    let _ = writeln!(
        out,
        "\nReclaim: {} by the agent so far",
        bytes(tenant.reclaimed)
    );
    let keep = tenant
        .entitlement
        .max(tenant.minimum)
        .max(tenant.unreclaimable);
    let over = tenant.usage.saturating_sub(keep);
    let over_cap = memory.unmapped_cap.is_some_and(|cap| memory.unmapped > cap);
    let short = memory.free < memory.free_headroom || over_cap;
    let _ = writeln!(
        out,
        "  rule: when free memory (now {}) falls below the headroom (now {}), the agent reclaims clean file pages from \
         tenants above their entitlement, in proportion to their excess",
        bytes(memory.free),
        bytes(memory.free_headroom)
    );
    capped(out, memory);
    let now = if !tenant.leaf {
        "it is an inner node: of its orphaned pages, which no child is charged for, all are excess; its children have \
         excesses of their own"
            .to_owned()
    } else if let Some(why) = &tenant.exempt {
        format!("nothing is reclaimed from it now: {why}")
    } else if over == 0 {
        let why = if tenant.usage == 0 {
            "nothing".to_owned()
        } else if tenant.usage <= tenant.entitlement {
            format!(
                "no more than its entitlement ({})",
                bytes(tenant.entitlement)
            )
        } else if tenant.usage <= tenant.minimum {
            format!("no more than its minimum ({})", bytes(tenant.minimum))
        } else {
            format!(
                "no more than its dirty pages and those under writeback ({})",
                bytes(tenant.unreclaimable)
            )
        };
        format!("nothing is reclaimed from it: it holds {why}")
    } else if short {
        format!("up to {} can be reclaimed from it now", bytes(over))
    } else {
        format!(
            "nothing is reclaimed now; up to {} when memory is short",
            bytes(over)
        )
    };
    let _ = writeln!(out, "  {now}");
}

/// When reclaim begins though memory is free.
fn capped(out: &mut String, memory: &MemoryStatus) {
    if let Some(cap) = memory.unmapped_cap {
        let _ = writeln!(
            out,
            "  so it does when more than {} of file pages are mapped by no process (now {}); what it asks for never exceeds \
             those. By memory.reclaim: which of a tenant's pages go the kernel's LRU decides, so mapped ones may be among \
             them",
            bytes(cap),
            bytes(memory.unmapped)
        );
    }
}

// How a tenant's entitlement follows from its siblings'.

/// Siblings that are named, at most.
const NAMED: usize = 3;
/// Two that are this near to the same share by weight have the same.
const NEAR: f64 = 0.01;

/// How its entitlement is recomputed; `None` where there is nothing to divide.
fn part_of_siblings(status: &Status, tenant: &TenantStatus) -> Option<String> {
    let division = Division::of(status, tenant)?;
    if division.in_use < division.used && !division.fits {
        return Some(division.with_resting(tenant));
    }
    let Some(level) = division.level(status) else {
        return (division.all > 0 && division.siblings.len() > 1).then(|| {
            "none of these children demands more than it holds: each gets that if all fits, and the rest is divided by \
             weight"
                .to_owned()
        });
    };
    if level <= 0.0 {
        return None;
    }
    if !division.is_at(level, tenant) {
        return Some(if division.by_weight(tenant) < level {
            "that is all it demands; its weight would give it more".to_owned()
        } else {
            "its minimum, or its dirty pages, are more than its weight would give it".to_owned()
        });
    }
    Some(division.in_words(level, tenant))
}

/// How a parent's cache is divided among its children.
struct Division<'a> {
    /// The children, each with its position among all tenants.
    siblings: Vec<(usize, &'a TenantStatus)>,
    /// What is divided, bytes.
    all: u64,
    /// The working sets of the children together, bytes.
    used: u64,
    /// The part of that which is in use now.
    in_use: u64,
    /// Whether that fits: then each has what it uses first, and only the rest is divided by weight.
    fits: bool,
}

impl<'a> Division<'a> {
    /// That which a tenant has part in.
    fn of(status: &'a Status, tenant: &TenantStatus) -> Option<Self> {
        let siblings: Vec<(usize, &TenantStatus)> = status
            .tenants
            .iter()
            .enumerate()
            .filter(|(_, t)| t.parent == tenant.parent)
            .collect();
        let all = match tenant.parent {
            Some(parent) => status.tenants.get(parent)?.entitlement,
            None => status.memory.cache_divisible,
        };
        let used = siblings.iter().map(|(_, t)| t.working_set).sum();
        let in_use = siblings.iter().map(|(i, _)| in_use(status, *i)).sum();
        Some(Self {
            siblings,
            all,
            used,
            in_use,
            fits: used <= all,
        })
    }

    /// Where the working sets do not all fit, and some tenants rest, in words.
    fn with_resting(&self, tenant: &TenantStatus) -> String {
        let what = format!(
            "the working sets of {} in all do not fit, those in use of {} come first: ",
            bytes(self.used),
            bytes(self.in_use)
        );
        if tenant.leaf && tenant.rests() {
            format!(
                "{what}it has not used its set for {}, so it gets what they leave",
                seconds(tenant.idle)
            )
        } else if tenant.working_set == 0 {
            format!("{what}nothing is left for what is read once")
        } else if self.in_use <= self.all {
            format!("{what}they fit, so it gets what it uses")
        } else {
            format!("{what}it gets its part of them by weight")
        }
    }

    /// What a tenant gets by weight, bytes.
    fn rest(&self, tenant: &TenantStatus) -> u64 {
        let first = if self.fits { tenant.working_set } else { 0 };
        tenant.entitlement.saturating_sub(first)
    }

    /// That per unit of weight.
    fn by_weight(&self, tenant: &TenantStatus) -> f64 {
        to_f64(self.rest(tenant)) / to_f64(tenant.weight.max(1))
    }

    fn wants(&self, status: &Status, index: usize, tenant: &TenantStatus) -> bool {
        if self.fits {
            wants_all(status, index)
        } else {
            tenant.working_set > tenant.entitlement
        }
    }

    /// What a sibling that wants all it can get has per unit of weight; `None` if there is none. Of those that want all, none
    /// has less than another, unless that has a minimum.
    fn level(&self, status: &Status) -> Option<f64> {
        self.siblings
            .iter()
            .filter(|(i, t)| self.wants(status, *i, t))
            .map(|(_, t)| self.by_weight(t))
            .reduce(f64::min)
    }

    fn is_at(&self, level: f64, tenant: &TenantStatus) -> bool {
        (self.by_weight(tenant) / level - 1.0).abs() <= NEAR
    }

    /// The part of a tenant that is at the level, in words.
    fn in_words(&self, level: f64, tenant: &TenantStatus) -> String {
        let (sharing, others): (Vec<&TenantStatus>, Vec<_>) = self
            .siblings
            .iter()
            .map(|(_, t)| *t)
            .partition(|t| self.is_at(level, t));
        let weigh: u64 = sharing.iter().map(|t| t.weight).sum();
        let gone: u64 = others.iter().map(|t| self.rest(t)).sum();
        let left = self
            .all
            .saturating_sub(if self.fits { self.used } else { 0 });
        let first = match (self.used, self.fits) {
            (0, _) => String::new(),
            (used, true) => format!(
                "the working sets of {} in all fit: it gets its own of {}, and of the rest ",
                bytes(used),
                bytes(tenant.working_set)
            ),
            (used, false) => format!(
                "the working sets of {} in all do not fit: it gets ",
                bytes(used)
            ),
        };
        let demand = if self.fits {
            "demand"
        } else {
            "have a working set of"
        };
        format!(
            "{first}{}/{weigh} of {}; {weigh} is the weight of those that {demand} at least their share{}",
            tenant.weight,
            bytes(left.saturating_sub(gone)),
            others_in_words(&others)
        )
    }
}

/// What a tenant, and those below it, have in use of their working sets, bytes.
fn in_use(status: &Status, index: usize) -> u64 {
    let leaves = leaves_below(status, index);
    leaves.map(TenantStatus::in_use).sum()
}

/// Siblings that get less or more than by weight.
fn others_in_words(others: &[&TenantStatus]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let name = |t: &&TenantStatus| {
        let name = t.display_name();
        let name = match t.name.is_empty() {
            true => name.rsplit('/').next().unwrap_or_default(),
            false => &name,
        };
        format!("{name} {}", bytes(t.entitlement))
    };
    let named: Vec<String> = others.iter().take(NAMED).map(name).collect();
    let more = match others.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("; the others get {}{more}", named.join(", "))
}

/// Whether a tenant, or one below it, wants all it can get.
fn wants_all(status: &Status, index: usize) -> bool {
    leaves_below(status, index).any(|tenant| tenant.growing)
}

/// The leaves below a tenant; itself, if it is one.
fn leaves_below(status: &Status, index: usize) -> impl Iterator<Item = &TenantStatus> {
    let below = move |mut at: usize| {
        loop {
            if at == index {
                return true;
            }
            // Parents stand before their children.
            match status.tenants.get(at).and_then(|t| t.parent) {
                Some(parent) if parent < at => at = parent,
                _ => return false,
            }
        }
    };
    let leaves = status.tenants.iter().enumerate().filter(|(_, t)| t.leaf);
    leaves.filter(move |(i, _)| below(*i)).map(|(_, t)| t)
}
