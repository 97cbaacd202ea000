//! A port beside its disk, over NBD.

use super::test::{configured, port};
use super::*;
use crate::config::Mode;
use crate::nbd::test::client::Client;
use crate::testing::front_end::{BlkRequest, FrontEnd, FrontEndOptions, kind};
use justitia_guest_protocol::puts::{
    Answer, Area, Command, Name, PAGE, PORT_SIZE, PutWriter, Serial, Status, Store,
};

/// The result of a message.
fn answer(port: &mut Client, sequence: u64) -> Answer {
    let read = port.read(0, u32::try_from(PAGE).unwrap());
    Area::new(&read.data).unwrap().answer(sequence).unwrap()
}

/// Makes the pool `database` by the first message; its number.
fn create(port: &mut Client) -> u32 {
    let mut page = [0; PAGE];
    let create = Command::Create {
        name: Name::new("database").unwrap(),
        store: Store::Memory,
        weight: 200,
        ssd_weight: 0,
    };
    create.encode(1, &mut page);
    assert_eq!(port.write(0, 0, &page).error, 0);
    let made = answer(port, 1);
    assert_eq!(made.status, Status::Done);
    made.pool
}

#[test]
fn a_guest_puts_over_nbd_and_finds_the_block_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, control) = configured(dir.path(), &[7; 1 << 20]);
    let socket = dir.path().join("nbd");
    let vm = &mut config.vms[0];
    vm.disks[0].mode = Some(Mode::Exclusive);
    vm.port = Some(port("vm/port"));
    let service = Service::start(&config).unwrap();
    let mut disk = Client::new(&socket, "vm", false);
    let mut port = Client::new(&socket, "vm/port", false);

    let mut page = [0; PAGE];
    let made = create(&mut port);
    assert_eq!(service.stats().pools_of_guests.len(), 1);

    // Through the rings: what was read, what was written, and what was neither.
    assert_eq!(disk.read(0, 65_536).data, [7; 65_536]);
    assert_eq!(disk.write(0, 20 * 4096, &[9; 8192]).error, 0);
    let mut buffer = vec![0; PORT_SIZE];
    let serial = Serial::new("vm").unwrap();
    let mut writer = PutWriter::new(&mut buffer, 2, made, serial).unwrap();
    for (block, byte) in [(3, 7), (15, 7), (16, 7), (20, 9), (21, 9), (4, 8)] {
        assert!(writer.push(block, &[byte; PAGE]));
    }
    assert_eq!(port.write(0, 0, writer.finish()).error, 0);
    let put = answer(&mut port, 2);
    assert_eq!((put.pool, put.accepted), (made, 0b01_1011));
    assert_eq!(disk.read(20 * 4096, 4096).data, [9; 4096]);

    // The host sees the pool and the counts.
    let stats = send_request(&control, &ControlRequest::Stats).unwrap();
    let pool = &stats["cache"]["vms"][0]["pools"][1];
    assert_eq!(pool["name"], "database");
    assert_eq!(pool["memory_bytes"], 3 * 4096, "one was taken out again");
    let seen = &stats["ports"][0];
    assert_eq!((&seen["vm"], &seen["messages"]), (&"vm".into(), &2.into()));
    assert_eq!(seen["verdicts"]["accepted"], 4);
    assert_eq!(seen["verdicts"]["unknown"], 1);
    assert_eq!(seen["verdicts"]["mismatch"], 1);
    let destroy = ControlRequest::DestroyPool {
        vm: "vm".into(),
        pool: "database".into(),
    };
    send_request(&control, &destroy).unwrap();
    Command::Destroy { pool: made }.encode(3, &mut page);
    assert_eq!(port.write(0, 0, &page).error, 0);
    assert_eq!(answer(&mut port, 3).status, Status::NoPool);
    service
        .shut_down(std::time::Duration::from_secs(5))
        .unwrap();
}

/// The number of a pool that a guest has made is its tag over vhost-user-blk, until the pool is gone.
#[test]
fn a_pool_of_the_guest_takes_what_its_container_reads_over_vhost() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, _) = configured(dir.path(), &[7; 1 << 20]);
    let vm = &mut config.vms[0];
    vm.disks[0].vhost = Some(dir.path().join("vhost"));
    vm.port = Some(port("vm/port"));
    let service = Service::start(&config).unwrap();
    let mut port = Client::new(&dir.path().join("nbd"), "vm/port", false);
    let options = FrontEndOptions::default();
    let mut front_end = FrontEnd::connect(&dir.path().join("vhost"), options).unwrap();
    let made = create(&mut port);
    let mut read = |block: u64| {
        let request = BlkRequest::new(kind::IN, block * 8, 4096).tagged(made);
        let answer = front_end.queues[0].execute(request, &[]).unwrap();
        assert_eq!(answer.status, 0);
    };
    let held = || {
        let pools = &service.stats().cache.vms[0].pools;
        let held = pools.iter().map(|pool| pool.memory_bytes / 4096);
        held.collect::<Vec<_>>()
    };
    read(1);
    assert_eq!(held(), [0, 1]);
    let mut page = [0; PAGE];
    Command::Destroy { pool: made }.encode(2, &mut page);
    assert_eq!(port.write(0, 0, &page).error, 0);
    assert_eq!(answer(&mut port, 2).status, Status::Done);
    read(2);
    assert_eq!(held(), [1]);
    assert_eq!(service.stats().exports[0].unknown_tags, 1);
}
