//! Which program serves which probe.

use super::Probe;

/// How a program stands to the others of its probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All of them are needed.
    Needed,
    /// Of several, kernels have one.
    Alternative,
    /// Does what the one before it does, whenever the kernel skips that.
    Twin,
}

/// One program, by its name in `bpf/`.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) probe: Probe,
    pub(super) kind: Kind,
}

const fn program(name: &'static str, probe: Probe) -> Program {
    Program {
        name,
        probe,
        kind: Kind::Needed,
    }
}

const fn of_kind(kind: Kind, name: &'static str, probe: Probe) -> Program {
    Program { name, probe, kind }
}

/// The programs that are attached as long as the eyes are open (`bpf/account.bpf.c`). What ends
/// something comes before what begins it, so that nothing is begun that nobody ends.
pub(super) const ACCOUNT: &[Program] = &[
    program("read", Probe::Read),
    program("write", Probe::Write),
    program("readv", Probe::ReadVectored),
    program("writev", Probe::WriteVectored),
    of_kind(Kind::Alternative, "splice_read", Probe::SpliceRead),
    of_kind(Kind::Alternative, "splice_to", Probe::SpliceRead),
    program("splice_write", Probe::SpliceWrite),
    program("uring", Probe::IoUring),
    program("aio_complete", Probe::Aio),
    of_kind(Kind::Twin, "aio_complete_twin", Probe::Aio),
    program("aio_read_refused", Probe::Aio),
    program("aio_write_refused", Probe::Aio),
    program("aio_read", Probe::Aio),
    program("aio_write", Probe::Aio),
    program("fault", Probe::Faults),
    program("filled", Probe::CacheMisses),
    program("demand_miss", Probe::DemandMisses),
    program("throttle_end", Probe::IoThrottle),
    program("throttle_decided", Probe::IoThrottle),
    program("throttle", Probe::IoThrottle),
    program("dirty_waited", Probe::DirtyThrottle),
    program("dirty_wait", Probe::DirtyThrottle),
    program("fault_around", Probe::Reuse),
    program("removal", Probe::CgroupRemoval),
];

/// `bpf/latency.bpf.c`.
pub(super) const LATENCY: &[Program] = &[
    program("read_end", Probe::Latency),
    program("read_begin", Probe::Latency),
    program("write_end", Probe::Latency),
    program("write_begin", Probe::Latency),
    program("readv_end", Probe::Latency),
    program("readv_begin", Probe::Latency),
    program("writev_end", Probe::Latency),
    program("writev_begin", Probe::Latency),
    program("sync_end", Probe::Latency),
    program("sync_begin", Probe::Latency),
];

/// `bpf/shared.bpf.c`.
pub(super) const SHARED: &[Program] = &[program("touched", Probe::SharedInodes)];

/// `bpf/locks.bpf.c`.
pub(super) const LOCKS: &[Program] = &[
    of_kind(Kind::Alternative, "alloc_leave", Probe::LockContention),
    of_kind(Kind::Alternative, "alloc_enter", Probe::LockContention),
    of_kind(
        Kind::Alternative,
        "alloc_noprof_leave",
        Probe::LockContention,
    ),
    of_kind(
        Kind::Alternative,
        "alloc_noprof_enter",
        Probe::LockContention,
    ),
    program("add_leave", Probe::LockContention),
    program("add_enter", Probe::LockContention),
    program("add_lru_leave", Probe::LockContention),
    program("add_lru_enter", Probe::LockContention),
    program("accessed_leave", Probe::LockContention),
    program("accessed_enter", Probe::LockContention),
    of_kind(Kind::Alternative, "put_leave", Probe::LockContention),
    of_kind(Kind::Alternative, "put_enter", Probe::LockContention),
    of_kind(Kind::Alternative, "release_leave", Probe::LockContention),
    of_kind(Kind::Alternative, "release_enter", Probe::LockContention),
    of_kind(
        Kind::Alternative,
        "batch_release_leave",
        Probe::LockContention,
    ),
    of_kind(
        Kind::Alternative,
        "batch_release_enter",
        Probe::LockContention,
    ),
    of_kind(
        Kind::Alternative,
        "pagevec_release_leave",
        Probe::LockContention,
    ),
    of_kind(
        Kind::Alternative,
        "pagevec_release_enter",
        Probe::LockContention,
    ),
    program("wait_end", Probe::LockContention),
    program("wait_begin", Probe::LockContention),
];
