//! What must hold for any text whatever, shared by the seeded fuzz of `cargo test` and the
//! libFuzzer targets.

use justitia_kernel::ParseError;
use justitia_kernel::cgroup::{CgroupEvents, Controllers};
use justitia_kernel::io::{IoStat, IoWeight};
use justitia_kernel::knob::Knob;
use justitia_kernel::memory::{Limit, MemoryEvents, MemoryStat};
use justitia_kernel::mount::cgroup_mounts;
use justitia_kernel::proc::{Meminfo, Vmstat, Zoneinfo};
use justitia_kernel::psi::{Psi, PsiLine};

/// A parser and what its result must satisfy.
pub(crate) type Check = fn(&[u8]);

/// Every parser, by name.
pub(crate) const ALL: [(&str, Check); 13] = [
    ("memory_stat", memory_stat),
    ("memory_events", memory_events),
    ("limit", limit),
    ("io_stat", io_stat),
    ("io_weight", io_weight),
    ("knob", knob),
    ("psi", psi),
    ("meminfo", meminfo),
    ("vmstat", vmstat),
    ("zoneinfo", zoneinfo),
    ("core", core),
    ("mountinfo", mountinfo),
    ("lru_gen", lru_gen),
];

/// Runs the checks of the given names.
#[allow(
    dead_code,
    reason = "the seeded fuzz runs all, a libFuzzer target some"
)]
pub(crate) fn some(names: &[&str], text: &[u8]) {
    for (name, check) in ALL {
        if names.contains(&name) {
            check(text);
        }
    }
}

/// An error is bounded, printable, and about a line that exists.
fn sane<T>(text: &[u8], result: Result<T, ParseError>) -> Option<T> {
    result
        .map_err(|error| {
            assert!(error.found.len() < 256, "{error:?}");
            assert!(!error.found.chars().any(char::is_control), "{error:?}");
            let newlines = text.iter().filter(|byte| **byte == b'\n').count();
            assert!((1..=newlines + 1).contains(&error.line), "{error:?}");
        })
        .ok()
}

/// The last newline is the same as none.
fn newline<T: PartialEq + std::fmt::Debug>(
    text: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, ParseError>,
) -> Option<T> {
    let with = [text, b"\n"].concat();
    let found = sane(text, parse(text));
    assert_eq!(found, sane(&with, parse(&with)));
    found
}

fn memory_stat(text: &[u8]) {
    if let Some(stat) = newline(text, MemoryStat::parse) {
        for key in ["anon ", "file ", "inactive_file ", "active_file "] {
            assert!(
                text.windows(key.len()).any(|part| part == key.as_bytes()),
                "{stat:?}"
            );
        }
    }
}

fn memory_events(text: &[u8]) {
    newline(text, MemoryEvents::parse);
}

fn limit(text: &[u8]) {
    if let Some(limit) = newline(text, Limit::parse) {
        assert_eq!(Limit::parse(limit.to_string().as_bytes()), Ok(limit));
    }
}

fn io_stat(text: &[u8]) {
    if let Some(all) = newline(text, IoStat::parse) {
        // A device with a counter takes at least `0:0 x=`.
        assert!(all.len() <= text.len() / 6);
    }
}

fn io_weight(text: &[u8]) {
    if let Some(weight) = newline(text, IoWeight::parse) {
        let mut again = format!("default {}\n", weight.default);
        for (device, weight) in &weight.per_device {
            assert!((1..=10_000).contains(&weight.get()));
            again.push_str(&format!("{device} {weight}\n"));
        }
        assert_eq!(IoWeight::parse(again.as_bytes()), Ok(weight));
    }
}

fn knob(text: &[u8]) {
    for knob in [Knob::MemoryLow, Knob::IoWeight] {
        if let Some(value) = newline(text, |text| knob.value_in(text)) {
            // What is put back reads the same.
            assert_eq!(knob.value_in(value.as_bytes()), Ok(value.clone()));
            assert!(
                value
                    .bytes()
                    .all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
            );
        }
    }
}

fn psi(text: &[u8]) {
    let percent = |line: PsiLine| (0.0..=100.0).contains(&line.avg10);
    if let Some(psi) = newline(text, Psi::parse) {
        assert!(percent(psi.some) && percent(psi.full), "{psi:?}");
    }
}

fn meminfo(text: &[u8]) {
    if let Some(info) = newline(text, Meminfo::parse) {
        assert_eq!(info.mem_total % 1024, 0);
    }
}

fn vmstat(text: &[u8]) {
    newline(text, Vmstat::parse);
}

fn zoneinfo(text: &[u8]) {
    if let Some(info) = newline(text, Zoneinfo::parse) {
        assert!(!info.zones.is_empty() && info.zones.len() <= text.len() / 16);
        assert!(
            info.zones
                .iter()
                .all(|zone| zone.managed > 0 && zone.name.len() <= 16)
        );
        let useless = info.zones.iter().map(|zone| zone.free.min(zone.low));
        let marks = info.marks();
        assert!(Some(marks.low) >= useless.max() && marks.high >= marks.low);
    }
}

fn core(text: &[u8]) {
    newline(text, CgroupEvents::parse);
    if let Some(all) = newline(text, Controllers::parse) {
        assert!(all.iter().map(str::len).sum::<usize>() <= text.len());
        assert!(all.iter().all(|name| all.has(name)));
    }
}

fn mountinfo(text: &[u8]) {
    for mount in cgroup_mounts(text) {
        assert!(mount.path.as_os_str().len() <= text.len());
    }
}

fn lru_gen(text: &[u8]) {
    for generations in justitia_kernel::lru_gen::parse(&String::from_utf8_lossy(text)) {
        assert!(generations.oldest <= generations.youngest && generations.youngest > 0);
    }
}
