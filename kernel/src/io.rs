//! Files of the I/O controller (Documentation/admin-guide/cgroup-v2.rst, "IO").

use std::str::FromStr;

use justitia_share::Weight;
use serde::{Deserialize, Serialize};

use crate::parse::{self, ParseError, Parsed};

/// A block device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DevId {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl DevId {
    /// Of a number as the kernel has it: the major number above 20 bits of the minor.
    pub(crate) const fn of_kernel(device: u32) -> Self {
        Self {
            major: device >> 20,
            minor: device & 0xf_ffff,
        }
    }

    /// Reads `8:16`.
    fn from_bytes(word: &[u8]) -> Option<Self> {
        let (major, minor) = parse::cut(word, b':')?;
        Some(Self {
            major: u32::try_from(parse::number(major)?).ok()?,
            minor: u32::try_from(parse::number(minor)?).ok()?,
        })
    }
}

impl std::fmt::Display for DevId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DevId {
    type Err = ParseError;

    fn from_str(text: &str) -> Parsed<Self> {
        Self::from_bytes(text.as_bytes())
            .ok_or_else(|| ParseError::new(1, "a device such as 8:16", text.as_bytes()))
    }
}

/// One device's line of `io.stat`, since the cgroup was made. A missing counter is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStat {
    /// Bytes read.
    pub rbytes: u64,
    /// Bytes written; of buffered writes, when they are written back.
    pub wbytes: u64,
    /// Reads.
    pub rios: u64,
    /// Writes.
    pub wios: u64,
    /// Microseconds of the disk's time, by the model of io.cost (`ioc_pd_stat`, block/blk-iocost.c); 0 where that is off.
    pub cost_usage: u64,
}

impl IoStat {
    /// Reads `io.stat`, in the file's order. A device without any counter is left out: kernels
    /// print the numbers of idle devices, some (5.13 to 6.x) without even a newline between them.
    /// Other `key=value` pairs (`cost.vrate=…`, `use_delay=…`) are passed over.
    ///
    /// # Errors
    /// When a counter is no number, precedes any device, or a word is neither device nor pair.
    pub fn parse(text: &[u8]) -> Parsed<Vec<(DevId, Self)>> {
        let mut all = Vec::new();
        for (number, line) in parse::lines(text) {
            let mut device = None;
            let mut stat = None;
            for word in parse::words(line) {
                let Some((key, value)) = parse::cut(word, b'=') else {
                    all.extend(device.zip(stat.take()));
                    device = Some(DevId::from_bytes(word).ok_or_else(|| {
                        ParseError::new(number, "a device such as 8:16, or key=value", word)
                    })?);
                    continue;
                };
                if device.is_none() {
                    return Err(ParseError::new(number, "a device such as 8:16 first", line));
                }
                let counters: &mut Self = stat.get_or_insert_default();
                let field = match key {
                    b"rbytes" => &mut counters.rbytes,
                    b"wbytes" => &mut counters.wbytes,
                    b"rios" => &mut counters.rios,
                    b"wios" => &mut counters.wios,
                    b"cost.usage" => &mut counters.cost_usage,
                    _ => continue,
                };
                *field = parse::number(value)
                    .ok_or_else(|| ParseError::new(number, "counter=number", word))?;
            }
            all.extend(device.zip(stat));
        }
        Ok(all)
    }
}

/// `io.weight` or `io.bfq.weight`: the cgroup's weight, and where it differs, by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoWeight {
    /// On every device that is not listed.
    pub default: Weight,
    /// The exceptions, in the file's order.
    pub per_device: Vec<(DevId, Weight)>,
}

impl IoWeight {
    /// Reads `default 100` (or, as BFQ once printed it, a bare `100`), then `8:16 200` and so on.
    ///
    /// # Errors
    /// When the default is missing, or a line is no weight of 1..=10000: nothing is clamped.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        const EXPECTED: &str = "`default WEIGHT` or `MAJOR:MINOR WEIGHT`, of 1 to 10000";
        let mut default = None;
        let mut per_device = Vec::new();
        for (number, line) in parse::lines(text) {
            let wrong = || ParseError::new(number, EXPECTED, line);
            let mut words = parse::words(line);
            let (first, second) = (words.next(), words.next());
            if words.next().is_some() {
                return Err(wrong());
            }
            match (first, second) {
                (None, _) => {}
                (Some(b"default"), Some(value)) | (Some(value), None) => {
                    default = Some(weight(value).ok_or_else(wrong)?);
                }
                (Some(device), Some(value)) => {
                    let device = DevId::from_bytes(device).ok_or_else(wrong)?;
                    per_device.push((device, weight(value).ok_or_else(wrong)?));
                }
            }
        }
        Ok(Self {
            default: default.ok_or_else(|| ParseError::new(1, "a line `default WEIGHT`", text))?,
            per_device,
        })
    }
}

