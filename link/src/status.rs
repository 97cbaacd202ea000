//! What becomes of a message.

/// What became of a message. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Handled; a put's blocks have verdicts of their own.
    Done = 0,
    /// No message of its kind.
    Malformed = 1,
    /// Of a version that the host does not know.
    Version = 2,
    /// Too many commands in the last time: again later.
    Busy = 3,
    /// The VM has no pool of that number.
    NoPool = 4,
    /// The VM has a pool of that name.
    PoolExists = 5,
    /// The VM has as many pools as it may have.
    TooManyPools = 6,
    /// A weight is from 1 to 10000.
    Weight = 7,
    /// The VM's guest may not choose the SSD store.
    Store = 8,
    /// The pool is the host's: it was not created over the port.
    NotYours = 9,
    /// No cached disk of this VM has the serial.
    NoDisk = 10,
    /// MIGRATE of more blocks than one message may name.
    TooLong = 11,
    /// The host cannot do it now.
    Failed = 12,
}

impl Status {
    /// All, by number.
    pub const ALL: [Self; 13] = [
        Self::Done,
        Self::Malformed,
        Self::Version,
        Self::Busy,
        Self::NoPool,
        Self::PoolExists,
        Self::TooManyPools,
        Self::Weight,
        Self::Store,
        Self::NotYours,
        Self::NoDisk,
        Self::TooLong,
        Self::Failed,
    ];

    /// The status of this number; `None` when this version has none.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
