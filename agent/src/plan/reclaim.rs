//! Who gives back file pages now, and how many.

use justitia_share::{give_back, overage};

use super::shares::Shares;
use super::snapshot::{Key, Snapshot};

/// Reclaim this much from one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimIntent {
    /// From whom.
    pub key: Key,
    /// How many bytes of clean file pages.
    pub bytes: u64,
    /// The facts behind it.
    pub reason: Reason,
}

/// Why a tenant has to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What it holds, bytes of file pages.
    pub usage: u64,
    /// What it is entitled to.
    pub entitled: u64,
    /// Free memory.
    pub free: u64,
    /// What free memory should be.
    pub reserve: u64,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes / (1 << 20);
        write!(
            f,
            "holds {} MiB, entitled to {} MiB; {} MiB free where {} MiB are wanted",
            mib(self.usage),
            mib(self.entitled),
            mib(self.free),
            mib(self.reserve)
        )
    }
}

/// The least that is worth a system call, bytes; also the step below which being above the
/// entitlement is noise.
pub const LEAST: u64 = 128 << 10;
/// The most that one intent asks for, bytes: `memory.reclaim` is synchronous, and holds up the
/// cgroup's removal.
pub const MOST: u64 = 32 << 20;

/// Justitia's reclamation (section III-B3) ahead of the kernel's: when free memory is short, those above
/// their entitlement give back, in proportion to their overage, until there is enough. While there is room
/// for all, and from those within their entitlement, nothing is taken.
#[must_use]
pub fn plan_reclaim(snapshot: &Snapshot, shares: &Shares) -> Vec<ReclaimIntent> {
    let free = snapshot.memory.free;
    let need = shares
        .reserve
        .saturating_sub(free)
        .saturating_sub(snapshot.memory.coming);
    if need == 0 {
        return Vec::new();
    }
    let spare = |i: usize| -> u64 {
        let tenant = &snapshot.tenants[i];
        if !tenant.leaf || tenant.spared.is_some() {
            return 0;
        }
        let keep = shares.entitled[i].max(tenant.floor).max(tenant.stuck);
        let over = overage(tenant.file, keep);
        if over < LEAST.max(keep / 256) {
            0
        } else {
            over
        }
    };
    let over: Vec<u64> = (0..snapshot.tenants.len()).map(spare).collect();
    give_back(need, &over)
        .into_iter()
        .enumerate()
        .filter(|(i, bytes)| over[*i] > 0 && (*bytes >= LEAST || *bytes == over[*i]))
        .map(|(i, bytes)| ReclaimIntent {
            key: snapshot.tenants[i].key,
            bytes: bytes.min(MOST),
            reason: Reason {
                usage: snapshot.tenants[i].file,
                entitled: shares.entitled[i],
                free,
                reserve: shares.reserve,
            },
        })
        .collect()
}
