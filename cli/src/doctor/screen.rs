//! The screen: 24 lines of 80 columns on a host with every runtime. First the verdict, in three points.

use std::fmt::Write;

use justitia_kernel::capabilities::{
    CapabilityId, Cause, Feature, FeatureSupport, State, SupportLevel,
};
use justitia_runtimes::{Installed, Reads};

use super::host::Host;
use super::text::paragraph;

/// The marks.
const YES: &str = "yes";
const NO: &str = "no";
/// Nothing is lost by it.
const HARMLESS: &str = "(no)";

/// What may be missing without a loss, by its short name.
const OPTIONAL: [(CapabilityId, &str); 4] = [
    (CapabilityId::Mglru, "MGLRU"),
    (CapabilityId::Swap, "swap"),
    (CapabilityId::Bfq, "BFQ"),
    (CapabilityId::IoCost, "io.cost"),
];
/// The most disks that are named.
const MAX_DISKS: usize = 4;

/// All of it.
pub(super) fn text(host: &Host) -> String {
    let release = host.capabilities.get(CapabilityId::KernelRelease);
    let release = release.map_or("?", |found| found.reason.as_str());
    let mut out = format!(
        "justitia {} on {}, Linux {release}\n",
        env!("CARGO_PKG_VERSION"),
        host.name
    );
    for (mark, text) in [page_cache(host), bandwidth(host), vms(host)] {
        out += &paragraph(mark, &text);
    }
    out += "Runtimes:\n";
    for (one, version) in &host.runtimes {
        let (mark, text) = runtime(one, version.as_deref());
        out += &paragraph(mark, &text);
    }
    if host.runtimes.is_empty() {
        out += &paragraph(
            HARMLESS,
            "none was found: tenants are told by the paths of their cgroups",
        );
    }
    limits(&mut out, host);
    let _ = writeln!(
        out,
        "(no): nothing is lost by it. Every fact: `justitia doctor --all`, `--json`."
    );
    out
}

fn feature(host: &Host, which: Feature) -> Option<&FeatureSupport> {
    host.features.iter().find(|found| found.feature == which)
}

/// What prevents or limits a feature first.
fn cause(support: &FeatureSupport) -> Option<&Cause> {
    support.causes.first()
}

fn prevented(host: &Host, which: Feature) -> Option<String> {
    let support = feature(host, which).filter(|found| found.level == SupportLevel::Unavailable)?;
    Some(cause(support).map_or_else(String::new, |cause| {
        format!("{}: {}", cause.consequence, cause.capability.reason)
    }))
}

fn page_cache(host: &Host) -> (&'static str, String) {
    let parts = [
        Feature::CacheProtection,
        Feature::ProactiveReclaim,
        Feature::Weights,
    ];
    let lru = match host.capabilities.state(CapabilityId::Mglru) {
        State::Yes => "; the host has MGLRU",
        State::No => "; the host has the classic LRU",
        _ => "",
    };
    if let Some(why) = parts.iter().find_map(|part| prevented(host, *part)) {
        return (
            NO,
            format!("page cache: cannot be divided by weight: {why}{lru}"),
        );
    }
    let all = parts.iter().filter_map(|part| feature(host, *part));
    let limited = all
        .filter(|found| found.level == SupportLevel::Limited)
        .count();
    let limits = match limited {
        0 => "",
        _ => ", with limits (below)",
    };
    // Whether an agent divides it now is not looked at.
    (
        YES,
        format!("page cache: can be divided by weight{limits}{lru}"),
    )
}

fn bandwidth(host: &Host) -> (&'static str, String) {
    if let Some(why) = prevented(host, Feature::DeviceBandwidth) {
        let same = prevented(host, Feature::CacheProtection).is_some_and(|other| other == why);
        let why = match same {
            true => "cannot be divided, either, for the same reason",
            false => why.as_str(),
        };
        return (
            HARMLESS,
            format!("device bandwidth (off by default): {why}"),
        );
    }
    let divided: Vec<&str> = host
        .disks
        .iter()
        .filter(|disk| disk.left.is_none())
        .map(|disk| disk.name.as_str())
        .collect();
    if divided.is_empty() {
        let why = "no disk here can be divided (`--all` says why of each)";
        return (
            HARMLESS,
            format!("device bandwidth (off by default): {why}"),
        );
    }
    let more = divided.len().saturating_sub(MAX_DISKS);
    let named = divided.get(..divided.len() - more).unwrap_or_default();
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let how = format!("of {}{more} can be divided", named.join(", "));
    (
        YES,
        format!("device bandwidth: {how}; off: `[io] enabled = true`"),
    )
}

fn vms(host: &Host) -> (&'static str, String) {
    let cache = "hypervisor cache: `justitia cache serve` runs here";
    let guest = match host.is_vm {
        true => "a VM: `justitia guest`, if its host has a cache",
        false => "this is no VM",
    };
    (YES, format!("{cache}; {guest}"))
}

fn runtime(one: &Installed, version: Option<&str>) -> (&'static str, String) {
    let version = version.map_or_else(String::new, |version| format!(" {version}"));
    let driver = one.cgroup_driver.as_ref();
    let driver = driver.map_or_else(String::new, |driver| {
        let driver: String = driver.chars().take(12).collect();
        format!(" (cgroups: {})", justitia_api::escape::plain(&driver))
    });
    let who = format!("{}{version}{driver}", one.name);
    let what = match one.name {
        "podman" => "names, images, weights",
        "kubelet" => "pods' names, no weights,",
        "systemd" => "names, IOWeight=",
        "libvirt" => "names, <blkiotune> weights",
        _ => "names, images, labels, weights",
    };
    match &one.reads {
        Reads::From(_) if one.name == "systemd" => (YES, format!("{who}: {what}")),
        Reads::From(places) => {
            let first = places.first().map_or(String::new(), |place| shown(place));
            (YES, format!("{who}: {what} from {first}"))
        }
        Reads::Later(_) => (HARMLESS, format!("{who}: nothing of it has run yet")),
        Reads::Not(place, why) => (NO, format!("{who}: {} is not used: {why}", shown(place))),
    }
}

fn shown(place: &std::path::Path) -> String {
    justitia_api::escape::encode(place.as_os_str())
}

/// What limits something, and what is not there and need not be.
fn limits(out: &mut String, host: &Host) {
    let limited = host.features.iter();
    let limited = limited.filter(|found| found.level == SupportLevel::Limited);
    let mut told: Vec<&str> = Vec::new();
    for cause in limited.flat_map(|found| &found.causes) {
        if !told.contains(&cause.consequence.as_str()) {
            told.push(&cause.consequence);
        }
    }
    // The others are in `--all`, by feature.
    if let Some(first) = told.first() {
        let more = match told.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more: `--all`)"),
        };
        *out += &paragraph("-", &format!("limit: {first}{more}"));
    }
    let absent: Vec<&str> = OPTIONAL
        .iter()
        .filter(|(id, _)| host.capabilities.state(*id) == State::No)
        .map(|(_, name)| *name)
        .collect();
    if !absent.is_empty() {
        let absent = absent.join(", ");
        *out += &paragraph(HARMLESS, &format!("not here, and not needed: {absent}"));
    }
    let unseen = match &host.probes {
        Ok(probes) => probes.iter().any(|probe| probe.state != State::Yes),
        Err(_) => true,
    };
    if unseen {
        let what = "some probes do not load: applications' own I/O, or use of cache, is not seen (`--all`)";
        *out += &paragraph(NO, what);
    }
}

#[cfg(test)]
mod tests;
