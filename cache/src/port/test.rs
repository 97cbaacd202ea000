//! A port as a guest uses it.

use super::Port;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec};
use crate::disk::CachedDisk;
use crate::frontend::Vm;
use crate::ids::VmId;
use justitia_guest_protocol::puts::{
    Answer, Area, Command, Name, PAGE, PORT_SIZE, PoolRow, PutWriter, Serial, Status, Store,
    Verdict,
};
use justitia_share::Weight;
use std::sync::Arc;

/// A guest with a disk of 64 blocks, each with a content of its own, and a port.
pub(super) struct Guest {
    pub(super) cache: Arc<Cache>,
    pub(super) vm: VmId,
    pub(super) disk: Arc<CachedDisk>,
    pub(super) port: Port,
    pub(super) sequence: u64,
}

pub(super) fn serial() -> Serial {
    Serial::new("root").unwrap()
}

pub(super) fn cache() -> Arc<Cache> {
    cache_of(256)
}

pub(super) fn cache_of(blocks: u64) -> Arc<Cache> {
    Cache::new(CacheConfig::of_memory(blocks * BLOCK_BYTES)).unwrap()
}

pub(super) fn guest(cache: &Arc<Cache>, name: &str, ssd: bool) -> Guest {
    let vm = cache.add_vm(name, Weight::default(), Policy::Fifo).unwrap();
    cache.track_residency(vm, 1 << 20).unwrap();
    let served = Arc::new(Vm::new(cache, vm, name, Vec::new()).unwrap());
    let own = cache.create_pool(vm, "host", PoolSpec::default()).unwrap();
    let own = cache.pool(own).unwrap();
    assert_eq!(served.pools.lock().insert(own), 1);
    let id = cache.add_disk(vm, "disk").unwrap();
    let backing = Arc::new(RamDisk::new(64 * BLOCK_SIZE));
    for block in 0..64 {
        backing
            .write_at(&content(name, block), block * BLOCK_BYTES, false)
            .unwrap();
    }
    let disk = Arc::new(CachedDisk::new(backing, cache.clone(), id, Mode::Exclusive).unwrap());
    let port = Port::new(cache.clone(), served, ssd, 77);
    let target = Arc::downgrade(&disk);
    port.set_disk(serial(), target);
    Guest {
        cache: cache.clone(),
        vm,
        disk,
        port,
        sequence: 0,
    }
}

pub(super) fn content(name: &str, block: u64) -> Block {
    let mut content = [u8::try_from(block).unwrap(); BLOCK_SIZE];
    content[..name.len()].copy_from_slice(name.as_bytes());
    content
}

/// A message of these blocks.
pub(super) fn message(
    sequence: u64,
    pool: u32,
    serial: Serial,
    blocks: &[(u64, Block)],
) -> Vec<u8> {
    let mut buffer = vec![0; PORT_SIZE];
    let mut writer = PutWriter::new(&mut buffer, sequence, pool, serial).unwrap();
    assert!(
        blocks
            .iter()
            .all(|(block, content)| writer.push(*block, content))
    );
    writer.finish().to_vec()
}

impl Guest {
    pub(super) fn write(&self, message: &[u8]) {
        self.port.write_at(message, 0, false).unwrap();
    }

    pub(super) fn area(&self) -> Vec<u8> {
        let mut area = vec![0xA5; PORT_SIZE];
        self.port.read_at(&mut area, 0).unwrap();
        area
    }

    fn answer(&self) -> Answer {
        Area::new(&self.area())
            .unwrap()
            .answer(self.sequence)
            .unwrap()
    }

    pub(super) fn put(&mut self, pool: u32, blocks: &[(u64, Block)]) -> Answer {
        self.sequence += 1;
        self.write(&message(self.sequence, pool, serial(), blocks));
        self.answer()
    }

    pub(super) fn command(&mut self, command: Command) -> Answer {
        self.sequence += 1;
        let mut page = [0; PAGE];
        command.encode(self.sequence, &mut page);
        self.write(&page);
        self.answer()
    }

    pub(super) fn create(&mut self, name: &str) -> Answer {
        self.command(Command::Create {
            name: Name::new(name).unwrap(),
            store: Store::Memory,
            weight: 300,
            ssd_weight: 0,
        })
    }

    pub(super) fn read(&self, block: u64) -> Block {
        let mut content = [0; BLOCK_SIZE];
        self.disk
            .read_at(&mut content, block * BLOCK_BYTES)
            .unwrap();
        content
    }

    pub(super) fn rows(&self) -> Vec<PoolRow> {
        Area::new(&self.area()).unwrap().pools().collect()
    }
}

