//! From programs to probes: which probes work, and why others do not, in few words.

use super::libbpf_log::split;
use super::programs::{Program, Role};
use super::{Probe, ProbeStatus};
use crate::capabilities::State;

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

#[cfg(test)]
mod tests {
    use super::super::programs::ACCOUNT;
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
