//! Front ends that take away the memory that they have handed over.

use super::gate::Gate;
use super::rig::{Rig, SIZE};
use super::verify::{read, request, write};
use crate::config::Mode;
use crate::testing::Random;
use crate::testing::front_end::{FrontEnd, FrontEndOptions, Guest, kind};
use std::time::Duration;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

const NEXT: u16 = 1;
const TIMEOUT: Duration = Duration::from_secs(20);

fn can_shrink(queues: u16) -> FrontEndOptions {
    FrontEndOptions {
        queues,
        can_shrink: true,
        ..FrontEndOptions::default()
    }
}

/// The front end is cut off, and the next one is served.
fn is_followed(rig: &Rig, front_end: FrontEnd) {
    let mut channel = front_end.channel.as_ref().unwrap();
    channel.set_read_timeout(Some(TIMEOUT)).unwrap();
    let end = std::io::Read::read(&mut channel, &mut [0; 64]);
    assert_eq!(end.unwrap(), 0, "the back end has ended the connection");
    drop(front_end);
    let mut next = rig.front_end(can_shrink(1));
    assert_eq!(read(&mut next.queues[0], 0, 512).0.status, 0);
}

#[test]
fn rings_that_are_taken_away_cost_the_connection() {
    for mode in [None, Some(Mode::Inclusive)] {
        let rig = Rig::new(mode);
        let mut front_end = rig.front_end(can_shrink(2));
        assert_eq!(write(&mut front_end.queues[1], 0, &[7; 4096]), 0);
        front_end.guest.truncate(0).unwrap();
        front_end.queues[0].kick.write(1).unwrap();
        is_followed(&rig, front_end);
    }
}

#[test]
fn buffers_that_are_taken_away_while_a_request_is_in_flight_cost_the_connection() {
    let gate = Gate::new();
    let rig = gate.rig();
    let mut front_end = rig.front_end(can_shrink(1));
    gate.hold_up(true);
    let queue = &mut front_end.queues[0];
    let slot = queue.take_slot().unwrap();
    queue.submit(slot, request(kind::IN, 0, 4096)).unwrap();
    queue.kick.write(1).unwrap();
    assert!(!queue.wait(Duration::from_millis(200)).unwrap());
    front_end.guest.truncate(4096).unwrap();
    gate.hold_up(false);
    is_followed(&rig, front_end);
}

#[test]
fn what_is_taken_away_is_not_written_as_zeroes() {
    let gate = Gate::new();
    let rig = gate.rig();
    let mut front_end = rig.front_end(can_shrink(1));
    assert_eq!(write(&mut front_end.queues[0], 0, &[7; 4096]), 0);
    let added = Guest::new_unsealed(1 << 32, 1 << 21).unwrap();
    front_end.add_memory(&added).unwrap();
    added.truncate(0).unwrap();
    let queue = &mut front_end.queues[0];
    let header = queue.data(0);
    let mut bytes = [0; 17];
    bytes[..4].copy_from_slice(&kind::OUT.to_le_bytes());
    queue.write_data(0, &bytes).unwrap();
    let chain = [
        Descriptor::new(header, 16, NEXT, 1),
        Descriptor::new(1 << 32, 4096, NEXT, 2),
        Descriptor::new(header + 16, 1, 2, 0),
    ];
    for (n, descriptor) in (0..).zip(chain) {
        queue.set_descriptor(n, descriptor).unwrap();
    }
    queue.make_available(0).unwrap();
    queue.kick.write(1).unwrap();
    is_followed(&rig, front_end);
    assert_eq!(gate.durable.lock().len(), 1, "the second write is none");
    let mut next = rig.front_end(can_shrink(1));
    assert_eq!(read(&mut next.queues[0], 0, 4096).1, [7; 4096]);
}

