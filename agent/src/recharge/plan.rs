//! Memcg recharging (Justitia, section III-B2): "when multiple application share the same page, Justitia designates the
//! highest-weighted application as the owner of the page". The kernel charges the cgroup that touches a page first. This
//! planner chooses files to read again, so that their pages are charged to the heaviest reader.
//!
//! The gain: pages of a tenant above its share of the cache are reclaimed first when memory is short. A heavier tenant's reads
//! of them would then come from the disk. The cost: reading the file once more.

use std::collections::HashMap;

use justitia_api::RechargeGain;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::FileId;
use justitia_kernel::probes::SharedInode;
use justitia_share::NodeId;
use justitia_share::num::{to_f64, to_u64};

use crate::model::{Key, Snapshot};
use crate::page_cache::Entitlements;

#[cfg(test)]
mod tests;

/// The files to recharge, the greatest gain first, until they add up to `max` bytes. Each is judged as if those before it had
/// been recharged. None while free memory is near the headroom.
///
/// `files` are the probe's records of `seconds`. `root` is the root cgroup, whose pages belong to no tenant. `tried_lately`
/// says which files must not be tried again yet.
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

/// Recharge a file's pages to a heavier tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct RechargeIntent {
    /// The file.
    pub file: FileId,
    /// The new owner: a leaf.
    pub owner: CgroupId,
    /// The cgroup that is charged now. It may have been removed.
    pub charged: CgroupId,
    /// Bytes of the file in the page cache.
    pub cached: u64,
    /// The reason.
    pub reason: RechargeGain,
}

/// The time over which the gain is estimated, seconds.
pub const HORIZON: u32 = 300;
/// A file with fewer bytes in the page cache is not worth a process.
pub const MIN_RECHARGE_BYTES: u64 = 256 << 10;
/// Free memory above the headroom that recharging needs, bytes: it reads the file again.
pub const MIN_SPARE_MEMORY: u64 = 16 << 20;

/// Why a file's charge stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// A process has it mapped.
    Mapped,
    /// Little of it is in the page cache.
    SmallCache,
    /// No tenant reads more than a little of it.
    LittleRead,
    /// No reader is heavier than the charged tenant.
    NoHeavierReader,
    /// Reading it again costs more than the expected gain.
    SmallGain,
    /// It was tried recently.
    TriedLately,
}

/// The gain must be at least this multiple of the cost.
const MIN_GAIN: f64 = 2.0;
/// The new owner must have read this fraction of the cached pages, each counted once. The other pages are recharged along with
/// them.
const MIN_READ: f64 = 0.25;

/// The tenants, as if the files of all intents so far had been recharged.
pub(super) struct Tenants<'a> {
    snapshot: &'a Snapshot,
    ids: HashMap<Key, NodeId>,
    /// File pages of each, bytes.
    held: Vec<u64>,
    /// Each one's share of the host by weight if all had unlimited demand, 0 to 1.
    pub(super) shares: Vec<f64>,
    capacity: u64,
    root: CgroupId,
}

