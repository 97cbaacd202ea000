//! Memory that direct I/O can use.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// Direct I/O wants its memory so aligned, and files of whole multiples of it, in bytes: a page, of which every
/// device's sector is a part.
pub(crate) const ALIGNMENT: u64 = 4096;

/// Bytes that begin at a multiple of [`ALIGNMENT`].
#[derive(Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    begin: usize,
    length: usize,
}

impl Aligned {
    /// `bytes` zeros. The kernel makes them when they are touched: pages that are not touched take no memory.
    pub(crate) fn zeroed(bytes: u64) -> Self {
        let alignment = usize::try_from(ALIGNMENT).unwrap_or(1);
        let length = usize::try_from(bytes).unwrap_or(alignment);
        let memory = vec![0; length + alignment];
        let begin = memory.as_ptr().align_offset(alignment).min(alignment);
        Self {
            memory,
            begin,
            length,
        }
    }

    /// `bytes` of noise: neither compression nor deduplication makes it smaller.
    pub(crate) fn noise(rng: &mut ChaCha8Rng, bytes: u64) -> Self {
        let mut noise = Self::zeroed(bytes);
        rng.fill_bytes(noise.first_mut(bytes));
        noise
    }

    /// Its first bytes, at most `bytes`.
    pub(crate) fn first(&self, bytes: u64) -> &[u8] {
        self.memory.get(self.range(bytes)).unwrap_or_default()
    }

    /// The same, to be written to.
    pub(crate) fn first_mut(&mut self, bytes: u64) -> &mut [u8] {
        let range = self.range(bytes);
        self.memory.get_mut(range).unwrap_or_default()
    }

    fn range(&self, bytes: u64) -> std::ops::Range<usize> {
        let length = usize::try_from(bytes).map_or(self.length, |bytes| bytes.min(self.length));
        self.begin..self.begin + length
    }
}
