//! Guests and front ends that do what none does.

use super::gate::Gate;
use super::rig::Rig;
use super::verify::read;
use crate::testing::front_end::{DriverQueue, FrontEnd, FrontEndOptions};
use crate::vhost::{fuzz, recover_from};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use virtio_queue::desc::split::Descriptor;
use vmm_sys_util::eventfd::EventFd;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn two_queues(rig: &Rig) -> FrontEnd {
    rig.front_end(FrontEndOptions {
        queues: 2,
        ..FrontEndOptions::default()
    })
}

/// Makes descriptors 0 and so on available, and more, as it says.
fn send(queue: &mut DriverQueue, descriptors: &[Descriptor], more: impl Fn(&mut DriverQueue)) {
    for (n, descriptor) in (0..).zip(descriptors) {
        queue.set_descriptor(n, *descriptor).unwrap();
    }
    queue.make_available(0).unwrap();
    more(queue);
    queue.kick.write(1).unwrap();
}

/// The first queue is broken; the second one is not, and the first works again when its driver has reset it.
fn is_contained(front_end: &mut FrontEnd, what: &str) {
    let broken = front_end.queues[0].is_broken(Duration::from_secs(20));
    assert!(broken.unwrap(), "{what}");
    assert_eq!(read(&mut front_end.queues[1], 0, 512).0.status, 0, "{what}");
    front_end.stop_queue(0).unwrap();
    front_end.queues[0].reset().unwrap();
}

/// Chains that no driver makes, for a ring whose descriptors are at `table`, with a buffer at `at`.
fn broken_chains(table: u64, at: u64) -> Vec<(&'static str, Vec<Descriptor>)> {
    let new = Descriptor::new;
    let (header, status) = (new(at, 16, NEXT, 1), new(at + 16, 1, WRITE, 0));
    let early = new(at, 16, NEXT | WRITE, 1);
    let late = new(at, 16, NEXT, 2);
    vec![
        ("a loop", vec![header, new(at, 16, NEXT, 0)]),
        ("an index outside", vec![new(at, 16, NEXT, 999)]),
        ("no status", vec![new(at, 16, 0, 0)]),
        ("a short header", vec![new(at, 15, NEXT, 1), status]),
        ("writable before readable", vec![early, late, status]),
        ("outside", vec![new(1 << 50, 16, NEXT, 1), status]),
        ("over the end", vec![new(u64::MAX - 3, 16, NEXT, 1), status]),
        ("a table in itself", vec![new(table, 16, INDIRECT, 0)]),
        ("a table of odd length", vec![new(at, 17, INDIRECT, 0)]),
        ("a table of nothing", vec![new(at, 0, INDIRECT, 0)]),
        (
            "a successor of a table",
            vec![new(at, 32, INDIRECT | NEXT, 1), status],
        ),
    ]
}

#[test]
fn a_chain_that_no_driver_makes_stops_its_queue_and_no_other() {
    let rig = Gate::new().rig();
    let mut front_end = two_queues(&rig);
    let queue = &front_end.queues[0];
    for (what, chain) in broken_chains(queue.addresses().0, queue.data(0)) {
        send(&mut front_end.queues[0], &chain, |_| {});
        is_contained(&mut front_end, what);
        front_end.start_queue(0, 0).unwrap();
    }
    assert_eq!(read(&mut front_end.queues[0], 0, 512).0.status, 0);
}

