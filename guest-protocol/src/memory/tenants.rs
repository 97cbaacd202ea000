//! The tenants that share a guest's page cache: its containers, pods and units.
//!
//! They are for people alone. No decision uses them, and a host shows them only below the guest's own line.

use serde::{Deserialize, Serialize};

use crate::memory::text::TenantName;

/// The most tenants in an answer: those that hold the most.
pub const MAX_TENANTS: usize = 16;

/// The highest weight (`io.weight`). The lowest is 1.
pub const MAX_WEIGHT: u64 = 10_000;

/// The tenants that share a guest's page cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Tenants {
    list: Vec<Tenant>,
    more: u64,
}

/// A container, pod or unit of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name, as in the guest's `justitia status`.
    pub name: TenantName,
    /// Its weight among its siblings, 1 to [`MAX_WEIGHT`].
    pub weight: u64,
    /// Bytes of file pages that it holds.
    pub file: u64,
}

impl Tenants {
    /// The tenants that hold the most, and the number of the others. Weights out of range become the nearest valid one.
    #[must_use]
    pub fn new(all: impl IntoIterator<Item = Tenant>) -> Self {
        let mut list: Vec<Tenant> = all.into_iter().collect();
        list.sort_by_key(|tenant| std::cmp::Reverse(tenant.file));
        let more = list.len().saturating_sub(MAX_TENANTS) as u64;
        list.truncate(MAX_TENANTS);
        for tenant in &mut list {
            tenant.weight = tenant.weight.clamp(1, MAX_WEIGHT);
        }
        Self { list, more }
    }

    /// The tenants that hold the most, the largest first if the guest is honest.
    #[must_use]
    pub fn list(&self) -> &[Tenant] {
        &self.list
    }

    /// The number of other tenants.
    #[must_use]
    pub const fn more(&self) -> u64 {
        self.more
    }
}

/// The fields as they are read.
#[derive(Deserialize)]
struct Fields {
    list: Vec<Tenant>,
    more: u64,
}

impl TryFrom<Fields> for Tenants {
    type Error = &'static str;

    fn try_from(Fields { list, more }: Fields) -> Result<Self, Self::Error> {
        if list.len() > MAX_TENANTS {
            return Err("expected at most 16 tenants");
        }
        let is_weight = |tenant: &Tenant| (1..=MAX_WEIGHT).contains(&tenant.weight);
        match list.iter().all(is_weight) {
            true => Ok(Self { list, more }),
            false => Err("expected weights of 1 to 10000"),
        }
    }
}
