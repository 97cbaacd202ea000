//! One VM: a thread that samples it, asks its agent, and sets its balloon. A VM that hangs delays only its own thread.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use justitia_api::escape::plain;
use justitia_guest_protocol::memory::{Cached, State, Tenants};

use crate::channel::{Agent, Channel, Wrong};
use crate::discover::{Found, runs};
use crate::duplicates::{VmDuplicates, look};
use crate::held::{Held, own};
use crate::journal::Journal;
use crate::law::{Order, WITHIN_MS};
use crate::monitor::{BalloonState, Monitor, MonitorError, STATISTICS_EVERY};

/// The interval between samples of the VM.
const TURN: Duration = Duration::from_millis(100);
/// The interval between samples of the balloon, milliseconds: while its statistics are needed, and otherwise.
const LOOK_MS: u64 = 500;
const LOOK_SELDOM_MS: u64 = 10_000;
/// How long after a failure the monitor or the channel is tried again, milliseconds.
const RETRY_MS: u64 = 5000;
/// The interval between samples of QEMU's own memory, milliseconds. They take at most a hundredth of the time, as the kernel
/// walks page tables for them. An emulator translates hundreds of MiB of code within seconds.
const OWN_LEAST_MS: u64 = 1000;
const OWN_MOST_MS: u64 = 30_000;
const OWN_PARTS: u64 = 100;
/// The least interval between samples of blocks that guest and host cache, milliseconds.
const DUPLICATES_MS: u64 = 5000;
/// How long the guest's tenants are asked for after a client's request, milliseconds.
const LOOKED_MS: u64 = 5000;

/// The sampled state of a VM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Its process has ended.
    pub(crate) is_gone: bool,
    pub(crate) held: Held,
    /// QEMU's own part of that.
    pub(crate) own: Option<u64>,
    /// The memory that the balloon left before the first change here.
    pub(crate) original: Option<u64>,
    /// The target of the balloon.
    pub(crate) target: Option<u64>,
    pub(crate) balloon: Option<BalloonState>,
    pub(crate) monitor_error: Option<String>,
    /// The time of the last report, and the report.
    pub(crate) report: Option<(u64, State)>,
    pub(crate) agent: Option<Agent>,
    pub(crate) wrong: Wrong,
    /// When blocks cached by both were sampled, and the result.
    pub(crate) duplicates: Option<(u64, VmDuplicates)>,
    /// The guest's tenants, if it tells them: only while a client asks.
    pub(crate) tenants: Option<Tenants>,
    /// When `tenants` was updated; `None` while an answer may still come.
    pub(crate) tenants_at: Option<u64>,
    /// Answers that the law does not know yet: bytes.
    pub(crate) answers: Vec<u64>,
}

impl Seen {
    /// Whether the balloon, changed here, now leaves more than before that.
    fn is_raised(&self, actual: u64) -> bool {
        self.target.is_some() && self.original < Some(actual)
    }
}

/// A VM and its thread.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) found: Found,
    seen: Arc<Mutex<Seen>>,
    orders: SyncSender<Order>,
    /// Whether statistics are needed: its agent does not heed, or it has none.
    look: Arc<AtomicBool>,
    /// When a client last asked for blocks that both cache; 0: never.
    want: Arc<AtomicU64>,
    /// The same for its guest's tenants.
    want_tenants: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The state that all VMs share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) journal: Arc<Mutex<Journal>>,
    pub(crate) clock: Instant,
    pub(crate) observe: bool,
    /// The control socket of `justitia cache serve`.
    pub(crate) cache: PathBuf,
}

impl Common {
    pub(crate) fn now(&self) -> u64 {
        since(self.clock)
    }
}

