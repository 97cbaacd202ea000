//! What a put costs beside a plain copy of 4 KiB.

use super::spread::{Spread, rate};
use justitia_cache::frontend::Vm;
use justitia_cache::lab::{BLOCK_BYTES, NullDisk, Port};
use justitia_cache::{
    BLOCK_SIZE, BlockDevice, Cache, CacheConfig, CacheError, CachedDisk, Mode, Policy, PoolId,
};
use justitia_guest_protocol::puts::{MAX_BLOCKS, MAX_MESSAGE, PutWriter, Serial, Verdict};
use justitia_share::Weight;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Puts of 4 KiB in one thread, with all that the host does for them, and plain copies of the same contents to as much
/// memory. A second is one of processor time.
#[derive(Clone, Debug)]
pub struct Puts {
    /// Plain copies a second.
    pub copies: Spread,
    /// Verified puts a second, all of them accepted.
    pub puts: Spread,
    /// Blocks a second in messages over a port.
    pub over_port: Spread,
    /// Exclusive misses a second of 31 blocks each that are remembered, in blocks.
    pub remembered_reads: Spread,
    /// The same of a disk that is not tracked.
    pub plain_reads: Spread,
    /// What a verified put costs, in copies.
    pub put_in_copies: Spread,
    /// What a block over a port costs, in copies.
    pub over_port_in_copies: Spread,
    /// The share of the offered blocks that were accepted.
    pub accepted: f64,
}

impl std::fmt::Display for Puts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "copies of 4 KiB/s     {:.0}", self.copies.median)?;
        writeln!(f, "verified puts/s       {:.0}", self.puts.median)?;
        writeln!(f, "blocks over a port/s  {:.0}", self.over_port.median)?;
        writeln!(f, "cost, put : copy      {}", self.put_in_copies)?;
        writeln!(f, "cost, port : copy     {}", self.over_port_in_copies)?;
        writeln!(
            f,
            "misses/s, tracked     {:.0}",
            self.remembered_reads.median
        )?;
        writeln!(f, "misses/s, untracked   {:.0}", self.plain_reads.median)?;
        write!(f, "accepted              {:.3}", self.accepted)
    }
}

const STEP: usize = MAX_BLOCKS * BLOCK_SIZE;

/// Processor time of this thread.
pub(super) fn spent() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

struct Bench {
    tracked: Arc<CachedDisk>,
    untracked: CachedDisk,
    pool: PoolId,
    port: Port,
    serial: Serial,
    sequence: u64,
    /// Messages that together hold every block.
    messages: u64,
    target: Vec<u8>,
    buffer: Vec<u8>,
}