/// The devices on which io.cost is enabled, from the text of the root's `io.cost.qos`
/// (`254:0 enable=1 ctrl=auto …`). Lines that do not begin with a device are passed over.
#[must_use]
pub fn io_cost_devices(text: &[u8]) -> Vec<DevId> {
    let enabled = |(_, line): (usize, &[u8])| {
        let mut words = parse::words(line);
        let device = DevId::from_bytes(words.next()?)?;
        words.any(|word| word == b"enable=1").then_some(device)
    };
    parse::lines(text).filter_map(enabled).collect()
}

/// The devices of `io.max` or `io.latency`, with their lines (`8:0 rbps=max wbps=1048576 riops=max wiops=max`, `8:0 target=10000`), in
/// the file's order. Lines that do not begin with a device are passed over.
pub(crate) fn device_lines(text: &[u8]) -> Vec<(DevId, String)> {
    let limits = |(_, line): (usize, &[u8])| {
        let device = DevId::from_bytes(parse::words(line).next()?)?;
        Some((
            device,
            String::from_utf8_lossy(line.trim_ascii()).into_owned(),
        ))
    };
    parse::lines(text).filter_map(limits).collect()
}

fn weight(word: &[u8]) -> Option<Weight> {
    Weight::try_from(parse::number(word)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDA: DevId = DevId { major: 8, minor: 0 };
    const SDB: DevId = DevId {
        major: 8,
        minor: 16,
    };

    fn reads(rbytes: u64) -> IoStat {
        IoStat {
            rbytes,
            ..IoStat::default()
        }
    }

    #[test]
    fn limits_are_told_by_device() {
        let (sdb, sda) = ("8:16 rbps=1 wbps=max riops=max wiops=max", "8:0 wiops=3");
        let text = format!("{sdb}\nrbps=1\n{sda}\n");
        let expected = [(SDB, sdb.to_owned()), (SDA, sda.to_owned())];
        assert_eq!(device_lines(text.as_bytes()), expected);
        assert_eq!(device_lines(b"\xff\n"), []);
    }

    #[test]
    fn io_cost_is_enabled_by_device() {
        let text =
            b"8:0 enable=0 ctrl=auto\n8:16 enable=1 ctrl=user rpct=95.00\nx enable=1\n\n8:0\n";
        assert_eq!(io_cost_devices(text), [SDB]);
        assert_eq!(io_cost_devices(b""), []);
    }

    #[test]
    fn stat_of_two_devices() {
        let all = IoStat::parse(
            b"8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.usage=99 cost.wait=x\n8:16 rbytes=7\n",
        )
        .unwrap();
        let first = IoStat {
            rbytes: 1,
            wbytes: 2,
            rios: 3,
            wios: 4,
            cost_usage: 99,
        };
        assert_eq!(all, [(SDA, first), (SDB, reads(7))]);
    }

    #[test]
    fn devices_without_counters() {
        assert_eq!(IoStat::parse(b""), Ok(vec![]));
        assert_eq!(IoStat::parse(b"8:0\n"), Ok(vec![]));
        assert_eq!(IoStat::parse(b"8:0 \n8:16 "), Ok(vec![]));
        let joined = b"7:7 7:6 8:0 rbytes=1\n7:5 8:16 rbytes=2 7:4\n";
        assert_eq!(
            IoStat::parse(joined),
            Ok(vec![(SDA, reads(1)), (SDB, reads(2))])
        );
    }

    #[test]
    fn wrong_stat_is_refused() {
        for bad in [
            "rbytes=1",
            "8:0 rbytes=-1",
            "8:0 rbytes=99999999999999999999",
            "8: rbytes=1",
            "8:4294967296 rbytes=1",
            "sda rbytes=1",
            "8:0 rbytes",
        ] {
            assert!(IoStat::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn weights() {
        let weight = IoWeight::parse(b"default 100\n8:0 200\n").unwrap();
        let on_sda = (SDA, Weight::try_from(200).unwrap());
        assert_eq!(
            (weight.default.get(), weight.per_device),
            (100, vec![on_sda])
        );
        assert_eq!(IoWeight::parse(b"300\n").unwrap().default.get(), 300);
    }

    #[test]
    fn wrong_weights_are_refused_not_clamped() {
        for bad in [
            "",
            "8:0 200",
            "default 0",
            "default 10001",
            "default 100 8:0 100",
            "default -1",
            "default default",
            "100\n8:0 x",
        ] {
            assert!(IoWeight::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn device_round_trip() {
        assert_eq!("8:16".parse(), Ok(SDB));
        assert_eq!(SDB.to_string(), "8:16");
        assert!("8".parse::<DevId>().is_err());
    }
}
