//! fio over the driver. No fio of a distribution has an engine for it, so fio speaks NBD with a server of this test, whose
//! disk is the driver.

use super::client::{Client, DEPTH, Op, QUEUES, REQUEST};
use super::fio_verify::verify;
use super::{SIZE, serve};
use justitia_cache::BlockDevice;
use justitia_cache::frontend::{Backend, Volume};
use justitia_cache::nbd::{Export, Limits, Server};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request, and the client that gets its content when it has ended.
struct Request {
    op: Op,
    offset: usize,
    content: Vec<u8>,
    answer: Sender<Vec<u8>>,
}

/// Passes requests on to the driver, as many at a time as come, until nobody can send any more.
fn drive(socket: &Path, requests: &Receiver<Request>) {
    let mut client = Client::connect(socket);
    let mut under_way: Vec<Option<Request>> = (0..QUEUES * DEPTH).map(|_| None).collect();
    loop {
        // On both queues in turns.
        let slots = (0..DEPTH).flat_map(|n| (0..QUEUES).map(move |queue| queue * DEPTH + n));
        for slot in slots {
            if under_way[slot].is_some() {
                continue;
            }
            let idle = under_way.iter().all(Option::is_none);
            let next = if idle {
                requests.recv().ok()
            } else {
                requests.try_recv().ok()
            };
            let Some(request) = next else {
                if idle {
                    return;
                }
                break;
            };
            let content = &request.content;
            // SAFETY: the buffer is mapped, and no request uses it before this one is submitted.
            let buffer = unsafe { std::slice::from_raw_parts_mut(client.buffer(slot), REQUEST) };
            buffer[..content.len()].copy_from_slice(content);
            client.submit(slot, request.op, request.offset, content.len());
            under_way[slot] = Some(request);
        }
        for queue in 0..QUEUES {
            if under_way[queue * DEPTH..][..DEPTH]
                .iter()
                .all(Option::is_none)
            {
                continue;
            }
            for slot in client.completed(queue) {
                let mut request = under_way[slot].take().unwrap();
                // SAFETY: as before; the request has ended.
                let buffer = unsafe { std::slice::from_raw_parts(client.buffer(slot), REQUEST) };
                let bytes = request.content.len();
                request.content.copy_from_slice(&buffer[..bytes]);
                // A client that is gone does not wait for it.
                let _ = request.answer.send(request.content);
            }
        }
    }
}

/// The driver as a disk.
struct Driver(Sender<Request>);

impl Driver {
    fn new(socket: PathBuf) -> Self {
        let (sender, requests) = channel();
        std::thread::spawn(move || drive(&socket, &requests));
        Self(sender)
    }

    fn run(&self, op: Op, offset: u64, content: Vec<u8>) -> Vec<u8> {
        let (answer, ended) = channel();
        let offset = offset.try_into().unwrap();
        let request = Request {
            op,
            offset,
            content,
            answer,
        };
        self.0.send(request).unwrap();
        ended.recv().unwrap()
    }
}

impl BlockDevice for Driver {
    fn size(&self) -> u64 {
        SIZE.try_into().unwrap()
    }

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        buf.copy_from_slice(&self.run(Op::Read, off, vec![0; buf.len()]));
        Ok(())
    }

    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        self.run(Op::Write, off, buf.to_vec());
        if fua { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> io::Result<()> {
        self.run(Op::Flush, 0, Vec::new());
        Ok(())
    }
}

#[test]
fn fio_reads_over_libblkios_driver_what_it_has_written() {
    let directory = tempfile::tempdir().unwrap();
    let service = serve(directory.path());
    let driver = Driver::new(directory.path().join("vhost"));
    let server = Server::new(Limits::default(), None).unwrap();
    let volume = Volume::new("driver", Backend::Plain(Arc::new(driver)));
    server.add(Export::new(volume, ""));
    let socket = directory.path().join("nbd");
    server.listen_unix(&socket).unwrap();
    let uri = format!("nbd+unix:///driver?socket={}", socket.display());
    verify(&uri, (SIZE >> 20).try_into().unwrap());
    let stats = service.stats();
    let counts = stats.cache.vms[0].pools[0].counts;
    assert!(counts.evictions > 0 && counts.memory_hits > 0 && counts.invalidations > 0);
}