impl Bench {
    fn new(blocks: u64) -> Result<Self, CacheError> {
        let each = u64::try_from(MAX_BLOCKS).unwrap_or(31);
        let messages = blocks / each;
        let bytes = messages * each * BLOCK_BYTES;
        // All fits, with the slots that a pool keeps spare.
        let cache = Cache::new(CacheConfig::of_memory(bytes + (1 << 20)))?;
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo)?;
        let disk = |name| {
            let id = cache.add_disk(vm, name)?;
            CachedDisk::new(
                Arc::new(NullDisk(bytes)),
                cache.clone(),
                id,
                Mode::Exclusive,
            )
        };
        let untracked = disk("untracked")?;
        // Twice what is needed, so that few blocks meet.
        cache.track_residency(vm, messages * each * 32)?;
        let tracked = Arc::new(disk("tracked")?);
        let pool = cache.default_pool(vm)?;
        let serial = Serial::from_bytes([1; Serial::MAX]);
        let vm = Arc::new(Vm::new(&cache, vm, "vm", Vec::new())?);
        let port = Port::new(cache, vm, false, 0);
        port.set_disk(serial, Arc::<CachedDisk>::downgrade(&tracked));
        Ok(Self {
            tracked,
            untracked,
            pool,
            port,
            serial,
            sequence: 0,
            messages,
            target: vec![1; usize::try_from(bytes).unwrap_or(0)],
            buffer: vec![0; MAX_MESSAGE],
        })
    }

    /// The beginning of each message in blocks, in an order that is not the disk's.
    fn steps(&self) -> impl Iterator<Item = u64> + use<> {
        let (count, each) = (self.messages, u64::try_from(MAX_BLOCKS).unwrap_or(31));
        // An odd factor: every message once, when their number is a power of two; nearly so otherwise.
        (0..count).map(move |n| n.wrapping_mul(0x9E37_79B1) % count * each)
    }

    /// Blocks a second that are read, and so taken out of the cache, from a disk.
    fn read(&mut self, tracked: bool) -> f64 {
        let disk: &dyn BlockDevice = if tracked {
            &*self.tracked
        } else {
            &self.untracked
        };
        let start = spent();
        let mut blocks = 0;
        for first in self.steps() {
            let buf = &mut self.buffer[..STEP];
            blocks += u64::from(disk.read_at(buf, first * BLOCK_BYTES).is_ok());
        }
        rate(
            blocks * u64::try_from(MAX_BLOCKS).unwrap_or(31),
            spent() - start,
        )
    }

    fn copies(&mut self) -> f64 {
        let start = spent();
        let mut copies = 0;
        for first in self.steps() {
            let at = usize::try_from(first * BLOCK_BYTES).unwrap_or(0);
            let target = self.target[at..at + STEP].chunks_exact_mut(BLOCK_SIZE);
            for (to, from) in target.zip(self.buffer.chunks_exact(BLOCK_SIZE)) {
                to.copy_from_slice(black_box(from));
                copies += 1;
            }
        }
        black_box(&self.target);
        rate(copies, spent() - start)
    }

    /// Puts every block; how many a second, and how many were accepted.
    fn puts(&mut self) -> (f64, u64) {
        self.buffer.fill(0);
        let (mut offered, mut accepted) = (0, 0);
        let start = spent();
        for first in self.steps() {
            for (block, content) in (first..).zip(self.buffer[..STEP].as_chunks::<BLOCK_SIZE>().0) {
                let verdict = self.tracked.offer(self.pool, block, black_box(content));
                accepted += u64::from(verdict == Verdict::Accepted);
                offered += 1;
            }
        }
        (rate(offered, spent() - start), accepted)
    }

    fn over_port(&mut self) -> (f64, u64) {
        let before = self.port.stats().verdicts["accepted"];
        let mut offered = 0;
        let mut time = Duration::ZERO;
        for first in self.steps() {
            self.sequence += 1;
            let writer = PutWriter::new(&mut self.buffer, self.sequence, 0, self.serial);
            let Some(mut writer) = writer else {
                continue;
            };
            let mut block = first;
            // The guest's work, which is not counted.
            while writer.push(block, &[0; BLOCK_SIZE]) {
                block += 1;
            }
            let message = writer.finish();
            let start = spent();
            offered += u64::from(self.port.write_at(message, 0, false).is_ok()) * (block - first);
            time += spent() - start;
        }
        let accepted = self.port.stats().verdicts["accepted"] - before;
        (rate(offered, time), accepted)
    }
}

/// Measures puts of `blocks` blocks, `rounds` times in turn with copies.
///
/// # Errors
/// When the memory cannot be had.
pub fn puts(blocks: u64, rounds: usize) -> Result<Puts, CacheError> {
    let mut bench = Bench::new(blocks)?;
    let mut rows = Vec::new();
    let (mut accepted, mut offered) = (0, 0);
    // Once around, so that no measured access is the first touch of its memory.
    bench.read(true);
    bench.puts();
    bench.copies();
    bench.read(true);
    for _ in 0..rounds {
        let copies = bench.copies();
        let plain = bench.read(false);
        let (puts, taken) = bench.puts();
        bench.read(true);
        let (over_port, taken_too) = bench.over_port();
        // Takes them out of the cache, and then finds nothing.
        bench.read(true);
        let remembered = bench.read(true);
        accepted += taken + taken_too;
        offered += 2 * bench.messages * u64::try_from(MAX_BLOCKS).unwrap_or(31);
        rows.push((copies, puts, over_port, remembered, plain));
    }
    let spread =
        |of: fn(&(f64, f64, f64, f64, f64)) -> f64| Spread::of(rows.iter().map(of).collect());
    let part = justitia_share::num::to_f64(accepted) / justitia_share::num::to_f64(offered.max(1));
    Ok(Puts {
        copies: spread(|r| r.0),
        puts: spread(|r| r.1),
        over_port: spread(|r| r.2),
        remembered_reads: spread(|r| r.3),
        plain_reads: spread(|r| r.4),
        put_in_copies: spread(|r| r.0 / r.1),
        over_port_in_copies: spread(|r| r.0 / r.2),
        accepted: part,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_measured_is_accepted() {
        let found = super::puts(31 * 64, 2).unwrap();
        assert!(found.accepted > 0.9, "{found}");
    }
}
