//! Offers of a guest while its disk is written: of what is stale, forged, another block's, encrypted or replayed, nothing is
//! ever accepted.

use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy};
use crate::disk::CachedDisk;
use crate::frontend::Vm;
use crate::port::Port;
use crate::testing::Random;
use justitia_guest_protocol::puts::{
    Area, MAX_BLOCKS, MAX_MESSAGE, PAGE, PutWriter, Serial, Verdict,
};
use justitia_share::Weight;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCKS: u64 = 512;
const WRITERS: u64 = 2;
const GUESTS: u64 = 2;

/// Offers that are made unless `JUSTITIA_CACHE_OFFERS` says otherwise.
const OFFERS: u64 = 100_000;

/// An offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    /// The disk's content a moment ago: a write may come in between.
    Right,
    /// Its content before a write that has ended.
    Stale,
    /// That with one byte changed.
    Forged,
    /// Another block's content.
    Foreign,
    Encrypted,
}

const KINDS: [Offer; 5] = [
    Offer::Right,
    Offer::Stale,
    Offer::Forged,
    Offer::Foreign,
    Offer::Encrypted,
];

/// A disk, and the last version of each block whose write has begun and has ended.
struct Written {
    disk: Arc<CachedDisk>,
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
}

/// No two blocks and no two versions are alike.
fn content(block: u64, version: u64) -> Block {
    let mut content = [0; BLOCK_SIZE];
    let stamp = (block << 40 | version | 1 << 63).to_le_bytes();
    content.as_chunks_mut::<8>().0.fill(stamp);
    content
}

fn at(block: u64) -> usize {
    usize::try_from(block).unwrap()
}

impl Written {
    /// Writes and reads until it is told to stop. A writer has every `WRITERS`th block.
    fn work(&self, writer: u64, stop: &AtomicBool) {
        let mut random = Random::new(writer + 1);
        while !stop.load(Ordering::Relaxed) {
            let block = random.below(BLOCKS / WRITERS) * WRITERS + writer;
            if random.below(4) == 0 {
                let version = self.begun[at(block)].fetch_add(1, Ordering::SeqCst) + 1;
                let data = content(block, version);
                self.disk
                    .write_at(&data, block * BLOCK_BYTES, false)
                    .unwrap();
                self.ended[at(block)].store(version, Ordering::SeqCst);
            } else {
                self.read(block);
            }
        }
    }

    /// Takes the block out of the cache, and makes it known.
    fn read(&self, block: u64) {
        let mut data = [0; BLOCK_SIZE];
        self.disk.read_at(&mut data, block * BLOCK_BYTES).unwrap();
    }

    /// The content to offer for a block; `None` if it was never rewritten.
    fn offered(&self, kind: Offer, block: u64, random: &mut Random) -> Option<Block> {
        let now = self.ended[at(block)].load(Ordering::SeqCst);
        let mut data = content(block, now);
        match kind {
            Offer::Right => {}
            Offer::Stale => data = content(block, now.checked_sub(1 + random.below(3))?),
            Offer::Forged => data[at(random.below(BLOCK_BYTES))] ^= 1 << random.below(8),
            Offer::Foreign => data = content((block + 1 + random.below(BLOCKS - 1)) % BLOCKS, now),
            Offer::Encrypted => {
                let mut key = Random::new(block + 7);
                data.as_chunks_mut::<8>().0.iter_mut().for_each(|word| {
                    *word = (u64::from_le_bytes(*word) ^ key.next()).to_le_bytes();
                });
            }
        }
        Some(data)
    }
}

