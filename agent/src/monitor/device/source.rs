//! What the device samplers ask the probes.

use justitia_kernel::cgroup::CgroupId;

/// The probes' counters of the tenants' applications.
pub trait AppIoSource {
    /// What a tenant had disks do, as of the last reading of the probes; free of cost. `None` without probes.
    fn disk_activity(&self, id: CgroupId) -> Option<DiskActivity>;
    /// What a tenant's applications have read and written up to now; this reads the probes. `None` without probes.
    fn app_bytes(&self, id: CgroupId) -> Option<AppBytes>;
}

/// What a tenant had disks do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskActivity {
    /// A number that grows with it.
    pub total: u64,
    /// Whether it grew in the last seconds.
    pub recent: bool,
}

/// What applications have read and written since the probes were attached, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppBytes {
    /// Read and written.
    pub bytes: u64,
    /// Written, of that.
    pub written: u64,
}

impl AppBytes {
    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            written: self.written.saturating_add(other.written),
        }
    }
}
