//! Knobs: the files that are written. Values are raw text, so that the original can be restored exactly. Knobs of the whole
//! machine belong to the root cgroup.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::error::{Error, Result};
use crate::io::{DevId, IoWeight};
use crate::parse::{self, ParseError, Parsed};

/// A setting of a cgroup, or of the machine, that can be written and restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// `memory.min`.
    MemoryMin,
    /// `memory.low`.
    MemoryLow,
    /// `memory.high`.
    MemoryHigh,
    /// `memory.max`.
    MemoryMax,
    /// The default of `io.weight`.
    IoWeight,
    /// The default of `io.bfq.weight`.
    IoBfqWeight,
    /// One device's line of `io.weight`.
    IoWeightOn(DevId),
    /// One device's line of `io.bfq.weight`.
    IoBfqWeightOn(DevId),
    /// One device's line of the root's `io.cost.qos`: whether io.cost divides it, and how fast.
    IoCostQos(DevId),
    /// One device's line of the root's `io.cost.model`: what requests cost.
    IoCostModel(DevId),
    /// `vm.dirty_background_ratio`, of the whole machine whatever the cgroup: from this part of the
    /// memory that may be dirty on, in per cent, the kernel writes back. 0 where its operator has
    /// set `vm.dirty_background_bytes` instead. (Documentation/admin-guide/sysctl/vm.rst)
    DirtyBackground,
    /// `vm.vfs_cache_pressure`, of the whole machine whatever the cgroup: how much of dentries and inodes
    /// reclaim frees, in per cent of its usual part. (Documentation/admin-guide/sysctl/vm.rst)
    VfsCachePressure,
}

impl Knob {
    /// The file's name.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::MemoryMin => "memory.min",
            Self::MemoryLow => "memory.low",
            Self::MemoryHigh => "memory.high",
            Self::MemoryMax => "memory.max",
            Self::IoWeight | Self::IoWeightOn(_) => "io.weight",
            Self::IoBfqWeight | Self::IoBfqWeightOn(_) => "io.bfq.weight",
            Self::IoCostQos(_) => "io.cost.qos",
            Self::IoCostModel(_) => "io.cost.model",
            Self::DirtyBackground => "dirty_background_ratio",
            Self::VfsCachePressure => "vfs_cache_pressure",
        }
    }

    /// The device whose line it is, if it is one.
    const fn device(self) -> Option<DevId> {
        match self {
            Self::IoWeightOn(device)
            | Self::IoBfqWeightOn(device)
            | Self::IoCostQos(device)
            | Self::IoCostModel(device) => Some(device),
            _ => None,
        }
    }

    /// Whether `value`, as [`read_raw`] returns it, is the kernel's default
    /// (Documentation/admin-guide/cgroup-v2.rst; mm/page-writeback.c; fs/dcache.c).
    #[must_use]
    pub fn is_default(self, value: &str) -> bool {
        value == self.default_value()
    }

    /// The kernel's default, as [`write_raw`] takes it.
    #[must_use]
    pub fn default_value(self) -> String {
        match self {
            Self::MemoryMin | Self::MemoryLow => "0".to_owned(),
            Self::MemoryHigh | Self::MemoryMax => "max".to_owned(),
            Self::IoWeight | Self::IoBfqWeight => "default 100".to_owned(),
            Self::IoWeightOn(device) | Self::IoBfqWeightOn(device) => format!("{device} default"),
            Self::IoCostQos(device) => format!("{device} enable=0 ctrl=auto"),
            Self::IoCostModel(device) => format!("{device} ctrl=auto"),
            Self::DirtyBackground => "10".to_owned(),
            Self::VfsCachePressure => "100".to_owned(),
        }
    }

    /// Its file, relative to the directory of `cgroup`; of a knob of the machine, the absolute path.
    fn path(self, cgroup: &Cgroup) -> Cow<'static, str> {
        match self {
            Self::DirtyBackground | Self::VfsCachePressure => {
                format!("{}/{}", cgroup.vm_sysctls(), self.file()).into()
            }
            _ => self.file().into(),
        }
    }

    /// The knob's value in its file's `text`: see [`read_raw`].
    ///
    /// # Errors
    /// When the text does not have the file's shape.
    pub fn value_in(self, text: &[u8]) -> Parsed<String> {
        let line: Cow<'_, [u8]> = match self {
            Self::MemoryMin | Self::MemoryLow | Self::MemoryHigh | Self::MemoryMax => {
                crate::memory::Limit::parse(text)?;
                text.trim_ascii().into()
            }
            Self::IoWeight | Self::IoBfqWeight => {
                format!("default {}", crate::io::IoWeight::parse(text)?.default)
                    .into_bytes()
                    .into()
            }
            Self::IoWeightOn(device) | Self::IoBfqWeightOn(device) => {
                let lines = crate::io::IoWeight::parse(text)?.per_device;
                let line = lines.iter().find(|(of, _)| *of == device);
                match line {
                    Some((_, weight)) => format!("{device} {weight}").into_bytes().into(),
                    None => self.default_value().into_bytes().into(),
                }
            }
            Self::IoCostQos(device) | Self::IoCostModel(device) => {
                let line = io_cost(text, device)?;
                line.unwrap_or_else(|| self.default_value())
                    .into_bytes()
                    .into()
            }
            Self::DirtyBackground => {
                let expected = "per cent, 0 to 100";
                let number = parse::only_line(text, expected)?;
                if parse::number(number).is_none_or(|ratio| ratio > 100) {
                    return Err(ParseError::new(1, expected, text));
                }
                number.into()
            }
            Self::VfsCachePressure => {
                let expected = "per cent, a number of 0 or more";
                let number = parse::only_line(text, expected)?;
                if parse::number(number).is_none_or(|percent| i32::try_from(percent).is_err()) {
                    return Err(ParseError::new(1, expected, text));
                }
                number.into()
            }
        };
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

