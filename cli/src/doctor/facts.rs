//! Everything that is known of a host, fact by fact: `doctor --all`.

use std::path::Path;

use justitia_agent::config::DEFAULT_PATH;
use justitia_agent::device::credits::DiskSupport;
use justitia_common::command::out;
use justitia_kernel::capabilities::{
    Capabilities, CapabilityId, FeatureSupport, State, SupportLevel,
};
use justitia_kernel::probes::{Probe, ProbeError, ProbeStatus};
use justitia_kernel::release::KernelVersion;

use super::host::Host;
use super::text::{mark, paragraph};

/// Prints all of it.
pub(super) fn print(host: &Host) {
    let capabilities = &host.capabilities;
    for capability in capabilities.all() {
        let text = format!("{}: {}", capability.id.title(), capability.reason);
        out::print(paragraph(mark(capability.state), &text));
    }
    out::line("\nWhat applications get, by eBPF:");
    out::print(probe_lines(&host.probes));
    let mglru = capabilities.state(CapabilityId::Mglru) == State::Yes;
    let (state, text) = use_known(&host.probes, mglru);
    out::print(paragraph(mark(state), &text));
    out::line("\nUnmapped page cache, with a cap ([unmapped]):");
    let (state, text) = unmapped_by(capabilities, Path::new(DAMON));
    out::print(paragraph(mark(state), &text));
    out::line("\nDisks, with device bandwidth ([io]) enabled:");
    out::print(divided(&host.disks));
    out::line("");
    host.features
        .iter()
        .for_each(|f| out::print(feature_lines(f)));
    out::print(paragraph(
        mark(state_of(host.systemd)),
        after_a_kill(host.systemd),
    ));
}

/// How the agent learns what tenants use of their page cache.
fn use_known(probes: &Result<Vec<ProbeStatus>, ProbeError>, mglru: bool) -> (State, String) {
    let mut facts = probes.iter().flatten();
    if facts.any(|fact| fact.probe == Probe::Reuse && fact.state == State::Yes) {
        let text = "what tenants use of their page cache: from a sample of their accesses";
        return (State::Yes, text.to_owned());
    }
    let otherwise = if mglru {
        "with MGLRU the kernel's lists do not tell, so what a tenant holds counts as used as long as it is active"
    } else {
        "what lies on the kernel's active lists counts as used"
    };
    let text =
        format!("what tenants use of their page cache: accesses cannot be sampled; {otherwise}");
    (State::No, text)
}

/// The sysfs of DAMON, by which applications' memory is observed (`CONFIG_DAMON_SYSFS`).
const DAMON: &str = "/sys/kernel/mm/damon/admin";
/// The release that brought its filter for unmapped pages (Documentation/mm/damon/design.rst).
const DAMON_UNMAPPED: KernelVersion = KernelVersion::new(6, 15);

/// By what a cap of unmapped page cache is held here. `damon`: the directory of DAMON's files, if it exists.
fn unmapped_by(capabilities: &Capabilities, damon: &Path) -> (State, String) {
    let release = capabilities.get(CapabilityId::KernelRelease);
    let release = release.and_then(|found| KernelVersion::parse(&found.reason));
    let filter = match release.is_some_and(|found| found >= DAMON_UNMAPPED) && damon.is_dir() {
        true => "This kernel also has DAMON's filter for unmapped pages, which is not used",
        false => "DAMON's filter for unmapped pages is not there (Linux 6.15, CONFIG_DAMON_SYSFS)",
    };
    let swappiness = capabilities.state(CapabilityId::ReclaimSwappiness);
    let (state, means) = match capabilities.state(CapabilityId::MemoryReclaim) {
        State::Yes if swappiness == State::Yes => (
            State::Yes,
            "held by memory.reclaim of each tenant, with swappiness=0",
        ),
        State::Yes => (
            State::Yes,
            "held by memory.reclaim of each tenant; with swap on, tenants that have anonymous memory are left alone",
        ),
        state => (state, "not held: there is no memory.reclaim"),
    };
    (state, format!("{means}. {filter}"))
}

const fn state_of(there: bool) -> State {
    if there { State::Yes } else { State::No }
}

/// What becomes of knobs when the agent is killed and does not start again.
const fn after_a_kill(systemd: bool) -> &'static str {
    if systemd {
        "systemd: running. When an agent that runs as justitia.service is killed, the unit restores all knobs \
         (ExecStopPost). After the kill of one that was started by hand: run `justitia reset`"
    } else {
        "systemd: not running. When the agent is killed, its watchdog restores all knobs if [io] has set any \
         memory.high. Otherwise memory.low stays set, and so do all knobs if the watchdog was killed too, until the next start \
         or `justitia reset`"
    }
}

/// Those that are divided, and those that are not: one paragraph a reason.
fn divided(disks: &[DiskSupport]) -> String {
    let mut groups: Vec<(Option<&String>, Vec<String>)> = Vec::new();
    for disk in disks {
        let number = disk.number.as_ref().map(|number| format!(" ({number})"));
        let name = format!("{}{}", disk.name, number.unwrap_or_default());
        let left = disk.left.as_ref();
        match groups.iter_mut().find(|(why, _)| *why == left) {
            Some((_, names)) => names.push(name),
            None => groups.push((left, vec![name])),
        }
    }
    let told = groups.into_iter().map(|(left, names)| {
        let names = names.join(", ");
        match left {
            None => paragraph(
                mark(State::Yes),
                &format!("{names}: divided while it is contended"),
            ),
            Some(why) => paragraph(mark(State::No), &format!("{names}: {why}")),
        }
    });
    told.collect()
}

