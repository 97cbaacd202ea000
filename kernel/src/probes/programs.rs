//! Which program serves which probe.

use super::Probe;

/// What a program is to the others of its probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// All of these are needed.
    Needed,
    /// Each kernel has one of several.
    Alternative,
    /// Does what the program before it does, whenever the kernel skips that one.
    Fallback,
}

/// One program, by its name in `bpf/`.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) probe: Probe,
    pub(super) role: Role,
}

const fn needed(name: &'static str, probe: Probe) -> Program {
    let role = Role::Needed;
    Program { name, probe, role }
}

const fn alternative(name: &'static str, probe: Probe) -> Program {
    let role = Role::Alternative;
    Program { name, probe, role }
}

const fn fallback(name: &'static str, probe: Probe) -> Program {
    let role = Role::Fallback;
    Program { name, probe, role }
}

/// The programs that are always attached (`bpf/account.bpf.c`). A program that ends something is attached before the one
/// that begins it, so that nothing is begun that is not ended.
pub(super) const ACCOUNT: &[Program] = &[
    needed("read", Probe::Read),
    needed("write", Probe::Write),
    needed("readv", Probe::ReadVectored),
    needed("writev", Probe::WriteVectored),
    alternative("splice_read", Probe::SpliceRead),
    alternative("splice_to", Probe::SpliceRead),
    needed("splice_write", Probe::SpliceWrite),
    needed("io_uring", Probe::IoUring),
    needed("aio_complete", Probe::Aio),
    fallback("aio_complete_fallback", Probe::Aio),
    needed("aio_read_refused", Probe::Aio),
    needed("aio_write_refused", Probe::Aio),
    needed("aio_read", Probe::Aio),
    needed("aio_write", Probe::Aio),
    needed("fault", Probe::Faults),
    needed("cache_miss", Probe::CacheMisses),
    needed("demand_miss", Probe::DemandMisses),
    needed("bio_throttle_end", Probe::IoThrottle),
    needed("bio_throttle_decided", Probe::IoThrottle),
    needed("bio_throttle", Probe::IoThrottle),
    needed("dirty_throttle_end", Probe::DirtyThrottle),
    needed("dirty_throttle", Probe::DirtyThrottle),
    needed("fault_around", Probe::Reuse),
    needed("cgroup_removed", Probe::CgroupRemoval),
];

/// `bpf/latency.bpf.c`.
pub(super) const LATENCY: &[Program] = &[
    needed("read_end", Probe::Latency),
    needed("read_begin", Probe::Latency),
    needed("write_end", Probe::Latency),
    needed("write_begin", Probe::Latency),
    needed("readv_end", Probe::Latency),
    needed("readv_begin", Probe::Latency),
    needed("writev_end", Probe::Latency),
    needed("writev_begin", Probe::Latency),
    needed("sync_end", Probe::Latency),
    needed("sync_begin", Probe::Latency),
];

/// `bpf/shared.bpf.c`.
pub(super) const SHARED: &[Program] = &[needed("folio_accessed", Probe::SharedInodes)];

/// `bpf/evict.bpf.c`. What keeps the places of pages right is attached before what learns them.
pub(super) const EVICT: &[Program] = &[
    needed("page_deleted", Probe::Evictions),
    needed("page_added", Probe::Evictions),
    needed("page_moved", Probe::Evictions),
    needed("request_completed", Probe::Evictions),
];

/// `bpf/locks.bpf.c`.
pub(super) const LOCKS: &[Program] = &[
    alternative("alloc_leave", Probe::LockContention),
    alternative("alloc_enter", Probe::LockContention),
    alternative("alloc_noprof_leave", Probe::LockContention),
    alternative("alloc_noprof_enter", Probe::LockContention),
    needed("add_leave", Probe::LockContention),
    needed("add_enter", Probe::LockContention),
    needed("add_lru_leave", Probe::LockContention),
    needed("add_lru_enter", Probe::LockContention),
    needed("accessed_leave", Probe::LockContention),
    needed("accessed_enter", Probe::LockContention),
    alternative("put_leave", Probe::LockContention),
    alternative("put_enter", Probe::LockContention),
    alternative("release_leave", Probe::LockContention),
    alternative("release_enter", Probe::LockContention),
    alternative("batch_release_leave", Probe::LockContention),
    alternative("batch_release_enter", Probe::LockContention),
    alternative("pagevec_release_leave", Probe::LockContention),
    alternative("pagevec_release_enter", Probe::LockContention),
    needed("wait_end", Probe::LockContention),
    needed("wait_begin", Probe::LockContention),
];
