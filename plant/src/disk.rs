//! A disk, and what schedules it.

use std::collections::VecDeque;

use crate::STEP;

/// What schedules the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheduler {
    /// In the order of arrival, as `none`: the tenant with more requests in the queue gets more.
    Fifo,
    /// BFQ: slices by weight. `leak` is the part of requests that it serves by turns instead (injection, requests merged
    /// or already at the device), 0 to 1; 0.125 gives what guests of four direct writers have shown.
    Bfq {
        /// That part.
        leak: f64,
    },
    /// io.cost at a fixed rate: budgets by weight, of which a tenant that does not use its own gives what it leaves
    /// (block/blk-iocost.c). Without a bound (`f64::INFINITY`) as if it were off.
    IoCost {
        /// Bytes per second that it lets through,
        bytes: f64,
        /// or requests; the costs of both add up.
        requests: f64,
    },
}

impl Scheduler {
    /// Whether io.cost holds requests.
    const fn holds(&self) -> bool {
        matches!(self, Self::IoCost { bytes, .. } if bytes.is_finite())
    }

    /// What io.cost takes for a request, seconds of the disk.
    fn cost(&self, size: f64) -> f64 {
        match self {
            Self::IoCost { bytes, requests } => size / bytes + 1.0 / requests,
            Self::Fifo | Self::Bfq { .. } => 0.0,
        }
    }
}

/// A disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disk {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Requests per second.
    pub requests_per_second: f64,
    /// Whether bytes and requests are limited each by itself, as by QEMU's throttle and by volumes of clouds, so that large and small requests
    /// together use both. Otherwise a request takes the longer of its two times.
    pub two_limits: bool,
    /// What it takes in advance, seconds of its speed: a write cache, or the bucket of a throttled disk (QEMU's takes a tenth of a second).
    pub ahead: f64,
    /// For how long a request is under way beside the time that it takes the disk, seconds: the disk serves others meanwhile, and has work for
    /// all of it as its counters say.
    pub latency: f64,
    /// What schedules it.
    pub scheduler: Scheduler,
}

impl Disk {
    /// Limited by bytes alone.
    #[must_use]
    pub const fn new(bytes_per_second: f64, scheduler: Scheduler) -> Self {
        Self {
            bytes_per_second,
            requests_per_second: 1e9,
            two_limits: false,
            ahead: 0.0,
            latency: 0.0,
            scheduler,
        }
    }

    /// What a request takes of each limit, seconds.
    fn times(&self, size: f64) -> [f64; 2] {
        let (bytes, request) = (size / self.bytes_per_second, 1.0 / self.requests_per_second);
        if self.two_limits {
            [bytes, request]
        } else {
            [bytes.max(request), 0.0]
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) tenant: usize,
    pub(crate) size: f64,
    pub(crate) write: bool,
    /// The thread that waits for it; none of writeback.
    pub(crate) thread: Option<usize>,
}

/// A disk with room takes requests this many times as fast as it works.
const TAKES: f64 = 1.3;
/// Requests that the device takes from all together (tags).
const TAGS: usize = 64;
/// A slice of BFQ, seconds of the disk (`slice_async` and budgets of a disk of 60 MB/s are of that order).
const SLICE: f64 = 0.04;
/// This many times as much writeback as other requests is served by turns, past the weights.
const WRITEBACK_LEAKS: f64 = 2.0;
/// io.cost looks this often at what each cgroup used, seconds.
const PERIOD: f64 = 0.05;
/// What a tenant of io.cost may save, of a period (`MARGIN_PCT`).
const MARGIN: f64 = 0.5;

/// What waits before the disk, of one tenant.
#[derive(Debug, Default)]
struct Lane {
    /// Reads and writes of this step.
    arrived: [VecDeque<Request>; 2],
    /// Before the scheduler.
    waiting: VecDeque<Request>,
    share: f64,
    virtual_time: f64,
    budget: f64,
    /// What passed io.cost in this period.
    used: f64,
    /// Whether io.cost lets it pass without a charge, as it does requests of the root cgroup, the journal's among them.
    free: bool,
    in_use: f64,
    /// Seconds since it last had something to do.
    idle: f64,
}

/// The disk with its queues.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) disk: Disk,
    lanes: Vec<Lane>,
    device: VecDeque<Request>,
    /// What has been served, and when it is completed.
    returning: VecDeque<(f64, Request)>,
    /// Seconds of each limit that it can serve.
    served: [f64; 2],
    /// Seconds in which it can take requests in advance.
    link: f64,
    /// The tenant that has the slice, and how much of it is left.
    slice: (usize, f64),
    leaked: f64,
    turn: usize,
    period: f64,
    virtual_time: f64,
    pub(crate) busy: f64,
    /// Seconds that requests waited at the disk.
    pub(crate) waited: f64,
    /// What passed io.cost, seconds of what it hands out.
    pub(crate) spent: f64,
}

