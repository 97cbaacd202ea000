//! What the value of each key may be. An error says what was expected and what was found.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use justitia_api::size;
use justitia_share::Weight;
use serde::{Deserialize, Deserializer, Serializer, de::Error};
use toml::Value;

use justitia_cgroup_tree::Pattern;

/// Takes any value and converts it with `accept`; `expected` says in the error what it should have been.
fn parse<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    accept: impl FnOnce(&Value) -> Option<T>,
) -> Result<T, D::Error> {
    let found = Value::deserialize(deserializer)?;
    accept(&found)
        .ok_or_else(|| D::Error::custom(format!("expected {expected}, found {}", shown(&found))))
}

/// The value's type, and what it is where that is short.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("string {text:?}"),
        Value::Array(_) | Value::Table(_) => {
            format!("an {}", value.type_str()).replace("an t", "a t")
        }
        simple => format!("{} {simple}", simple.type_str()),
    }
}

pub(super) fn boolean<'de, D: Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    parse(d, "true or false", Value::as_bool)
}

pub(super) fn some_boolean<'de, D: Deserializer<'de>>(d: D) -> Result<Option<bool>, D::Error> {
    boolean(d).map(Some)
}

/// Percent, 0.1 to 100.
pub(super) fn percentage<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    parse(d, "a percentage from 0.1 to 100", |value| {
        let number = match value {
            Value::Integer(number) => f64::from(i32::try_from(*number).ok()?),
            Value::Float(number) => *number,
            _ => return None,
        };
        (0.1..=100.0).contains(&number).then_some(number)
    })
}

pub(super) fn absolute_path<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
    parse(d, "an absolute path", |value| {
        Some(PathBuf::from(value.as_str()?)).filter(|path| path.is_absolute())
    })
}

pub(super) fn max_cgroups<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    parse(d, "a number from 16 to 65535", |value| {
        number(value).filter(|n| (16..=65_535).contains(n))
    })
}

/// The size of a table of the probes.
pub(super) fn max_entries<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    parse(d, "a number from 64 to 1048576", |value| {
        number(value).filter(|n| (64..=1 << 20).contains(n))
    })
}

pub(super) fn max_tenants<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
    parse(d, "a number from 0 to 100000", |value| {
        number(value).filter(|n| *n <= 100_000)
    })
}

fn number<T: TryFrom<i64>>(value: &Value) -> Option<T> {
    T::try_from(value.as_integer()?).ok()
}

pub(super) fn weight<'de, D: Deserializer<'de>>(d: D) -> Result<Weight, D::Error> {
    parse(d, "a weight from 1 to 10000", |value| {
        Weight::try_from(number::<u64>(value)?).ok()
    })
}

pub(super) fn some_weight<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Weight>, D::Error> {
    weight(d).map(Some)
}

pub(super) fn weight_number<S: Serializer>(weight: &Weight, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(weight.get())
}

/// Bytes, as a number or with a unit.
pub(super) fn some_size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    let size = parse(d, "a size like \"64MiB\"", |value| {
        number(value).or_else(|| size::parse(value.as_str()?))
    });
    size.map(Some)
}

/// A ring between the kernel and a reader.
pub(super) fn ring<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    parse(
        d,
        "a size from \"64KiB\" to \"256MiB\", a power of two",
        |value| {
            let bytes = number(value).or_else(|| u32::try_from(size::parse(value.as_str()?)?).ok());
            bytes.filter(|n| n.is_power_of_two() && (1 << 16..=1 << 28).contains(n))
        },
    )
}

/// A power of two of at least 1 KiB, as people write it.
pub(super) fn ring_text<S: Serializer>(bytes: &u32, s: S) -> Result<S::Ok, S::Error> {
    match bytes >> 20 {
        0 => s.collect_str(&format_args!("{}KiB", bytes >> 10)),
        mib => s.collect_str(&format_args!("{mib}MiB")),
    }
}

/// 10 seconds to a day.
pub(super) fn interval<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let range = Duration::from_secs(10)..=Duration::from_secs(86_400);
    parse(d, "a duration from \"10s\" to \"1day\"", |value| {
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
    parse(d, expected, |value| match value.as_str()? {
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
    let text = parse(d, "a glob over cgroup paths, as a string", |value| {
        value.as_str().map(str::to_owned)
    })?;
    Pattern::new(&text).map(Some).map_err(D::Error::custom)
}