#[test]
fn a_guest_puts_into_pools_that_it_made_and_reads_what_became_of_it() {
    let mut g = guest(&cache(), "web", false);
    let made = g.create("database");
    assert_eq!((made.status, made.pool), (Status::Done, 2));
    let blocks: Vec<_> = (0..31).map(|block| (block, g.read(block))).collect();
    let answer = g.put(2, &blocks);
    assert_eq!((answer.pool, answer.accepted), (2, (1 << 31) - 1));
    // One is right, one was given away, one is not the disk's, one lies beyond its end.
    let mut mixed = vec![
        (40, g.read(40)),
        (5, blocks[5].1),
        (41, g.read(42)),
        (64, blocks[0].1),
    ];
    g.read(41);
    let answer = g.put(2, &mixed);
    assert_eq!(answer.accepted, 1);
    for (verdict, count) in [
        (Verdict::Accepted, 1),
        (Verdict::Held, 1),
        (Verdict::Mismatch, 1),
        (Verdict::OutOfRange, 1),
    ] {
        assert_eq!(answer.verdicts.of(verdict), count, "{verdict:?}");
    }
    // A pool that is not there: the default pool, and it is counted.
    mixed[0] = (43, g.read(43));
    let answer = g.put(9, &mixed[..1]);
    assert_eq!((answer.pool, answer.accepted), (0, 1));
    let no_disk = message(100, 0, Serial::new("other").unwrap(), &mixed[..1]);
    g.write(&no_disk);
    let area = g.area();
    let header = Area::new(&area).unwrap().header();
    assert_eq!(
        (header.daemon_start_id, header.sequence, header.unknown_pool),
        (77, 100, 1)
    );
    assert_eq!(header.verdicts.of(Verdict::Accepted), 33);
    assert_eq!(header.verdicts.of(Verdict::NoDisk), 1);
    g.sequence = 100;
    assert_eq!(g.command(Command::GetStats).status, Status::Done);
    let rows = g.rows();
    assert_eq!(rows.len(), 3);
    let database = rows[2];
    assert_eq!(
        (database.number, database.name.as_str(), database.weight),
        (2, "database", 300)
    );
    assert_eq!(
        (database.memory_bytes, database.offered, database.accepted),
        (32 * 4096, 35, 32)
    );
    assert!(database.created_over_port && !rows[1].created_over_port);
    assert!(database.entitlement_bytes > 0);
    assert_eq!((database.taken, rows[0].taken), (Some(0), Some(0)));
    let stats = g.port.stats();
    assert_eq!(
        (stats.messages, stats.commands, stats.unknown_pool),
        (6, 2, 1)
    );
    assert_eq!(stats.verdicts["mismatch"], 1);
    assert_eq!(stats.verdicts.len(), Verdict::ALL.len());
}

#[test]
fn weights_blocks_and_pools_are_changed_over_the_port() {
    let mut g = guest(&cache(), "web", false);
    let (a, b) = (g.create("a").pool, g.create("b").pool);
    let blocks: Vec<_> = (10..20).map(|block| (block, g.read(block))).collect();
    assert_eq!(g.put(a, &blocks).accepted.count_ones(), 10);
    let weight = |pool, store, weight| Command::SetWeight {
        pool,
        store,
        weight,
        ssd_weight: 0,
    };
    assert_eq!(g.command(weight(a, Store::Memory, 7)).status, Status::Done);
    let migrate = |pool, first, blocks| Command::Migrate {
        pool,
        serial: serial(),
        first,
        blocks,
    };
    let moved = g.command(migrate(b, 15, 4096));
    assert_eq!(
        (moved.status, moved.verdicts.of(Verdict::Accepted)),
        (Status::Done, 5)
    );
    g.command(Command::GetStats);
    let rows = g.rows();
    assert_eq!((rows[2].weight, rows[2].memory_bytes), (7, 5 * 4096));
    assert_eq!(rows[3].memory_bytes, 5 * 4096);
    assert_eq!(g.command(Command::Destroy { pool: b }).status, Status::Done);
    assert_eq!(g.create("b").pool, b + 1, "a number is never given again");
    for (command, status) in [
        (Command::Destroy { pool: b }, Status::NoPool),
        (Command::Destroy { pool: 0 }, Status::NotYours),
        (Command::Destroy { pool: 1 }, Status::NotYours),
        (weight(b, Store::Memory, 1), Status::NoPool),
        (weight(a, Store::Memory, 0), Status::Weight),
        (weight(a, Store::Memory, 10_001), Status::Weight),
        (weight(a, Store::Ssd, 1), Status::Store),
        (migrate(b, 0, 1), Status::NoPool),
        (migrate(a, 0, 4097), Status::TooLong),
        (migrate(a, u64::MAX, 1), Status::Done),
    ] {
        assert_eq!(g.command(command).status, status, "{command:?}");
    }
    assert_eq!(g.create("a").status, Status::PoolExists);
    assert_eq!(g.create("host").status, Status::PoolExists);
    let mut trusted = guest(&cache(), "web", true);
    assert_eq!(
        trusted.command(weight(1, Store::Ssd, 1)).status,
        Status::Done
    );
    // The host may have taken the VM out of the cache.
    g.cache.remove_vm(g.vm).unwrap();
    assert_eq!(g.create("late").status, Status::Failed);
    assert_eq!(g.put(a, &blocks).accepted, 0);
}