/// The probes that work, and those that do not: one paragraph a reason.
fn probe_lines(probes: &Result<Vec<ProbeStatus>, ProbeError>) -> String {
    let facts = match probes {
        Ok(facts) => facts,
        Err(error) => return format!("{:>4}  {error}\n", mark(State::No)),
    };
    let titles = |state: State, reason: Option<&str>| {
        let chosen = facts
            .iter()
            .filter(|f| f.state == state && reason.is_none_or(|r| r == f.reason));
        chosen.map(|f| f.probe.title()).collect::<Vec<_>>()
    };
    let mut out = String::new();
    let working = titles(State::Yes, None);
    if !working.is_empty() {
        out += &paragraph(mark(State::Yes), &working.join("; "));
    }
    let mut told: Vec<&str> = Vec::new();
    for fact in facts.iter().filter(|f| f.state != State::Yes) {
        if !told.contains(&fact.reason.as_str()) {
            told.push(&fact.reason);
            let titles = titles(fact.state, Some(&fact.reason)).join("; ");
            out += &paragraph(mark(fact.state), &format!("{titles}:"));
            out += &paragraph("", &format!("  {}", fact.reason));
        }
    }
    if facts.iter().any(|f| !f.details.is_empty()) {
        out += &paragraph("", "The loader's own words: `justitia doctor --json`.");
    }
    out
}

fn feature_lines(support: &FeatureSupport) -> String {
    let says = match support.level {
        SupportLevel::Full => "works",
        SupportLevel::Limited => "works, with limits",
        SupportLevel::Unavailable => "cannot work here",
    };
    let mut out = format!("{}: {says}\n", support.feature.title());
    for cause in &support.causes {
        let why = format!("{}: {}", cause.consequence, cause.capability.reason);
        out += &paragraph("", &why);
    }
    if let Some(switch) = &support.switch
        && support.level != SupportLevel::Unavailable
    {
        let how = format!("off by default: `{switch}` in {DEFAULT_PATH} switches it on");
        out += &paragraph("", &how);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::capabilities::Paths;

    #[test]
    fn the_same_reason_is_told_once() {
        let fact = |probe, state, reason: &str| ProbeStatus {
            probe,
            state,
            reason: reason.to_owned(),
            details: vec![reason.to_owned(); 3],
        };
        let told = probe_lines(&Ok(vec![
            fact(Probe::Read, State::No, "not allowed"),
            fact(Probe::Write, State::No, "not allowed"),
            fact(Probe::IoUring, State::Yes, "tp_btf/io_uring_complete"),
            fact(Probe::CacheMisses, State::No, "too new"),
        ]));
        let expected = [
            " yes  io_uring",
            "  no  read, pread; write, pwrite:",
            "        not allowed",
            "  no  page-cache misses:",
            "        too new",
            "      The loader's own words: `justitia doctor --json`.",
            "",
        ];
        let expected = expected.join("\n");
        assert_eq!(told, expected);
    }

    #[test]
    fn how_use_is_known_depends_on_the_probes_and_on_the_lists() {
        let probes = |state| {
            Ok(vec![ProbeStatus {
                probe: Probe::Reuse,
                state,
                reason: String::new(),
                details: Vec::new(),
            }])
        };
        for (probes, mglru, state, words) in [
            (probes(State::Yes), true, State::Yes, "from a sample"),
            (
                probes(State::No),
                true,
                State::No,
                "as long as it is active",
            ),
            (probes(State::No), false, State::No, "active lists"),
            (Ok(Vec::new()), false, State::No, "active lists"),
        ] {
            let (found, text) = use_known(&probes, mglru);
            assert_eq!(found, state);
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn by_what_a_cap_of_unmapped_page_cache_is_held_is_said() {
        let here = Capabilities::detect(&Paths::default());
        let there = tempfile::tempdir().unwrap();
        let (_, without) = unmapped_by(&here, &there.path().join("none"));
        assert!(without.contains("is not there"), "{without}");
        let nowhere = Capabilities::detect(&Paths {
            proc: there.path().to_owned(),
            sys: there.path().to_owned(),
            ..Paths::default()
        });
        let (state, text) = unmapped_by(&nowhere, there.path());
        assert_ne!(state, State::Yes);
        assert!(text.starts_with("not held"), "{text}");
    }

    #[test]
    fn what_becomes_of_knobs_without_systemd_is_said() {
        let with = after_a_kill(true);
        assert!(
            with.contains("justitia.service") && with.contains("ExecStopPost"),
            "{with}"
        );
        assert!(with.contains("by hand: run `justitia reset`"), "{with}");
        let without = paragraph(mark(state_of(false)), after_a_kill(false));
        assert!(
            without.starts_with("  no  systemd: not running."),
            "{without}"
        );
        assert!(without.contains("`justitia reset`"), "{without}");
    }
}
