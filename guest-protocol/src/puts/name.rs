//! Names: of pools, and of disks as a guest sees them.

/// The name of a pool: 1 to 64 bytes of UTF-8 without slashes and control characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl Name {
    /// The longest name, bytes.
    pub const MAX: usize = 64;

    /// `None` when the text is no valid name.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let allowed = |c: char| c != '/' && !c.is_control();
        if text.is_empty() || !text.chars().all(allowed) {
            return None;
        }
        let mut bytes = [0; Self::MAX];
        bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        Some(Self {
            bytes,
            len: u8::try_from(text.len()).ok()?,
        })
    }

    /// The name of the longest beginning of the text that fits; `None` when that is no valid name.
    #[must_use]
    pub fn cut(text: &str) -> Option<Self> {
        let end = (0..=Self::MAX)
            .rev()
            .find(|end| text.is_char_boundary(*end))?;
        Self::new(text.get(..end).unwrap_or(text))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: [u8; Self::MAX], len: u8) -> Option<Self> {
        let text = std::str::from_utf8(bytes.get(..usize::from(len))?).ok()?;
        Self::new(text)
    }

    /// The bytes, padded with zeroes, and the length of the name.
    pub(crate) const fn encode(&self) -> ([u8; Self::MAX], u8) {
        (self.bytes, self.len)
    }
}

/// The serial of a disk, as virtio-blk has it: at most 20 bytes, padded with zeroes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Serial([u8; Self::MAX]);

impl Serial {
    /// The longest serial, bytes.
    pub const MAX: usize = 20;

    /// The serial of this text: printable ASCII. `None` when it is empty, too long or has other characters.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// Takes any bytes: no disk has an invalid serial.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::MAX]) -> Self {
        Self(bytes)
    }

    /// The bytes, padded with zeroes.
    #[must_use]
    pub const fn bytes(&self) -> [u8; Self::MAX] {
        self.0
    }
}
