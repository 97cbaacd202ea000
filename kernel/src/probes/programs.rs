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

/// `bpf/shared.bpf.c`.
pub(super) const SHARED: &[Program] = &[needed("folio_accessed", Probe::SharedInodes)];

/// `bpf/evict.bpf.c`. What keeps the places of pages right is attached before what learns them.
pub(super) const EVICT: &[Program] = &[
    needed("page_deleted", Probe::Evictions),
    needed("page_added", Probe::Evictions),
    needed("page_moved", Probe::Evictions),
    needed("request_completed", Probe::Evictions),
];
