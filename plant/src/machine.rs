//! The machine: tenants, their page cache, one disk.

use crate::cache::{Memory, Pages};
use crate::disk::{Disk, Queue, Request, Scheduler};
use crate::work::{Kind, Work};
use crate::{Rng, STEP};

/// Requests of writeback that a flusher has under way for one tenant.
const FLUSHER: usize = 16;
/// Bytes of a request of writeback.
const WRITEBACK: f64 = 262_144.0;
/// The same where files are overwritten at random places.
const WRITEBACK_RANDOM: f64 = 65536.0;

/// What a tenant may have dirty of the machine's, however little it wrote back lately, bytes.
const LEAST_DIRTY: f64 = 2e6;
/// At most this part of the files that a file server deletes is dirty: some are older.
const MOST_DIRTY: f64 = 0.85;
/// A paced tenant makes up for at most this many seconds in which it could not do its work.
const CATCHES_UP: f64 = 1.0;
/// What counts as lately there, seconds (`VM_COMPLETIONS_PERIOD_LEN`).
const LATELY: f64 = 3.0;

/// What the disk's own counters say of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskSample {
    /// How long, seconds.
    pub seconds: f64,
    /// The part of it with any request under way.
    pub busy: f64,
    /// The part of what io.cost hands out that was used.
    pub used: f64,
    /// Requests that were completed.
    pub completed: u64,
    /// Requests under way at its end.
    pub in_flight: u64,
    /// The same on the mean of the time.
    pub under_way: f64,
    /// Bytes read and written, per second.
    pub throughput: f64,
}

/// What a cgroup's counters say of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantSample {
    /// Bytes read from the disk (`io.stat`), per second.
    pub read: f64,
    /// Bytes written to it, per second.
    pub written: f64,
    /// Requests, per second.
    pub requests: f64,
    /// Bytes that applications got, per second.
    pub application: f64,
    /// Bytes of them that were written.
    pub application_written: f64,
    /// The part of the time in which a thread waited for I/O or for room for dirty pages (PSI).
    pub stalled: f64,
    /// Dirty bytes and those under writeback.
    pub dirty: f64,
    /// File pages, bytes.
    pub file: f64,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Thread {
    /// Nothing until then.
    Until(f64),
    /// Waits for a request.
    Request,
    /// Waits until this much writeback of each tenant is completed, since then.
    Sync(f64),
    /// Waits for one of its own pages under writeback, until this much is completed.
    Page(f64),
}

#[derive(Debug)]
struct Tenant {
    work: Option<Work>,
    threads: Vec<Thread>,
    pages: Pages,
    /// When it may ask for more bytes, of its pace.
    due: f64,
    /// What all had begun when this one's `fsync` began.
    waits_for: Vec<f64>,
    flushing: usize,
    /// Bytes written back lately.
    lately: f64,
    weight: f64,
    group: usize,
    seen: TenantSample,
    done: f64,
}

/// A machine with one disk.
#[derive(Debug)]
pub struct Machine {
    /// The memory, and the kernel's settings; they may be changed while it runs.
    pub memory: Memory,
    queue: Queue,
    tenants: Vec<Tenant>,
    groups: Vec<f64>,
    rng: Rng,
    first: usize,
    now: f64,
    since: f64,
    completed: u64,
    bytes: f64,
    added_up: f64,
    latencies: Vec<Vec<f64>>,
    done: Vec<Request>,
}

impl Machine {
    /// A machine of `tenants` tenants right below the root, of weight 100. They do nothing yet.
    #[must_use]
    pub fn new(disk: Disk, memory: Memory, tenants: usize, seed: u64) -> Self {
        let tenant = |_| Tenant {
            work: None,
            threads: Vec::new(),
            due: 0.0,
            pages: Pages::default(),
            waits_for: Vec::new(),
            flushing: 0,
            lately: 0.0,
            weight: 100.0,
            group: 0,
            seen: TenantSample::default(),
            done: 0.0,
        };
        Self {
            memory,
            queue: Queue::new(disk, tenants),
            tenants: (0..tenants).map(tenant).collect(),
            groups: vec![100.0],
            rng: Rng::new(seed),
            first: 0,
            now: 0.0,
            since: 0.0,
            completed: 0,
            bytes: 0.0,
            added_up: 0.0,
            latencies: vec![Vec::new(); tenants],
            done: Vec::new(),
        }
    }

    /// Puts tenants into groups of these weights right below the root: `of` names each tenant's.
    pub fn set_groups(&mut self, weights: &[f64], of: &[usize]) {
        weights.clone_into(&mut self.groups);
        for (tenant, group) in self.tenants.iter_mut().zip(of) {
            tenant.group = *group;
        }
    }

