//! Page ownership (Justitia, section III-B2): "when multiple application share the same page, Justitia designates the
//! highest-weighted application as the owner of the page". The kernel charges whoever touches a page first; here is
//! decided which file is worth the re-reading that hands its pages to whom they should belong.
//!
//! What it gains: pages of a tenant above its part of the cache are the first to go when memory is short. The heavier
//! tenant's reads of them would then come from the disk. What it costs: reading the file once more.

use std::collections::HashMap;

use justitia_api::RechargeGain;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::FileId;
use justitia_kernel::probes::SharedInode;
use justitia_share::num::{to_f64, to_u64};

use super::entitlements::Entitlements;
use crate::model::{Key, Snapshot};

/// Hand a file's pages to a heavier tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct RechargeIntent {
    /// Which file.
    pub file: FileId,
    /// To whom: a leaf.
    pub owner: CgroupId,
    /// From whom the kernel's charge is taken; a cgroup that is gone may still be charged.
    pub charged: CgroupId,
    /// Bytes of the file in the cache.
    pub cached: u64,
    /// The facts behind it.
    pub reason: RechargeGain,
}

/// Over so many seconds a gain is reckoned.
pub const HORIZON: u32 = 300;
/// The gain must be so many times the cost.
const WORTH: f64 = 2.0;
/// Who is to own a file must have read so much of what is cached of it, of different pages: the rest comes along.
const PART: f64 = 0.25;
/// Smaller files are not worth a process, bytes.
pub const SMALLEST: u64 = 256 << 10;
/// Free memory above the reserve that there must be, bytes: re-reading is not for times of need.
pub const ROOM: u64 = 16 << 20;

/// Why a file stays with whom it is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// Somebody has it mapped.
    Mapped,
    /// Little of it is cached.
    Small,
    /// Nobody reads more than a little of it.
    Little,
    /// Nobody heavier than whom the kernel charges reads it.
    InOrder,
    /// Reading it again costs more than it is expected to gain.
    NotWorthIt,
    /// It was tried lately.
    Rests,
}

/// Whose file is to be whose, the greatest gain first, until `most` bytes are together. Each is judged as if those before
/// it had been handed over.
///
/// `files` is what the probe has seen over `seconds`; `root` is the root cgroup, whose pages belong to no tenant;
/// `rests` says which files were tried lately. Nothing at all while free memory is near the reserve.
#[must_use]
pub fn plan_recharge(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    files: &[SharedInode],
    seconds: f64,
    root: CgroupId,
    most: u64,
    rests: impl Fn(FileId) -> bool,
) -> Vec<RechargeIntent> {
    let memory = &snapshot.memory;
    if memory.free < entitlements.free_headroom.saturating_add(ROOM) {
        return Vec::new();
    }
    let mut tenants = Tenants::of(snapshot, entitlements, root);
    let mut intents: Vec<RechargeIntent> = Vec::new();
    let mut together: u64 = 0;
    while together < most {
        let taken = |file: FileId| intents.iter().any(|intent| intent.file == file);
        let best = files
            .iter()
            .filter_map(|file| {
                let judged = tenants.judge(file, seconds, |id| taken(id) || rests(id));
                if let Err(why) = &judged {
                    tracing::trace!(inode = file.inode, ?why, "a shared file stays");
                }
                judged.ok()
            })
            .max_by_key(|intent| (intent.reason.gain, std::cmp::Reverse(intent.file)));
        let Some(best) = best else { break };
        tenants.hand_over(&best);
        together = together.saturating_add(best.cached);
        intents.push(best);
    }
    intents
}

/// What is known of the tenants.
struct Tenants<'a> {
    snapshot: &'a Snapshot,
    index: HashMap<Key, usize>,
    /// What each holds, bytes.
    held: Vec<u64>,
    /// Each one's part of the machine by weight, were all to want all they can get.
    parts: Vec<f64>,
    capacity: u64,
    root: CgroupId,
}

impl<'a> Tenants<'a> {
    fn of(snapshot: &'a Snapshot, entitlements: &Entitlements, root: CgroupId) -> Self {
        let tenants = &snapshot.tenants;
        let mut siblings: HashMap<Option<usize>, u64> = HashMap::new();
        for tenant in tenants {
            *siblings.entry(tenant.parent).or_default() += tenant.weight.get();
        }
        let mut parts: Vec<f64> = Vec::with_capacity(tenants.len());
        for tenant in tenants {
            let siblings = siblings.get(&tenant.parent).copied().unwrap_or_default();
            let above = tenant.parent.map_or(1.0, |p| parts[p]);
            parts.push(above * to_f64(tenant.weight.get()) / to_f64(siblings.max(1)));
        }
        Self {
            snapshot,
            index: tenants
                .iter()
                .enumerate()
                .map(|(i, t)| (t.key, i))
                .collect(),
            held: tenants.iter().map(|t| t.file).collect(),
            parts,
            capacity: entitlements.capacity,
            root,
        }
    }