#[test]
fn memory_that_is_taken_away_under_load_costs_nobody_else_anything() {
    let hostile = Rig::new(Some(Mode::Inclusive));
    let other = Rig::new(Some(Mode::Inclusive));
    let mut neighbour = other.front_end(FrontEndOptions::default());
    assert_eq!(write(&mut neighbour.queues[0], 0, &[9; 4096]), 0);
    let mut first = hostile.front_end(FrontEndOptions::default());
    for n in 0..SIZE / 2 / (64 << 10) {
        assert_eq!(write(&mut first.queues[0], n * 128, &[201; 64 << 10]), 0);
    }
    drop(first);
    let mut random = Random::new(3);
    let mut lost = 0;
    for round in 0..60_u64 {
        let mut front_end = hostile.front_end(can_shrink(4));
        let guest = front_end.guest.clone();
        let (after, size) = (random.below(4000), random.below(1 << 21));
        let truncating = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(after));
            guest.truncate(size).unwrap();
        });
        lost += usize::from(load(&mut front_end, round).is_err());
        truncating.join().unwrap();
        front_end.guest.truncate(0).unwrap();
        drop(front_end);
        assert_eq!(read(&mut neighbour.queues[0], 0, 4096).1, [9; 4096]);
    }
    assert!(lost > 10, "{lost} rounds were cut short");
    // Nobody wrote a zero.
    let image = hostile.image();
    let written = usize::try_from(SIZE / 2).unwrap();
    for (n, sector) in image[..written].chunks(512).enumerate() {
        let whole = sector.iter().all(|byte| *byte == sector[0]);
        assert!(whole && sector[0] != 0, "sector {n} is torn or lost");
    }
}

/// Writes and reads on all queues, until something is wrong, which it is when the memory is gone.
fn load(front_end: &mut FrontEnd, seed: u64) -> std::io::Result<()> {
    let mut random = Random::new(seed);
    let mut found = Vec::new();
    for n in 0..600 {
        let queues = front_end.queues.len();
        let queue = &mut front_end.queues[n % queues];
        let before = queue.available_index();
        while let Some(slot) = queue.take_slot() {
            let stamp = 1 + u8::try_from(random.below(200)).unwrap();
            queue.write_data(slot, &[stamp; 8192])?;
            let kind = if random.below(2) == 0 {
                kind::IN
            } else {
                kind::OUT
            };
            queue.submit(slot, request(kind, random.below(SIZE / 1024 - 16), 8192))?;
        }
        queue.kick_if_wanted(before)?;
        if !queue.wait(Duration::from_millis(100))? {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        queue.completed(&mut found)?;
        let failed = found.drain(..).find(|done| done.status != 0);
        if failed.is_some() {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

#[test]
fn the_kernel_refuses_memory_that_is_taken_away_and_sends_no_signal() {
    use crate::ring::{Ring, unsupported_reason};
    use std::os::fd::AsRawFd;
    if unsupported_reason().is_some() {
        return;
    }
    let guest = Guest::new_unsealed(0, 1 << 21).unwrap();
    guest
        .memory
        .write_slice(&[1; 4096], GuestAddress(0))
        .unwrap();
    let place = guest.memory.get_slice(GuestAddress(0), 4096).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    guest.truncate(0).unwrap();
    let fd = io_uring::types::Fd(file.as_raw_fd());
    let entry = io_uring::opcode::Read::new(fd, place.ptr_guard_mut().as_ptr(), 4096).build();
    let mut ring = Ring::new().unwrap();
    // SAFETY: the mapping outlives the transfer, which is waited for.
    assert!(unsafe { ring.push(entry, ()) }.is_ok());
    ring.submit(1);
    let mut ended = Vec::new();
    ring.collect(|(), result| ended.push(result));
    let error = ended.pop().unwrap().unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::FAULT.raw_os_error())
    );
    assert!(
        !crate::vhost::memory::is_lost(&guest.memory),
        "nobody was told"
    );
    // An access of our own finds it.
    let zero = guest.memory.read_obj::<u64>(GuestAddress(0)).unwrap();
    assert_eq!(zero, 0);
    assert!(crate::vhost::memory::is_lost(&guest.memory));
}
