//! What limits an owner: free memory, memory limits, pressure.

use std::path::Path;

use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::memory::Limit;
use justitia_kernel::proc::ProcFs;
use justitia_kernel::psi::PsiResource;

use crate::escape;
use crate::plan::recharge::MIN_SPARE_MEMORY;

/// A tenant whose tasks wait for memory for this part of the time (PSI `some avg10`, percent) is not given more.
const MAX_SOME_AVG10: f64 = 5.0;

/// The limits of an owner, opened once for all checks of a job.
pub(super) struct OwnerLimits {
    /// The owner and its ancestors.
    cgroups: Vec<Cgroup>,
    proc: ProcFs,
}

impl OwnerLimits {
    /// Opens the files.
    ///
    /// # Errors
    /// What could not be opened.
    pub(super) fn open(owner: &Cgroup) -> Result<Self, String> {
        let fs = CgroupFs::discover().map_err(|e| e.to_string())?;
        let ancestors = owner.path().ancestors().skip(1);
        Ok(Self {
            cgroups: std::iter::once(owner.clone())
                .chain(ancestors.filter_map(|path| Cgroup::open_at(&fs, path).ok()))
                .collect(),
            proc: ProcFs::open(Path::new("/proc")).map_err(|e| e.to_string())?,
        })
    }

    /// The free memory of the machine, bytes; 0 if it cannot be read.
    pub(super) fn free(&self) -> u64 {
        self.proc.meminfo().map_or(0, |m| m.mem_free)
    }

    /// Checks that the owner can take so many bytes more: no limit of it or its ancestors is near, and no pressure.
    ///
    /// # Errors
    /// What is in the way.
    pub(super) fn check(&self, bytes: u64) -> Result<(), String> {
        // Without PSI the pressure is not known.
        if let Some(owner) = self.cgroups.first()
            && let Ok(psi) = owner.pressure(PsiResource::Memory)
            && psi.some.avg10 >= MAX_SOME_AVG10
        {
            return Err(format!(
                "its tasks wait for memory {:.0} % of the time",
                psi.some.avg10
            ));
        }
        for cgroup in &self.cgroups {
            let Ok(current) = cgroup.memory_current() else {
                continue;
            };
            for (file, limit) in [
                ("memory.high", cgroup.memory_high()),
                ("memory.max", cgroup.memory_max()),
            ] {
                if let Ok(Limit::Bytes(limit)) = limit
                    && current
                        .saturating_add(bytes)
                        .saturating_add(MIN_SPARE_MEMORY)
                        > limit
                {
                    return Err(format!(
                        "{file} of {} does not allow {} KiB more",
                        escape::encode(cgroup.path().as_os_str()),
                        bytes >> 10
                    ));
                }
            }
        }
        Ok(())
    }
}