    /// The weight of a group, as the scheduler has it.
    pub fn set_group_weight(&mut self, group: usize, weight: f64) {
        self.groups[group] = weight;
    }

    /// A tenant's weight, as the scheduler has it.
    pub fn set_weight(&mut self, tenant: usize, weight: f64) {
        self.tenants[tenant].weight = weight;
    }

    /// A tenant's `memory.high`; `None` is `max`.
    pub fn set_high(&mut self, tenant: usize, high: Option<f64>) {
        self.tenants[tenant].pages.high = high.unwrap_or(f64::INFINITY);
    }

    /// How fast the disk is from now on, bytes per second.
    pub const fn set_speed(&mut self, bytes_per_second: f64) {
        self.queue.disk.bytes_per_second = bytes_per_second;
    }

    /// io.cost lets `bytes`, or `requests`, through a second from now on, the costs of both added. It is off where both
    /// are infinite.
    pub const fn set_rate(&mut self, bytes: f64, requests: f64) {
        self.queue.disk.scheduler = Scheduler::IoCost { bytes, requests };
    }

    /// How many requests the disk can do in a second.
    pub const fn set_requests(&mut self, per_second: f64) {
        self.queue.disk.requests_per_second = per_second;
    }

    /// io.cost lets a tenant's requests pass without a charge, as those of the root cgroup.
    pub fn set_free(&mut self, tenant: usize) {
        self.queue.set_free(tenant);
    }

    /// What a tenant does from now on.
    pub fn set_work(&mut self, tenant: usize, work: Option<Work>) {
        self.queue.forget_threads(tenant);
        let now = self.now;
        let one = &mut self.tenants[tenant];
        one.work = work;
        one.threads = vec![Thread::Until(now); work.map_or(0, |work| work.threads)];
        one.due = now;
        one.pages.flush_all = false;
    }

    /// What all do from now on.
    pub fn set_all(&mut self, work: Work) {
        (0..self.tenants.len()).for_each(|tenant| self.set_work(tenant, Some(work)));
    }

    /// Seconds since the beginning.
    #[must_use]
    pub const fn now(&self) -> f64 {
        self.now
    }

    /// The number of tenants.
    #[must_use]
    pub const fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Runs for `seconds` seconds.
    pub fn run(&mut self, seconds: f64) {
        let end = self.now + seconds - STEP / 2.0;
        while self.now < end {
            self.step();
        }
    }

    /// Bytes that each tenant's applications got since the last call.
    pub fn take_done(&mut self) -> Vec<f64> {
        self.tenants
            .iter_mut()
            .map(|t| std::mem::take(&mut t.done))
            .collect()
    }

    /// The latencies of a tenant's `fsync` since the last call, seconds.
    pub fn take_latencies(&mut self, tenant: usize) -> Vec<f64> {
        std::mem::take(&mut self.latencies[tenant])
    }

    /// What the counters say of the time since the last call.
    pub fn sample(&mut self) -> (DiskSample, Vec<TenantSample>) {
        let seconds = self.now - std::mem::replace(&mut self.since, self.now);
        let waited = std::mem::take(&mut self.queue.waited);
        let disk = DiskSample {
            seconds,
            in_flight: self.queue.in_flight() as u64,
            under_way: waited / seconds,
            busy: (std::mem::take(&mut self.queue.busy) / seconds).min(1.0),
            used: std::mem::take(&mut self.queue.spent) / seconds,
            completed: std::mem::take(&mut self.completed),
            throughput: std::mem::take(&mut self.bytes) / seconds,
        };
        let tenants = self.tenants.iter_mut().map(|tenant| {
            let seen = std::mem::take(&mut tenant.seen);
            TenantSample {
                read: seen.read / seconds,
                written: seen.written / seconds,
                requests: seen.requests / seconds,
                application: seen.application / seconds,
                application_written: seen.application_written / seconds,
                stalled: (seen.stalled / seconds).min(1.0),
                dirty: tenant.pages.dirty + tenant.pages.writeback,
                file: tenant.pages.file,
            }
        });
        (disk, tenants.collect())
    }

    fn step(&mut self) {
        self.now += STEP;
        self.add_up();
        // The tenants take turns in being the first to find room.
        self.first = (self.first + 1) % self.tenants.len();
        for turn in 0..self.tenants.len() {
            let tenant = (self.first + turn) % self.tenants.len();
            self.applications(tenant);
            self.flush(tenant);
        }
        self.share();
        let mut done = std::mem::take(&mut self.done);
        self.queue.step(self.now, &mut done);
        for request in done.drain(..) {
            self.complete(request);
        }
        self.done = done;
    }

