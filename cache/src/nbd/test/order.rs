//! Writes of clients that are gone, and back by another connection.

use super::client::Client;
use crate::block_dev::{BlockDevice, RamDisk};
use crate::frontend::{Backend, IoLimits, Volume};
use crate::nbd::{Export, Limits, Server};
use parking_lot::{Condvar, Mutex};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A disk whose writes of zeroes wait for the test.
struct Slow {
    ram: RamDisk,
    /// Writes that wait, and whether they must.
    waiting: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Slow {
    fn release(&self) {
        self.waiting.lock().1 = false;
        self.changed.notify_all();
    }

    /// Waits until `count` writes wait.
    fn wait_for(&self, count: usize) {
        let mut waiting = self.waiting.lock();
        let timeout = Duration::from_secs(60);
        let late = self
            .changed
            .wait_while_for(&mut waiting, |(n, _)| *n != count, timeout);
        assert!(!late.timed_out());
    }
}

impl BlockDevice for Slow {
    fn size(&self) -> u64 {
        self.ram.size()
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        self.ram.read_at(buf, off)
    }
    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        if buf[0] == 0 {
            let mut waiting = self.waiting.lock();
            waiting.0 += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut waiting, |(_, must)| *must);
            waiting.0 -= 1;
            drop(waiting);
            self.ram.write_at(buf, off, fua)?;
            self.changed.notify_all();
            return Ok(());
        }
        self.ram.write_at(buf, off, fua)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

struct Rig {
    disk: Arc<Slow>,
    server: Server,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(in_flight: usize) -> Self {
        Self::limited(IoLimits {
            in_flight,
            ..IoLimits::default()
        })
    }

    fn limited(io: IoLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Slow {
            ram: RamDisk::new(64 << 10),
            waiting: Mutex::new((0, true)),
            changed: Condvar::new(),
        });
        let limits = Limits {
            io,
            ..Limits::default()
        };
        let server = Server::new(limits, None).unwrap();
        let backend = Backend::Plain(Arc::clone(&disk) as Arc<dyn BlockDevice>);
        server.add(Export::new(Volume::new("disk", backend), ""));
        let socket = dir.path().join("s");
        server.listen_unix(&socket).unwrap();
        Self {
            disk,
            server,
            socket,
            _dir: dir,
        }
    }

    fn connect(&self) -> Client {
        Client::new(&self.socket, "disk", false)
    }

    /// The disk's first bytes, once all connections have ended.
    fn content(self) -> [u8; 4096] {
        self.server.shut_down(Duration::from_secs(60));
        let mut found = [0; 4096];
        self.disk.ram.read_at(&mut found, 0).unwrap();
        found
    }
}

const BLOCK: u32 = 4096;

#[test]
fn a_write_whose_connection_is_gone_does_not_land_after_a_newer_one() {
    let rig = Rig::new(16);
    let mut gone = rig.connect();
    gone.send(1, 0, 1, 0, &[0; 4096], BLOCK);
    rig.disk.wait_for(1);
    drop(gone);
    // Not the same range, but one that overlaps; and one that does not.
    let mut back = rig.connect();
    back.send(1, 0, 2, 0, &[2; 2048], BLOCK / 2);
    assert_eq!(back.write(0, 8192, &[2; 4096]).cookie, 8);
    let timeout = |of: &Client, time| of.stream.set_read_timeout(Some(time)).unwrap();
    timeout(&back, Duration::from_millis(200));
    let early = back.stream.read(&mut [0; 16]);
    assert!(
        early.is_err(),
        "answered while an older write is at the disk"
    );
    timeout(&back, Duration::from_secs(60));
    rig.disk.release();
    assert_eq!((back.reply(0).error, back.read(0, 1).data), (0, vec![2]));
    drop(back);
    let found = rig.content();
    assert!(found[..2048] == [2; 2048] && found[2048..] == [0; 2048]);
}

#[test]
fn what_a_client_that_is_gone_has_sent_and_nobody_has_read_is_void() {
    // One request at a time: both arrive, and the second one waits.
    let rig = Rig::new(1);
    // Over TCP, where a client that closes its end may still want replies.
    let address = rig.server.listen_tcp(([127, 0, 0, 1], 0).into(), true);
    let mut gone = TcpStream::connect(address.unwrap()).unwrap();
    gone.read_exact(&mut [0; 18]).unwrap();
    // The client's flags, and EXPORT_NAME.
    let name = [
        &[0, 0, 0, 3][..],
        b"IHAVEOPT",
        &[0, 0, 0, 1, 0, 0, 0, 4],
        b"disk",
    ];
    gone.write_all(&name.concat()).unwrap();
    gone.read_exact(&mut [0; 10]).unwrap();
    let mut both = Vec::new();
    for (offset, byte) in [(8192u64, 0), (0, 1)] {
        // A compact WRITE: magic, flags, command, cookie, place.
        both.extend(0x2560_9513_u32.to_be_bytes());
        both.extend([0, 0, 0, 1]);
        both.extend(7u64.to_be_bytes());
        both.extend(offset.to_be_bytes());
        both.extend(BLOCK.to_be_bytes());
        both.extend([byte; 4096]);
    }
    gone.write_all(&both).unwrap();
    rig.disk.wait_for(1);
    drop(gone);
    let mut back = rig.connect();
    assert_eq!(back.write(0, 0, &[2; 4096]).error, 0);
    rig.disk.release();
    drop(back);
    assert_eq!(rig.content(), [2; 4096]);
}

#[test]
fn writes_to_one_place_of_a_connection_that_broke_leave_the_place_to_others() {
    let rig = Rig::new(16);
    let mut gone = rig.connect();
    for cookie in 1..=5 {
        gone.send(1, 0, cookie, 0, &[0; 4096], BLOCK);
    }
    rig.disk.wait_for(1);
    // Garbage ends the connection at once, whatever is in flight.
    gone.stream.write_all(&[9; 64]).unwrap();
    assert_eq!(gone.stream.read(&mut [0; 16]).unwrap_or(0), 0);
    let mut back = rig.connect();
    back.send(1, 0, 6, 0, &[2; 4096], BLOCK);
    rig.disk.release();
    back.stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(back.reply(0).error, 0);
    drop(back);
    assert_eq!(rig.content(), [2; 4096]);
}

#[test]
fn a_connection_that_broke_counts_until_what_it_asked_for_has_ended() {
    let rig = Rig::limited(IoLimits {
        vm_connections: 1,
        ..IoLimits::default()
    });
    let mut gone = rig.connect();
    gone.send(1, 0, 1, 0, &[0; 4096], BLOCK);
    rig.disk.wait_for(1);
    gone.stream.write_all(&[9; 64]).unwrap();
    assert_eq!(gone.stream.read(&mut [0; 16]).unwrap_or(0), 0);
    let mut refused = rig.connect();
    let answer = refused.try_send(1, 0, 2, 4096, &[2; 4096], BLOCK);
    let ended = answer.is_err() || refused.stream.read(&mut [0; 16]).unwrap_or(0) == 0;
    assert!(ended, "a second connection of a VM that may have one");
    rig.disk.release();
    assert_eq!(rig.content(), [0; 4096]);
}
