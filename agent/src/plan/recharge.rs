//! Memcg recharging (Justitia, section III-B2): "when multiple application share the same page, Justitia designates the
//! highest-weighted application as the owner of the page". The kernel charges the cgroup that touches a page first. This
//! planner decides which files to read again so that their pages are charged to the heaviest reader.
//!
//! The gain: pages of a tenant above its share of the cache go first when memory is short, and a heavier tenant's reads of
//! them would then come from the disk. The cost: reading the file once more.

mod candidate;
mod intent;

#[cfg(test)]
mod tests;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::FileId;
use justitia_kernel::probes::SharedInode;

pub use intent::{HORIZON, KeepReason, MIN_RECHARGE_BYTES, MIN_SPARE_MEMORY, RechargeIntent};

use super::entitlements::Entitlements;
use crate::model::Snapshot;
use candidate::Tenants;

/// The files to recharge, the greatest gain first, until they add up to `max` bytes. Each is judged as if those before it
/// had been recharged. None while free memory is near the headroom.
///
/// `files` is what the probe has seen in `seconds`. `root` is the root cgroup, whose pages belong to no tenant.
/// `tried_lately` tells which files are not to be tried again yet.
#[must_use]
pub fn plan_recharge(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    files: &[SharedInode],
    seconds: f64,
    root: CgroupId,
    max: u64,
    tried_lately: impl Fn(FileId) -> bool,
) -> Vec<RechargeIntent> {
    let needed = entitlements.free_headroom.saturating_add(MIN_SPARE_MEMORY);
    if snapshot.memory.free < needed {
        return Vec::new();
    }
    let mut tenants = Tenants::of(snapshot, entitlements, root);
    let mut intents: Vec<RechargeIntent> = Vec::new();
    let mut sum: u64 = 0;
    while sum < max {
        let taken = |file: FileId| intents.iter().any(|intent| intent.file == file);
        let best = files
            .iter()
            .filter_map(|file| {
                let judged = tenants.judge(file, seconds, |id| taken(id) || tried_lately(id));
                if let Err(why) = &judged {
                    tracing::trace!(inode = file.inode, ?why, "a shared file is not recharged");
                }
                judged.ok()
            })
            .max_by_key(|intent| (intent.reason.gain, std::cmp::Reverse(intent.file)));
        let Some(best) = best else { break };
        tenants.apply(&best);
        sum = sum.saturating_add(best.cached);
        intents.push(best);
    }
    intents
}
