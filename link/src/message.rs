//! Messages, as the host reads them.

use crate::command::Command;
use crate::fields::{array, u16_at, u32_at, u64_at};
use crate::header::{Fault, Kind, MAGIC};
use crate::name::Serial;
use crate::put::Put;
use crate::{MAX_BLOCKS, PAGE, VERSION};

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Blocks.
    Put(Put<'a>),
    /// A command.
    Command(Command),
}

/// A message, as far as it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// Its sequence number.
    pub sequence: u64,
    /// The number of its kind.
    pub kind: u16,
    /// What it says, or what is wrong with it.
    pub body: Result<Body<'a>, Fault>,
}

/// Reads a message: all of one write. `None` when it is none at all.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Decoded<'_>> {
    let page = bytes.first_chunk::<PAGE>()?;
    if array(page, 0)? != MAGIC {
        return None;
    }
    let kind = u16_at(page, 10)?;
    Some(Decoded {
        sequence: u64_at(page, 16)?,
        kind,
        body: body(bytes, page, kind),
    })
}

fn body<'a>(bytes: &'a [u8], page: &'a [u8; PAGE], kind: u16) -> Result<Body<'a>, Fault> {
    let version = u16_at(page, 8).filter(|version| (1..=VERSION).contains(version));
    let version = version.ok_or(Fault::Version)?;
    let kind = Kind::from_number(kind).ok_or(Fault::Kind)?;
    let count = u32_at(page, 12).and_then(|count| usize::try_from(count).ok());
    let most = if kind == Kind::Put {
        1..=MAX_BLOCKS
    } else {
        0..=0
    };
    let count = count
        .filter(|count| most.contains(count))
        .ok_or(Fault::Count)?;
    if u32_at(page, 28) != Some(0) || array(page, 52) != Some([0; 12]) {
        return Err(Fault::Reserved);
    }
    let (_, contents) = bytes.split_at_checked(PAGE).ok_or(Fault::Length)?;
    let (contents, rest) = contents.as_chunks::<PAGE>();
    if contents.len() != count || !rest.is_empty() {
        return Err(Fault::Length);
    }
    let pool = u32_at(page, 24).ok_or(Fault::Length)?;
    let serial = Serial::from_bytes(array(page, 32).ok_or(Fault::Length)?);
    if kind == Kind::Put {
        return Ok(Body::Put(Put::new(page, pool, serial, contents)));
    }
    Command::decode(page, version, kind, pool, serial).map(Body::Command)
}
