//! What a page is made of.

use justitia_api::{Status, TenantStatus};

pub(super) struct Page<'a> {
    pub status: &'a Status,
    /// Those that have series of their own.
    pub tenants: &'a [TenantStatus],
}

/// The labels of a sample, by their names.
pub(super) type Labels = Vec<(&'static str, String)>;
