//! Features and requests that the device offers, and those that it refuses.

use super::gate::Gate;
use super::rig::{Rig, SIZE};
use super::verify::{read, request, write};
use crate::config::Mode;
use crate::frontend::IoLimits;
use crate::testing::front_end::{BlkRequest, FrontEndOptions, kind, range};
use std::time::Duration;

#[test]
fn the_device_is_what_it_says() {
    let rig = Rig::new(Some(Mode::Inclusive));
    let mut front_end = rig.front_end(FrontEndOptions::default());
    let space = front_end.config(0, 60).unwrap();
    assert_eq!(space[..8], (SIZE / 512).to_le_bytes());
    let queue = &mut front_end.queues[0];
    let id = queue.execute(request(kind::GET_ID, 0, 20), &[]).unwrap();
    let mut name = [0; 20];
    queue.read_data(id.slot, &mut name).unwrap();
    assert_eq!(&name, b"the disk\0\0\0\0\0\0\0\0\0\0\0\0");
    // Beyond the end, of no known kind, and with more than the largest request.
    assert_eq!(read(queue, SIZE / 512, 512).0.status, 1);
    assert_eq!(write(queue, SIZE / 512 - 1, &[1; 1024]), 1);
    let unknown = queue.execute(request(77, 0, 512), &[]).unwrap();
    assert_eq!((unknown.status, unknown.written), (2, 1));
    assert_eq!(write(queue, 8, &[5; 4096]), 0);
    let discard = request(kind::DISCARD, 0, 16);
    let discarded = queue.execute(discard, &range(8, 8, 0)).unwrap();
    assert_eq!(discarded.status, 0);
    assert_eq!(read(queue, 8, 4096).1, [0; 4096]);
    assert_eq!(rig.volume.stats().errors, 3);
    assert_eq!(rig.volume.stats().inline_hits, 0);
    read(queue, 8, 4096);
    assert_eq!(rig.volume.stats().inline_hits, 1);
}

#[test]
fn a_read_only_disk_refuses_writes_and_answers_flushes() {
    let rig = Rig::with(None, IoLimits::default(), true);
    let mut front_end = rig.front_end(FrontEndOptions::default());
    let queue = &mut front_end.queues[0];
    assert_eq!(write(queue, 0, &[1; 512]), 1);
    assert_eq!(read(queue, 0, 512).0.status, 0);
    let flush = queue.execute(request(kind::FLUSH, 0, 0), &[]).unwrap();
    assert_eq!(flush.status, 0);
}

#[test]
fn a_tag_chooses_the_pool_and_an_unknown_one_is_counted() {
    let rig = Rig::new(Some(Mode::Inclusive));
    let mut front_end = rig.front_end(FrontEndOptions::default());
    let queue = &mut front_end.queues[0];
    let mut tagged = |tag: u32, sector| {
        let request = BlkRequest {
            priority: 2 << 13 | tag << 3 | 4,
            ..request(kind::IN, sector, 8192)
        };
        assert_eq!(queue.execute(request, &[]).unwrap().status, 0);
    };
    tagged(7, 0);
    tagged(7, 800);
    tagged(8, 1600);
    tagged(0, 2400);
    let pools = &rig.cache.stats().vms[0].pools;
    let held: Vec<u64> = pools.iter().map(|p| p.memory_bytes / 4096).collect();
    assert_eq!(held, [4, 4]);
    assert_eq!(rig.volume.stats().unknown_tags, 1);
}

#[test]
fn the_guest_chooses_the_write_cache_and_a_new_server_knows() {
    let gate = Gate::new();
    let rig = gate.rig();
    let mut front_end = rig.front_end(FrontEndOptions::default());
    let durable = |front_end: &mut crate::testing::front_end::FrontEnd| {
        assert_eq!(write(&mut front_end.queues[0], 0, &[1; 512]), 0);
        gate.durable.lock().pop().unwrap()
    };
    assert!(!durable(&mut front_end));
    front_end.set_config(32, &[0]).unwrap();
    assert!(durable(&mut front_end));
    assert_eq!(front_end.config(32, 1).unwrap(), [0]);
    // Another server, to which the front end does not say it again.
    rig.server.shut_down(Duration::from_secs(5));
    let next = gate.rig();
    std::fs::rename(next.socket(), rig.socket()).unwrap();
    front_end.reconnect().unwrap();
    assert!(durable(&mut front_end));
    front_end.set_config(32, &[1]).unwrap();
    assert!(!durable(&mut front_end));
    drop(front_end);
    // A driver that cannot flush needs every write to be durable.
    let mut without = next_front_end(&rig, 1 << 9);
    assert!(durable(&mut without));
}

fn next_front_end(rig: &Rig, without: u64) -> crate::testing::front_end::FrontEnd {
    rig.front_end(FrontEndOptions {
        without,
        ..FrontEndOptions::default()
    })
}
