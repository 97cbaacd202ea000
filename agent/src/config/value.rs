//! Readers of the keys' values. An error says what was expected and found.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use justitia_api::size;
use justitia_cgroup_tree::Pattern;
use justitia_common::toml_file::Size;
pub(super) use justitia_common::toml_file::value::{boolean, some_weight, weight};
use justitia_common::toml_file::value::{expect, number};
use justitia_share::Weight;
use serde::{Deserialize, Deserializer, Serializer, de::Error};
use toml::Value;

pub(super) fn some_boolean<'de, D: Deserializer<'de>>(d: D) -> Result<Option<bool>, D::Error> {
    boolean(d).map(Some)
}

/// Percent, 0.1 to 100.
pub(super) fn percentage<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    expect(d, "a number from 0.1 to 100, in percent", |value| {
        let number = match value {
            Value::Integer(number) => f64::from(i32::try_from(*number).ok()?),
            Value::Float(number) => *number,
            _ => return None,
        };
        (0.1..=100.0).contains(&number).then_some(number)
    })
}

pub(super) fn absolute_path<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
    expect(d, "an absolute path", |value| {
        Some(PathBuf::from(value.as_str()?)).filter(|path| path.is_absolute())
    })
}

pub(super) fn max_cgroups<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    expect(d, "a number from 16 to 65535", |value| {
        number(value).filter(|n| (16..=65_535).contains(n))
    })
}

/// The size of a BPF map.
pub(super) fn max_entries<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    expect(d, "a number from 64 to 1048576", |value| {
        number(value).filter(|n| (64..=1 << 20).contains(n))
    })
}

pub(super) fn max_tenants<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
    expect(d, "a number from 0 to 100000", |value| {
        number(value).filter(|n| *n <= 100_000)
    })
}

pub(super) fn weight_number<S: Serializer>(weight: &Weight, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(weight.get())
}

/// Bytes, as a number or with a unit.
pub(super) fn some_size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    Size::deserialize(d).map(|size| Some(size.0))
}

/// The size of a BPF ring buffer.
pub(super) fn ring<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    expect(
        d,
        "a size from \"64KiB\" to \"256MiB\", a power of two",
        |value| {
            let bytes = number(value).or_else(|| u32::try_from(size::parse(value.as_str()?)?).ok());
            bytes.filter(|n| n.is_power_of_two() && (1 << 16..=1 << 28).contains(n))
        },
    )
}

/// A power of two of at least 1 KiB, in KiB or MiB.
pub(super) fn ring_text<S: Serializer>(bytes: &u32, s: S) -> Result<S::Ok, S::Error> {
    match bytes >> 20 {
        0 => s.collect_str(&format_args!("{}KiB", bytes >> 10)),
        mib => s.collect_str(&format_args!("{mib}MiB")),
    }
}

/// 10 seconds to a day.
pub(super) fn interval<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let range = Duration::from_secs(10)..=Duration::from_secs(86_400);
    expect(d, "a duration from \"10s\" to \"1day\"", |value| {
        let duration = humantime::parse_duration(value.as_str()?).ok()?;
        range.contains(&duration).then_some(duration)
    })
}

pub(super) fn interval_text<S: Serializer>(interval: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&humantime::format_duration(*interval))
}

/// An address with a port; `None` for an empty text.
pub(super) fn listen<'de, D: Deserializer<'de>>(d: D) -> Result<Option<SocketAddr>, D::Error> {
    let expected = "an address and a port like \"127.0.0.1:9742\", or \"\" for none";
    expect(d, expected, |value| match value.as_str()? {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    })
}

pub(super) fn listen_text<S: Serializer>(
    listen: &Option<SocketAddr>,
    s: S,
) -> Result<S::Ok, S::Error> {
    match listen {
        Some(address) => s.collect_str(address),
        None => s.serialize_str(""),
    }
}

/// A pattern over cgroup paths.
pub(super) fn pattern<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Pattern>, D::Error> {
    let text = expect(d, "a glob over cgroup paths, as a string", |value| {
        value.as_str().map(str::to_owned)
    })?;
    Pattern::new(&text).map(Some).map_err(D::Error::custom)
}

/// A pattern over names of containers, pods, units or virtual machines.
pub(super) fn names<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Pattern>, D::Error> {
    let text = expect(d, "a glob over names, as a string", |value| {
        value.as_str().map(str::to_owned)
    })?;
    Pattern::of_names(&text).map(Some).map_err(D::Error::custom)
}

/// A pattern over images or labels.
pub(super) fn text<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Pattern>, D::Error> {
    let text = expect(d, "a glob over images or labels, as a string", |value| {
        value.as_str().map(str::to_owned)
    })?;
    Pattern::of_text(&text).map(Some).map_err(D::Error::custom)
}
