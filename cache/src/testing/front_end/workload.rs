//! Random requests whose answers are checked.

#![expect(
    clippy::indexing_slicing,
    reason = "places of our own content, and queues that there are"
)]

use super::handshake::FrontEnd;
use super::ring::{BlkRequest, Completed, DriverQueue, kind, range};
use crate::testing::Random;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

const SECTOR: usize = 512;
/// Sectors of a request at most.
const SECTORS: u64 = 64;
/// Time for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Random reads, writes, write-zeroes and flushes on all queues of a front end, many at once. None overlaps another that
/// is in flight, so that every read has one right answer.
pub struct Workload {
    content: Vec<u8>,
    /// The requests in flight of each queue by slot.
    pending: Vec<BTreeMap<u16, Pending>>,
    random: Random,
}

struct Pending {
    kind: u32,
    sector: u64,
    /// The content to read, or that is written.
    data: Vec<u8>,
}

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Workload {
    /// A workload for an empty disk of `size` bytes.
    #[must_use]
    pub fn new(size: u64, seed: u64) -> Self {
        Self {
            content: vec![0; usize::try_from(size).unwrap_or(0)],
            pending: Vec::new(),
            random: Random::new(seed),
        }
    }

    /// The expected content of the disk, once no request is in flight.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.iter().map(BTreeMap::len).sum()
    }

    /// Starts requests until `answers` were answered; others are in flight then.
    ///
    /// # Errors
    /// A wrong answer, one too many, or none for 20 s.
    pub fn advance(&mut self, front_end: &mut FrontEnd, answers: usize) -> io::Result<()> {
        self.pending
            .resize_with(front_end.queues.len(), BTreeMap::new);
        let mut done = 0;
        while done < answers {
            let queues = u64::try_from(front_end.queues.len()).map_err(io::Error::other)?;
            let q = usize::try_from(self.random.below(queues)).map_err(io::Error::other)?;
            let queue = &mut front_end.queues[q];
            if queue.free_slots() > 0 && self.begin(queue, q)? {
                continue;
            }
            done += self.take_answers(queue, q)?;
        }
        Ok(())
    }

    /// Waits for everything that is in flight.
    ///
    /// # Errors
    /// As of [`advance`](Self::advance).
    pub fn finish(&mut self, front_end: &mut FrontEnd) -> io::Result<()> {
        for (q, queue) in front_end.queues.iter_mut().enumerate() {
            while self.pending.get(q).is_some_and(|p| !p.is_empty()) {
                self.take_answers(queue, q)?;
            }
        }
        Ok(())
    }

    /// `false` when the range that was drawn is in use.
    fn begin(&mut self, queue: &mut DriverQueue, q: usize) -> io::Result<bool> {
        let sectors = 1 + self.random.below(SECTORS);
        let all = u64::try_from(self.content.len() / SECTOR).map_err(io::Error::other)?;
        let sector = self.random.below(all - sectors);
        let mut pending = self.pending.iter().flat_map(BTreeMap::values);
        if pending.any(|p| p.sector < sector + sectors && sector < p.sector + p.sectors()) {
            return Ok(false);
        }
        let Some(slot) = queue.take_slot() else {
            return Ok(false);
        };
        let new = self.draw(sector, sectors);
        let count = u32::try_from(sectors).map_err(io::Error::other)?;
        let segment = range(sector, count, 1);
        let sent: &[u8] = match new.kind {
            kind::OUT => &new.data,
            kind::WRITE_ZEROES => &segment,
            _ => &[],
        };
        queue.write_data(slot, sent)?;
        let bytes = if new.kind == kind::IN {
            new.data.len()
        } else {
            sent.len()
        };
        let bytes = u32::try_from(bytes).map_err(io::Error::other)?;
        let request = BlkRequest::new(new.kind, sector, bytes);
        let before = queue.available_index();
        queue.submit(slot, request)?;
        self.pending[q].insert(slot, new);
        queue.kick_if_wanted(before)?;
        Ok(true)
    }

    fn draw(&mut self, sector: u64, sectors: u64) -> Pending {
        let place = Pending::place(sector, sectors);
        let (kind, data) = match self.random.below(10) {
            0..5 => (kind::IN, self.content[place].to_vec()),
            5..8 => {
                let stamp = self.random.below(u64::MAX).to_le_bytes();
                (kind::OUT, stamp.repeat(place.len() / 8))
            }
            8 => (kind::WRITE_ZEROES, vec![0; place.len()]),
            _ => (kind::FLUSH, Vec::new()),
        };
        Pending { kind, sector, data }
    }

    fn take_answers(&mut self, queue: &mut DriverQueue, q: usize) -> io::Result<usize> {
        if self.pending[q].is_empty() {
            return Ok(0);
        }
        if !queue.wait(TIMEOUT)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut completed = Vec::new();
        queue.completed(&mut completed)?;
        for completed in &completed {
            let pending = self.pending[q].remove(&completed.slot);
            let pending = pending.ok_or_else(|| wrong(format!("{completed:?} is one too many")))?;
            self.end(queue, completed, &pending)?;
        }
        Ok(completed.len())
    }

    fn end(&mut self, queue: &DriverQueue, completed: &Completed, p: &Pending) -> io::Result<()> {
        let (kind, sector) = (p.kind, p.sector);
        if completed.status != 0 {
            return Err(wrong(format!(
                "{completed:?} of kind {kind} at sector {sector}"
            )));
        }
        let written = usize::try_from(completed.written).map_err(io::Error::other)?;
        if kind == kind::IN {
            let mut found = vec![0; p.data.len()];
            queue.read_data(completed.slot, &mut found)?;
            if found != p.data || written != found.len() + 1 {
                return Err(wrong(format!(
                    "{completed:?}: wrong bytes from sector {sector}"
                )));
            }
        } else {
            let place = Pending::place(sector, p.sectors());
            self.content[place].copy_from_slice(&p.data);
        }
        Ok(())
    }
}

impl Pending {
    fn sectors(&self) -> u64 {
        u64::try_from(self.data.len() / SECTOR).unwrap_or(0)
    }

    fn place(sector: u64, sectors: u64) -> std::ops::Range<usize> {
        let at = |sector: u64| usize::try_from(sector).unwrap_or(usize::MAX) * SECTOR;
        at(sector)..at(sector + sectors)
    }
}
