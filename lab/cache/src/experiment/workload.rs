//! What runs in a container: Filebench's workloads, a file operation at a time.
//!
//! Kept: the operations of a loop and their order, sizes of files and appends, the rotation in which files are picked,
//! what is deleted, created and written, `fsync`, files that were just written when a run begins. Left out: processor time
//! other than `operation_us`, metadata, the journal, directories, limits of the event generator. Writes go to the disk at
//! once. Only `fsync` waits for them, which takes one delay.

use super::container::{Container, Counts};
use super::cost::Cost;
use super::files::{Files, MAX_FILE_BLOCKS, append, size};
use super::spec::{Container as Spec, Experiment, Kind};
use justitia_cache::lab::{BLOCK_BYTES, Random};
use std::time::Duration;

/// `videoserver.f`: this many videos are read. The passive ones are not, and a writer replaces one of these every 10 s.
const VIDEOS: u32 = 32;
const PASSIVE: u32 = 194;
const REPLACE: f64 = 10.0;
/// Blocks of a read of a video: 256 KiB.
const VIDEO_READ: u32 = 64;
/// Blocks of a file of the random workload: 16 KiB.
const RANDOM_READ: u32 = 4;

/// The state that the threads of a container share.
pub(super) struct Workload {
    kind: Kind,
    files: Files,
    /// Where the log begins, how many blocks it has, where its end is.
    log: [u32; 3],
    /// Blocks of a video, or of all that the random workload reads.
    size: u32,
    /// The next video to be replaced.
    passive: u32,
    random: Random,
    operation: Duration,
    /// Between two replacements.
    replace: Duration,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Which of the container's threads.
    number: u32,
    of: u32,
    /// Steps so far.
    step: u32,
}

impl Place {
    pub(super) const fn new(number: u32, of: u32) -> Self {
        Self {
            number,
            of,
            step: 0,
        }
    }
}

impl Workload {
    /// The workload, and the blocks of the disk that it needs.
    pub(super) fn new(spec: &Spec, experiment: &Experiment, seed: u64) -> (Self, u32) {
        let mut random = Random::new(seed);
        let bytes = experiment.scaled(spec.files.0);
        let blocks = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        let (files, size, end) = match spec.workload {
            Kind::Videoserver => {
                let size = (blocks / VIDEOS).max(1);
                (0, size, size.saturating_mul(VIDEOS + PASSIVE))
            }
            Kind::Random => (0, blocks, blocks),
            _ => (bytes, 0, 0),
        };
        let all = spec.workload == Kind::Webserver;
        let files = Files::new(files, all, &mut random);
        let log = [end.max(files.blocks()), blocks / 4 + MAX_FILE_BLOCKS, 0];
        let workload = Self {
            kind: spec.workload,
            files,
            log,
            size,
            passive: 0,
            random,
            operation: Duration::from_micros(experiment.operation_us.into()),
            replace: Duration::from_nanos(experiment.nanos(REPLACE)),
        };
        (workload, log[0] + log[1])
    }

    /// Writes all files, as Filebench does before it runs: the passive videos by half (`prealloc=50`). Takes no time.
    pub(super) fn allocate(&mut self, container: &mut Container) {
        let mut cost = Cost::default();
        match self.kind {
            Kind::Videoserver => {
                for video in 0..VIDEOS + PASSIVE / 2 {
                    container.write(video * self.size..(video + 1) * self.size, &mut cost);
                }
            }
            Kind::Random => container.write(0..self.size, &mut cost),
            _ => {
                for blocks in self.files.all() {
                    container.write(blocks, &mut cost);
                }
            }
        }
        container.counts = Counts::default();
    }

    /// Threads: those that are configured, and the one that writes videos.
    pub(super) fn threads(spec: &Spec) -> u32 {
        spec.threads + u32::from(spec.workload == Kind::Videoserver)
    }

    /// The next file operation of a thread.
    pub(super) fn step(&mut self, place: &mut Place, container: &mut Container) -> Cost {
        let mut cost = Cost {
            waited: self.operation,
            ..Cost::default()
        };
        match self.kind {
            Kind::Webserver => self.webserver(place, container, &mut cost),
            Kind::Webproxy => self.webproxy(place, container, &mut cost),
            Kind::Mail => self.mail(place, container, &mut cost),
            Kind::Videoserver => self.videoserver(place, container, &mut cost),
            Kind::Random => self.read_at_random(container, &mut cost),
        }
        place.step = place.step.wrapping_add(1);
        cost
    }

    /// Ten files are read, then something is appended to the log.
    fn webserver(&mut self, place: &Place, container: &mut Container, cost: &mut Cost) {
        if place.step % 11 < 10 {
            self.read_file(container, cost);
            return;
        }
        let [start, size, end] = self.log;
        let blocks = append(&mut self.random).min(size - end);
        container.write(start + end..start + end + blocks, cost);
        // Its beginning is written again at last, long after it has left all caches.
        self.log[2] = (end + blocks) % size;
    }

    /// A file is replaced by another one, then five are read.
    fn webproxy(&mut self, place: &Place, container: &mut Container, cost: &mut Cost) {
        if !place.step.is_multiple_of(6) {
            self.read_file(container, cost);
            return;
        }
        // As large as the others, so that all files together stay as large as they are: Filebench's shrink by half.
        let blocks = size(&mut self.random);
        self.replace_file(blocks, container, cost);
    }

    /// A mail replaces another one; one is read and appended to; one is read.
    fn mail(&mut self, place: &Place, container: &mut Container, cost: &mut Cost) {
        match place.step % 3 {
            0 => {
                let blocks = append(&mut self.random);
                self.replace_file(blocks, container, cost);
                container.fsync(cost);
            }
            1 => {
                let file = self.read_file(container, cost);
                let blocks = append(&mut self.random);
                container.write(self.files.append(file, blocks), cost);
                container.fsync(cost);
            }
            _ => {
                self.read_file(container, cost);
            }
        }
    }

    /// Each thread reads a video from its beginning to its end, and again. The last thread replaces videos that are not
    /// read.
    fn videoserver(&mut self, place: &Place, container: &mut Container, cost: &mut Cost) {
        if place.number + 1 == place.of {
            let first = (VIDEOS + self.passive) * self.size;
            container.discard(first..first + self.size);
            container.write(first..first + self.size, cost);
            self.passive = (self.passive + 1) % PASSIVE;
            cost.waited += self.replace;
            return;
        }
        let first = place.number % VIDEOS * self.size;
        let from = place.step % self.size.div_ceil(VIDEO_READ) * VIDEO_READ;
        let to = (from + VIDEO_READ).min(self.size);
        container.read(first + from..first + to, cost);
    }

    fn read_at_random(&mut self, container: &mut Container, cost: &mut Cost) {
        let files = u64::from(self.size / RANDOM_READ).max(1);
        let first = u32::try_from(self.random.below(files)).unwrap_or(0) * RANDOM_READ;
        container.read(first..first + RANDOM_READ, cost);
    }

    fn read_file(&mut self, container: &mut Container, cost: &mut Cost) -> usize {
        let file = self.files.pick();
        container.read(self.files.of(file), cost);
        file
    }

    fn replace_file(&mut self, blocks: u32, container: &mut Container, cost: &mut Cost) {
        let gone = self.files.pick();
        let gone = self.files.delete(gone);
        container.discard(gone);
        let file = self.files.pick_missing();
        let written = self.files.append(file, blocks);
        container.write(written, cost);
    }
}