    fn find(&self, id: CgroupId) -> Option<usize> {
        let key = if id == self.root {
            Key::Unmanaged
        } else {
            Key::Cgroup(id)
        };
        self.index.get(&key).copied()
    }

    /// The part of a tenant's pages that is above its part of the cache, if it had `more`.
    fn exposed(&self, i: usize, more: u64) -> f64 {
        let held = self.held[i].saturating_add(more);
        let keeps = to_f64(self.capacity) * self.parts[i];
        if held == 0 {
            return 0.0;
        }
        (1.0 - keeps / to_f64(held)).clamp(0.0, 1.0)
    }

    /// Goes on as if a file had been handed over.
    fn hand_over(&mut self, intent: &RechargeIntent) {
        if let Some(i) = self.find(intent.charged) {
            self.held[i] = self.held[i].saturating_sub(intent.cached);
        }
        if let Some(i) = self.find(intent.owner) {
            self.held[i] = self.held[i].saturating_add(intent.cached);
        }
    }

    fn judge(
        &self,
        file: &SharedInode,
        seconds: f64,
        rests: impl Fn(FileId) -> bool,
    ) -> Result<RechargeIntent, KeepReason> {
        if file.mapped {
            return Err(KeepReason::Mapped);
        }
        if file.cached < SMALLEST {
            return Err(KeepReason::Small);
        }
        let id = FileId {
            device: file.device,
            inode: file.inode,
            generation: file.generation,
        };
        if rests(id) {
            return Err(KeepReason::Rests);
        }
        let needed = PART * to_f64(file.cached);
        let mut readers: Vec<CgroupId> = file.uses.iter().map(|one| one.user).collect();
        readers.sort_unstable();
        readers.dedup();
        readers.retain(|user| to_f64(used(file, *user)) >= needed);
        if readers.is_empty() {
            return Err(KeepReason::Little);
        }
        let (owner, user) = readers
            .into_iter()
            .filter_map(|user| Some((self.find(user)?, user)))
            .filter(|(i, user)| {
                let tenant = &self.snapshot.tenants[*i];
                tenant.leaf && tenant.key == Key::Cgroup(*user)
            })
            .max_by(|(a, x), (b, y)| {
                let heavier = self.parts[*a].total_cmp(&self.parts[*b]);
                heavier.then(used(file, *x).cmp(&used(file, *y)))
            })
            .ok_or(KeepReason::InOrder)?;
        let usage = file
            .uses
            .iter()
            .filter(|one| one.user == user)
            .max_by_key(|one| one.bytes)
            .ok_or(KeepReason::InOrder)?;
        // A cgroup that is gone has no weight any more, and nothing protects its pages.
        let charged = self.find(usage.charged);
        let charged_part = charged.map_or(0.0, |i| self.parts[i]);
        let exposed = charged.map_or(1.0, |i| self.exposed(i, 0));
        if charged_part >= self.parts[owner] {
            return Err(KeepReason::InOrder);
        }
        let exposed_after = self.exposed(owner, file.cached);
        let used = used(file, user);
        let rate = to_f64(used) / seconds.max(0.001);
        let gain = rate * f64::from(HORIZON) * (exposed - exposed_after).max(0.0);
        if gain < WORTH * to_f64(file.cached) {
            return Err(KeepReason::NotWorthIt);
        }
        Ok(RechargeIntent {
            file: id,
            owner: user,
            charged: usage.charged,
            cached: file.cached,
            reason: RechargeGain {
                owner_share: self.parts[owner],
                charged_share: charged_part,
                used,
                exposed,
                exposed_after,
                gain: to_u64(gain),
                cost: file.cached,
                horizon: HORIZON,
            },
        })
    }
}

/// Bytes of different pages of a file that a tenant has read and others are charged for, at most what is cached.
fn used(file: &SharedInode, user: CgroupId) -> u64 {
    let mine = file.uses.iter().filter(|one| one.user == user);
    let sum = mine.fold(0_u64, |sum, one| sum.saturating_add(one.bytes));
    sum.min(file.cached)
}

#[cfg(test)]
mod tests;
