//! The configuration: none is needed.

use std::path::{Path, PathBuf};

use justitia_api::size;
use justitia_common::regular_file;
use justitia_share::Weight;
use serde::Deserialize;

/// Where it is looked for.
pub const DEFAULT_PATH: &str = "/etc/justitia/host.toml";
/// The longest file that is read, bytes: a VM takes about a hundred.
const MAX_BYTES: u64 = 1 << 20;
/// Per cent of the host's memory that stay available, unless configured. What guests allocate within seconds has to fit.
const HEADROOM: u64 = 10;

/// What is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is to stay available on the host.
    pub headroom: Headroom,
    /// What all VMs together may hold, bytes, if the host has other uses for the rest.
    pub most: Option<u64>,
    /// VMs that are not named here are looked for, too.
    pub discover: bool,
    /// VMs with something of their own.
    pub vms: Vec<VmConfig>,
}

/// What is to stay available on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// Per cent of its memory, 1 to 90.
    Percent(u64),
    /// Bytes.
    Bytes(u64),
}

/// What is configured for a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its name, as `-name` says it.
    pub name: String,
    /// The socket of its QMP monitor, if it is not to be found on the command line.
    pub qmp: Option<PathBuf>,
    /// The socket of the port `org.justitia.memory.0`, if it is not to be found on the command line.
    pub channel: Option<PathBuf>,
    /// Its weight; else that of its cgroup (`io.weight`).
    pub weight: Option<Weight>,
    /// What it may keep before anything is divided, bytes.
    pub min: u64,
}

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
#[error("the configuration {}: {what}", path.display())]
pub struct ConfigError {
    path: PathBuf,
    what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    headroom: Option<String>,
    most: Option<String>,
    discover: Option<bool>,
    #[serde(default)]
    vm: Vec<ReadVm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadVm {
    name: String,
    qmp: Option<PathBuf>,
    channel: Option<PathBuf>,
    weight: Option<u64>,
    min: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            headroom: Headroom::Percent(HEADROOM),
            most: None,
            discover: true,
            vms: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the file at `path`; without a path the default one, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or says what is not understood.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let file = path.unwrap_or_else(|| Path::new(DEFAULT_PATH));
        if path.is_none() && !file.exists() {
            return Ok(Self::default());
        }
        let wrong = |what: String| ConfigError {
            path: file.to_owned(),
            what,
        };
        let text = regular_file::read_text(file, MAX_BYTES).map_err(|e| wrong(e.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let read: Read = toml::from_str(text).map_err(|error| error.to_string())?;
        let headroom = read.headroom.as_deref().map(parse_headroom).transpose()?;
        let vms: Vec<VmConfig> = read
            .vm
            .into_iter()
            .map(parse_vm)
            .collect::<Result<_, _>>()?;
        for (index, vm) in vms.iter().enumerate() {
            if vms.iter().take(index).any(|other| other.name == vm.name) {
                return Err(format!(
                    "expected one [[vm]] of the name {:?}, found two",
                    vm.name
                ));
            }
        }
        Ok(Self {
            headroom: headroom.unwrap_or(Headroom::Percent(HEADROOM)),
            most: read.most.as_deref().map(parse_most).transpose()?,
            discover: read.discover.unwrap_or(true),
            vms,
        })
    }
}

impl Headroom {
    /// In bytes, on a host with so much memory.
    #[must_use]
    pub const fn of(self, total: u64) -> u64 {
        match self {
            Self::Percent(percent) => total / 100 * percent,
            Self::Bytes(bytes) => bytes,
        }
    }
}

fn parse_headroom(text: &str) -> Result<Headroom, String> {
    let expected =
        || format!("headroom: expected 1% to 90%, or a size such as \"4GiB\", found {text:?}");
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.trim().parse().ok();
        let percent = percent.filter(|percent| (1..=90).contains(percent));
        return percent.map(Headroom::Percent).ok_or_else(expected);
    }
    let bytes = size::parse(text).filter(|bytes| *bytes > 0);
    bytes.map(Headroom::Bytes).ok_or_else(expected)
}

fn parse_most(text: &str) -> Result<u64, String> {
    size::parse(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("most: expected a size such as \"48GiB\", found {text:?}"))
}

fn parse_vm(read: ReadVm) -> Result<VmConfig, String> {
    let name = &read.name;
    let weight = read.weight.map(Weight::try_from).transpose();
    let weight = weight.map_err(|error| format!("weight of VM {name:?}: {error}"))?;
    let min = match &read.min {
        Some(text) => size::parse(text).ok_or_else(|| {
            format!("min of VM {name:?}: expected a size such as \"512MiB\", found {text:?}")
        })?,
        None => 0,
    };
    Ok(VmConfig {
        name: read.name,
        qmp: read.qmp,
        channel: read.channel,
        weight,
        min,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_is_read() {
        let text = "headroom = \"2GiB\"\n[[vm]]\nname = \"web\"\nweight = 300\nmin = \"512MiB\"\nqmp = \"/run/web.qmp\"\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.headroom, Headroom::Bytes(2 << 30));
        assert_eq!(config.vms[0].weight, Weight::try_from(300).ok());
        assert_eq!(config.vms[0].min, 512 << 20);
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Headroom::Percent(10).of(1000), 100);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("headroom = \"95%\"", "expected 1% to 90%"),
            ("headroom = \"much\"", "found \"much\""),
            ("most = \"10%\"", "most: expected a size"),
            (
                "[[vm]]\nname = \"a\"\nweight = 0",
                "expected a weight from 1 to 10000",
            ),
            ("[[vm]]\nname = \"a\"\nmin = \"x\"", "min of VM \"a\""),
            ("[[vm]]\nname = \"a\"\n[[vm]]\nname = \"a\"", "found two"),
            ("[[vm]]\nnane = \"a\"", "nane"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
