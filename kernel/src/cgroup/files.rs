//! The typed readers of a cgroup's files. Their errors: [`Gone`](crate::Error::Gone) when the cgroup was removed;
//! one with [`is_missing`](crate::Error::is_missing) where the file does not exist, as without its controller;
//! [`Parse`](crate::Error::Parse), which quotes what was not understood; [`Io`](crate::Error::Io) for what else the
//! kernel answers.

use super::core_files::keyed_number;
use super::{Cgroup, CgroupEvents, Controllers};
use crate::error::Result;
use crate::io::{DevId, IoStat, IoWeight};
use crate::memory::{Limit, MemoryEvents, MemoryStat};
use crate::parse::only_number;
use crate::psi::{Psi, PsiResource};

impl Cgroup {
    /// `memory.stat`, of the cgroup and its descendants. The root has it too.
    ///
    /// # Errors
    /// Gone, missing without the memory controller, or not understood.
    pub fn memory_stat(&self) -> Result<MemoryStat> {
        self.read("memory.stat", MemoryStat::parse)
    }

    /// `vm.dirty_ratio`, of the whole machine, in percent of the available memory: writers are throttled from this part
    /// of dirty pages on. 0 where `vm.dirty_bytes` is set instead.
    ///
    /// # Errors
    /// Missing where `/proc/sys/vm` is not mounted, or not understood.
    pub fn dirty_ratio(&self) -> Result<u64> {
        self.read(&format!("{}/dirty_ratio", self.vm_sysctls()), only_number)
    }

    /// `memory.current`: bytes in use, descendants included. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_current(&self) -> Result<u64> {
        self.read("memory.current", only_number)
    }

    /// `memory.swap.current`: bytes in swap, descendants included. `None` without swap support. Not at the root.
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn swap_current(&self) -> Result<Option<u64>> {
        optional(self.read("memory.swap.current", only_number))
    }

    /// `memory.swap.max`: no more is swapped out. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller or swap support and at the root, or not understood.
    pub fn swap_max(&self) -> Result<Limit> {
        self.read("memory.swap.max", Limit::parse)
    }

    /// `memory.min`: never reclaimed below by the kernel, but by `memory.reclaim` of this cgroup. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_min(&self) -> Result<Limit> {
        self.read("memory.min", Limit::parse)
    }

    /// `memory.low`: reclaimed below only if nothing else is reclaimable. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_low(&self) -> Result<Limit> {
        self.read("memory.low", Limit::parse)
    }

    /// `memory.high`: throttled above. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_high(&self) -> Result<Limit> {
        self.read("memory.high", Limit::parse)
    }

    /// `memory.max`: killed above. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_max(&self) -> Result<Limit> {
        self.read("memory.max", Limit::parse)
    }

    /// `memory.events`: of the cgroup and its descendants, each event counted at the cgroup whose limit or protection it
    /// is about, and at all above. Not at the root. Mounted with `memory_localevents` it counts as
    /// [`memory_events_local`](Self::memory_events_local).
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_events(&self) -> Result<MemoryEvents> {
        self.read("memory.events", MemoryEvents::parse)
    }

    /// `memory.events.local`: as [`memory_events`](Self::memory_events), of the cgroup's own limits and protections alone.
    /// Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_events_local(&self) -> Result<MemoryEvents> {
        self.read("memory.events.local", MemoryEvents::parse)
    }

    /// `high` of `memory.swap.events`: how often tasks of the cgroup and its descendants were throttled by a
    /// `memory.swap.high`. `None` without swap support. Not at the root.
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn swap_high_events(&self) -> Result<Option<u64>> {
        let events = optional(self.read("memory.swap.events", MemoryEvents::parse));
        Ok(events?.map(|events| events.high))
    }

    /// The cgroup's pressure file.
    ///
    /// # Errors
    /// Gone, missing without PSI, `EOPNOTSUPP` where `cgroup.pressure` is 0, or not understood.
    pub fn pressure(&self, resource: PsiResource) -> Result<Psi> {
        self.read(resource.cgroup_file(), Psi::parse)
    }

    /// CPU time used, in microseconds (`cpu.stat`, which every cgroup has, whatever is enabled).
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn cpu_usage_usec(&self) -> Result<u64> {
        self.read("cpu.stat", |text| {
            keyed_number(text, b"usage_usec", "a line `usage_usec MICROSECONDS`")
        })
    }

    /// `io.stat`, by device, in the file's order; devices that the cgroup has not used are left
    /// out.
    ///
    /// # Errors
    /// Gone, missing without the io controller, or not understood.
    pub fn io_stat(&self) -> Result<Vec<(DevId, IoStat)>> {
        self.read("io.stat", IoStat::parse)
    }

    /// `io.weight` (io.cost); `None` where the file does not exist: at the root, without the
    /// controller, or on a kernel without io.cost.
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn io_weight(&self) -> Result<Option<IoWeight>> {
        optional(self.read("io.weight", IoWeight::parse))
    }

    /// `io.bfq.weight`, 1..=1000; `None` where the file does not exist (BFQ is not loaded).
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn io_bfq_weight(&self) -> Result<Option<IoWeight>> {
        optional(self.read("io.bfq.weight", IoWeight::parse))
    }

    /// `cgroup.events`. Not at the root.
    ///
    /// # Errors
    /// Gone, missing at the root, or not understood.
    pub fn events(&self) -> Result<CgroupEvents> {
        self.read("cgroup.events", CgroupEvents::parse)
    }

    /// The controllers that this cgroup may enable for its children.
    ///
    /// # Errors
    /// Gone, or a name that no controller has.
    pub fn controllers(&self) -> Result<Controllers> {
        self.read("cgroup.controllers", Controllers::parse)
    }

    /// The controllers that are enabled for its children.
    ///
    /// # Errors
    /// Gone, or a name that no controller has.
    pub fn subtree_control(&self) -> Result<Controllers> {
        self.read("cgroup.subtree_control", Controllers::parse)
    }
}

/// A missing file as `None`.
pub(super) fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}
