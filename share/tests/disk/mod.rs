//! A disk, tenants and a pool of dirty pages, simulated request by request in steps of a millisecond: enough
//! of a machine to try the loop of credits without one.

#![expect(dead_code, reason = "each test uses a part of it")]
#![allow(
    unreachable_pub,
    clippy::too_many_lines,
    reason = "the core of device credits is left as it is until it is designed anew"
)]

use std::collections::VecDeque;

use justitia_share::credit::{Allowance, CreditLoop, Flow, Interval, Limits, Observed, Settings};
use justitia_share::{Demand, NodeId, Tree, Weight};

const STEP: f64 = 0.001;
/// Requests that the flusher has under way for one tenant.
const FLUSHER: usize = 16;

/// What a tenant does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub threads: usize,
    pub size: f64,
    /// Seconds between the end of a request and the next.
    pub think: f64,
    pub write: bool,
    /// Whether it writes through the page cache.
    pub buffered: bool,
}

impl Work {
    pub fn direct(threads: usize, size: f64) -> Self {
        Self {
            threads,
            size,
            think: 0.0,
            write: true,
            buffered: false,
        }
    }

    pub fn buffered() -> Self {
        Self {
            buffered: true,
            ..Self::direct(4, 65536.0)
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Request {
    tenant: usize,
    size: f64,
    write: bool,
    /// The thread that waits for it; none for the flusher's.
    thread: Option<usize>,
}

#[derive(Debug)]
struct Tenant {
    node: NodeId,
    work: Option<Work>,
    /// When each thread thinks until; `None` while it waits.
    threads: Vec<Option<f64>>,
    throttled: VecDeque<Request>,
    limits: Limits,
    /// Tokens of the limits: bytes and requests, read and written; negative while a request is paid off.
    tokens: [f64; 4],
    dirty: f64,
    flushing: usize,
    room: f64,
    // Since the last interval:
    flow: Flow,
    application: f64,
    stalled: f64,
    /// Since the last `forget`.
    pub done: f64,
}

/// The machine.
pub struct Machine {
    pub tree: Tree<Demand>,
    pub credits: CreditLoop,
    pub controlled: bool,
    tenants: Vec<Tenant>,
    queue: VecDeque<Request>,
    served: f64,
    completed: f64,
    queued: f64,
    /// Requests that the device takes at once.
    pub depth: usize,
    pub bytes_per_second: f64,
    pub requests_per_second: f64,
    /// Whether bytes and requests take time one after the other, or the slower of them counts.
    pub additive: bool,
    pub dirty_limit: f64,
    /// Whether applications are measured.
    pub measured: bool,
    /// One whose applications are measured and not seen to get anything.
    pub uncounted: Option<usize>,
    pub interval: f64,
    /// Whether stalls are invisible, as of tasks that do asynchronous I/O.
    pub asynchronous: bool,
    first: usize,
    now: f64,
    busy: f64,
    since: f64,
    pub allowances: Vec<Allowance>,
    pub writes_of_limits: usize,
}

impl Machine {
    pub fn new(weights: &[u64]) -> Self {
        let mut tree = Tree::new();
        let nodes: Vec<NodeId> = weights
            .iter()
            .map(|w| {
                let weight = Weight::try_from(*w).unwrap();
                tree.push(None, Demand::unlimited(weight))
            })
            .collect();
        Self::of(tree, &nodes)
    }

    pub fn of(tree: Tree<Demand>, leaves: &[NodeId]) -> Self {
        let tenants = leaves
            .iter()
            .map(|node| Tenant {
                node: *node,
                work: None,
                threads: Vec::new(),
                throttled: VecDeque::new(),
                limits: Limits::default(),
                tokens: [0.0; 4],
                dirty: 0.0,
                flushing: 0,
                room: f64::INFINITY,
                flow: Flow::default(),
                application: 0.0,
                stalled: 0.0,
                done: 0.0,
            })
            .collect();
        Self {
            tree,
            credits: CreditLoop::new(Settings::default()),
            controlled: true,
            tenants,
            queue: VecDeque::new(),
            served: 0.0,
            completed: 0.0,
            queued: 0.0,
            depth: 64,
            bytes_per_second: 60e6,
            requests_per_second: 1e9,
            additive: false,
            dirty_limit: 100e6,
            measured: true,
            uncounted: None,
            interval: 0.25,
            asynchronous: false,
            first: 0,
            now: 0.0,
            busy: 0.0,
            since: 0.0,
            allowances: Vec::new(),
            writes_of_limits: 0,
        }
    }

    pub fn set(&mut self, tenant: usize, work: Option<Work>) {
        let now = self.now;
        let tenant = &mut self.tenants[tenant];
        tenant.work = work;
        tenant.threads = vec![Some(now); work.map_or(0, |w| w.threads)];
        tenant.throttled.clear();
    }

    pub fn set_all(&mut self, work: Work) {
        for tenant in 0..self.tenants.len() {
            self.set(tenant, Some(work));
        }
    }

    pub fn weigh(&mut self, tenant: usize, weight: u64) {
        let node = self.tenants[tenant].node;
        self.tree[node].weight = Weight::try_from(weight).unwrap();
    }

    /// Runs so many seconds.
    pub fn run(&mut self, seconds: f64) {
        let end = self.now + seconds;
        while self.now < end {
            self.step();
        }
    }

    /// What each application got per second, over the next `seconds`.
    pub fn measure(&mut self, seconds: f64) -> Vec<f64> {
        for tenant in &mut self.tenants {
            tenant.done = 0.0;
        }
        self.run(seconds);
        self.tenants.iter().map(|t| t.done / seconds).collect()
    }

    pub fn limited(&self) -> usize {
        self.tenants.iter().filter(|t| !t.limits.none()).count()
    }

    fn step(&mut self) {
        self.now += STEP;
        // Nobody is always the first to find room.
        self.first = (self.first + 1) % self.tenants.len();
        for turn in 0..self.tenants.len() {
            let tenant = (self.first + turn) % self.tenants.len();
            self.applications(tenant);
            self.flush(tenant);
            self.release(tenant);
        }
        self.serve();
        self.since += STEP;
        if self.since >= self.interval - STEP / 2.0 {
            self.control();
        }
    }

    fn applications(&mut self, index: usize) {
        let (now, all_dirty) = (self.now, self.tenants.iter().map(|t| t.dirty).sum::<f64>());
        let limit = self.dirty_limit;
        let tenant = &mut self.tenants[index];
        let Some(work) = tenant.work else { return };
        let mut waits = false;
        let mut room = (tenant.room - tenant.dirty).min(limit - all_dirty);
        for thread in 0..tenant.threads.len() {
            let Some(until) = tenant.threads[thread] else {
                waits = true;
                continue;
            };
            if until > now {
                continue;
            }
            if work.buffered {
                if room >= work.size {
                    room -= work.size;
                    tenant.dirty += work.size;
                    tenant.done += work.size;
                    tenant.application += work.size;
                    tenant.threads[thread] = Some(now + work.think);
                } else {
                    waits = true;
                }
                continue;
            }
            tenant.threads[thread] = None;
            waits = true;
            tenant.throttled.push_back(Request {
                tenant: index,
                size: work.size,
                write: work.write,
                thread: Some(thread),
            });
        }
        if waits {
            tenant.stalled += STEP;
        }
    }

    fn flush(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        let size = 262_144.0;
        while tenant.flushing < FLUSHER && tenant.dirty - to_f64(tenant.flushing) * size >= size {
            tenant.flushing += 1;
            tenant.throttled.push_back(Request {
                tenant: index,
                size,
                write: true,
                thread: None,
            });
        }
    }

    /// What the limits let through goes to the device, as far as that takes it.
    fn release(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        let limits = [
            tenant.limits.rbps,
            tenant.limits.wbps,
            tenant.limits.riops,
            tenant.limits.wiops,
        ];
        for (tokens, limit) in tenant.tokens.iter_mut().zip(limits) {
            *tokens = limit.map_or(f64::INFINITY, |limit| {
                let rate = to_f64(usize::try_from(limit).unwrap());
                let now = if tokens.is_finite() { *tokens } else { 0.0 };
                (now + rate * STEP).min(rate * 0.02)
            });
        }
        while let Some(request) = tenant.throttled.front().copied() {
            let (bytes, requests) = if request.write { (1, 3) } else { (0, 2) };
            if tenant.tokens[bytes] < 0.0 || tenant.tokens[requests] < 0.0 {
                return;
            }
            tenant.tokens[bytes] -= request.size;
            tenant.tokens[requests] -= 1.0;
            tenant.throttled.pop_front();
            // The kernel counts what passes the limits.
            if request.write {
                tenant.flow.wbytes += request.size;
                tenant.flow.wios += 1.0;
            } else {
                tenant.flow.rbytes += request.size;
                tenant.flow.rios += 1.0;
            }
            self.queue.push_back(request);
        }
    }

    /// The device takes requests in turn from the first `depth`.
    fn serve(&mut self) {
        if !self.queue.is_empty() {
            self.busy += STEP;
        }
        self.served = if self.queue.is_empty() {
            0.0
        } else {
            self.served + STEP
        };
        while let Some(request) = self.queue.front().copied() {
            let (by_bytes, by_requests) = (
                request.size / self.bytes_per_second,
                1.0 / self.requests_per_second,
            );
            let time = if self.additive {
                by_bytes + by_requests
            } else {
                by_bytes.max(by_requests)
            };
            if self.served < time {
                return;
            }
            self.served -= time;
            self.queue.pop_front();
            self.completed += 1.0;
            let tenant = &mut self.tenants[request.tenant];
            match request.thread {
                None => {
                    tenant.flushing -= 1;
                    tenant.dirty = (tenant.dirty - request.size).max(0.0);
                }
                Some(thread) => {
                    tenant.done += request.size;
                    tenant.application += request.size;
                    if let (Some(slot), Some(work)) = (tenant.threads.get_mut(thread), tenant.work)
                    {
                        *slot = Some(self.now + work.think);
                    }
                }
            }
        }
    }

    fn control(&mut self) {
        let seconds = std::mem::take(&mut self.since);
        let completed = std::mem::take(&mut self.completed);
        let queued = to_f64(self.queue.len());
        let given = completed + queued - self.queued;
        self.queued = queued;
        let interval = Interval {
            seconds,
            busy: (std::mem::take(&mut self.busy) / seconds).min(1.0),
            kept_up: if given > 0.0 { completed / given } else { 1.0 },
            delay: queued / (completed / seconds).max(1.0),
        };
        let (measured, uncounted) = (self.measured, self.uncounted);
        let observed: Vec<Observed> = self
            .tenants
            .iter_mut()
            .enumerate()
            .map(|(i, tenant)| {
                let flow = std::mem::take(&mut tenant.flow);
                Observed {
                    id: i as u64,
                    node: tenant.node,
                    flow: Flow {
                        rbytes: flow.rbytes / seconds,
                        wbytes: flow.wbytes / seconds,
                        rios: flow.rios / seconds,
                        wios: flow.wios / seconds,
                    },
                    stalled: if self.asynchronous {
                        0.0
                    } else {
                        (std::mem::take(&mut tenant.stalled) / seconds).min(1.0)
                    },
                    application: match uncounted {
                        Some(one) if one == i => Some(0.0),
                        _ => measured.then_some(tenant.application / seconds),
                    },
                    written: None,
                    reached: flow.wbytes / seconds,
                    dirty: justitia_share::num::to_u64(tenant.dirty),
                    writeback: justitia_share::num::to_u64(tenant.dirty),
                    limitable: true,
                }
            })
            .collect();
        for tenant in &mut self.tenants {
            tenant.application = 0.0;
        }
        if !self.controlled {
            return;
        }
        self.allowances = self.credits.step(&self.tree, interval, &observed);
        let pool: f64 = self.dirty_limit;
        let waiting: Vec<(usize, f64)> = self
            .allowances
            .iter()
            .filter(|a| a.held())
            .map(|a| (usize::try_from(a.id).unwrap(), a.part))
            .collect();
        let sum: f64 = waiting.iter().map(|w| w.1).sum();
        for (i, tenant) in self.tenants.iter_mut().enumerate() {
            let limits = self
                .allowances
                .iter()
                .find(|a| a.id == i as u64)
                .map_or(Limits::default(), |a| a.limits);
            if limits != tenant.limits {
                self.writes_of_limits += 1;
            }
            tenant.limits = limits;
            tenant.room = waiting
                .iter()
                .find(|w| w.0 == i)
                .map_or(f64::INFINITY, |w| (pool * w.1 / sum).max(1e6));
        }
    }
}

fn to_f64(number: usize) -> f64 {
    justitia_share::num::to_f64(number as u64)
}