#[test]
fn an_index_that_no_driver_writes_stops_its_queue_and_no_other() {
    let gate = Gate::new();
    let rig = gate.rig();
    let mut front_end = two_queues(&rig);
    let at = front_end.queues[0].data(0);
    let header = Descriptor::new(at, 16, NEXT, 1);
    let good = [header, Descriptor::new(at + 16, 1, WRITE, 0)];
    let far = |queue: &mut DriverQueue| queue.set_available(5000).unwrap();
    send(&mut front_end.queues[0], &good, far);
    is_contained(&mut front_end, "an index that is far ahead");
    front_end.start_queue(0, 0).unwrap();
    let head = |queue: &mut DriverQueue| queue.make_available(777).unwrap();
    send(&mut front_end.queues[0], &good, head);
    is_contained(&mut front_end, "a head outside the ring");
    front_end.start_queue(0, 0).unwrap();
    // Twice the same, while the first is in flight.
    gate.hold_up(true);
    let twice = |queue: &mut DriverQueue| queue.make_available(0).unwrap();
    let data = Descriptor::new(at + 4096, 4096, NEXT | WRITE, 2);
    let status = Descriptor::new(at + 16, 1, WRITE, 0);
    send(&mut front_end.queues[0], &[header, data, status], twice);
    let broken = front_end.queues[0].is_broken(Duration::from_secs(20));
    assert!(broken.unwrap());
    gate.hold_up(false);
    is_contained(&mut front_end, "the same head twice");
}

#[test]
fn buffers_may_be_spread_in_any_way() {
    let rig = Gate::new().rig();
    let mut front_end = two_queues(&rig);
    let queue = &mut front_end.queues[0];
    let at = queue.data(0);
    // A read of 512 bytes. The header in three parts, one of them empty, the status behind the data.
    queue.write_data(0, &[0; 16]).unwrap();
    let chain = [
        Descriptor::new(at, 7, NEXT, 1),
        Descriptor::new(at, 0, NEXT, 2),
        Descriptor::new(at + 7, 9, NEXT, 3),
        Descriptor::new(at + 64, 100, NEXT | WRITE, 4),
        Descriptor::new(at + 512, 413, WRITE, 0),
    ];
    send(queue, &chain, |_| {});
    assert!(queue.wait(Duration::from_secs(20)).unwrap());
    let mut found = Vec::new();
    queue.completed(&mut found).unwrap();
    assert_eq!(found[0].written, 513);
    let mut data = [1; 1024];
    queue.read_data(0, &mut data).unwrap();
    assert_eq!(data[64..164], [0; 100]);
    assert_eq!(
        data[512..925],
        [0; 413],
        "data and, as the last byte, the status"
    );
    assert!(!queue.is_broken(Duration::ZERO).unwrap());
}

#[test]
fn a_front_end_that_sends_nonsense_is_cut_off_and_followed_by_another() {
    let rig = Gate::new().rig();
    let mut x = 1u32;
    for length in [1, 12, 13, 100, 5000] {
        let mut nonsense = UnixStream::connect(rig.socket()).unwrap();
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                x.to_le_bytes()[3]
            })
            .collect();
        // It may have been cut off already.
        let _ = nonsense.write_all(&bytes);
    }
    let mut front_end = two_queues(&rig);
    assert_eq!(read(&mut front_end.queues[1], 0, 512).0.status, 0);
}

#[test]
fn memory_that_is_an_ordinary_file_and_kicks_that_are_no_eventfds_are_refused() {
    let rig = Gate::new().rig();
    let front_end = two_queues(&rig);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 1 << 40,
        memory_size: 1 << 20,
        userspace_addr: 1 << 41,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    };
    assert!(front_end.frontend.set_mem_table(&[region]).is_err());
    drop(front_end);
    let front_end = two_queues(&rig);
    // SAFETY: the file is taken over from its owner.
    let kick = unsafe {
        <EventFd as std::os::fd::FromRawFd>::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(file))
    };
    assert!(front_end.frontend.set_vring_kick(0, &kick).is_err());
}

#[test]
fn no_memory_of_a_guest_makes_the_parsers_panic() {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut data = vec![0u8; 400];
    let mut ranges = 0;
    for _ in 0..20_000 {
        for byte in &mut data {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *byte = x.to_le_bytes()[2];
        }
        ranges += u32::from(fuzz::read_a_chain(&data));
    }
    // Or the parsers saw little.
    assert!(ranges > 300, "{ranges}");
    for round in 0..500u16 {
        for byte in &mut data {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *byte = x.to_le_bytes()[2] & 0x0f;
        }
        recover_from(&data, round);
    }
}
