//! Which probes there are, which programs serve each, and whether it works on this kernel.

use std::sync::{Mutex, PoisonError};

use libbpf_rs::PrintLevel;
use serde::{Deserialize, Serialize};

use crate::capabilities::State;

/// Something that is counted or traced in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// `read` and `pread`.
    Read,
    /// `write` and `pwrite`.
    Write,
    /// `readv`, `preadv` and `preadv2`.
    ReadVectored,
    /// `writev`, `pwritev` and `pwritev2`.
    WriteVectored,
    /// The reading side of `splice`, `sendfile` and `copy_file_range`.
    SpliceRead,
    /// The writing side of `splice`, `sendfile` and `copy_file_range`.
    SpliceWrite,
    /// io_uring's reads and writes.
    IoUring,
    /// Linux-native asynchronous I/O (`io_submit`).
    Aio,
    /// Page faults on mapped files.
    Faults,
    /// What the disk reads into the page cache.
    CacheMisses,
    /// Reads whose first page readahead had not read.
    DemandMisses,
    /// Bios throttled by `io.max`.
    IoThrottle,
    /// Writers throttled until dirty pages are written.
    DirtyThrottle,
    /// Time with requests at a disk.
    Outstanding,
    /// Reuse times of cached blocks.
    Reuse,
    /// Removed cgroups.
    CgroupRemoval,
    /// Files that several tenants use; on demand.
    SharedInodes,
    /// Pages that reclaim evicts; only for `justitia guest`.
    Evictions,
}

impl Probe {
    /// Every probe, in the order in which they are listed.
    pub const ALL: [Self; 18] = [
        Self::Read,
        Self::Write,
        Self::ReadVectored,
        Self::WriteVectored,
        Self::SpliceRead,
        Self::SpliceWrite,
        Self::IoUring,
        Self::Aio,
        Self::Faults,
        Self::CacheMisses,
        Self::DemandMisses,
        Self::IoThrottle,
        Self::DirtyThrottle,
        Self::Outstanding,
        Self::Reuse,
        Self::CgroupRemoval,
        Self::SharedInodes,
        Self::Evictions,
    ];

    /// Its name in messages.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Read => "read, pread",
            Self::Write => "write, pwrite",
            Self::ReadVectored => "readv, preadv",
            Self::WriteVectored => "writev, pwritev",
            Self::SpliceRead => "splice, sendfile, copy_file_range: reading",
            Self::SpliceWrite => "splice, sendfile, copy_file_range: writing",
            Self::IoUring => "io_uring",
            Self::Aio => "Linux-native asynchronous I/O",
            Self::Faults => "faults on mapped files",
            Self::CacheMisses => "page-cache misses",
            Self::DemandMisses => "demand misses",
            Self::IoThrottle => "throttling by io.max",
            Self::DirtyThrottle => "dirty throttling",
            Self::Outstanding => "requests at a disk",
            Self::Reuse => "reuse of cached blocks",
            Self::CgroupRemoval => "removed cgroups",
            Self::SharedInodes => "files used by several tenants (on demand)",
            Self::Evictions => "pages that reclaim evicts",
        }
    }
}

/// Whether one probe works on this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Which one.
    pub probe: Probe,
    /// `Yes` if it is attached, or if it is on demand, can be.
    pub state: State,
    /// Where it is attached, or why it is not, in few words. One line.
    pub reason: String,
    /// The full messages of the kernel and of the loader, if they are longer; one entry for each program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

// The programs of each probe.

/// The part of a program in its probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// All of these are needed.
    Needed,
    /// Each kernel has one of several.
    Alternative,
    /// Counts in place of the program before it, whenever the kernel skips that one.
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
    needed("request_outstanding", Probe::Outstanding),
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

// The status of a probe, from that of its programs.

/// How a reason begins that is about the kernel's version or configuration.
pub(super) const LACKS: &str = "this kernel has no";

/// Why the kernel refuses programs of a kind altogether.
pub(super) const DENIED: &str =
    "the kernel does not allow it (EPERM): it takes root outside a container, and no lockdown";

