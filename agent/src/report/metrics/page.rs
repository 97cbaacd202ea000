//! What a page is made of.

use justitia_api::{Status, TenantStatus};

pub(super) struct Page<'a> {
    pub status: &'a Status,
    /// Those that have series of their own.
    pub tenants: &'a [TenantStatus],
}
