//! A guest reads the content that it has written.

use super::rig::{Rig, SIZE};
use crate::config::Mode;
use crate::frontend::IoLimits;
use crate::testing::front_end::{
    BlkRequest, Completed, DriverQueue, FrontEndOptions, Workload, kind,
};
use std::time::Duration;

pub(super) fn request(kind: u32, sector: u64, bytes: usize) -> BlkRequest {
    BlkRequest::new(kind, sector, bytes.try_into().unwrap())
}

pub(super) fn read(queue: &mut DriverQueue, sector: u64, bytes: usize) -> (Completed, Vec<u8>) {
    let done = queue
        .execute(request(kind::IN, sector, bytes), &[])
        .unwrap();
    let mut data = vec![0; bytes];
    queue.read_data(done.slot, &mut data).unwrap();
    (done, data)
}

pub(super) fn write(queue: &mut DriverQueue, sector: u64, data: &[u8]) -> u8 {
    let request = request(kind::OUT, sector, data.len());
    queue.execute(request, data).unwrap().status
}

#[test]
fn what_is_read_is_what_was_written_on_all_queues() {
    for (mode, io_uring) in [
        (None, true),
        (Some(Mode::Inclusive), true),
        (Some(Mode::Exclusive), true),
        (Some(Mode::Inclusive), false),
    ] {
        let limits = IoLimits {
            io_uring,
            ..IoLimits::default()
        };
        let rig = Rig::with(mode, limits, false);
        let mut front_end = rig.front_end(FrontEndOptions {
            queues: 4,
            ..FrontEndOptions::default()
        });
        let mut workload = Workload::new(SIZE, 42);
        workload.advance(&mut front_end, 4000).unwrap();
        workload.finish(&mut front_end).unwrap();
        let queue = &mut front_end.queues[3];
        let flush = request(kind::FLUSH, 0, 0);
        assert_eq!(queue.execute(flush, &[]).unwrap().status, 0);
        assert!(rig.image() == workload.content(), "{mode:?} {io_uring}");
        rig.server.shut_down(Duration::from_secs(5));
    }
}

#[test]
fn a_driver_without_event_indices_is_served() {
    let rig = Rig::new(Some(Mode::Inclusive));
    let mut front_end = rig.front_end(FrontEndOptions {
        without: 1 << 29 | 1 << 28,
        ..FrontEndOptions::default()
    });
    let queue = &mut front_end.queues[0];
    // The driver's kicks depend on an index that the device does not write then: it kicks always.
    for n in 0..40u8 {
        let slot = queue.take_slot().unwrap();
        queue.write_data(slot, &[n; 4096]).unwrap();
        let request = request(kind::OUT, u64::from(n) * 8, 4096);
        queue.submit(slot, request).unwrap();
        queue.kick.write(1).unwrap();
        let mut found = Vec::new();
        while found.is_empty() {
            assert!(queue.wait(Duration::from_secs(20)).unwrap());
            queue.completed(&mut found).unwrap();
        }
        assert_eq!(found[0].status, 0);
    }
    drop(front_end);
    rig.server.shut_down(Duration::from_secs(5));
    assert_eq!(rig.image()[39 * 4096..40 * 4096], [39; 4096]);
}
