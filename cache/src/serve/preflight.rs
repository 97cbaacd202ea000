//! What `--check-config` finds out about this machine, before anything is started or changed.

use super::config::Config;
use super::paths::{PathUse, collisions};
use crate::store::{Foreign, check_place};

/// What a start with this configuration would fail at, here and now, in words; nothing is changed.
#[must_use]
pub fn preflight(config: &Config) -> Vec<String> {
    let mut found = collisions(&PathUse::of(config));
    // Of a path that is used twice, more need not be said.
    if let (Some(ssd), true) = (&config.cache.ssd, found.is_empty())
        && let Err(e) = check_place(&ssd.path, Foreign::of(ssd))
    {
        found.push(format!(
            "cannot use {} as SSD store: {e}",
            ssd.path.display()
        ));
    }
    found
}