impl std::fmt::Display for Knob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DirtyBackground | Self::VfsCachePressure => write!(f, "vm.{}", self.file()),
            knob => match knob.device() {
                Some(device) => write!(f, "{} {device}", knob.file()),
                None => f.write_str(knob.file()),
            },
        }
    }
}

/// The value of `knob`, in the form that [`write_raw`] takes: `max`, `1048576`,
/// `default 100`, `8:0 300` (`8:0 default` where the file has no line for the device).
///
/// # Errors
/// As every reader of [`Cgroup`]; a parse error when the file does not have that shape.
pub fn read_raw(cgroup: &Cgroup, knob: Knob) -> Result<String> {
    cgroup.read(&knob.path(cgroup), |text| knob.value_in(text))
}

/// Writes `value` to `knob` in one `write(2)`; never creates a file. The kernel may round (memory
/// to whole pages): read the knob again to know its value.
///
/// A `value` for one device's line names the device, as [`read_raw`] returns it. Without a line of
/// its own a device goes by the default of `io.bfq.weight` again at once: for that the default is written as it stands, and then
/// the lines of other devices, since the kernel alone would leave the last weight in force (6.12, `bfq_io_set_device_weight`). A
/// default of `io.bfq.weight` takes the lines of all devices away (`bfq_io_set_weight_legacy`): they are written again.
///
/// # Errors
/// As every operation on a [`Cgroup`]; `EINVAL` or `ERANGE` for what the kernel does not take;
/// [`Error::Parse`] when the value of one device's line names another device than the knob.
pub fn write_raw(cgroup: &Cgroup, knob: Knob, value: &str) -> Result<()> {
    if let Some(device) = knob.device()
        && first_word(value).parse() != Ok(device)
    {
        return Err(Error::Parse {
            path: cgroup.full_path().join(knob.file()),
            source: ParseError::new(1, "the knob's own device first", value.as_bytes()),
        });
    }
    match knob {
        Knob::IoBfqWeightOn(device) if knob.is_default(value) => {
            let stands = cgroup.read(knob.file(), IoWeight::parse)?;
            let default = format!("default {}", stands.default);
            write_bfq_default(cgroup, &default, &stands, Some(device))
        }
        Knob::IoBfqWeight => {
            let stands = cgroup.read(knob.file(), IoWeight::parse)?;
            write_bfq_default(cgroup, value, &stands, None)
        }
        _ => cgroup.write(&knob.path(cgroup), value),
    }
}