impl<'a> Tenants<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, entitlements: &Entitlements, root: CgroupId) -> Self {
        let tenants = &snapshot.tenants;
        Self {
            snapshot,
            ids: tenants.iter().map(|(id, t)| (t.key, id)).collect(),
            held: tenants.values().map(|t| t.cache).collect(),
            shares: shares(snapshot),
            capacity: entitlements.capacity,
            root,
        }
    }

    fn find(&self, id: CgroupId) -> Option<NodeId> {
        let key = if id == self.root {
            Key::Unmanaged
        } else {
            Key::Cgroup(id)
        };
        self.ids.get(&key).copied()
    }

    /// The fraction of a tenant's pages, with `more` of them, that exceeds its share of the cache: these are reclaimed first
    /// when memory is short.
    fn exposed(&self, id: NodeId, more: u64) -> f64 {
        let held = self.held[id.index()].saturating_add(more);
        let keeps = to_f64(self.capacity) * self.shares[id.index()];
        if held == 0 {
            return 0.0;
        }
        (1.0 - keeps / to_f64(held)).clamp(0.0, 1.0)
    }

    /// Continues as if a file had been recharged.
    pub(super) fn apply(&mut self, intent: &RechargeIntent) {
        if let Some(id) = self.find(intent.charged) {
            let held = &mut self.held[id.index()];
            *held = held.saturating_sub(intent.cached);
        }
        if let Some(id) = self.find(intent.owner) {
            let held = &mut self.held[id.index()];
            *held = held.saturating_add(intent.cached);
        }
    }

    /// Decides about one file, which was watched for `seconds`. `tried_lately` says which files must not be tried again yet.
    pub(super) fn judge(
        &self,
        file: &SharedInode,
        seconds: f64,
        tried_lately: impl Fn(FileId) -> bool,
    ) -> Result<RechargeIntent, KeepReason> {
        if file.mapped {
            return Err(KeepReason::Mapped);
        }
        if file.cached < MIN_RECHARGE_BYTES {
            return Err(KeepReason::SmallCache);
        }
        let id = FileId {
            device: file.device,
            inode: file.inode,
            generation: file.generation,
        };
        if tried_lately(id) {
            return Err(KeepReason::TriedLately);
        }
        let (owner, user) = self.heaviest_reader(file)?;
        let charged = file
            .uses
            .iter()
            .filter(|one| one.user == user)
            .max_by_key(|one| one.bytes)
            .ok_or(KeepReason::NoHeavierReader)?
            .charged;
        let reason = self.gain(file, seconds, (owner, user), charged)?;
        Ok(RechargeIntent {
            file: id,
            owner: user,
            charged,
            cached: file.cached,
            reason,
        })
    }

    /// The heaviest tenant that reads enough of a file: Justitia's owner (section III-B2).
    fn heaviest_reader(&self, file: &SharedInode) -> Result<(NodeId, CgroupId), KeepReason> {
        let needed = MIN_READ * to_f64(file.cached);
        let mut readers: Vec<CgroupId> = file.uses.iter().map(|one| one.user).collect();
        readers.sort_unstable();
        readers.dedup();
        readers.retain(|user| to_f64(bytes_read(file, *user)) >= needed);
        if readers.is_empty() {
            return Err(KeepReason::LittleRead);
        }
        let tenants = &self.snapshot.tenants;
        readers
            .into_iter()
            .filter_map(|user| Some((self.find(user)?, user)))
            .filter(|(id, user)| tenants.is_leaf(*id) && tenants[*id].key == Key::Cgroup(*user))
            .max_by(|(a, x), (b, y)| {
                let by_share = self.shares[a.index()].total_cmp(&self.shares[b.index()]);
                by_share.then(bytes_read(file, *x).cmp(&bytes_read(file, *y)))
            })
            .ok_or(KeepReason::NoHeavierReader)
    }

    /// The expected gain of recharging a file from `charged` to `owner`, if large enough.
    fn gain(
        &self,
        file: &SharedInode,
        seconds: f64,
        (owner, user): (NodeId, CgroupId),
        charged: CgroupId,
    ) -> Result<RechargeGain, KeepReason> {
        let owner_share = self.shares[owner.index()];
        // A removed cgroup has no weight any more, and its pages no protection.
        let charged = self.find(charged);
        let charged_share = charged.map_or(0.0, |id| self.shares[id.index()]);
        let exposed = charged.map_or(1.0, |id| self.exposed(id, 0));
        if charged_share >= owner_share {
            return Err(KeepReason::NoHeavierReader);
        }
        let exposed_after = self.exposed(owner, file.cached);
        let used = bytes_read(file, user);
        let rate = to_f64(used) / seconds.max(0.001);
        let gain = rate * f64::from(HORIZON) * (exposed - exposed_after).max(0.0);
        if gain < MIN_GAIN * to_f64(file.cached) {
            return Err(KeepReason::SmallGain);
        }
        Ok(RechargeGain {
            owner_share,
            charged_share,
            used,
            exposed,
            exposed_after,
            gain: to_u64(gain),
            cost: file.cached,
            horizon: HORIZON,
        })
    }
}

/// Each tenant's share of the host by weight if all had unlimited demand, 0 to 1.
fn shares(snapshot: &Snapshot) -> Vec<f64> {
    let tenants = &snapshot.tenants;
    let mut shares = vec![0.0; tenants.len()];
    for parent in tenants.parents() {
        let whole = parent.map_or(1.0, |parent| shares[parent.index()]);
        let children = tenants.children(parent);
        let weights: u64 = children.clone().map(|id| tenants[id].weight.get()).sum();
        for id in children {
            shares[id.index()] = whole * to_f64(tenants[id].weight.get()) / to_f64(weights.max(1));
        }
    }
    shares
}

/// Bytes of a file's pages that a tenant has read and others are charged for, each page counted once; at most the cached bytes.
fn bytes_read(file: &SharedInode, user: CgroupId) -> u64 {
    let own = file.uses.iter().filter(|one| one.user == user);
    let sum = own.fold(0_u64, |sum, one| sum.saturating_add(one.bytes));
    sum.min(file.cached)
}
