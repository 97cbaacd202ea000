//! Connections that are left to the next daemon, of disks that obey.

use super::client::Client;
use super::live::{Rig, rig};
use crate::nbd::Limits;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Closes the server as an exec does; how many connections are left of those that have ended within this time.
fn close(rig: &Rig, within: Duration) -> usize {
    rig.server.close_keeping(true);
    rig.server.wait(Instant::now() + within);
    rig.server.cut_off();
    rig.disk.stuck.store(false, Ordering::SeqCst);
    rig.server.wait(Instant::now() + Duration::from_secs(60));
    rig.server.take_left().len()
}

/// Until a read is at the disk.
fn wait_for_read(rig: &Rig) {
    while rig.disk.waited.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_client_whose_disk_does_not_answer_is_disconnected_and_others_stay() {
    let rig = rig(Limits::default());
    let mut waits = Client::new(&rig.socket, "disk", false);
    let mut idle = Client::new(&rig.socket, "disk", false);
    assert_eq!(idle.write(0, 0, &[1; 512]).error, 0);
    rig.disk.stuck.store(true, Ordering::SeqCst);
    waits.send(0, 0, 1, 65_536, &[], 512);
    wait_for_read(&rig);
    assert_eq!(close(&rig, Duration::from_millis(100)), 1);
    assert!(waits.closed());
}

#[test]
fn a_client_that_is_back_elsewhere_is_not_left_twice() {
    // Its connection looks at nothing more while a request is at the disk.
    let mut limits = Limits::default();
    limits.io.in_flight = 1;
    let rig = rig(limits);
    rig.disk.stuck.store(true, Ordering::SeqCst);
    let mut gone = Client::new(&rig.socket, "disk", false);
    gone.send(0, 0, 1, 65_536, &[], 512);
    wait_for_read(&rig);
    // It has closed its end while its request is at the disk, and connects again.
    gone.stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Client::new(&rig.socket, "disk", false);
    assert_eq!(back.write(0, 0, &[1; 512]).error, 0);
    rig.server.close_keeping(true);
    rig.disk.stuck.store(false, Ordering::SeqCst);
    rig.server.wait(Instant::now() + Duration::from_secs(60));
    assert_eq!(rig.server.take_left().len(), 1);
    assert_eq!(gone.reply(512).error, 0);
    assert!(gone.closed());
}
