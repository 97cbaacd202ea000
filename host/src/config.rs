//! The configuration: none is needed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use justitia_api::size;
use justitia_common::toml_file::value::{Size, boolean, expect, some_weight};
use justitia_common::toml_file::{Report, TomlError, TomlFile};
use justitia_share::Weight;
use serde::{Deserialize, Deserializer};

use crate::discover::{Found, Process};
use crate::socket::Socket;

/// The default path.
pub const DEFAULT_PATH: &str = "/etc/justitia/host.toml";
/// Per cent of memory that stay available by default: room for what guests allocate within seconds.
const HEADROOM: u64 = 10;
/// A size of fewer bytes is hardly meant: its unit is missing.
const LEAST: u64 = 1 << 20;

/// The configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The memory that stays available on the host, of the memory that all VMs together may hold.
    #[serde(deserialize_with = "headroom")]
    pub headroom: Headroom,
    /// The most that all VMs together may hold, bytes, if the host has other uses for the rest.
    #[serde(deserialize_with = "most")]
    pub most: Option<u64>,
    /// Whether VMs without a `[[vm]]` table are managed, too.
    #[serde(deserialize_with = "boolean")]
    pub discover: bool,
    /// The control socket of `justitia cache serve`, which serves disks of VMs.
    pub cache: PathBuf,
    /// Where metrics are served: `127.0.0.1` or `::1`, and a port. `None`: they are not served.
    #[serde(deserialize_with = "metrics")]
    pub metrics: Option<SocketAddr>,
    /// Settings of single VMs.
    #[serde(rename = "vm")]
    pub vms: Vec<VmConfig>,
}

/// The memory that stays available on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// Per cent of its memory without its hugepages, or of `most` if that is less, 1 to 90.
    Percent(u64),
    /// Bytes.
    Bytes(u64),
}

/// The settings of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// Its name, as in `-name`.
    pub name: String,
    /// The user ID of its process. Without it the process must belong to a system user (root or a service): any user can give
    /// a process the name of a VM.
    pub uid: Option<u32>,
    /// The socket of its QMP monitor, if the command line does not name it.
    pub qmp: Option<PathBuf>,
    /// The socket of the port `org.justitia.memory.0`, if the command line does not name it.
    pub channel: Option<PathBuf>,
    /// Its weight. Default: that of its cgroup (`io.weight`).
    #[serde(default, deserialize_with = "some_weight")]
    pub weight: Option<Weight>,
    /// The memory that it keeps before the rest is divided, bytes.
    #[serde(default, deserialize_with = "bytes")]
    pub min: u64,
}

/// Why the configuration is refused: every error, with its line.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigError(Vec<TomlError>);

