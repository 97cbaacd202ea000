//! How a tenant's entitlement follows from its siblings'.

use justitia_api::{Status, TenantStatus};
use justitia_share::num::to_f64;

use justitia_api::units::{bytes, seconds};

/// Siblings that are named, at most.
const NAMED: usize = 3;
/// Two that are this near to the same share by weight have the same.
const NEAR: f64 = 0.01;

/// How its entitlement is recomputed; `None` where there is nothing to divide.
pub(super) fn of(status: &Status, tenant: &TenantStatus) -> Option<String> {
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
                "{what}it has used neither CPU nor cache for {}, so it gets what they leave",
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
        let name = t.display_name().rsplit('/').next().unwrap_or_default();
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
