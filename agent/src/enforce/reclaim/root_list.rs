//! Reclaims from the root cgroup's own list, by the debugfs interface of the multi-gen LRU.

use std::path::Path;

use justitia_kernel::PAGE_SIZE;
use justitia_kernel::lru_gen::{self, LruGen};
use justitia_kernel::proc::ProcFs;

use super::request::ReclaimResult;

/// Evicts up to `bytes` of clean file pages. The amount freed is what the file LRU lists of the machine have shrunk by.
pub(super) fn reclaim(bytes: u64, result: &mut ReclaimResult) -> justitia_kernel::Result<()> {
    let path = Path::new(lru_gen::PATH);
    let proc = ProcFs::open(Path::new("/proc"))?;
    let file = || proc.vmstat().map(|stat| stat.file_lru());
    let before = file()?;
    let lists = LruGen::read_root(path)?;
    let evictable: u64 = lists.iter().map(|l| l.evictable_file).sum();
    for list in lists.iter().filter(|l| l.evictable_file > 0) {
        let part = u128::from(bytes / PAGE_SIZE) * u128::from(list.evictable_file)
            / u128::from(evictable.max(1));
        list.evict(path, u64::try_from(part).unwrap_or(u64::MAX).max(1))?;
    }
    result.freed = before.saturating_sub(file()?);
    if result.freed < bytes / 4 && evictable * PAGE_SIZE < bytes {
        for list in &lists {
            list.age(path)?;
        }
    }
    Ok(())
}
