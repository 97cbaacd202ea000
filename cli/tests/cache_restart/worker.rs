//! A client of NBD that writes and reads with verification, with many requests in flight.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const BLOCK: usize = 4096;
/// Requests in flight, and the most blocks of one.
const DEPTH: usize = 16;
const MOST: u64 = 32;

/// Both ways of a connection.
pub(crate) trait Stream: Read + Write + Send + 'static {}
impl<T: Read + Write + Send + 'static> Stream for T {}

/// A worker, in its thread.
pub(crate) struct Worker {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What a request in flight does to some blocks.
struct Request {
    blocks: Range<u64>,
    write: bool,
}

struct State {
    stream: Box<dyn Stream>,
    structured: bool,
    /// What the worker has of the disk alone, and how often it has written each block.
    blocks: Range<u64>,
    versions: BTreeMap<u64, u8>,
    under_way: BTreeMap<u64, Request>,
    random: u64,
    cookie: u64,
}

impl Worker {
    /// Connects, and begins to write and read some blocks of the disk.
    pub(crate) fn start(mut stream: impl Stream, blocks: Range<u64>, structured: bool) -> Self {
        negotiate(&mut stream, structured);
        let (done, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut state = State {
            stream: Box::new(stream),
            structured,
            random: blocks.start + 1,
            blocks,
            versions: BTreeMap::new(),
            under_way: BTreeMap::new(),
            cookie: 0,
        };
        let (count, stopped) = (Arc::clone(&done), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                state.fill();
                state.take_reply();
                count.fetch_add(1, Ordering::SeqCst);
            }
            state.end();
        });
        Self { done, stop, thread }
    }

    /// Waits until it has got `more` more replies.
    pub(crate) fn wait_for(&self, more: u64) {
        let before = self.done.load(Ordering::SeqCst);
        while self.done.load(Ordering::SeqCst) < before + more {
            assert!(!self.thread.is_finished(), "a client has failed");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Lets it end, once all of its blocks have the content that they must have.
    pub(crate) fn join(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
        self.done.load(Ordering::SeqCst)
    }
}

/// To the transmission phase of `disk`.
fn negotiate(stream: &mut impl Stream, structured: bool) {
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    if structured {
        stream.write_all(b"IHAVEOPT\0\0\0\x08\0\0\0\0").unwrap();
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[12..16], [0, 0, 0, 1], "acknowledged");
    }
    stream
        .write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk")
        .unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
}

impl State {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// The content of blocks, by what was written to them last.
    fn content(&self, blocks: &Range<u64>) -> Vec<u8> {
        let of = |block| {
            let version = self.versions.get(&block).copied().unwrap_or(1);
            super::manager::content(block, version)
        };
        blocks.clone().flat_map(of).collect()
    }

    /// Asks until enough is in flight, of blocks of which nothing is.
    fn fill(&mut self) {
        while self.under_way.len() < DEPTH {
            let count = 1 + self.random(MOST);
            let room = self.blocks.end - self.blocks.start - count;
            let first = self.blocks.start + self.random(room);
            let write = self.random(2) == 0;
            self.ask(first..first + count, write);
        }
    }

    fn ask(&mut self, blocks: Range<u64>, write: bool) {
        let mut others = self.under_way.values();
        if others.any(|other| other.blocks.start < blocks.end && blocks.start < other.blocks.end) {
            return;
        }
        if write {
            for block in blocks.clone() {
                let version = self.versions.entry(block).or_insert(1);
                *version = version.wrapping_add(1);
            }
        }
        self.cookie += 1;
        let bytes = BLOCK * usize::try_from(blocks.end - blocks.start).unwrap();
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, u8::from(write)];
        request.extend(self.cookie.to_be_bytes());
        request.extend((blocks.start * 4096).to_be_bytes());
        request.extend(u32::try_from(bytes).unwrap().to_be_bytes());
        if write {
            request.extend(self.content(&blocks));
        }
        self.stream.write_all(&request).unwrap();
        self.under_way
            .insert(self.cookie, Request { blocks, write });
    }

    /// One reply, which must be the only one of its request, and what is read must be what was written.
    fn take_reply(&mut self) {
        let Some((cookie, chunked)) = self.reply_header() else {
            return;
        };
        let request = self.under_way.remove(&cookie);
        assert!(request.is_some(), "a reply to nothing, or a second one");
        let request = request.unwrap();
        assert_eq!(chunked, self.structured && !request.write);
        if request.write {
            return;
        }
        let expected = self.content(&request.blocks);
        let mut found = vec![0; expected.len()];
        self.stream.read_exact(&mut found).unwrap();
        assert!(found == expected, "blocks {:?}", request.blocks);
    }

    /// The cookie of the next reply, and whether it is a chunk with data, which follows.
    fn reply_header(&mut self) -> Option<(u64, bool)> {
        if self.under_way.is_empty() {
            return None;
        }
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).unwrap();
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        if head[..4] == 0x668e_33ef_u32.to_be_bytes() {
            assert_eq!(
                head[4..8],
                [0, 1, 0, 1],
                "the last chunk, with data at an offset"
            );
            self.stream.read_exact(&mut [0; 12]).unwrap();
            return Some((cookie, true));
        }
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(head[4..8], [0; 4], "no error");
        Some((cookie, false))
    }

    /// Takes all replies, and reads all blocks.
    fn end(&mut self) {
        while !self.under_way.is_empty() {
            self.take_reply();
        }
        for block in self.blocks.clone() {
            self.ask(block..block + 1, false);
            self.take_reply();
        }
        // A flush has one reply, and nothing else comes.
        let mut flush = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3];
        flush.extend([0; 20]);
        self.stream.write_all(&flush).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..], [0; 12]);
    }
}
