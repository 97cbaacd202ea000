//! The page cache of one tenant, and the limits of what may be dirty.

/// The memory of the machine, and when the kernel writes back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Memory that may be dirty: free memory and file pages, bytes.
    pub dirtyable: f64,
    /// `vm.dirty_ratio`, a part of it.
    pub dirty_ratio: f64,
    /// `vm.dirty_background_ratio`, a part of it.
    pub background_ratio: f64,
    /// What a thread reads from and writes to memory, bytes per second.
    pub speed: f64,
    /// The kernel adds up what each cgroup has dirty this often, seconds.
    pub sums_every: f64,
    /// Memory of a tenant beside file pages, bytes.
    pub other: f64,
}

impl Memory {
    /// A guest of 1 GiB, emulated, as of the experiments, with the kernel's own settings.
    #[must_use]
    pub const fn guest() -> Self {
        Self {
            dirtyable: 750e6,
            dirty_ratio: 0.2,
            background_ratio: 0.1,
            speed: 400e6,
            sums_every: 2.0,
            other: 10e6,
        }
    }

    /// The same, as of the experiments with file servers: a thread of an emulated processor moves 15 MB/s to and from memory.
    #[must_use]
    pub const fn slow_guest() -> Self {
        Self {
            dirtyable: 1200e6,
            speed: 15e6,
            ..Self::guest()
        }
    }

    /// From this many dirty bytes in all on, writers are held back.
    pub(crate) fn limit(&self) -> f64 {
        self.dirtyable * self.dirty_ratio
    }

    pub(crate) fn background(&self) -> f64 {
        self.dirtyable * self.background_ratio.min(self.dirty_ratio)
    }
}

/// What one tenant has in the page cache, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    /// Dirty, and not under writeback.
    pub(crate) dirty: f64,
    /// Under writeback: before the scheduler, or at the disk.
    pub(crate) writeback: f64,
    /// Their sum when the kernel added it up last.
    pub(crate) known: f64,
    /// What its files have cached.
    pub(crate) file: f64,
    /// `memory.high`; infinite for `max`.
    pub(crate) high: f64,
    /// Writeback that was begun and that was completed, ever: a thread that waits for what was begun compares the two.
    pub(crate) begun: f64,
    pub(crate) completed: f64,
    /// Its part of all that was written back lately, 0 to 1: the kernel lets it have that part of what may be dirty.
    pub(crate) written: f64,
    /// A thread waits for all of it to be written.
    pub(crate) flush_all: bool,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            dirty: 0.0,
            writeback: 0.0,
            known: 0.0,
            file: 0.0,
            high: f64::INFINITY,
            begun: 0.0,
            completed: 0.0,
            written: 0.0,
            flush_all: false,
        }
    }
}

impl Pages {
    /// How many of the files' bytes may be cached.
    pub(crate) fn cacheable(&self, files: f64, other: f64) -> f64 {
        files.min((self.high - other).max(0.0))
    }

    /// Its own dirty limit: the machine's ratio of the memory that it may use for files (`domain_dirty_limits`).
    pub(crate) fn limit(&self, memory: &Memory) -> f64 {
        (self.high - memory.other).max(1e6) * memory.dirty_ratio
    }

    pub(crate) fn background(&self, memory: &Memory) -> f64 {
        self.limit(memory) * (memory.background_ratio / memory.dirty_ratio).min(1.0)
    }
}
