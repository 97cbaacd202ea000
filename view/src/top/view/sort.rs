//! The order of siblings.

use justitia_api::TenantStatus;
use justitia_share::num::to_u64;

/// What the siblings of a group are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// As the agent tells them.
    #[default]
    Tree,
    /// By weight, heaviest first.
    Weight,
    /// By file pages held.
    Usage,
    /// By usage above the entitlement.
    Excess,
    /// By bytes read and written per second.
    Bandwidth,
}

impl Sort {
    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::Tree => Self::Usage,
            Self::Usage => Self::Excess,
            Self::Excess => Self::Bandwidth,
            Self::Bandwidth => Self::Weight,
            Self::Weight => Self::Tree,
        }
    }

    /// What it is called.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Weight => "weight",
            Self::Usage => "cache",
            Self::Excess => "excess",
            Self::Bandwidth => "bandwidth",
        }
    }

    pub(super) fn key(self, tenant: &TenantStatus) -> u64 {
        match self {
            Self::Tree => 0,
            Self::Weight => tenant.weight,
            Self::Usage => tenant.usage,
            Self::Excess => tenant.usage.saturating_sub(tenant.entitlement),
            Self::Bandwidth => tenant.app.map_or(0, |a| to_u64(a.read_rate + a.write_rate)),
        }
    }
}
