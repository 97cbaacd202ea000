//! Messages: their header, and the blocks of a put.

use crate::puts::command::Command;
use crate::puts::header::{BODY, Fault, Kind, MAGIC, array, begin, set, u16_at, u32_at, u64_at};
use crate::puts::name::Serial;
use crate::puts::{MAX_BLOCKS, PAGE, VERSION};

// Messages, as the host reads them.

/// The content of a message.
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
    /// Its content, or its fault.
    pub body: Result<Body<'a>, Fault>,
}

/// Reads a message: all of one write. `None` without a valid beginning.
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

// Puts: blocks with their content.
//
// From byte 64 of the first page on there are the numbers of the blocks (u64, in blocks of 4 KiB from the disk's beginning).
// Their contents follow, a page each, in the same order.

/// Blocks that a guest has evicted, all of one disk and one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    page: &'a [u8; PAGE],
    /// The number of the blocks' pool.
    pub pool: u32,
    /// The disk.
    pub serial: Serial,
    contents: &'a [[u8; PAGE]],
}

impl<'a> Put<'a> {
    pub(crate) const fn new(
        page: &'a [u8; PAGE],
        pool: u32,
        serial: Serial,
        contents: &'a [[u8; PAGE]],
    ) -> Self {
        Self {
            page,
            pool,
            serial,
            contents,
        }
    }

    /// The number of blocks: 1 to [`MAX_BLOCKS`].
    #[must_use]
    pub const fn len(&self) -> usize {
        self.contents.len()
    }

    /// Always false for a decoded message; Clippy wants it beside [`len`](Self::len).
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// The blocks: number and content.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, &'a [u8; PAGE])> {
        let numbers = (BODY..PAGE).step_by(8);
        let page = self.page;
        let numbers = numbers.map_while(move |at| u64_at(page, at));
        numbers.zip(self.contents)
    }
}

/// Writes puts into a buffer of the guest.
#[derive(Debug)]
pub struct PutWriter<'a> {
    buffer: &'a mut [u8],
    count: usize,
}

impl<'a> PutWriter<'a> {
    /// Begins a message in a buffer of [`MAX_MESSAGE`](crate::puts::MAX_MESSAGE) bytes: a smaller one takes fewer blocks. `None`
    /// when it cannot take one.
    pub fn new(buffer: &'a mut [u8], sequence: u64, pool: u32, serial: Serial) -> Option<Self> {
        let page = buffer.first_chunk_mut::<PAGE>()?;
        page.fill(0);
        begin(page, Kind::Put, sequence, pool, serial);
        let whole = Self { buffer, count: 0 };
        (whole.room() > 0).then_some(whole)
    }

    /// Continues a message that [`new`](Self::new) has begun in this buffer, and that has `count` blocks.
    pub fn resume(buffer: &'a mut [u8], count: usize) -> Self {
        Self { buffer, count }
    }

    /// Sets the message's sequence number and pool: they may have been unknown at its beginning.
    pub fn address(&mut self, sequence: u64, pool: u32) {
        set(self.buffer, 16, sequence.to_le_bytes());
        set(self.buffer, 24, pool.to_le_bytes());
    }

    /// The number of blocks that can still be added.
    #[must_use]
    pub fn room(&self) -> usize {
        let pages = (self.buffer.len() / PAGE).saturating_sub(1);
        pages.min(MAX_BLOCKS).saturating_sub(self.count)
    }

    /// Adds a block; `false` when the message is full.
    pub fn push(&mut self, block: u64, content: &[u8; PAGE]) -> bool {
        if self.room() == 0 {
            return false;
        }
        let (pages, _) = self.buffer.as_chunks_mut::<PAGE>();
        let Some((first, contents)) = pages.split_first_mut() else {
            return false;
        };
        let Some(place) = contents.get_mut(self.count) else {
            return false;
        };
        *place = *content;
        set(
            first,
            BODY.saturating_add(self.count.saturating_mul(8)),
            block.to_le_bytes(),
        );
        self.count = self.count.saturating_add(1);
        true
    }

    /// The message, to be written at offset 0 of the port in one write. It is invalid without a block.
    #[must_use]
    pub fn finish(self) -> &'a [u8] {
        let count = u32::try_from(self.count).unwrap_or(0);
        set(self.buffer, 12, count.to_le_bytes());
        let len = self.count.saturating_add(1).saturating_mul(PAGE);
        self.buffer.get(..len).unwrap_or_default()
    }
}
