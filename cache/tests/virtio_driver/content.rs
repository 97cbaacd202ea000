//! What is read over the driver is what was written, until its buffers are gone.

use super::client::{Client, DEPTH, Op, QUEUES, REQUEST};
use super::{SIZE, config, serve};
use justitia_cache::serve::Service;
use rustix::fs::ftruncate;
use std::time::{Duration, Instant};

/// Random numbers, the same in every run.
fn random(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    // Of the low bits each number would say what the next one is.
    usize::try_from((*state >> 32) % u64::try_from(below).unwrap()).unwrap()
}

/// Writes and reads all over the disk, with verification, and calls `meanwhile` with requests in flight. Returns what the disk
/// must hold.
fn verify(client: &mut Client, requests: usize, mut meanwhile: impl FnMut(usize)) -> Vec<u8> {
    let mut content = vec![0_u8; SIZE];
    let mut under_way: Vec<Option<(bool, usize)>> = vec![None; QUEUES * DEPTH];
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for n in 0..requests {
        for slot in 0..under_way.len() {
            let offset = random(&mut state, SIZE / REQUEST) * REQUEST;
            let busy = under_way
                .iter()
                .flatten()
                .any(|(_, other)| *other == offset);
            if under_way[slot].is_some() || busy {
                continue;
            }
            let write = random(&mut state, 2) == 0;
            if write {
                let byte = u8::try_from(1 + random(&mut state, 255)).unwrap();
                content[offset..offset + REQUEST].fill(byte);
                // SAFETY: as in `submit`.
                unsafe { client.buffer(slot).write_bytes(byte, REQUEST) };
            }
            let op = if write { Op::Write } else { Op::Read };
            client.submit(slot, op, offset, REQUEST);
            under_way[slot] = Some((write, offset));
        }
        meanwhile(n);
        let queue = n % QUEUES;
        for slot in client.completed(queue) {
            let Some((false, offset)) = under_way[slot].take() else {
                continue;
            };
            // SAFETY: as in `submit`; the request has ended.
            let found = unsafe { std::slice::from_raw_parts(client.buffer(slot), REQUEST) };
            assert!(found == &content[offset..offset + REQUEST], "at {offset}");
        }
    }
    for queue in 0..QUEUES {
        let mut left = under_way[queue * DEPTH..][..DEPTH].iter().flatten().count();
        while left > 0 {
            left -= client.completed(queue).len();
        }
    }
    client.submit(0, Op::Flush, 0, 0);
    client.completed(0);
    content
}

#[test]
fn what_libblkios_driver_reads_is_what_it_has_written() {
    let directory = tempfile::tempdir().unwrap();
    let service = serve(directory.path());
    let socket = directory.path().join("vhost");
    let mut client = Client::connect(&socket);
    let content = verify(&mut client, 5000, |_| ());
    assert!(std::fs::read(directory.path().join("image")).unwrap() == content);
    // Its buffers are gone while it reads: it is cut off, and the next one is served.
    for slot in 0..QUEUES * DEPTH {
        client.submit(slot, Op::Read, slot * REQUEST, REQUEST);
    }
    ftruncate(&client.buffers, 0).unwrap();
    for slot in 0..16 {
        // The rings have room for more.
        client.submit(slot, Op::Read, slot * REQUEST, REQUEST);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while service.stats().vhost_front_ends > 0 {
        assert!(Instant::now() < deadline, "it is not cut off");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut next = Client::connect(&socket);
    next.submit(0, Op::Read, 0, REQUEST);
    next.completed(0);
}

#[test]
fn libblkios_driver_does_not_notice_that_the_daemon_is_executed_again() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let mut service = Some(Service::start(&config).unwrap());
    let mut client = Client::connect(&directory.path().join("vhost"));
    let content = verify(&mut client, 5000, |n| {
        if n % 200 == 100 {
            let old = service.take().unwrap();
            let (left, flushed) = old.hand_over_with_clients(Duration::from_secs(60));
            flushed.unwrap();
            service = Some(Service::start_from(&config, left).unwrap());
        }
    });
    assert!(std::fs::read(directory.path().join("image")).unwrap() == content);
}