/// In milliseconds.
fn since(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Ignores poisoning: a panic of another thread leaves each field valid by itself.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vm {
    /// Starts the thread. `restored`: the target of a balloon that was found changed at the start. Its guest may take a while
    /// to follow.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(
        found: Found,
        common: Common,
        restored: Option<u64>,
    ) -> std::io::Result<Self> {
        // There is one order a tick, each as long as a monitor's answer at most. Orders that do not fit are decided anew.
        let (orders, receiver) = sync_channel(2);
        let seen = Arc::new(Mutex::new(Seen {
            held: Held::by(found.process.pid).unwrap_or_default(),
            original: restored,
            target: restored,
            ..Seen::default()
        }));
        let (look, stop) = (Arc::default(), Arc::default());
        let (want, want_tenants) = (Arc::default(), Arc::default());
        let worker = Worker {
            monitor: match &found.qmp {
                Some(socket) => Some(Monitor::Socket(socket.clone())),
                None => found.libvirt.then(|| Monitor::Libvirt(found.name.clone())),
            },
            found: found.clone(),
            common,
            seen: Arc::clone(&seen),
            look: Arc::clone(&look),
            want: Arc::clone(&want),
            want_tenants: Arc::clone(&want_tenants),
            stop: Arc::clone(&stop),
            channel: None,
            next_id: 0,
            connect_at: 0,
            look_at: 0,
            own_at: 0,
            was_needed: false,
            unsent: restored,
        };
        let thread = std::thread::Builder::new().name("vm".into());
        let thread = thread.spawn(move || worker.run(&receiver))?;
        Ok(Self {
            found,
            seen,
            orders,
            look,
            want,
            want_tenants,
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Sets whether the balloon's statistics are needed.
    pub(crate) fn look(&self, needed: bool) {
        self.look.store(needed, Ordering::Relaxed);
    }

    /// Has the thread sample blocks that both cache, if the last sample is some seconds old. Returns where to wait for them.
    pub(crate) fn want_duplicates(&self, now: u64) -> Wanted {
        self.want.store(now.max(1), Ordering::Relaxed);
        Wanted {
            name: plain(&self.found.name),
            pid: self.found.process.pid,
            seen: Arc::clone(&self.seen),
            fresh: now.saturating_sub(DUPLICATES_MS),
        }
    }

    /// Has the guest asked for its tenants, if it was not asked lately. Returns where to wait for them.
    pub(crate) fn want_tenants(&self, common: &Common) -> WantedTenants {
        self.want_tenants
            .store(common.now().max(1), Ordering::Relaxed);
        WantedTenants {
            pid: self.found.process.pid,
            seen: Arc::clone(&self.seen),
            // Earlier notes do not count: the guest may not have been asked.
            since: common.now(),
        }
    }

    /// Has an order carried out, unless the thread is busy with others.
    pub(crate) fn order(&self, order: Order) {
        let _ = self.orders.try_send(order);
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Waits for the blocks that both cache.
#[derive(Debug)]
pub(crate) struct Wanted {
    name: String,
    pid: u32,
    seen: Arc<Mutex<Seen>>,
    /// The earliest sample that is new enough.
    fresh: u64,
}

impl Wanted {
    /// Returns them, or why there are none: at `until`, or once the VM has ended.
    pub(crate) fn wait(&self, clock: Instant, until: Instant) -> VmDuplicates {
        let named = |age_ms: u64, found: VmDuplicates| VmDuplicates {
            name: self.name.clone(),
            pid: self.pid,
            age_ms,
            ..found
        };
        loop {
            let seen = lock(&self.seen);
            if let Some((at, found)) = &seen.duplicates
                && *at >= self.fresh
            {
                return named(since(clock).saturating_sub(*at), found.clone());
            }
            if seen.is_gone || Instant::now() > until {
                let why = Some("it was not sampled in time".to_owned());
                let found = VmDuplicates::default();
                return named(0, VmDuplicates { why, ..found });
            }
            drop(seen);
            std::thread::sleep(TURN / 2);
        }
    }
}

/// Waits for a guest's tenants, or for their absence.
#[derive(Debug)]
pub(crate) struct WantedTenants {
    pub(crate) pid: u32,
    seen: Arc<Mutex<Seen>>,
    since: u64,
}

impl WantedTenants {
    /// Returns the known tenants, at `until` at the latest.
    pub(crate) fn wait(&self, until: Instant) -> Option<Tenants> {
        loop {
            let seen = lock(&self.seen);
            let is_new = seen.tenants_at.is_some_and(|at| at > self.since);
            if is_new || seen.is_gone || Instant::now() > until {
                return seen.tenants.clone();
            }
            drop(seen);
            std::thread::sleep(TURN / 2);
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    found: Found,
    common: Common,
    monitor: Option<Monitor>,
    seen: Arc<Mutex<Seen>>,
    look: Arc<AtomicBool>,
    want: Arc<AtomicU64>,
    want_tenants: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    channel: Option<Channel>,
    next_id: u64,
    /// When the channel is connected at the earliest.
    connect_at: u64,
    /// When the balloon, and QEMU's own memory, are sampled next.
    look_at: u64,
    own_at: u64,
    /// Whether statistics were needed at the last turn.
    was_needed: bool,
    /// A target of the balloon that its monitor may not have received.
    unsent: Option<u64>,
}

impl Worker {
    fn run(mut self, orders: &Receiver<Order>) {
        while !self.stop.load(Ordering::Relaxed) {
            if !runs(self.found.process) {
                lock(&self.seen).is_gone = true;
                return;
            }
            let pid = self.found.process.pid;
            let held = Held::by(pid).unwrap_or_default();
            lock(&self.seen).held = held;
            let now = self.common.now();
            if self.own_at <= now {
                // Hotplugged memory would count as QEMU's own.
                let whole = self.found.most_ram == self.found.ram;
                let own = whole.then(|| own(pid, self.found.ram)).flatten();
                let took = self.common.now() - now;
                self.own_at = now + (took * OWN_PARTS).clamp(OWN_LEAST_MS, OWN_MOST_MS);
                lock(&self.seen).own = own;
            }
            self.listen();
            self.look_at_balloon();
            self.look_at_duplicates();
            self.look_at_tenants();
            match orders.recv_timeout(TURN) {
                Ok(order) => self.carry_out(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// One turn of the channel.
    fn listen(&mut self) {
        let now = self.common.now();
        if self.channel.is_none()
            && self.connect_at <= now
            && let Some(path) = &self.found.channel
        {
            self.connect_at = now + RETRY_MS;
            match Channel::connect(path, now, self.next_id) {
                Ok(channel) => self.channel = Some(channel),
                Err(error) => {
                    tracing::debug!(vm = self.found.name, %error, "the channel to the guest's agent")
                }
            }
        }
        let Some(channel) = &mut self.channel else {
            lock(&self.seen).agent = Some(Agent::None);
            return;
        };
        let turn = channel.turn(now, self.found.most_ram);
        self.next_id = channel.next_id();
        let mut seen = lock(&self.seen);
        let agent = channel.agent(now);
        if seen.agent != Some(agent) && agent == Agent::Ignored {
            tracing::warn!(vm = self.found.name, wrong = ?channel.wrong(), "the guest's agent sends impossible values, or too many lines: it is \
                 ignored for a minute");
        }
        seen.agent = Some(agent);
        seen.wrong = channel.wrong();
        seen.report = channel.state(now);
        match turn {
            Ok(answer) => seen.answers.extend(answer.map(|answer| answer.bytes)),
            Err(error) => {
                tracing::debug!(vm = self.found.name, %error, "the channel to the guest's agent is closed");
                seen.report = None;
                self.channel = None;
            }
        }
    }

    fn look_at_balloon(&mut self) {
        let now = self.common.now();
        let needed = self.look.load(Ordering::Relaxed);
        let soon = needed && !std::mem::replace(&mut self.was_needed, needed);
        let due = self.look_at <= now || soon;
        let Some(monitor) = self.monitor.clone().filter(|_| due) else {
            return;
        };
        let looked = self.balloon(&monitor, needed);
        if let Ok(balloon) = &looked {
            self.settle(&monitor, balloon.actual);
            self.send_again(&monitor, balloon.actual);
        }
        let mut seen = lock(&self.seen);
        match looked {
            Ok(balloon) => {
                self.look_at = now + if needed { LOOK_MS } else { LOOK_SELDOM_MS };
                // While the balloon is not ours, another writer's value is the original.
                if seen.target.is_none() {
                    seen.original = Some(balloon.actual);
                }
                seen.balloon = Some(balloon);
                seen.monitor_error = None;
            }
            Err(error) => {
                self.look_at = now + RETRY_MS;
                seen.balloon = None;
                let error = error.to_string();
                if seen.monitor_error.as_ref() != Some(&error) {
                    tracing::warn!(vm = self.found.name, "{error}");
                }
                seen.monitor_error = Some(error);
            }
        }
    }

    /// Asks the guest for its cached blocks if a client wants them, and checks which of these the host caches.
    fn look_at_duplicates(&mut self) {
        let now = self.common.now();
        let last = lock(&self.seen).duplicates.as_ref().map(|(at, _)| *at);
        let want = self.want.load(Ordering::Relaxed);
        if want == 0 || last.is_some_and(|at| want < at + DUPLICATES_MS) {
            // Drops a late answer: it would be stale for the next client.
            self.channel.as_mut().map(Channel::take_cached);
            return;
        }
        let told = match &mut self.channel {
            Some(channel) if channel.agent(now) == Agent::Answers => {
                let told = channel.take_cached();
                if told.is_none() {
                    let seed = RandomState::new().build_hasher().finish();
                    let _ = channel.ask_cached(now, seed);
                    return;
                }
                told
            }
            _ => None,
        };
        let told = told.unwrap_or_else(|| Err("no agent of its guest answers".to_owned()));
        let guest = told.as_ref().ok();
        let found = VmDuplicates {
            guest_file: guest.map(Cached::file),
            guest_is_whole: guest.is_some_and(Cached::is_whole),
            why: told.as_ref().err().cloned(),
            disks: look(self.found.process.pid, guest, &self.common.cache),
            ..VmDuplicates::default()
        };
        lock(&self.seen).duplicates = Some((now, found));
    }

    /// Asks the guest for its tenants while clients want them.
    fn look_at_tenants(&mut self) {
        let now = self.common.now();
        let want = self.want_tenants.load(Ordering::Relaxed);
        let (mut tenants, mut may_come) = (None, false);
        if want > 0
            && now <= want + LOOKED_MS
            && let Some(channel) = &mut self.channel
        {
            // The next turn notices a closed channel.
            let _ = channel.ask_tenants(now);
            tenants = channel.tenants(now).cloned();
            may_come = channel.may_tell_tenants(now);
        }
        let mut seen = lock(&self.seen);
        seen.tenants = tenants;
        seen.tenants_at = (!may_come).then_some(now);
    }

    fn balloon(&self, monitor: &Monitor, needed: bool) -> Result<BalloonState, MonitorError> {
        let device = lock(&self.seen)
            .balloon
            .as_ref()
            .and_then(|balloon| balloon.device.clone());
        let mut session = monitor.session()?;
        let balloon = session.balloon(device.as_deref())?;
        if needed
            && !self.common.observe
            && !balloon.makes_statistics()
            && let Some(device) = &balloon.device
            && self.note(monitor, &balloon, false)
        {
            session.set_interval(device, STATISTICS_EVERY)?;
        }
        Ok(balloon)
    }

    /// Sends a target again that the monitor may not have received, now that it answers.
    fn send_again(&mut self, monitor: &Monitor, actual: u64) {
        let may_be_sent = !self.common.observe && !lock(&self.seen).is_raised(actual);
        let Some(target) = self.unsent.filter(|_| may_be_sent) else {
            return;
        };
        let sent = match target == actual {
            true => Ok(()),
            false => monitor.set_balloon(target),
        };
        match sent {
            Ok(()) => self.unsent = None,
            Err(error) => tracing::warn!(vm = self.found.name, "{error}"),
        }
    }

    /// Ends the ownership of a balloon with its original size. Also of one that leaves more than that at two samples in a
    /// row: its operator raised it, memory was plugged in, or its guest emptied it. A booting guest fills it again.
    fn settle(&mut self, monitor: &Monitor, actual: u64) {
        let (is_back, is_raised) = {
            let seen = lock(&self.seen);
            let before = seen.balloon.as_ref().map(|balloon| balloon.actual);
            let is_back = seen.target == seen.original && seen.original == Some(actual);
            (is_back, seen.is_raised(actual) && before == Some(actual))
        };
        if !is_back && !is_raised {
            return;
        }
        // Otherwise our target would apply at the guest's next boot.
        if is_raised && let Err(error) = monitor.set_balloon(actual) {
            tracing::warn!(vm = self.found.name, "{error}");
            return;
        }
        self.unsent = None;
        match lock(&self.common.journal).settle(self.found.process) {
            Ok(()) => lock(&self.seen).target = None,
            Err(error) => tracing::warn!(vm = self.found.name, %error, "the journal keeps it"),
        }
    }

    /// Notes in the journal the balloon's size, if it is to change, and its statistics interval. Returns whether both may change.
    fn note(&self, monitor: &Monitor, balloon: &BalloonState, changes: bool) -> bool {
        let original = lock(&self.seen).original.unwrap_or(balloon.actual);
        let statistics = balloon
            .device
            .clone()
            .map(|device| (device, balloon.interval));
        let noted = lock(&self.common.journal).add(
            self.found.process,
            &self.found.name,
            monitor,
            changes.then_some(original),
            statistics,
        );
        if let Err(error) = &noted {
            tracing::warn!(vm = self.found.name, %error, "its balloon is not changed");
        }
        noted.is_ok()
    }

    fn carry_out(&mut self, order: Order) {
        let now = self.common.now();
        match order {
            Order::Reclaim(bytes) => {
                let within_ms = u32::try_from(WITHIN_MS).unwrap_or(u32::MAX);
                let asked = self
                    .channel
                    .as_mut()
                    .map(|channel| channel.reclaim(now, bytes, within_ms));
                if let Some(Err(error)) = asked {
                    tracing::debug!(vm = self.found.name, %error, "the channel to the guest's agent is closed");
                    self.channel = None;
                }
            }
            Order::Balloon(target) => {
                let Some(monitor) = self.monitor.clone() else {
                    return;
                };
                let seen = lock(&self.seen).clone();
                let known = seen.balloon.as_ref();
                let known = known.filter(|of| !seen.is_raised(of.actual));
                if !known.is_some_and(|balloon| self.note(&monitor, balloon, true)) {
                    return;
                }
                // The journal has the original size: from now on the balloon is changed.
                lock(&self.seen).target = Some(target);
                self.look_at = 0;
                let set = monitor.set_balloon(target);
                self.unsent = set.is_err().then_some(target);
                if let Err(error) = set {
                    tracing::warn!(vm = self.found.name, "{error}; trying again later");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_vm_that_has_ended() {
        let seen = Seen {
            is_gone: true,
            ..Seen::default()
        };
        let wanted = Wanted {
            name: "web".to_owned(),
            pid: 7,
            seen: Arc::new(Mutex::new(seen)),
            fresh: 0,
        };
        let until = Instant::now() + Duration::from_secs(3600);
        let found = wanted.wait(Instant::now(), until);
        assert!(found.pid == 7 && found.why.is_some() && Instant::now() < until);
    }
}
