//! Whether a shared file should be recharged to another tenant.

use std::collections::HashMap;

use justitia_api::RechargeGain;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::FileId;
use justitia_kernel::probes::SharedInode;
use justitia_share::NodeId;
use justitia_share::num::{to_f64, to_u64};

use super::intent::{HORIZON, KeepReason, MIN_RECHARGE_BYTES, RechargeIntent};
use crate::model::{Key, Snapshot};
use crate::plan::entitlements::Entitlements;

/// The gain must be at least so many times the cost.
const MIN_GAIN: f64 = 2.0;
/// The new owner must have read this fraction of the cached pages, each counted once. The other pages are recharged along
/// with them.
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

    /// The fraction of a tenant's pages, if it had `more`, that exceeds its share of the cache: these go first when memory
    /// is short.
    fn exposed(&self, id: NodeId, more: u64) -> f64 {
        let held = self.held[id.index()].saturating_add(more);
        let keeps = to_f64(self.capacity) * self.shares[id.index()];
        if held == 0 {
            return 0.0;
        }
        (1.0 - keeps / to_f64(held)).clamp(0.0, 1.0)
    }

    /// Goes on as if a file had been recharged.
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

    /// Decides about one file, which was watched for so many seconds. `tried_lately` tells which files are not to be tried
    /// again yet.
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

    /// The tenant of the highest weight that reads enough of a file: Justitia's owner (section III-B2).
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

    /// What is expected of recharging a file from `charged` to `owner`, if that is enough.
    fn gain(
        &self,
        file: &SharedInode,
        seconds: f64,
        (owner, user): (NodeId, CgroupId),
        charged: CgroupId,
    ) -> Result<RechargeGain, KeepReason> {
        let owner_share = self.shares[owner.index()];
        // A removed cgroup has no weight any more, and nothing protects its pages.
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

/// Bytes of a file's pages that a tenant has read and others are charged for, each page counted once; at most what is
/// cached.
fn bytes_read(file: &SharedInode, user: CgroupId) -> u64 {
    let own = file.uses.iter().filter(|one| one.user == user);
    let sum = own.fold(0_u64, |sum, one| sum.saturating_add(one.bytes));
    sum.min(file.cached)
}