/// Writes a default of `io.bfq.weight`, and then the lines of devices that stood there, but for one. A line that cannot be
/// written, as of a device that has gone, does not keep the others from it.
fn write_bfq_default(
    cgroup: &Cgroup,
    default: &str,
    stands: &IoWeight,
    but: Option<DevId>,
) -> Result<()> {
    let file = Knob::IoBfqWeight.file();
    cgroup.write(file, default)?;
    let lines = stands.per_device.iter().filter(|(of, _)| Some(*of) != but);
    let written = lines.map(|(of, weight)| cgroup.write(file, &format!("{of} {weight}")));
    written.fold(Ok(()), Result::and)
}

fn first_word(text: &str) -> &str {
    text.split_ascii_whitespace().next().unwrap_or_default()
}

/// A device's line of `io.cost.qos` or `io.cost.model`, if there is one. What the kernel has chosen itself is left out (`ctrl=auto`): written
/// back, it would be its operator's choice (`ioc_qos_write`, block/blk-iocost.c).
fn io_cost(text: &[u8], device: DevId) -> Parsed<Option<String>> {
    const EXPECTED: &str = "`MAJOR:MINOR key=value …`";
    for (number, line) in parse::lines(text) {
        let wrong = || ParseError::new(number, EXPECTED, line);
        let line = str::from_utf8(line).map_err(|_| wrong())?;
        let mut words = line.split_ascii_whitespace();
        let of = words.next().unwrap_or_default().parse::<DevId>();
        if of.map_err(|_| wrong())? != device {
            continue;
        }
        let words: Vec<&str> = words.collect();
        if words.is_empty() || !words.iter().all(|word| word.contains('=')) {
            return Err(wrong());
        }
        let auto = words.contains(&"ctrl=auto");
        let kept = words
            .iter()
            .filter(|word| !auto || word.starts_with("enable=") || word.starts_with("ctrl="));
        let line = kept.fold(device.to_string(), |line, word| format!("{line} {word}"));
        return Ok(Some(line));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::CgroupFs;

    const SDA: DevId = DevId { major: 8, minor: 0 };

    fn tree(file: &str, text: &[u8]) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file), text).unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        (dir, fs.root().clone())
    }

    #[test]
    fn a_value_that_was_read_can_be_written() {
        for (knob, text, expected) in [
            (Knob::MemoryLow, "max\n", "max"),
            (Knob::MemoryHigh, "4096\n", "4096"),
            (Knob::IoWeight, "default 200\n8:0 300\n", "default 200"),
            (Knob::IoBfqWeight, "150\n", "default 150"),
            (
                Knob::IoBfqWeightOn(SDA),
                "default 150\n8:16 7\n8:0 300\n",
                "8:0 300",
            ),
            (
                Knob::IoCostQos(SDA),
                "8:16 enable=1 ctrl=user rpct=0.00\n8:0 enable=1 ctrl=auto rpct=0.00 rlat=250000 min=1.00\n",
                "8:0 enable=1 ctrl=auto",
            ),
            (
                Knob::IoCostQos(SDA),
                "8:0 enable=0 ctrl=user rpct=95.00 rlat=5000 min=50.00 max=150.00\n",
                "8:0 enable=0 ctrl=user rpct=95.00 rlat=5000 min=50.00 max=150.00",
            ),
            (
                Knob::IoCostModel(SDA),
                "8:0 ctrl=user model=linear rbps=1 rseqiops=2\n",
                "8:0 ctrl=user model=linear rbps=1 rseqiops=2",
            ),
            (Knob::DirtyBackground, "10\n", "10"),
            (Knob::VfsCachePressure, "100\n", "100"),
        ] {
            let (dir, cgroup) = tree(knob.file(), text.as_bytes());
            let value = read_raw(&cgroup, knob).unwrap();
            assert_eq!(value, expected);
            let before = match knob {
                Knob::IoBfqWeight => "default 100\n",
                _ => "",
            };
            std::fs::write(dir.path().join(knob.file()), before).unwrap();
            write_raw(&cgroup, knob, &value).unwrap();
            // A plain file keeps the line alone, without its default.
            let written = std::fs::read_to_string(dir.path().join(knob.file())).unwrap();
            let text = match knob {
                Knob::IoBfqWeightOn(_) => format!("default 150\n{written}"),
                _ => written,
            };
            assert_eq!(knob.value_in(text.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn the_kernels_initial_values_are_defaults() {
        for (knob, text) in [
            (Knob::MemoryLow, "0\n"),
            (Knob::MemoryHigh, "max\n"),
            (Knob::IoWeight, "default 100\n"),
            (Knob::IoBfqWeight, "100\n"),
            (Knob::IoBfqWeightOn(SDA), "default 200\n8:16 7\n"),
            (Knob::IoCostQos(SDA), "8:16 enable=1 ctrl=auto\n"),
            (Knob::IoCostQos(SDA), "8:0 enable=0 ctrl=auto rpct=0.00\n"),
            (Knob::IoCostModel(SDA), ""),
            (
                Knob::IoCostModel(SDA),
                "8:0 ctrl=auto model=linear rbps=1\n",
            ),
            (Knob::DirtyBackground, "10\n"),
            (Knob::VfsCachePressure, "100\n"),
        ] {
            let (_dir, cgroup) = tree(knob.file(), text.as_bytes());
            assert!(knob.is_default(&read_raw(&cgroup, knob).unwrap()), "{knob}");
            assert!(!knob.is_default("20"), "{knob}");
        }
    }

    #[test]
    fn other_formats_are_refused() {
        for (knob, text) in [
            (Knob::MemoryLow, &b"low\n"[..]),
            (Knob::MemoryMin, b""),
            (Knob::IoWeight, b"8:0 300\n"),
            (Knob::IoBfqWeightOn(SDA), b"8:0 300\n"),
            (Knob::IoBfqWeightOn(SDA), b"default 100\n8:0 default\n"),
            (Knob::IoCostQos(SDA), b"8:0\n"),
            (Knob::IoCostQos(SDA), b"8:0 enable\n"),
            (Knob::IoCostModel(SDA), b"sda ctrl=auto\n"),
            (Knob::DirtyBackground, b"101\n"),
            (Knob::DirtyBackground, b"ten\n"),
            (Knob::DirtyBackground, b""),
            (Knob::VfsCachePressure, b"-1\n"),
            (Knob::VfsCachePressure, b"2147483648\n"),
            (Knob::VfsCachePressure, b""),
        ] {
            let (_dir, cgroup) = tree(knob.file(), text);
            let error = read_raw(&cgroup, knob).unwrap_err();
            assert!(matches!(error, Error::Parse { .. }), "{knob}: {error}");
        }
    }

    /// As the kernel would take them: the default, which resets the device's weight, and the other device's line again.
    #[test]
    fn a_device_goes_by_the_default_weight_again() {
        let (dir, cgroup) = tree("io.bfq.weight", b"default 100\n8:0 300\n8:16 7\n");
        let knob = Knob::IoBfqWeightOn(SDA);
        write_raw(&cgroup, knob, &knob.default_value()).unwrap();
        // A plain file has the last write over the first.
        let text = std::fs::read_to_string(dir.path().join("io.bfq.weight")).unwrap();
        assert!(text.starts_with("8:16 7t 100\n"), "{text}");
        assert!(write_raw(&cgroup, knob, "8:16 200").is_err());
    }

    /// The kernel takes the lines of all disks away with a new default.
    #[test]
    fn a_new_default_of_bfq_keeps_the_lines_of_disks() {
        let (dir, cgroup) = tree("io.bfq.weight", b"default 100\n8:0 300\n8:16 7\n");
        write_raw(&cgroup, Knob::IoBfqWeight, "default 400").unwrap();
        // A plain file has the last write over those before.
        let text = std::fs::read_to_string(dir.path().join("io.bfq.weight")).unwrap();
        assert!(text.starts_with("8:16 70 400\n"), "{text:?}");
    }

    #[test]
    fn a_write_creates_no_file_and_reaches_no_other_device() {
        let (dir, cgroup) = tree("io.weight", b"");
        let missing = write_raw(&cgroup, Knob::MemoryLow, "1").unwrap_err();
        assert!(missing.is_missing(), "{missing}");
        assert!(!dir.path().join("memory.low").exists());
        assert!(write_raw(&cgroup, Knob::IoWeightOn(SDA), "8:16 100").is_err());
        assert!(write_raw(&cgroup, Knob::IoWeightOn(SDA), "").is_err());
        assert_eq!(std::fs::read(dir.path().join("io.weight")).unwrap(), b"");
    }
}