impl Queue {
    pub(crate) fn new(disk: Disk, tenants: usize) -> Self {
        Self {
            disk,
            lanes: (0..tenants).map(|_| Lane::default()).collect(),
            device: VecDeque::new(),
            returning: VecDeque::new(),
            served: [0.0; 2],
            link: 0.0,
            slice: (0, 0.0),
            leaked: 0.0,
            turn: 0,
            period: 0.0,
            virtual_time: 0.0,
            busy: 0.0,
            waited: 0.0,
            spent: 0.0,
        }
    }

    pub(crate) fn set_free(&mut self, tenant: usize) {
        self.lanes[tenant].free = true;
    }

    /// Whether a tenant has anything before the disk or at it.
    pub(crate) fn has(&mut self, tenant: usize) -> bool {
        let now = self.has_now(tenant);
        let lane = &mut self.lanes[tenant];
        lane.idle = if now { 0.0 } else { lane.idle + STEP };
        // io.cost has it active for a period more.
        now || (self.disk.scheduler.holds() && lane.idle < PERIOD)
    }

    fn has_now(&self, tenant: usize) -> bool {
        let lane = &self.lanes[tenant];
        lane.arrived.iter().any(|queue| !queue.is_empty())
            || !lane.waiting.is_empty()
            || self.device.iter().any(|request| request.tenant == tenant)
            || self
                .returning
                .iter()
                .any(|(_, request)| request.tenant == tenant)
    }

    /// Each tenant's share by the weights of those that have something to do, down the tree.
    pub(crate) fn set_shares(&mut self, shares: &[f64]) {
        for (lane, share) in self.lanes.iter_mut().zip(shares) {
            lane.share = *share;
        }
    }

    pub(crate) fn submit(&mut self, request: Request) {
        self.lanes[request.tenant].arrived[usize::from(request.write)].push_back(request);
    }

    /// Requests under way, as the disk counts them: what waits for io.cost is not among them.
    pub(crate) fn in_flight(&self) -> usize {
        let waits = match self.disk.scheduler.holds() {
            true => 0,
            false => self.lanes.iter().map(|lane| lane.waiting.len()).sum(),
        };
        self.device.len() + self.returning.len() + waits
    }

    /// Drops what a tenant's threads wait for: they have ended.
    pub(crate) fn forget_threads(&mut self, tenant: usize) {
        self.lanes[tenant].waiting.retain(|r| r.thread.is_none());
    }

    /// One step: returns what is completed.
    pub(crate) fn step(&mut self, now: f64, completed: &mut Vec<Request>) {
        self.waited += f64::from(u32::try_from(self.in_flight()).unwrap_or(u32::MAX)) * STEP;
        let busy = self.busy;
        let first = completed.len();
        self.serve(completed);
        if self.disk.two_limits && !self.device.is_empty() {
            self.busy += STEP;
        }
        self.waited += self.busy - busy;
        if self.disk.latency > 0.0 {
            self.hand_back(now, first, completed);
            let returns = !self.returning.is_empty() || completed.len() > first;
            self.busy = if returns { busy + STEP } else { self.busy };
        }
    }

    /// Has what was served in this step under way for the disk's latency more.
    fn hand_back(&mut self, now: f64, first: usize, completed: &mut Vec<Request>) {
        let at = now + self.disk.latency - STEP / 2.0;
        self.returning
            .extend(completed.drain(first..).map(|request| (at, request)));
        while let Some((at, request)) = self.returning.front()
            && *at <= now
        {
            completed.push(*request);
            self.returning.pop_front();
        }
    }

    fn serve(&mut self, completed: &mut Vec<Request>) {
        for lane in &mut self.lanes {
            for arrived in &mut lane.arrived {
                lane.waiting.append(arrived);
            }
        }
        if let Scheduler::IoCost { .. } = self.disk.scheduler {
            self.donate(self.disk.scheduler.holds());
            self.fill();
        }
        for served in &mut self.served {
            *served += STEP;
        }
        self.link += STEP;
        while let Some(request) = self.next() {
            let times = self.disk.times(request.size);
            let takes = self.taking(times);
            let waits = self.served.iter().zip(times).any(|(can, time)| *can < time);
            if waits || self.link < takes {
                self.busy += if waits { self.waiting() } else { 0.0 };
                self.device.push_front(request);
                return;
            }
            for (served, time) in self.served.iter_mut().zip(times) {
                *served -= time;
            }
            self.link -= takes;
            self.busy += takes;
            completed.push(request);
        }
        // What came in this step may have come later in it, and been served in the rest of it.
        for served in &mut self.served {
            *served = served.min(STEP + self.disk.ahead);
        }
        self.link = self.link.min(STEP);
    }

    /// For how long the disk is busy with a request that takes `times`. A throttled disk is only busy with requests
    /// that wait.
    fn taking(&self, times: [f64; 2]) -> f64 {
        if self.disk.two_limits {
            0.0
        } else if self.disk.ahead > 0.0 {
            times[0] / TAKES
        } else {
            times[0]
        }
    }

    /// For how long it is busy with a request that it has no room for yet.
    fn waiting(&mut self) -> f64 {
        if self.disk.ahead > 0.0 {
            std::mem::take(&mut self.link)
        } else {
            0.0
        }
    }

