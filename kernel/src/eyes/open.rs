//! The eyes themselves.

use std::collections::HashMap;

use super::{Contention, EyesError, Latencies, Limits, Probe, ProbeFact, Sample, SharedInode};
use crate::cgroup::CgroupId;

/// The probes, attached as long as this lives.
#[derive(Debug)]
pub struct Eyes {
    facts: Vec<ProbeFact>,
}

impl Eyes {
    /// Attaches every probe that this kernel has a place for.
    ///
    /// # Errors
    /// When not even the basic ones can be: no type information, no privilege.
    pub fn open(limits: &Limits) -> Result<Self, EyesError> {
        limits.check()?;
        Err(EyesError::Refused {
            reason: "this build has no programs yet".to_owned(),
        })
    }

    /// Every probe, in the order of [`Probe::ALL`]: attached, or why not.
    #[must_use]
    pub fn facts(&self) -> &[ProbeFact] {
        &self.facts
    }

    /// Everything counted up to now. Costs no system call per tenant.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn sample(&mut self) -> Result<Sample, EyesError> {
        Ok(Sample::default())
    }

    /// Gives the room of cgroups that are known to be removed to others. The probe for
    /// [`Probe::Removal`] does so by itself; this is for kernels without it.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn forget(&mut self, removed: &[CgroupId]) -> Result<(), EyesError> {
        let _ = removed;
        Ok(())
    }

    /// Begins or ends timing calls. Begun anew, it counts from zero.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn time_calls(&mut self, on: bool) -> Result<(), EyesError> {
        let _ = on;
        Err(absent(Probe::Latency))
    }

    /// How long calls took, per cgroup, since timing began; empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn latencies(&self) -> Result<HashMap<CgroupId, Latencies>, EyesError> {
        Ok(HashMap::new())
    }

    /// Begins or ends watching which files several tenants use.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn watch_shared_inodes(&mut self, on: bool) -> Result<(), EyesError> {
        let _ = on;
        Err(absent(Probe::SharedInodes))
    }

    /// The `most` files with the most bytes used by others than those who are charged for them,
    /// since watching began; empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn shared_inodes(&self, most: usize) -> Result<Vec<SharedInode>, EyesError> {
        let _ = most;
        Ok(Vec::new())
    }

    /// Begins or ends counting contended locks.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn watch_locks(&mut self, on: bool) -> Result<(), EyesError> {
        let _ = on;
        Err(absent(Probe::LockContention))
    }

    /// Contended locks per cgroup since watching began; empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn lock_contention(&self) -> Result<HashMap<CgroupId, Contention>, EyesError> {
        Ok(HashMap::new())
    }
}

fn absent(probe: Probe) -> EyesError {
    EyesError::Absent {
        probe: probe.title(),
        reason: "this build has no program for it yet".to_owned(),
    }
}