    fn add_up(&mut self) {
        self.added_up += STEP;
        let lately: f64 = self.tenants.iter().map(|t| t.lately).sum();
        for tenant in &mut self.tenants {
            tenant.pages.written = if lately > 0.0 {
                tenant.lately / lately
            } else {
                0.0
            };
            tenant.lately *= 1.0 - STEP / LATELY;
        }
        if self.added_up < self.memory.sums_every {
            return;
        }
        self.added_up = 0.0;
        for tenant in &mut self.tenants {
            tenant.pages.known = tenant.pages.dirty + tenant.pages.writeback;
        }
    }

    fn share(&mut self) {
        let has: Vec<bool> = (0..self.tenants.len()).map(|t| self.queue.has(t)).collect();
        let mut within = vec![0.0; self.groups.len()];
        for (tenant, has) in self.tenants.iter().zip(&has) {
            within[tenant.group] += if *has { tenant.weight } else { 0.0 };
        }
        let active = |(group, sum): (&f64, &f64)| if *sum > 0.0 { *group } else { 0.0 };
        let all: f64 = self.groups.iter().zip(&within).map(active).sum();
        let share = |(tenant, has): (&Tenant, &bool)| {
            let sum = within[tenant.group];
            let part = self.groups[tenant.group] / all * tenant.weight / sum;
            if *has { part } else { 0.0 }
        };
        let shares: Vec<f64> = self.tenants.iter().zip(&has).map(share).collect();
        self.queue.set_shares(&shares);
    }

    fn applications(&mut self, index: usize) {
        let Some(work) = self.tenants[index].work else {
            return;
        };
        if work.burst > 0.0 && self.now % (2.0 * work.burst) >= work.burst {
            return;
        }
        let mut waits = false;
        for thread in 0..self.tenants[index].threads.len() {
            waits |= self.thread(index, thread, &work);
        }
        if waits {
            self.tenants[index].seen.stalled += STEP;
        }
    }

    /// One step of a thread; whether it waits.
    fn thread(&mut self, index: usize, thread: usize, work: &Work) -> bool {
        let woken = match self.tenants[index].threads[thread] {
            Thread::Until(_) => true,
            Thread::Request => false,
            Thread::Page(until) => self.tenants[index].pages.completed >= until,
            Thread::Sync(since) => self.synced(index, since),
        };
        if !woken {
            return true;
        }
        let mut until = match self.tenants[index].threads[thread] {
            Thread::Until(until) => until.max(self.now - STEP),
            _ => self.now + work.think,
        };
        while until <= self.now {
            match self.operation(index, thread, work) {
                Next::After(seconds) => until += seconds.max(1e-6) + work.think,
                Next::Waits(state) => {
                    self.tenants[index].threads[thread] = state;
                    return true;
                }
                Next::Blocked => {
                    self.tenants[index].threads[thread] = Thread::Until(self.now);
                    return true;
                }
            }
        }
        self.tenants[index].threads[thread] = Thread::Until(until);
        false
    }

    fn operation(&mut self, index: usize, thread: usize, work: &Work) -> Next {
        match work.kind {
            Kind::Direct { writes } => {
                let now = self.now;
                let tenant = &mut self.tenants[index];
                if work.pace > 0.0 {
                    if tenant.due > now {
                        return Next::After(tenant.due - now);
                    }
                    tenant.due = tenant.due.max(now - CATCHES_UP) + work.size / work.pace;
                }
                let write = self.rng.fraction() < writes;
                self.request(index, work.size, write, Some(thread));
                Next::Waits(Thread::Request)
            }
            Kind::Buffered { file } => {
                let memory = self.memory;
                let pages = &mut self.tenants[index].pages;
                pages.file = pages.cacheable(file, memory.other);
                if !self.has_room(index) {
                    return Next::Blocked;
                }
                // A page that is dirty already costs nothing more.
                let rewritten = self.rng.fraction() < self.tenants[index].pages.dirty / file;
                self.tenants[index].pages.dirty += if rewritten { 0.0 } else { work.size };
                self.got(index, work.size, true);
                Next::After(work.size / memory.speed)
            }
            Kind::FileServer { files } => self.serve_file(index, thread, work, files),
            Kind::Fsync => {
                if !self.has_room(index) {
                    return Next::Blocked;
                }
                self.tenants[index].pages.dirty += work.size;
                self.tenants[index].pages.flush_all = true;
                self.got(index, work.size, true);
                self.flush(index);
                self.tenants[index].waits_for =
                    self.tenants.iter().map(|t| t.pages.begun).collect();
                Next::Waits(Thread::Sync(self.now))
            }
        }
    }

