//! Records the calls that reach the kernel, for tests: writes with their content, and syncs, in order.

use crate::ring::Submitted;
use parking_lot::Mutex;
use rustix::fs::fstat;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// An event of an image.
#[derive(Clone, Debug)]
pub(crate) enum Event<N> {
    /// A call to the kernel began, with this number.
    Began(usize, Call),
    /// The call with this number has ended.
    Ended(usize),
    /// A test's note.
    Note(N),
}

/// A call to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A write; durable (`RWF_DSYNC`) or not.
    Write {
        /// Its offset.
        at: u64,
        /// Its content.
        content: Vec<u8>,
        /// Is it durable when it has ended?
        durable: bool,
    },
    /// A sync of earlier writes (`fdatasync`).
    Sync,
}

/// The events of one image. `N` is a test's note.
pub(crate) struct Recorder<N>(Mutex<Vec<Event<N>>>);

/// A recorder of anything.
trait Records: Send + Sync {
    fn began(&self, call: Call) -> usize;
    fn ended(&self, number: usize);
}

/// The images that are recorded, by device and inode.
static RECORDED: Mutex<BTreeMap<(u64, u64), Arc<dyn Records>>> = Mutex::new(BTreeMap::new());

impl<N: Clone + Send + 'static> Recorder<N> {
    /// Records an image, until the process ends.
    pub(crate) fn of(image: impl AsFd) -> Arc<Self> {
        let new = Arc::new(Self(Mutex::default()));
        let found = fstat(image).unwrap();
        RECORDED
            .lock()
            .insert((found.st_dev, found.st_ino), Arc::clone(&new) as _);
        new
    }

    /// Adds a note between the events.
    pub(crate) fn note(&self, note: N) {
        self.0.lock().push(Event::Note(note));
    }

    /// All events so far.
    pub(crate) fn events(&self) -> Vec<Event<N>> {
        self.0.lock().clone()
    }
}

impl<N: Clone + Send + 'static> Records for Recorder<N> {
    fn began(&self, call: Call) -> usize {
        let mut events = self.0.lock();
        let number = events.len();
        events.push(Event::Began(number, call));
        number
    }

    fn ended(&self, number: usize) {
        self.0.lock().push(Event::Ended(number));
    }
}

/// A call in progress.
pub(crate) struct Recorded(Arc<dyn Records>, usize);

impl Recorded {
    /// Records its end.
    pub(crate) fn ended(self) {
        self.0.ended(self.1);
    }
}

/// Records a thread's `call`; `None` for an image that is not recorded.
pub(crate) fn began(file: impl AsFd, call: impl FnOnce() -> Call) -> Option<Recorded> {
    let found = fstat(file).unwrap();
    let recorder = RECORDED
        .lock()
        .get(&(found.st_dev, found.st_ino))
        .cloned()?;
    let number = recorder.began(call());
    Some(Recorded(recorder, number))
}

/// As [`began`], for a ring.
pub(crate) fn submitted(entry: &Submitted) -> Option<Recorded> {
    let call = match entry.opcode {
        io_uring::opcode::Write::CODE => {
            let length = usize::try_from(entry.length).unwrap();
            let place =
                std::ptr::with_exposed_provenance::<u8>(usize::try_from(entry.address).unwrap());
            // SAFETY: the memory of a submitted entry stays unchanged until it has ended.
            let content = unsafe { std::slice::from_raw_parts(place, length) }.to_vec();
            Call::Write {
                at: entry.offset,
                content,
                durable: entry.flags & rustix::io::ReadWriteFlags::DSYNC.bits() != 0,
            }
        }
        io_uring::opcode::Fsync::CODE => Call::Sync,
        _ => return None,
    };
    // SAFETY: the file is open while its transfer is submitted.
    let file = unsafe { BorrowedFd::borrow_raw(entry.file) };
    began(file, || call)
}
