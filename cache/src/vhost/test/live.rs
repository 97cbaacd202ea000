//! Queues that stop, front ends that leave, memory that changes, while requests are in flight.

use super::gate::Gate;
use super::rig::Rig;
use super::verify::{read, request, write};
use crate::testing::front_end::{FrontEnd, FrontEndOptions, Guest, kind};
use std::sync::Arc;
use std::time::Duration;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

/// A disk that can be held up, its server, and a front end.
fn served() -> (Arc<Gate>, Rig, FrontEnd) {
    let gate = Gate::new();
    let rig = gate.rig();
    let front_end = rig.front_end(FrontEndOptions::default());
    (gate, rig, front_end)
}

/// A request of one queue, in flight at a disk that is held up.
fn held_up(gate: &Gate, front_end: &mut FrontEnd) -> u16 {
    gate.hold_up(true);
    let queue = &mut front_end.queues[0];
    let slot = queue.take_slot().unwrap();
    let before = queue.available_index();
    queue.submit(slot, request(kind::IN, 0, 4096)).unwrap();
    queue.kick_if_wanted(before).unwrap();
    assert!(!queue.wait(Duration::from_millis(200)).unwrap());
    slot
}

fn open_later(gate: &Arc<Gate>) -> std::thread::JoinHandle<()> {
    let gate = Arc::clone(gate);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        gate.hold_up(false);
    })
}

fn the_answer(front_end: &mut FrontEnd, slot: u16) {
    let mut found = Vec::new();
    front_end.queues[0].completed(&mut found).unwrap();
    let [found] = found[..] else {
        panic!("expected one answer, found {found:?}");
    };
    assert_eq!((found.slot, found.status, found.written), (slot, 0, 4097));
}

#[test]
fn a_queue_that_stops_answers_what_is_in_flight_first() {
    let (gate, _rig, mut front_end) = served();
    let slot = held_up(&gate, &mut front_end);
    let opened = open_later(&gate);
    assert_eq!(front_end.stop_queue(0).unwrap(), 1);
    the_answer(&mut front_end, slot);
    front_end.start_queue(0, 1).unwrap();
    assert_eq!(read(&mut front_end.queues[0], 0, 512).0.status, 0);
    opened.join().unwrap();
}

#[test]
fn shutting_down_answers_what_is_in_flight() {
    let (gate, rig, mut front_end) = served();
    let slot = held_up(&gate, &mut front_end);
    let opened = open_later(&gate);
    rig.server.shut_down(Duration::from_secs(20));
    the_answer(&mut front_end, slot);
    assert!(!rig.socket().exists());
    opened.join().unwrap();
}

#[test]
fn a_disk_that_hangs_does_not_hold_up_the_end() {
    let (gate, rig, mut front_end) = served();
    let slot = held_up(&gate, &mut front_end);
    rig.server.shut_down(Duration::from_millis(100));
    assert!(!rig.socket().exists());
    gate.hold_up(false);
    assert!(front_end.queues[0].wait(Duration::from_secs(20)).unwrap());
    the_answer(&mut front_end, slot);
}

#[test]
fn a_front_end_that_left_is_followed_by_one_that_finds_its_requests_answered() {
    let (gate, rig, mut front_end) = served();
    let slot = held_up(&gate, &mut front_end);
    let opened = open_later(&gate);
    // The new connection waits until the old one's request is answered, and does not execute it again.
    front_end.reconnect().unwrap();
    the_answer(&mut front_end, slot);
    let reads = rig.volume.stats().reads;
    assert_eq!(read(&mut front_end.queues[0], 0, 512).0.status, 0);
    assert_eq!(rig.volume.stats().reads, reads + 1);
    opened.join().unwrap();
}

#[test]
fn a_queue_that_starts_tells_of_answers_that_its_last_server_may_have_kept_quiet_about() {
    let rig = Gate::new().rig();
    let mut front_end = rig.front_end(FrontEndOptions::default());
    for _ in 0..2 {
        let queue = &front_end.queues[0];
        assert!(queue.is_signalled(Duration::from_secs(20)).unwrap());
        front_end.reconnect().unwrap();
    }
}

#[test]
fn one_front_end_has_the_disk() {
    let (_gate, rig, mut first) = served();
    assert!(FrontEnd::connect(&rig.socket(), FrontEndOptions::default()).is_err());
    assert_eq!(read(&mut first.queues[0], 0, 512).0.status, 0);
    drop(first);
    let mut second = rig.front_end(FrontEndOptions::default());
    assert_eq!(read(&mut second.queues[0], 0, 512).0.status, 0);
}

#[test]
fn memory_comes_and_goes_while_queues_run() {
    let (gate, _rig, mut front_end) = served();
    assert_eq!(write(&mut front_end.queues[0], 0, &[9; 4096]), 0);
    let added = Guest::new(1 << 32, 1 << 21).unwrap();
    front_end.add_memory(&added).unwrap();
    // A read into the new memory, with descriptors in the ring's own table.
    let queue = &mut front_end.queues[0];
    let header = queue.data(0);
    queue.write_data(0, &[0; 16]).unwrap();
    queue.write_data(1, &[0xff; 1]).unwrap();
    let status = queue.data(1);
    let chain = [
        Descriptor::new(header, 16, 1, 21),
        Descriptor::new((1 << 32) + 8192, 4096, 3, 22),
        Descriptor::new(status, 1, 2, 0),
    ];
    let send = |queue: &mut crate::testing::front_end::DriverQueue| {
        for (n, descriptor) in (20..).zip(chain) {
            queue.set_descriptor(n, descriptor).unwrap();
        }
        queue.make_available(20).unwrap();
        queue.kick.write(1).unwrap();
    };
    send(queue);
    assert!(queue.wait(Duration::from_secs(20)).unwrap());
    queue.completed(&mut Vec::new()).unwrap();
    let mut found = [0; 4096];
    let place = GuestAddress((1 << 32) + 8192);
    added.memory.read_slice(&mut found, place).unwrap();
    assert_eq!(found, [9; 4096]);
    // Removed while a request reads into it: that is answered, and what lies there is nobody's any more.
    gate.hold_up(true);
    send(queue);
    assert!(!queue.wait(Duration::from_millis(200)).unwrap());
    front_end.remove_memory(&added).unwrap();
    gate.hold_up(false);
    let queue = &mut front_end.queues[0];
    assert!(queue.wait(Duration::from_secs(20)).unwrap());
    queue.completed(&mut Vec::new()).unwrap();
    assert!(front_end.remove_memory(&added).is_err(), "twice");
}

#[test]
fn a_request_for_memory_that_is_gone_stops_the_queue() {
    let (_gate, _rig, mut front_end) = served();
    let added = Guest::new(1 << 32, 1 << 21).unwrap();
    front_end.add_memory(&added).unwrap();
    front_end.remove_memory(&added).unwrap();
    let queue = &mut front_end.queues[0];
    queue
        .set_descriptor(0, Descriptor::new(1 << 32, 16, 0, 0))
        .unwrap();
    queue.make_available(0).unwrap();
    queue.kick.write(1).unwrap();
    assert!(queue.is_broken(Duration::from_secs(20)).unwrap());
}