    /// Writes a file, deletes one and reads one.
    fn serve_file(&mut self, index: usize, thread: usize, work: &Work, files: f64) -> Next {
        let size = work.size * self.rng.between(0.5, 1.5);
        if !self.has_room(index) {
            return Next::Blocked;
        }
        let memory = self.memory;
        let pages = &mut self.tenants[index].pages;
        pages.dirty += size;
        pages.file = pages.cacheable(files, memory.other);
        let (dirty, writeback) = (
            (pages.dirty / files).min(MOST_DIRTY),
            pages.writeback / files,
        );
        let cached = pages.file / files;
        let completed = pages.completed;
        self.got(index, size, true);
        // The deleted one is dirty, being written, or clean.
        let deleted = self.rng.fraction();
        if deleted < dirty {
            let pages = &mut self.tenants[index].pages;
            pages.dirty = (pages.dirty - size).max(0.0);
        } else if deleted < dirty + writeback {
            return Next::Waits(Thread::Page(
                completed + self.tenants[index].pages.writeback * self.rng.fraction(),
            ));
        }
        if self.rng.fraction() < cached {
            self.got(index, size, false);
            return Next::After(2.0 * size / memory.speed);
        }
        self.request(index, size, false, Some(thread));
        Next::Waits(Thread::Request)
    }

    fn has_room(&self, index: usize) -> bool {
        let all: f64 = self
            .tenants
            .iter()
            .map(|t| t.pages.dirty + t.pages.writeback)
            .sum();
        let pages = &self.tenants[index].pages;
        let limit = self.memory.limit();
        let free_run = (limit + self.memory.background()) / 2.0;
        let own = pages.dirty + pages.writeback;
        let within = all < free_run || own < LEAST_DIRTY + limit * pages.written;
        all < limit && within && pages.known < pages.limit(&self.memory)
    }

    fn synced(&mut self, index: usize, since: f64) -> bool {
        let own = &self.tenants[index];
        let reached = |(t, begun): (&Tenant, &f64)| t.pages.completed >= *begun - 1.0;
        if !self.tenants.iter().zip(&own.waits_for).all(reached) {
            return false;
        }
        self.tenants[index].pages.flush_all = false;
        self.latencies[index].push(self.now - since);
        true
    }

    fn got(&mut self, index: usize, bytes: f64, written: bool) {
        let tenant = &mut self.tenants[index];
        tenant.done += bytes;
        tenant.seen.application += bytes;
        tenant.seen.application_written += if written { bytes } else { 0.0 };
    }

    fn request(&mut self, tenant: usize, size: f64, write: bool, thread: Option<usize>) {
        let seen = &mut self.tenants[tenant].seen;
        seen.requests += 1.0;
        *(if write {
            &mut seen.written
        } else {
            &mut seen.read
        }) += size;
        self.queue.submit(Request {
            tenant,
            size,
            write,
            thread,
        });
    }

    /// Background writeback of one tenant's pages.
    fn flush(&mut self, index: usize) {
        // What is under writeback does not count there (`wb_over_bg_thresh`).
        let all: f64 = self.tenants.iter().map(|t| t.pages.dirty).sum();
        let over = all - self.memory.background();
        let tenant = &self.tenants[index];
        let pages = &tenant.pages;
        let own = pages.known - pages.writeback - pages.background(&self.memory);
        let mut to_write = if pages.flush_all {
            pages.dirty
        } else {
            let part = pages.dirty - self.memory.background() * pages.written - LEAST_DIRTY;
            pages.dirty.min(over.max(own).max(part))
        };
        let random = matches!(
            tenant.work,
            Some(Work {
                kind: Kind::Buffered { .. },
                ..
            })
        );
        let size = if random { WRITEBACK_RANDOM } else { WRITEBACK };
        while self.tenants[index].flushing < FLUSHER && to_write > 0.0 {
            let tenant = &mut self.tenants[index];
            let written = size.min(tenant.pages.dirty);
            if written < size && !tenant.pages.flush_all {
                return;
            }
            to_write -= size;
            tenant.flushing += 1;
            tenant.pages.dirty -= written;
            tenant.pages.writeback += written;
            tenant.pages.begun += written;
            self.request(index, written, true, None);
        }
    }

    fn complete(&mut self, request: Request) {
        self.completed += 1;
        self.bytes += request.size;
        let now = self.now;
        let tenant = &mut self.tenants[request.tenant];
        let Some(thread) = request.thread else {
            tenant.flushing -= 1;
            tenant.pages.writeback = (tenant.pages.writeback - request.size).max(0.0);
            tenant.pages.completed += request.size;
            tenant.lately += request.size;
            return;
        };
        let think = tenant.work.map_or(0.0, |work| work.think);
        if let Some(state) = tenant.threads.get_mut(thread) {
            *state = Thread::Until(now + think);
            self.got(request.tenant, request.size, request.write);
        }
    }
}

/// How a thread goes on.
enum Next {
    /// After this many seconds at the speed of memory.
    After(f64),
    /// It waits.
    Waits(Thread),
    /// It waits for room, and tries again.
    Blocked,
}
