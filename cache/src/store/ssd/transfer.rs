//! Transfers to and from the device. The wait for a read is bounded: a hung device must not block readers of blocks that are
//! also on their disk. The memory of a late read, and the file, are kept until the kernel is done.

use super::write_buffer::{BlocksRead, Page};
use crate::block::{BLOCK_BYTES, BLOCK_SIZE};
use crate::ring::{self, Ring};
use io_uring::{opcode, squeue, types};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A transfer whose wait was given up.
#[derive(Debug)]
pub struct Overdue(Weak<()>);

impl Overdue {
    /// A transfer that ends when the last handle of `under_way` is dropped.
    pub fn new(under_way: &Arc<()>) -> Self {
        Self(Arc::downgrade(under_way))
    }

    /// Has the device answered?
    fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The resources of a transfer: the ring keeps them until it has ended.
type Kept = Arc<dyn Any + Send + Sync>;

type TransferRing = Ring<(usize, Kept)>;

thread_local! {
    /// A ring for each thread that reads or writes; `None` where io_uring is refused.
    static RING: RefCell<Option<TransferRing>> = const { RefCell::new(None) };
    /// Without rings, a thread that reads for this one.
    static READER: RefCell<Option<Reader>> = const { RefCell::new(None) };
}

/// The ring of this thread, taken from it: [`put_back`] follows.
fn take_ring() -> Option<TransferRing> {
    if ring::unsupported_reason().is_some() {
        return None;
    }
    RING.take().or_else(|| Ring::new().ok())
}

fn put_back(ring: TransferRing) {
    RING.set(Some(ring));
}

/// A read's pages and file. While this is shared, the kernel writes into the pages and they must not be read.
struct ReadMemory {
    pages: Vec<Page>,
    file: Arc<File>,
}

/// Reads the blocks at these offsets of the file in one batch, and waits at most `patience`.
pub(super) fn read(
    file: &Arc<File>,
    offsets: Vec<u64>,
    patience: Duration,
) -> Result<BlocksRead, Overdue> {
    let pages = offsets.iter().map(|_| Page::new()).collect();
    let memory = ReadMemory {
        pages,
        file: Arc::clone(file),
    };
    match take_ring() {
        Some(ring) => read_by_ring(ring, memory, &offsets, patience),
        None => read_by_thread(memory, offsets, patience),
    }
}

fn read_by_ring(
    ring: TransferRing,
    mut memory: ReadMemory,
    offsets: &[u64],
    patience: Duration,
) -> Result<BlocksRead, Overdue> {
    let fd = types::Fd(memory.file.as_raw_fd());
    let length = u32::try_from(BLOCK_BYTES).unwrap_or(0);
    let entries = memory.pages.iter_mut().zip(offsets).map(|(page, off)| {
        opcode::Read::new(fd, page.0.as_mut_ptr(), length)
            .offset(*off)
            .build()
    });
    let entries = entries.collect();
    let kept = Arc::new(memory);
    let deadline = Instant::now().checked_add(patience);
    // SAFETY: pages and file belong to `kept`, and are not touched until it is the only reference again.
    let counts = unsafe { together(ring, entries, kept.clone(), deadline)? };
    let results = counts.into_iter().map(|count| match count {
        Some(Ok(BLOCK_SIZE)) => Ok(()),
        Some(Err(e)) => Err(e),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    });
    let results = results.collect();
    // All have ended, so the ring has no reference left.
    let pages = Arc::into_inner(kept).map(|memory| memory.pages);
    Ok(BlocksRead {
        pages: pages.unwrap_or_default(),
        results,
    })
}

/// Writes in one batch. Returns a result for each.
pub(super) fn write(file: &File, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
    let counts = write_by_ring(file, requests);
    let done = requests.iter().enumerate().map(|(i, (off, bytes))| {
        match counts.get(i).and_then(Option::as_ref) {
            Some(Ok(count)) if *count == bytes.len() => Ok(()),
            Some(Err(e)) => Err(copy(e)),
            // A short write, or no ring.
            _ => file.write_all_at(bytes, *off),
        }
    });
    done.collect()
}

fn write_by_ring(file: &File, requests: &[(u64, &[u8])]) -> Vec<Option<io::Result<usize>>> {
    let Some(ring) = take_ring() else {
        return Vec::new();
    };
    let fd = types::Fd(file.as_raw_fd());
    let entries = requests.iter().map(|(off, bytes)| {
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        opcode::Write::new(fd, bytes.as_ptr(), length)
            .offset(*off)
            .build()
    });
    // SAFETY: the bytes and the file stay borrowed until this returns. Without a deadline it returns when all have ended.
    let counts = unsafe { together(ring, entries.collect(), Arc::new(()), None) };
    counts.unwrap_or_default()
}

fn copy(error: &io::Error) -> io::Error {
    error
        .raw_os_error()
        .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Executes `entries` in one batch, and waits at most until the deadline. Returns the bytes of each. If not all have ended by
/// then, a thread waits for the others with the ring.
///
/// # Safety
/// The memory and the file that the entries name must stay unchanged, and untouched by others, until this function returns. If
/// it returns [`Overdue`], they must stay so while `kept` lives.
unsafe fn together(
    mut ring: TransferRing,
    entries: Vec<squeue::Entry>,
    kept: Kept,
    deadline: Option<Instant>,
) -> Result<Vec<Option<io::Result<usize>>>, Overdue> {
    let mut results: Vec<_> = entries.iter().map(|_| None).collect();
    let mut entries = entries.into_iter().enumerate().peekable();
    while entries.peek().is_some() || ring.in_flight() > 0 {
        while ring.in_flight() < ring::ENTRIES
            && let Some((i, entry)) = entries.next()
        {
            // SAFETY: the caller's promise.
            let _full = unsafe { ring.push(entry, (i, Arc::clone(&kept))) };
        }
        ring.submit_until(1, deadline);
        let before = ring.in_flight();
        ring.collect(|(i, _), result| results[i] = Some(result));
        if ring.in_flight() == before && deadline.is_some_and(|at| at <= Instant::now()) {
            return Err(wait_elsewhere(ring));
        }
    }
    put_back(ring);
    Ok(results)
}

/// Lets another thread wait for the transfers in flight.
fn wait_elsewhere(ring: TransferRing) -> Overdue {
    let under_way = Arc::new(());
    let overdue = Overdue::new(&under_way);
    // If no thread can be started, leak the ring: dropping it here would wait.
    let mut left = ManuallyDrop::new((ring, under_way));
    let wait = move || {
        // SAFETY: this is the only use.
        drop(unsafe { ManuallyDrop::take(&mut left) });
    };
    let started = std::thread::Builder::new()
        .name("ssd-late".into())
        .spawn(wait);
    if let Err(e) = started {
        tracing::error!("cannot start a thread that waits for the SSD store: {e}");
    }
    overdue
}

/// A thread that reads for another one, which limits its wait.
struct Reader {
    work: Sender<ReadWork>,
    done: Receiver<BlocksRead>,
}

struct ReadWork {
    memory: ReadMemory,
    offsets: Vec<u64>,
    under_way: Arc<()>,
}

impl Reader {
    fn start() -> io::Result<Self> {
        let (work, received) = channel();
        let (send, done) = channel();
        std::thread::Builder::new()
            .name("ssd-read".into())
            .spawn(move || {
                received
                    .into_iter()
                    .try_for_each(|work: ReadWork| send.send(work.read()))
            })?;
        Ok(Self { work, done })
    }
}

impl ReadWork {
    fn read(self) -> BlocksRead {
        let ReadMemory { mut pages, file } = self.memory;
        let one = |(page, off): (&mut Page, &u64)| file.read_exact_at(&mut page.0, *off);
        let results = pages.iter_mut().zip(&self.offsets).map(one).collect();
        drop(self.under_way);
        BlocksRead { pages, results }
    }
}

fn read_by_thread(
    memory: ReadMemory,
    offsets: Vec<u64>,
    patience: Duration,
) -> Result<BlocksRead, Overdue> {
    let under_way = Arc::new(());
    let overdue = Overdue::new(&under_way);
    let count = offsets.len();
    let work = ReadWork {
        memory,
        offsets,
        under_way,
    };
    let failed = |why: &str| BlocksRead {
        pages: (0..count).map(|_| Page::new()).collect(),
        results: (0..count)
            .map(|_| Err(io::Error::other(why.to_owned())))
            .collect(),
    };
    let reader = match READER.take().map_or_else(Reader::start, Ok) {
        Ok(reader) => reader,
        Err(e) => return Ok(failed(&format!("cannot start a thread that reads: {e}"))),
    };
    if reader.work.send(work).is_err() {
        return Ok(failed("the thread that reads has ended"));
    }
    match reader.done.recv_timeout(patience) {
        Ok(read) => {
            READER.set(Some(reader));
            Ok(read)
        }
        // The thread ends by itself when the device has answered.
        Err(RecvTimeoutError::Timeout) => Err(overdue),
        Err(RecvTimeoutError::Disconnected) => Ok(failed("the thread that reads has ended")),
    }
}

// A stalled device. While a read is overdue, no other read is sent to it: the disks have all its blocks. Writes wait in bounded
// memory, and are read there.

/// The longest wait for a read of the device. A busy hard disk, and an SSD that collects garbage, answer within 100 ms; beyond
/// that the disk is the better source. It is also far below the 30 s timeout of a guest's driver. A wrong decision costs
/// little, since the device serves again as soon as it has answered.
pub(super) const READ_PATIENCE: Duration = Duration::from_millis(250);

/// The interval of checks for long writes, and the time from which a write is long.
const WRITES_LOOK: Duration = Duration::from_secs(1);

/// The log interval for a device that stalls repeatedly.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Overdue reads, and pending writes.
#[derive(Default)]
pub(super) struct Stall {
    /// There may be overdue reads.
    is: AtomicBool,
    state: Mutex<State>,
    begun: Condvar,
}

#[derive(Default)]
struct State {
    since: Option<Instant>,
    /// The number of stalls, and the time of the last logged one.
    stalls: u64,
    logged: Option<Instant>,
    overdue: Vec<Overdue>,
    /// The start of each pending write, oldest first.
    writes: VecDeque<Instant>,
    closed: bool,
}

impl Stall {
    /// Is a read of the device overdue?
    pub(super) fn is_stalled(&self) -> bool {
        self.is.load(Ordering::SeqCst) && self.time().is_some()
    }

    /// The time since a read became overdue.
    pub(super) fn time(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        state.overdue.retain(|overdue| !overdue.has_ended());
        if state.overdue.is_empty()
            && let Some(since) = state.since.take()
        {
            self.is.store(false, Ordering::SeqCst);
            let stalled = since.elapsed();
            // Only for a stall that was logged.
            if state.logged == Some(since) {
                tracing::warn!(
                    "the SSD store's device answers again, after {:.2} s",
                    stalled.as_secs_f64()
                );
            }
        }
        state.since.map(|since| since.elapsed())
    }

    /// Notes an overdue read.
    pub(super) fn begin(&self, overdue: Overdue) {
        let mut state = self.state.lock();
        state.overdue.push(overdue);
        if state.since.is_none() {
            let now = Instant::now();
            state.since = Some(now);
            state.stalls += 1;
            if state.logged.is_none_or(|at| now - at >= LOG_INTERVAL) {
                state.logged = Some(now);
                tracing::warn!(
                    "the SSD store's device has not answered a read for {} ms: until it does, disks are read instead ({} times so far)",
                    READ_PATIENCE.as_millis(),
                    state.stalls
                );
            }
        }
        self.is.store(true, Ordering::SeqCst);
        self.begun.notify_all();
    }

    /// Executes a write, and times it.
    pub(super) fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        self.state.lock().writes.push_back(begun);
        let written = write();
        let writes = &mut self.state.lock().writes;
        if let Some(at) = writes.iter().position(|other| *other == begun) {
            writes.remove(at);
        }
        written
    }

    /// The time since the oldest pending write began.
    pub(super) fn write_time(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.writes.front().map(Instant::elapsed)
    }

    /// Waits until a read is overdue, or a write takes long. Returns `false` when the store has closed.
    pub(super) fn wait(&self) -> bool {
        let long = |began: &Instant| began.elapsed() >= WRITES_LOOK;
        let mut state = self.state.lock();
        while state.since.is_none() && !state.writes.front().is_some_and(long) && !state.closed {
            self.begun.wait_for(&mut state, WRITES_LOOK);
        }
        !state.closed
    }

    /// Ends [`wait`](Self::wait).
    pub(super) fn stop(&self) {
        self.state.lock().closed = true;
        self.begun.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::OwnedFd;

    const LONG: Duration = Duration::from_secs(60);

    fn wait_for(what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < LONG, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A file that answers no read before it is written to: a pipe, of which rings ignore the offset.
    #[test]
    fn a_late_read_writes_into_memory_that_is_kept_for_it() {
        if take_ring().is_none() {
            return;
        }
        let (reader, mut writer) = io::pipe().unwrap();
        let file = Arc::new(File::from(OwnedFd::from(reader)));
        let patience = Duration::from_millis(1);
        let overdue = read(&file, vec![0, 4096], patience).err().unwrap();
        // The file is open until the kernel is done with it, even if it is closed here; the pages are kept as well.
        let open = Arc::downgrade(&file);
        drop(file);
        assert!(!overdue.has_ended());
        assert_eq!(open.strong_count(), 1);
        // This thread reads on meanwhile, with another ring.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let other = Arc::new(File::open(&path).unwrap());
        let found = read(&other, vec![4096], LONG).unwrap();
        assert!(found.results[0].is_ok() && found.pages[0].0 == [7; 4096]);
        writer.write_all(&[1; 8192]).unwrap();
        wait_for("the late read has not ended", || overdue.has_ended());
        assert_eq!(open.strong_count(), 0);
        assert_eq!(found.pages[0].0, [7; 4096]);
    }

    #[test]
    fn without_rings_a_thread_that_hangs_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [3; 8192]).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let memory = |count| ReadMemory {
            pages: (0..count).map(|_| Page::new()).collect(),
            file: Arc::clone(&file),
        };
        let found = read_by_thread(memory(2), vec![0, 4096], LONG).unwrap();
        assert!(found.results.iter().all(Result::is_ok));
        assert_eq!(found.pages[1].0, [3; 4096]);
        // Beyond the end.
        let found = read_by_thread(memory(2), vec![4096, 8192], LONG).unwrap();
        assert!(found.results[0].is_ok() && found.results[1].is_err());
        // Not even begun.
        if let Err(overdue) = read_by_thread(memory(1), vec![0], Duration::ZERO) {
            wait_for("the read has not ended", || overdue.has_ended());
        }
        assert!(read_by_thread(memory(1), vec![0], LONG).unwrap().results[0].is_ok());
    }

    #[test]
    fn what_the_file_does_not_have_is_an_error_of_its_block_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [3; 8192]).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let found = read(&file, vec![8192, 0, 6144], LONG).unwrap();
        let good: Vec<_> = found.results.iter().map(Result::is_ok).collect();
        assert_eq!(good, [false, true, false]);
        let refused = write(&file, &[(0, &[1; 4096])]);
        assert!(refused[0].is_err(), "it is open for reading");
    }
}