    fn next(&mut self) -> Option<Request> {
        match self.disk.scheduler {
            Scheduler::Bfq { leak } => {
                if self.device.is_empty()
                    && let Some(request) = self.next_of_bfq(leak)
                {
                    return Some(request);
                }
            }
            Scheduler::Fifo | Scheduler::IoCost { .. } => self.fill(),
        }
        self.device.pop_front()
    }

    /// Fills the tags by turns.
    fn fill(&mut self) {
        let paid = self.disk.scheduler.holds();
        let lanes = self.lanes.len();
        let mut refused = 0;
        while self.device.len() < TAGS && refused < lanes {
            self.turn = (self.turn + 1) % lanes;
            let lane = &mut self.lanes[self.turn];
            if (paid && lane.budget < 0.0 && !lane.free) || lane.waiting.is_empty() {
                refused += 1;
                continue;
            }
            refused = 0;
            if let Some(request) = lane.waiting.pop_front() {
                let cost = match lane.free {
                    true => 0.0,
                    false => self.disk.scheduler.cost(request.size),
                };
                lane.budget -= cost;
                lane.used += cost;
                self.spent += cost;
                self.device.push_back(request);
            }
        }
    }

    fn next_of_bfq(&mut self, leak: f64) -> Option<Request> {
        let lanes = self.lanes.len();
        self.leaked += leak;
        if self.leaked >= 1.0 {
            self.leaked -= 1.0;
            for _ in 0..lanes {
                self.turn = (self.turn + 1) % lanes;
                if let Some(request) = self.lanes[self.turn].waiting.pop_front() {
                    return Some(request);
                }
            }
            return None;
        }
        let (mut of, mut left) = self.slice;
        if left <= 0.0 || self.lanes[of].waiting.is_empty() {
            of = (0..lanes)
                .filter(|lane| !self.lanes[*lane].waiting.is_empty())
                .min_by(|a, b| {
                    let time =
                        |lane: &usize| self.lanes[*lane].virtual_time.max(self.virtual_time - 1.0);
                    time(a).total_cmp(&time(b))
                })?;
            left = SLICE;
            // A tenant that was idle has not saved anything.
            let lane = &mut self.lanes[of];
            lane.virtual_time = lane.virtual_time.max(self.virtual_time - 1.0);
            self.virtual_time = self.virtual_time.max(lane.virtual_time);
        }
        let lane = &mut self.lanes[of];
        let request = lane.waiting.pop_front()?;
        let [bytes, one] = self.disk.times(request.size);
        let time = bytes.max(one);
        lane.virtual_time += time / lane.share.max(1e-6);
        self.slice = (of, left - time);
        // Requests that no thread waits for pass the weights more often: in guests, buffered writers are further from
        // them.
        if request.thread.is_none() {
            self.leaked += leak * (WRITEBACK_LEAKS - 1.0);
        }
        Some(request)
    }

    /// io.cost: budgets of a period, by what each used in the last; seconds of the disk.
    fn donate(&mut self, on: bool) {
        if !on {
            for lane in &mut self.lanes {
                (lane.budget, lane.used, lane.in_use) = (0.0, 0.0, lane.share);
            }
            return;
        }
        // What is above the margin is thrown away, and the rate raised by as much (vtime_err).
        let refill = |lane: &mut Lane| {
            let margin = lane.in_use * PERIOD * MARGIN;
            let budget = lane.budget + lane.in_use * STEP;
            lane.budget = budget.min(margin);
            budget - lane.budget
        };
        let thrown: f64 = self.lanes.iter_mut().map(refill).sum();
        let of: f64 = self
            .lanes
            .iter()
            .filter(|lane| lane.held())
            .map(|lane| lane.in_use)
            .sum();
        if self.device.len() < TAGS / 2 {
            for lane in self.lanes.iter_mut().filter(|lane| lane.held()) {
                lane.budget += thrown * lane.in_use / of;
            }
        }
        self.period += STEP;
        if self.period < PERIOD {
            return;
        }
        let mut given = 0.0;
        let mut takers = 0.0;
        for lane in &mut self.lanes {
            let used = lane.used / self.period;
            // A tenant that does not use up its budget leaves what it does not need, with a margin.
            let donor = !lane.held() && used < 0.9 * lane.share;
            lane.in_use = if donor {
                (used * 1.25).min(lane.share)
            } else {
                lane.share
            };
            if donor {
                given += lane.share - lane.in_use;
            } else {
                takers += lane.share;
            }
            lane.used = 0.0;
        }
        self.period = 0.0;
        let unshared = 1.0 - self.lanes.iter().map(|lane| lane.share).sum::<f64>();
        for lane in &mut self.lanes {
            if lane.in_use >= lane.share && takers > 0.0 {
                lane.in_use += (given + unshared.max(0.0)) * lane.share / takers;
            }
        }
    }
}

impl Lane {
    /// Whether it has requests, and no budget for them.
    fn held(&self) -> bool {
        self.budget < 0.0 && !self.waiting.is_empty()
    }
}