/// Offers through a port of its own; returns how many, and how many right ones were accepted.
fn offer(port: &Port, written: &Written, guest: u64, count: u64) -> (u64, u64) {
    let mut random = Random::new(guest + 100);
    let mut buffer = vec![0; MAX_MESSAGE];
    let mut area = vec![0; PAGE];
    let (mut offered, mut accepted, mut sequence) = (0, 0, 0);
    while offered < count {
        sequence += 1;
        let serial = Serial::new("disk").unwrap();
        let mut writer = PutWriter::new(&mut buffer, sequence, 0, serial).unwrap();
        let mut kinds = Vec::new();
        while kinds.len() < MAX_BLOCKS {
            let (kind, block) = (KINDS[at(random.below(5))], random.below(BLOCKS));
            if random.below(2) == 0 {
                written.read(block);
            }
            if let Some(data) = written.offered(kind, block, &mut random) {
                assert!(writer.push(block, &data));
                kinds.push((kind, block));
            }
        }
        let message = writer.finish();
        port.write_at(message, 0, false).unwrap();
        port.read_at(&mut area, 0).unwrap();
        let answer = Area::new(&area).unwrap().answer(sequence).unwrap();
        for (n, (kind, block)) in kinds.iter().enumerate() {
            let is_accepted = answer.accepted & 1 << n != 0;
            assert!(
                !is_accepted || *kind == Offer::Right,
                "block {block}: accepted what is {kind:?}"
            );
            accepted += u64::from(is_accepted);
        }
        offered += 31;
        // The same message once more does nothing.
        if random.below(4) == 0 {
            let before = Area::new(&area).unwrap().header();
            port.write_at(message, 0, false).unwrap();
            port.read_at(&mut area, 0).unwrap();
            let after = Area::new(&area).unwrap().header();
            let of = |verdict| after.verdicts.of(verdict) - before.verdicts.of(verdict);
            assert_eq!((of(Verdict::Accepted), of(Verdict::Replayed)), (0, 31));
            offered += 31;
        }
    }
    (offered, accepted)
}

/// A disk that is written, and a port to it for each guest.
fn machines() -> (Arc<Cache>, Written, Vec<Port>) {
    let cache = Cache::new(CacheConfig::of_memory(2 * BLOCKS * BLOCK_BYTES)).unwrap();
    let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
    cache.track_residency(vm, 1 << 20).unwrap();
    let id = cache.add_disk(vm, "disk").unwrap();
    let backing = Arc::new(RamDisk::new(at(BLOCKS) * BLOCK_SIZE));
    for block in 0..BLOCKS {
        let data = content(block, 0);
        backing.write_at(&data, block * BLOCK_BYTES, false).unwrap();
    }
    let disk = Arc::new(CachedDisk::new(backing, cache.clone(), id, Mode::Exclusive).unwrap());
    let written = Written {
        disk: disk.clone(),
        begun: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect(),
        ended: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect(),
    };
    let vm = Arc::new(Vm::new(&cache, vm, "vm", Vec::new()).unwrap());
    let port = |_| {
        let port = Port::new(cache.clone(), vm.clone(), false, 1);
        let target = Arc::<CachedDisk>::downgrade(&disk);
        port.set_disk(Serial::new("disk").unwrap(), target);
        port
    };
    let ports: Vec<Port> = (0..GUESTS).map(port).collect();
    (cache, written, ports)
}

#[test]
fn nothing_wrong_is_accepted_while_the_disk_is_written() {
    let offers = super::sequence::number_from("JUSTITIA_CACHE_OFFERS").unwrap_or(OFFERS);
    let (cache, written, ports) = machines();
    let stop = AtomicBool::new(false);
    let found: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let (stop, written) = (&stop, &written);
        for writer in 0..WRITERS {
            scope.spawn(move || written.work(writer, stop));
        }
        let guests = (0..).zip(&ports).map(|(guest, port)| {
            scope.spawn(move || {
                let found = offer(port, written, guest, offers / GUESTS);
                stop.store(true, Ordering::Relaxed);
                found
            })
        });
        let guests: Vec<_> = guests.collect();
        guests
            .into_iter()
            .map(|guest| guest.join().unwrap())
            .collect()
    });
    let offered: u64 = found.iter().map(|(offered, _)| offered).sum();
    let accepted: u64 = found.iter().map(|(_, accepted)| accepted).sum();
    let stats: Vec<_> = ports.iter().map(|port| port.stats().verdicts).collect();
    let writes: u64 = written.ended.iter().map(|n| n.load(Ordering::SeqCst)).sum();
    println!("{offered} offers, {accepted} of right ones accepted, {writes} writes; {stats:?}");
    // The right ones show that it would have been noticed.
    assert!(accepted > offered / 100, "{accepted} of {offered}");
    assert!(
        stats
            .iter()
            .all(|verdicts| verdicts["mismatch"] > offered / 100)
    );
    cache.audit();
}