fn lines(errors: &[TomlError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl Default for Config {
    fn default() -> Self {
        Self {
            headroom: Headroom::Percent(HEADROOM),
            most: None,
            discover: true,
            cache: crate::duplicates::default_cache(),
            metrics: None,
            vms: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the file at `path`. Without a path it reads the default one, if that exists.
    ///
    /// # Errors
    /// If the file cannot be read or has an error.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let file = path.unwrap_or_else(|| Path::new(DEFAULT_PATH));
        if path.is_none() && !file.exists() {
            return Ok(Self::default());
        }
        let text = TomlFile::read(file).map_err(|error| ConfigError(vec![error]))?;
        Self::parse(&text)
    }

    /// Whether the daemon manages this VM. A login user can give a process the name of another VM.
    #[must_use]
    pub fn manages(&self, found: &Found) -> bool {
        match self.vms.iter().find(|vm| vm.name == found.name) {
            Some(vm) => match vm.uid {
                Some(uid) => uid == found.uid,
                None => !found.is_of_a_login_user(),
            },
            None => self.discover && !found.is_of_a_login_user(),
        }
    }

    /// The VMs that have a configured socket, but share their name with another VM: the socket may belong to either.
    pub(crate) fn ambiguous(&self, vms: &[Found]) -> Vec<Process> {
        let names_socket = |found: &&Found| {
            let mut configured = self.vms.iter().filter(|vm| vm.name == found.name);
            configured.any(|vm| vm.qmp.is_some() || vm.channel.is_some())
        };
        let is_one_of_several = |found: &&Found| {
            let same = vms.iter().filter(|other| other.name == found.name);
            same.count() > 1
        };
        let found = vms.iter().filter(names_socket).filter(is_one_of_several);
        found.map(|found| found.process).collect()
    }

    /// The VM with its configured sockets, its weight, and its minimum.
    pub(crate) fn of(&self, mut found: Found) -> (Found, Weight, u64) {
        let Some(vm) = self.vms.iter().find(|vm| vm.name == found.name) else {
            let weight = found.weight;
            return (found, weight, 0);
        };
        found.qmp = vm.qmp.clone().map(Socket::trusted).or(found.qmp);
        found.channel = vm.channel.clone().map(Socket::trusted).or(found.channel);
        let weight = vm.weight.unwrap_or(found.weight);
        (found, weight, vm.min)
    }

    /// The memory for VMs on a host of `total` bytes.
    #[must_use]
    pub fn memory(&self, total: u64) -> u64 {
        self.most.map_or(total, |most| most.min(total))
    }

    /// What is hardly meant, in words.
    #[must_use]
    pub fn advice(&self) -> Vec<String> {
        let headroom = match self.headroom {
            Headroom::Percent(_) => None,
            Headroom::Bytes(bytes) => Some(bytes),
        };
        let sizes = [("headroom", headroom), ("most", self.most)];
        let small = sizes.iter().filter_map(|(key, size)| {
            let found = Size(size.filter(|size| *size < LEAST)?);
            let least = Size(LEAST);
            Some(format!(
                "{key}: expected {least} or more, found {found}: give a unit, such as \"4GiB\""
            ))
        });
        let mut told: Vec<String> = small.collect();
        if let (Some(headroom), Some(most)) = (headroom, self.most)
            && headroom >= most
        {
            told.push(format!(
                "headroom: expected less than `most`, {}, found {}: nothing is left for VMs",
                Size(most),
                Size(headroom)
            ));
        }
        told
    }

    fn parse(text: &TomlFile) -> Result<Self, ConfigError> {
        let mut report = Report::new(text);
        let mut table = report.parse();
        let config = report.read::<Self>(&mut table).unwrap_or_default();
        let mut names = BTreeSet::new();
        for vm in &config.vms {
            if !names.insert(&vm.name) {
                let name = &vm.name;
                report.error(
                    None,
                    format!("expected one [[vm]] of the name {name:?}, found two"),
                );
            }
        }
        match report.into_parts() {
            (errors, _) if errors.is_empty() => Ok(config),
            (errors, _) => Err(ConfigError(errors)),
        }
    }
}

impl Headroom {
    /// In bytes, for a total of `total` bytes.
    #[must_use]
    pub const fn of(self, total: u64) -> u64 {
        match self {
            Self::Percent(percent) => total / 100 * percent,
            Self::Bytes(bytes) => bytes,
        }
    }
}

fn headroom<'de, D: Deserializer<'de>>(from: D) -> Result<Headroom, D::Error> {
    expect(from, "1% to 90%, or a size such as \"4GiB\"", |value| {
        let text = value.as_str()?;
        let Some(percent) = text.strip_suffix('%') else {
            let bytes = size::parse(text).filter(|bytes| *bytes > 0);
            return bytes.map(Headroom::Bytes);
        };
        let percent = percent.trim().parse().ok();
        percent
            .filter(|percent| (1..=90).contains(percent))
            .map(Headroom::Percent)
    })
}

fn most<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    expect(from, "a size such as \"48GiB\"", |value| {
        let bytes = size::parse(value.as_str()?);
        bytes.filter(|bytes| *bytes > 0).map(Some)
    })
}

fn metrics<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    expect(
        from,
        "a loopback address with a port such as \"127.0.0.1:9743\"",
        |value| {
            let address: SocketAddr = value.as_str()?.parse().ok()?;
            address.ip().is_loopback().then_some(Some(address))
        },
    )
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Size::deserialize(from).map(|size| size.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(&TomlFile::new(Path::new("host.toml"), text))
    }

    fn vm(name: &str, uid: u32) -> Found {
        Found {
            process: Process { pid: 7, start: 1 },
            uid,
            name: name.to_owned(),
            ram: 1 << 30,
            most_ram: 1 << 30,
            qmp: None,
            channel: None,
            libvirt: false,
            weight: Weight::default(),
            limit: u64::MAX,
        }
    }

    #[test]
    fn two_vms_of_one_name_have_no_socket_in_common() {
        let text =
            "[[vm]]\nname = \"web\"\nqmp = \"/run/web.qmp\"\n[[vm]]\nname = \"db\"\nweight = 300\n";
        let config = parse(text).unwrap();
        let names = ["web", "db", "web", "db", "other", "other"];
        let named = |(start, name)| Found {
            process: Process { pid: 7, start },
            ..vm(name, 0)
        };
        let vms: Vec<Found> = (0..).zip(names).map(named).collect();
        let found = config.ambiguous(&vms);
        let starts: Vec<u64> = found.iter().map(|process| process.start).collect();
        assert_eq!(starts, [0, 2]);
        assert!(config.ambiguous(&vms[..2]).is_empty());
    }

    #[test]
    fn processes_of_login_users_are_left_alone_unless_configured() {
        let text = "[[vm]]\nname = \"web\"\n[[vm]]\nname = \"own\"\nuid = 1000\n";
        let config = parse(text).unwrap();
        for (name, uid, expected) in [
            ("other", 0, true),
            ("other", 64_055, true),
            ("other", 100_000, false),
            ("other", 1000, false),
            ("web", 0, true),
            ("web", 1000, false),
            ("own", 1000, true),
            ("own", 1001, false),
            ("own", 0, false),
        ] {
            assert_eq!(config.manages(&vm(name, uid)), expected, "{name} {uid}");
        }
    }

    #[test]
    fn what_is_configured_is_read() {
        let text = "headroom = \"2GiB\"\n[[vm]]\nname = \"web\"\nweight = 300\nmin = \"512MiB\"\nqmp = \"/run/web.qmp\"\n";
        let config = parse(text).unwrap();
        assert_eq!(config.headroom, Headroom::Bytes(2 << 30));
        assert_eq!(config.vms[0].weight, Weight::try_from(300).ok());
        assert_eq!(config.vms[0].min, 512 << 20);
        let served = parse("cache = \"/run/c\"\nmetrics = \"[::1]:9743\"\n").unwrap();
        assert_eq!(served.cache, Path::new("/run/c"));
        assert_eq!(served.metrics, "[::1]:9743".parse().ok());
        assert_eq!(parse("").unwrap(), Config::default());
        assert_eq!(Headroom::Percent(10).of(1000), 100);
        let bounded = parse("most = \"2GiB\"\n").unwrap();
        assert_eq!(
            [1 << 30, 8 << 30].map(|of| bounded.memory(of)),
            [1 << 30, 2 << 30]
        );
    }

    #[test]
    fn what_is_hardly_meant_is_told() {
        for (text, told) in [
            (
                "headroom = \"10\"",
                "headroom: expected 1.0 MiB or more, found 10 B",
            ),
            (
                "most = \"48\"",
                "most: expected 1.0 MiB or more, found 48 B",
            ),
            (
                "headroom = \"4GiB\"\nmost = \"4GiB\"",
                "headroom: expected less than `most`, 4.0 GiB, found 4.0 GiB",
            ),
        ] {
            let found = parse(text).unwrap().advice();
            assert!(found.len() == 1 && found[0].starts_with(told), "{found:?}");
        }
        for text in [
            "",
            "headroom = \"10%\"\nmost = \"4GiB\"",
            "headroom = \"1GiB\"",
        ] {
            assert_eq!(parse(text).unwrap().advice(), Vec::<String>::new());
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("headroom = \"95%\"", "expected 1% to 90%"),
            ("headroom = \"much\"", "found \"much\""),
            ("metrics = \"0.0.0.0:9743\"", "expected a loopback address"),
            (
                "metrics = 9743",
                "host.toml:1: metrics: expected a loopback",
            ),
            ("most = \"10%\"", "host.toml:1: most: expected a size"),
            (
                "[[vm]]\nname = \"a\"\nweight = 0",
                "expected a weight from 1 to 10000",
            ),
            (
                "[[vm]]\nname = \"a\"\nmin = \"x\"",
                "host.toml:3: vm.min: expected",
            ),
            ("[[vm]]\nname = \"a\"\n[[vm]]\nname = \"a\"", "found two"),
            ("[[vm]]\nnane = \"a\"", "host.toml:2: "),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