/// A guest stops offering what the host says of that it is no disk, and asks again now and then.
#[test]
fn a_disk_that_is_not_cached_any_more_is_none() {
    let question = Command::Migrate {
        pool: 0,
        serial: serial(),
        first: 0,
        blocks: 0,
    };
    for whole_vm in [false, true] {
        let mut g = guest(&cache(), "web", false);
        let blocks = [(1, g.read(1)), (99, g.read(2))];
        assert_eq!(g.command(question).status, Status::Done);
        if whole_vm {
            g.cache.remove_vm(g.vm).unwrap();
        } else {
            g.cache.remove_disk(g.disk.disk_id().unwrap()).unwrap();
        }
        assert_eq!(g.put(0, &blocks).verdicts.of(Verdict::NoDisk), 2);
        assert_eq!(g.command(question).status, Status::NoDisk);
    }
}

/// The guest weighs what a hit saves against what its puts cost.
#[test]
fn a_guest_is_told_how_long_reads_take_and_what_was_taken_of_its_pools() {
    crate::clock::reset();
    let mut g = guest(&cache(), "web", false);
    let pool = g.create("a").pool;
    let blocks: Vec<_> = (0..32).map(|block| (block, g.read(block))).collect();
    let header = |g: &Guest| Area::new(&g.area()).unwrap().header();
    let nothing = (header(&g).missed, header(&g).hit);
    assert_eq!(nothing, Default::default(), "not before the guest asks");
    assert_eq!(g.put(pool, &blocks[..31]).accepted.count_ones(), 31);
    for block in 0..32 {
        g.read(block);
    }
    g.command(Command::GetStats);
    let found = header(&g);
    // Those that were read first, and the one that was not put.
    assert_eq!(found.missed.blocks, 33);
    assert_eq!(found.hit.blocks, 64, "the first one stands for the others");
    assert!(found.hit.ns > 0);
    let taken: Vec<_> = g.rows().iter().map(|row| (row.hits, row.taken)).collect();
    assert_eq!(taken, [(31, Some(0)), (0, Some(0)), (0, Some(31))]);
}

#[test]
fn a_pool_may_have_a_weight_in_both_stores() {
    let mut g = guest(&cache(), "web", false);
    let mut trusted = guest(&cache(), "web", true);
    let one = |store, weight| Command::SetWeight {
        pool: 0,
        store,
        weight,
        ssd_weight: 0,
    };
    let both = |pool, ssd_weight| Command::SetWeight {
        pool,
        store: Store::Memory,
        weight: 7,
        ssd_weight,
    };
    // In both stores, where the guest may choose the SSD at all; the other weight stays until both are said.
    for (command, status, found) in [
        (both(0, 10_001), Status::Weight, (100, 0)),
        (both(0, 9), Status::Done, (7, 9)),
        (one(Store::Memory, 5), Status::Done, (5, 9)),
        (one(Store::Ssd, 6), Status::Done, (5, 6)),
        (both(0, 1), Status::Done, (7, 1)),
    ] {
        assert_eq!(trusted.command(command).status, status, "{command:?}");
        let row = trusted.rows()[0];
        assert_eq!((row.weight, row.ssd_weight), found, "{command:?}");
    }
    let create = |name| Command::Create {
        name: Name::new(name).unwrap(),
        store: Store::Memory,
        weight: 3,
        ssd_weight: 4,
    };
    assert_eq!(trusted.command(create("both")).status, Status::Done);
    let row = trusted.rows()[2];
    assert_eq!((row.weight, row.ssd_weight), (3, 4));
    assert_eq!(g.command(create("both")).status, Status::Store);
    assert_eq!(g.command(both(0, 1)).status, Status::Store);
    assert_eq!(
        Area::new(&g.area()).unwrap().header().max_message_version,
        2
    );
}
