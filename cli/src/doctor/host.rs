//! What was found on a host.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use justitia_agent::device::credits::{DiskSupport, disk_support};
use justitia_api::escape;
use justitia_kernel::capabilities::{Capabilities, FeatureSupport, Paths, SupportLevel};
use justitia_kernel::probes::{IoProbes, Limits, ProbeError, ProbeStatus};
use justitia_runtimes::{Installed, Reads};

/// A host.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) capabilities: Capabilities,
    pub(super) features: Vec<FeatureSupport>,
    pub(super) probes: Result<Vec<ProbeStatus>, ProbeError>,
    pub(super) disks: Vec<DiskSupport>,
    /// Whether systemd is its first process.
    pub(super) systemd: bool,
    /// The runtimes, systemd first, each with its version where it tells one.
    pub(super) runtimes: Vec<(Installed, Option<String>)>,
    /// Whether it is a virtual machine.
    pub(super) is_vm: bool,
}

impl Host {
    /// Looks at this one.
    pub(super) fn look() -> anyhow::Result<Self> {
        let capabilities = Capabilities::detect(&Paths::default());
        let systemd = Path::new("/run/systemd/system").is_dir();
        let of_systemd = systemd.then(|| Installed {
            name: "systemd",
            program: "/usr/bin/systemctl".into(),
            cgroup_driver: None,
            reads: Reads::From(vec!["unit files".into()]),
        });
        let runtimes = of_systemd
            .into_iter()
            .chain(justitia_runtimes::installed(Path::new("/")));
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            name: escape::plain(name.trim()),
            features: capabilities.features(),
            capabilities,
            probes: IoProbes::attach(&Limits::default()).map(|probes| probes.status()),
            disks: disks()?,
            systemd,
            runtimes: runtimes
                .map(|one| (version(&one.program), one))
                .map(|(version, one)| (one, version))
                .collect(),
            // The processor says so to what runs under a hypervisor.
            is_vm: cpu.split_whitespace().any(|flag| flag == "hypervisor"),
        })
    }

    /// Whether what is on by default works, and what is installed can be read.
    pub(super) fn works(&self) -> bool {
        let unavailable =
            |f: &FeatureSupport| f.level == SupportLevel::Unavailable && f.switch.is_none();
        let unread = |(one, _): &(Installed, _)| matches!(one.reads, Reads::Not(..));
        !self.features.iter().any(unavailable) && !self.runtimes.iter().any(unread)
    }

    /// All of it.
    pub(super) fn json(&self) -> serde_json::Value {
        let probes = self.probes.as_ref().map_err(ToString::to_string);
        let runtimes = self.runtimes.iter().map(|(one, version)| {
            let (reads, why) = match &one.reads {
                Reads::From(places) => (places.clone(), None),
                Reads::Later(_) => (Vec::new(), None),
                Reads::Not(place, why) => (Vec::new(), Some(format!("{}: {why}", place.display()))),
            };
            serde_json::json!({
                "name": one.name, "version": version, "cgroup_driver": one.cgroup_driver,
                "reads": reads, "not_read": why,
            })
        });
        serde_json::json!({
            "host": self.name, "capabilities": self.capabilities.all(), "features": self.features, "probes": probes,
            "disks": self.disks, "runtimes": runtimes.collect::<Vec<_>>(),
            "vm": self.is_vm,
        })
    }
}

/// Every block device, and whether device bandwidth is divided there.
fn disks() -> anyhow::Result<Vec<DiskSupport>> {
    let disks = disk_support(Path::new("/sys"));
    disks.context("block devices, in /sys/block")
}

/// The version that a program tells.
fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null());
    let told = command.output().ok()?.stdout;
    number(&String::from_utf8_lossy(&told))
}

/// The first word with a digit at its beginning, or after a `v`.
fn number(told: &str) -> Option<String> {
    let words = told.split([' ', ',', '\n', '(', ')']);
    let mut words = words.map(|word| word.strip_prefix('v').unwrap_or(word));
    let found = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let short = found.split(['+', '~', '-']).next().unwrap_or(found);
    Some(escape::plain(short).chars().take(16).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_tell() {
        for (told, expected) in [
            (
                "Docker version 20.10.24+dfsg1, build 297e128",
                Some("20.10.24"),
            ),
            ("podman version 4.3.1\n", Some("4.3.1")),
            (
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1",
                Some("1.6.20"),
            ),
            ("systemd 252 (252.39-1~deb12u1)\n+PAM", Some("252")),
            ("Kubernetes v1.30.2", Some("1.30.2")),
            ("libvirtd (libvirt) 9.0.0", Some("9.0.0")),
            ("\u{1b}[2J", None),
        ] {
            assert_eq!(number(told).as_deref(), expected, "{told}");
        }
    }
}
