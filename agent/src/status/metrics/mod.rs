//! OpenMetrics: the status as series, by a table.
//!
//! A scrape queries the status socket as any other client does, so it costs the control loop the same. Labels are cgroup paths,
//! escaped as everywhere (see [`escape`](justitia_api::escape)).

mod family;
mod table;

pub use table::markdown;

use justitia_api::{Status, TenantStatus};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::metrics::family::Page;

/// The largest page, bytes.
pub const MAX_BYTES: usize = 16 << 20;
/// The most series of a tenant.
const SERIES: usize = 26;
/// The length of a series without its label's value, bytes: its name, the label's name, the number.
const LINE: usize = 80;

/// The text of a scrape: OpenMetrics 1.0, at most [`MAX_BYTES`] bytes. The first `max_tenants` tenants, parents first, have
/// series of their own, as far as they fit; `tenants_without_series` counts the others.
///
/// # Errors
/// If the text cannot be formatted, which does not happen with strings.
pub fn text(status: &Status, max_tenants: usize) -> Result<String, String> {
    let mut count = fitting(status, max_tenants);
    loop {
        let tenants = status.tenants.get(..count).unwrap_or_default();
        let text = page(&Page { status, tenants })?;
        if text.len() <= MAX_BYTES || count == 0 {
            return Ok(text);
        }
        count /= 2;
    }
}

/// The number of tenants that fit into a page, by the lengths of their paths: so no page is made that is far too long.
fn fitting(status: &Status, max_tenants: usize) -> usize {
    let mut left = MAX_BYTES;
    let fits = |tenant: &&TenantStatus| {
        // A label has each backslash twice.
        let path = tenant.path.len() + tenant.path.matches('\\').count();
        let image = tenant.image.as_ref().map_or(0, String::len);
        // An escaped character takes at most ten bytes: `\\u{10ffff}`.
        let names = 10 * (tenant.name.len() + image);
        let needs = SERIES * (LINE + path) + LINE + names;
        let fits = needs <= left;
        left = left.saturating_sub(needs);
        fits
    };
    let tenants = status.tenants.iter().take(max_tenants);
    tenants.take_while(fits).count()
}

fn page(page: &Page<'_>) -> Result<String, String> {
    let mut registry = Registry::with_prefix("justitia");
    for metric in table::metrics() {
        metric.register(page, &mut registry);
    }
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|e| e.to_string())?;
    Ok(text)
}