/// A text for each of some programs, by the program's name.
type ByProgram = [(&'static str, String)];

/// The status of each probe that the programs serve. `attached` has each attached program's section, `absent` why others
/// are not. A probe works if all of its programs are attached, of alternatives one.
pub(super) fn status(
    programs: &[Program],
    attached: &ByProgram,
    absent: &ByProgram,
) -> Vec<ProbeStatus> {
    let of_probe = |probe| {
        let mine: Vec<_> = programs.iter().filter(|one| one.probe == probe).collect();
        (!mine.is_empty()).then(|| probe_status(probe, &mine, attached, absent))
    };
    Probe::ALL.into_iter().filter_map(of_probe).collect()
}

fn probe_status(
    probe: Probe,
    programs: &[&Program],
    attached: &ByProgram,
    absent: &ByProgram,
) -> ProbeStatus {
    let texts = |of: &ByProgram| -> Vec<String> {
        of.iter()
            .filter(|(name, _)| programs.iter().any(|program| program.name == *name))
            .map(|(_, text)| text.clone())
            .collect()
    };
    let works = all_needed(programs, attached);
    let details = if works {
        texts(attached)
    } else {
        // Kernels have only one of alternatives: that one is lacking matters only if none was refused.
        let (lacking, refused): (Vec<_>, Vec<_>) = texts(absent)
            .into_iter()
            .partition(|why| why.starts_with(LACKS));
        if refused.is_empty() { lacking } else { refused }
    };
    let mut reasons: Vec<String> = Vec::new();
    for reason in details.iter().map(|why| short(why)) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    let shortened = details.iter().any(|why| !reasons.contains(why));
    ProbeStatus {
        probe,
        state: if works { State::Yes } else { State::No },
        reason: reasons.join(", "),
        details: if shortened { details } else { Vec::new() },
    }
}

/// Whether all programs are attached, of alternatives at least one.
fn all_needed(programs: &[&Program], attached: &ByProgram) -> bool {
    let is_attached = |program: &&Program| attached.iter().any(|(name, _)| *name == program.name);
    let (alternatives, needed): (Vec<&Program>, Vec<&Program>) = programs
        .iter()
        .partition(|program| program.role == Role::Alternative);
    needed.iter().all(is_attached)
        && (alternatives.is_empty() || alternatives.iter().any(is_attached))
}

/// A reason in few words. What the loader prints goes on for lines, and names objects that no user knows.
pub(super) fn short(reason: &str) -> String {
    const MISFIT: &str = "resolve CO-RE relocation";
    let (error, printed) = split(reason);
    if error.contains("(os error 1)") {
        return DENIED.to_owned();
    }
    // `<byte_off> [155] struct folio.flags (0:0 @ offset 0)`
    let misfit = printed.rsplit_once(MISFIT).and_then(|(_, rest)| {
        let (_, named) = rest.split_once("] ")?;
        Some(named.split_once(" (")?.0)
    });
    match misfit {
        Some(field) => {
            format!("this kernel is newer or older than what is known of it: {field} differs")
        }
        None => error.replace('\n', " "),
    }
}

// The messages that libbpf prints, captured: the verifier's reasons are nowhere else.

/// The end of what libbpf has printed.
static TEXT: Mutex<String> = Mutex::new(String::new());
/// One capture at a time: libbpf has one print callback.
static CAPTURING: Mutex<()> = Mutex::new(());

/// How many bytes are kept, from the end.
const MAX_LEN: usize = 300;

/// Separates an error from what libbpf printed about it.
const SEPARATOR: &str = ": … ";

/// Runs `body` and returns what libbpf printed meanwhile.
pub(super) fn capture<T>(body: impl FnOnce() -> T) -> (T, String) {
    let _one = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, append)));
    let result = body();
    libbpf_rs::set_print(before);
    let text = std::mem::take(&mut *TEXT.lock().unwrap_or_else(PoisonError::into_inner));
    (result, text)
}

fn append(_: PrintLevel, printed: String) {
    let mut text = TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    text.push_str(&printed);
    let mut cut = text.len().saturating_sub(MAX_LEN);
    while !text.is_char_boundary(cut) {
        cut += 1;
    }
    text.drain(..cut);
}

/// The error, and after it what libbpf printed.
pub(super) fn reason(error: &libbpf_rs::Error, printed: &str) -> String {
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    if printed.is_empty() {
        error.to_string()
    } else {
        format!("{error}{SEPARATOR}{printed}")
    }
}

/// A [`reason`] divided into the error and what libbpf printed.
pub(super) fn split(reason: &str) -> (&str, &str) {
    reason.split_once(SEPARATOR).unwrap_or((reason, ""))
}

#[cfg(test)]
mod tests {
    use super::ACCOUNT;
    use super::*;

    const REFUSED: &str = "Operation not permitted (os error 1): … libbpf: prog 'read': BPF program load failed: -EPERM";
    const LACKING: &str = "this kernel has no function do_splice_to";

    #[test]
    fn a_reason_is_short() {
        let misfit = "Invalid argument (os error 22): … failed to resolve CO-RE relocation <byte_off> [155] struct \
                      folio.flags (0:0 @ offset 0) processed 122 insns";
        for (why, expected) in [
            (REFUSED, DENIED),
            (
                misfit,
                "this kernel is newer or older than what is known of it: struct folio.flags differs",
            ),
            (LACKING, LACKING),
            ("Out of memory: … libbpf: what\never", "Out of memory"),
        ] {
            assert_eq!(short(why), expected);
        }
    }

    #[test]
    fn a_lacking_alternative_is_not_the_reason_when_another_was_refused() {
        let names: Vec<_> = ACCOUNT
            .iter()
            .filter(|one| one.probe == Probe::SpliceRead)
            .map(|one| one.name)
            .collect();
        let of_splice = |attached: &ByProgram, absent: &ByProgram| {
            let all = status(ACCOUNT, attached, absent);
            let mut all = all.into_iter();
            all.find(|one| one.probe == Probe::SpliceRead).unwrap()
        };
        let lacking = (names[0], LACKING.to_owned());
        let refused = of_splice(&[], &[lacking.clone(), (names[1], REFUSED.to_owned())]);
        assert_eq!(
            (refused.state, refused.reason.as_str()),
            (State::No, DENIED)
        );
        assert_eq!(refused.details, [REFUSED]);
        let section = "fexit/do_splice_read".to_owned();
        let works = of_splice(&[(names[1], section.clone())], &[lacking]);
        assert_eq!((works.state, works.reason), (State::Yes, section));
    }
}
