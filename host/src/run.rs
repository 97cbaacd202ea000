//! The daemon: it ticks four times a second.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use justitia_api::escape::plain;
use justitia_api::units::bytes;
use justitia_common::answer_socket::AnswerSocket;
use justitia_common::service_manager;
use justitia_common::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::Serialize;

use crate::config::Config;
use crate::discover::{self, Found, Process};
use crate::duplicates::{self, Duplicates};
use crate::held;
use crate::journal::{Entry, Journal, JournalError, MAX_VMS, Outcome};
use crate::law::{Host, Law, Order, Plan, Vm as LawVm};
use crate::managed::{Managed, id, is_watched, view, vm_status};
use crate::status::{self, DUPLICATES_TIMEOUT, Status, words};
use crate::vm::{Common, Vm, lock};

/// The interval between decisions.
const TICK: Duration = Duration::from_millis(250);
/// The interval between searches for VMs.
const DISCOVER: Duration = Duration::from_secs(5);
/// The interval between attempts to restore balloons of unmanaged VMs: a monitor that hangs delays the others meanwhile.
const RETRY: Duration = Duration::from_secs(60);
/// How long failed restores are tried again at the end.
const RESTORE: Duration = Duration::from_secs(5);
/// How long the balloon of a new VM with a channel is left alone, milliseconds: its agent may still answer.
const AGENT_MS: u64 = 10_000;
/// Decisions kept for each VM.
const KEPT: usize = 16;

/// Why `justitia host run` ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The status socket, a signal, or the host's memory.
    #[error("{what}: {source}")]
    Io {
        /// The failing part.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Some balloons could not be restored.
    #[error(
        "{0} balloons could not be restored: `justitia host reset` tries again, while their VMs run"
    )]
    NotRestored(usize),
}

/// The options of the daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration.
    pub config: Config,
    /// The file that SIGHUP reads again, if it is not the default one.
    pub config_file: Option<PathBuf>,
    /// The directory of the journal and the sockets.
    pub directory: PathBuf,
    /// Changes nothing, and asks no guest for memory.
    pub observe: bool,
}

#[derive(Debug)]
struct Daemon {
    options: Options,
    common: Common,
    law: Law,
    vms: BTreeMap<Process, Managed>,
    plan: Plan,
    /// The processes of the last plan, in its order.
    planned: Vec<Process>,
    memory: (u64, u64),
    discovered: Option<Instant>,
    /// When restoring balloons of unmanaged VMs was last tried.
    retried: Instant,
    /// Targets of balloons that were found changed at the start.
    restored: BTreeMap<Process, u64>,
    /// VMs that are left alone: they share a name that has a configured socket.
    ambiguous: Vec<Process>,
    /// Whether systemd was told that the daemon is ready.
    is_told: bool,
}

/// Runs until a signal asks it to stop. Then it restores every balloon that it has changed, or has found changed.
///
/// # Errors
/// If it cannot start, the host's memory cannot be read, or balloons could not be restored.
pub fn run(options: Options) -> Result<(), RunError> {
    let mut journal = Journal::open(&options.directory)?;
    let restored = restore_left(&mut journal, options.observe)?;
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| RunError::Io { what, source }
    };
    let listen = |name| AnswerSocket::listen(&options.directory.join(name));
    let socket = listen(status::SOCKET).map_err(io("the status socket"))?;
    let for_tenants = listen(status::TENANTS_SOCKET).map_err(io("the socket for tenants"))?;
    let for_duplicates = listen(duplicates::SOCKET).map_err(io("the socket for duplicates"))?;
    let metrics = options.config.metrics.map(|address| {
        crate::metrics::serve(address, &options.directory)
            .map_err(io(&format!("metrics on {address}")))
    });
    let _metrics = metrics.transpose()?;
    let mut signals = Signals::handle().map_err(io("signals"))?;
    let mut daemon = Daemon {
        common: Common {
            journal: Arc::new(Mutex::new(journal)),
            clock: Instant::now(),
            observe: options.observe,
            cache: options.config.cache.clone(),
        },
        options,
        law: Law::default(),
        vms: BTreeMap::new(),
        plan: Plan::default(),
        planned: Vec::new(),
        memory: (0, 0),
        discovered: None,
        retried: Instant::now(),
        restored,
        ambiguous: Vec::new(),
        is_told: false,
    };
    let ended = loop {
        let begun = Instant::now();
        if let Err(error) = daemon.tick() {
            break Err(error);
        }
        socket.answer(|| {
            let status = daemon.status();
            move || json(&status)
        });
        for_tenants.answer(|| daemon.with_tenants());
        for_duplicates.answer(|| daemon.duplicates());
        service_manager::tell("WATCHDOG=1");
        let left = Timespec::try_from(TICK.saturating_sub(begun.elapsed())).ok();
        let sockets = [&signals.stop, &signals.hang_up];
        let mut sockets = sockets.map(|socket| PollFd::new(socket, PollFlags::IN));
        let _ = poll(&mut sockets, left.as_ref());
        match sockets.map(|socket| socket.revents().contains(PollFlags::IN)) {
            [true, _] => break Ok(()),
            [_, true] if signals.take_hang_up() => break Ok(()),
            [_, true] => daemon.reload(),
            _ => {}
        }
    };
    service_manager::tell("STOPPING=1");
    ended.and(daemon.end())
}

/// Restores balloons that a killed `justitia host run` has left changed. With `dry_run` it only lists them.
///
/// # Errors
/// If the journal cannot be used.
pub fn reset(
    directory: &Path,
    dry_run: bool,
) -> Result<Vec<(String, Option<Outcome>)>, JournalError> {
    if !directory.exists() {
        // The directory is not created.
        return Ok(Vec::new());
    }
    let mut journal = Journal::open(directory)?;
    let say = |entry: &Entry| match entry.balloon {
        Some(balloon) => format!("{}: {}", plain(&entry.name), bytes(balloon)),
        None => format!("{}: how often it makes statistics", plain(&entry.name)),
    };
    if dry_run {
        let entries = journal.entries().iter();
        return Ok(entries.map(|entry| (say(entry), None)).collect());
    }
    let restored = journal.restore_all()?.into_iter();
    Ok(restored
        .map(|(entry, outcome)| (say(&entry), Some(outcome)))
        .collect())
}

/// Restores balloons that were left changed, unless the daemon observes. Returns their targets, also of those that failed.
fn restore_left(
    journal: &mut Journal,
    observe: bool,
) -> Result<BTreeMap<Process, u64>, JournalError> {
    if observe {
        for entry in journal.leave() {
            tracing::warn!(
                vm = entry.name,
                balloon = entry.balloon,
                "a killed `justitia host run` has left its balloon changed. This one only observes: once it has ended, \
                 `justitia host reset` restores the balloon"
            );
        }
        return Ok(BTreeMap::new());
    }
    let restored = journal.restore_all()?;
    log_restored(&restored);
    let asked = |(entry, outcome): &(Entry, Outcome)| {
        let runs = !matches!(outcome, Outcome::Gone);
        Some((entry.process, entry.balloon.filter(|_| runs)?))
    };
    Ok(restored.iter().filter_map(asked).collect())
}

fn log_restored(restored: &[(Entry, Outcome)]) {
    for (entry, outcome) in restored {
        match outcome {
            Outcome::Restored => tracing::info!(
                vm = entry.name,
                balloon = entry.balloon,
                "its balloon was restored"
            ),
            Outcome::Gone => tracing::info!(vm = entry.name, "the VM or its balloon is gone"),
            Outcome::Failed(error) => {
                tracing::error!(vm = entry.name, %error, "its balloon was not restored")
            }
        }
    }
}

impl Daemon {
    fn tick(&mut self) -> Result<(), RunError> {
        self.is_told = self.is_told || service_manager::tell("READY=1");
        let now = self.common.now();
        self.memory = held::memory().map_err(|source| RunError::Io {
            what: "the host's memory, /proc/meminfo".to_owned(),
            source,
        })?;
        if self.discovered.is_none_or(|at| at.elapsed() >= DISCOVER) {
            self.discover();
            self.clear_journal();
            self.discovered = Some(Instant::now());
        }
        self.forget_gone();
        let mut seen = Vec::new();
        for (process, managed) in &mut self.vms {
            let answers = std::mem::take(&mut managed.vm.seen().answers);
            for given in answers {
                managed.given += given;
                self.law.answered(now, id(*process), given);
            }
            let mut vm = view(*process, managed, &managed.vm.seen());
            // Its agent may still answer.
            let is_new = now < managed.found_at + AGENT_MS && managed.vm.found.channel.is_some();
            if is_new && vm.guest.is_none() {
                vm.balloon = None;
            }
            seen.push((*process, vm));
        }
        let (total, available) = self.memory;
        let total = self.options.config.memory(total);
        let held: u64 = seen.iter().map(|(_, vm): &(_, LawVm)| vm.resident).sum();
        let most = self.options.config.most;
        let left = most.map(|most| most.saturating_sub(held));
        let available = left.map_or(available, |left| left.min(available));
        let over = most.map_or(0, |most| held.saturating_sub(most));
        self.memory = (total, available);
        let host = Host {
            available,
            headroom: self.options.config.headroom.of(total),
            over,
        };
        let (processes, vms): (Vec<Process>, Vec<LawVm>) = seen.into_iter().unzip();
        self.plan = self.law.decide(now, host, &vms);
        self.planned = processes;
        tracing::trace!(now, ?host, plan = ?self.plan, ?vms, "planned");
        self.act(now);
        Ok(())
    }

    fn act(&mut self, now: u64) {
        for (process, place) in self.planned.iter().zip(&self.plan.places) {
            let Some(managed) = self.vms.get_mut(process) else {
                continue;
            };
            let watched = is_watched(&managed.vm.seen(), managed.vm.found.ram, place);
            managed.vm.look(watched);
            let decision = self
                .plan
                .decisions
                .iter()
                .find(|decision| decision.vm == place.vm);
            let Some(decision) = decision else {
                continue;
            };
            let what = words(decision, place);
            tracing::debug!(vm = managed.vm.found.name, "{what}");
            if managed.decisions.len() == KEPT {
                managed.decisions.pop_front();
            }
            managed.decisions.push_back((now, what));
            if self.options.observe {
                continue;
            }
            if let Order::Reclaim(bytes) = decision.order {
                managed.asked += bytes;
            }
            managed.vm.order(decision.order);
        }
    }

    /// Reads the configuration again. A faulty one changes nothing. Managed VMs keep their sockets.
    fn reload(&mut self) {
        service_manager::tell("RELOADING=1");
        self.is_told = false;
        match Config::load(self.options.config_file.as_deref()) {
            Ok(config) => {
                let left = |(process, managed): (&Process, &Managed)| {
                    (!config.manages(&managed.vm.found)).then_some(*process)
                };
                let left: Vec<Process> = self.vms.iter().filter_map(left).collect();
                self.leave(&left);
                if config.metrics != self.options.config.metrics {
                    tracing::warn!("metrics keep their address until a restart");
                }
                self.options.config = config;
                self.discovered = None;
                tracing::info!("the configuration was read again");
            }
            Err(error) => {
                tracing::error!("the configuration stays what it was: {error}");
            }
        }
    }

    /// Forgets ended VMs and their journal entries.
    fn forget_gone(&mut self) {
        let gone = self.vms.iter().filter(|(_, vm)| vm.vm.seen().is_gone);
        let gone: Vec<Process> = gone.map(|(process, _)| *process).collect();
        if !gone.is_empty() {
            self.leave(&gone);
        }
    }

    /// Stops managing VMs: their balloons are restored. A monitor that hangs delays few others.
    fn leave(&mut self, left: &[Process]) {
        // All threads are told to end before the first is joined.
        for process in left {
            if let Some(managed) = self.vms.get(process) {
                managed.vm.stop();
            }
        }
        self.vms.retain(|process, _| !left.contains(process));
        for (entry, outcome) in self.restore(|process| left.contains(&process)) {
            if let Outcome::Failed(error) = outcome {
                tracing::warn!(vm = entry.name, %error, "its balloon is tried again");
                // The VM may be managed again before that.
                self.restored
                    .extend(entry.balloon.map(|balloon| (entry.process, balloon)));
            }
        }
    }

    fn restore(&self, which: impl Fn(Process) -> bool) -> Vec<(Entry, Outcome)> {
        let restored = lock(&self.common.journal).restore(which);
        restored.unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        })
    }

    /// Takes unmanaged VMs out of the journal: ended ones, and every [`RETRY`] those that can be restored by now.
    fn clear_journal(&mut self) {
        let is_due = self.retried.elapsed() >= RETRY;
        if is_due {
            self.retried = Instant::now();
        }
        let is_left = |process: Process| !self.vms.contains_key(&process);
        let done = self.restore(|process| is_left(process) && (is_due || !discover::runs(process)));
        for (entry, outcome) in done {
            if !matches!(outcome, Outcome::Failed(_)) {
                tracing::info!(vm = entry.name, ?outcome, "removed from the journal");
                self.restored.remove(&entry.process);
            }
        }
    }

    /// Stops managing VMs that share a name with a configured socket: it would be used for all of them.
    fn refuse_ambiguous(&mut self, vms: &mut Vec<Found>) {
        let ambiguous = self.options.config.ambiguous(vms);
        for found in vms.iter() {
            if ambiguous.contains(&found.process) && !self.ambiguous.contains(&found.process) {
                tracing::error!(
                    vm = found.name,
                    pid = found.process.pid,
                    "expected one VM of its name, to which [[vm]] gives a socket, found several: \
                     they are left alone until each has a name of its own (`-name`)"
                );
            }
        }
        vms.retain(|found| !ambiguous.contains(&found.process));
        if ambiguous
            .iter()
            .any(|process| self.vms.contains_key(process))
        {
            self.leave(&ambiguous);
        }
        self.ambiguous = ambiguous;
    }

    fn discover(&mut self) {
        let mut vms = discover::vms();
        vms.retain(|found| self.options.config.manages(found));
        self.refuse_ambiguous(&mut vms);
        discover::put_in_turn(&mut vms);
        // A managed VM gives up its place if it comes too late in the order.
        let late = vms.split_off(MAX_VMS.min(vms.len()));
        let late = late.iter().map(|found| found.process);
        let late: Vec<Process> = late
            .filter(|process| self.vms.contains_key(process))
            .collect();
        if !late.is_empty() {
            tracing::warn!(
                left = late.len(),
                "there are more than {MAX_VMS} VMs: these are left alone"
            );
            self.leave(&late);
        }
        for found in vms {
            if let Some(managed) = self.vms.get_mut(&found.process) {
                let (found, weight, minimum) = self.options.config.of(found);
                (managed.weight, managed.minimum) = (weight, minimum);
                managed.vm.found.limit = found.limit;
                continue;
            }
            if self.vms.len() >= MAX_VMS {
                continue;
            }
            let (found, weight, minimum) = self.options.config.of(found);
            if found.qmp.is_none() && found.channel.is_none() && !found.libvirt {
                tracing::debug!(
                    vm = found.name,
                    "neither a monitor nor a channel was found: it is left alone"
                );
            }
            tracing::info!(vm = found.name, pid = found.process.pid, weight = weight.get(), qmp = ?found.qmp, channel = ?found.channel, "found a VM");
            let process = found.process;
            let restored = self.restored.remove(&process);
            match Vm::start(found, self.common.clone(), restored) {
                Ok(vm) => {
                    let managed = Managed::new(vm, weight, minimum, self.common.now());
                    self.vms.insert(process, managed);
                }
                Err(error) => tracing::warn!(%error, "starting the thread of a VM"),
            }
        }
    }

    /// Ends the threads, then restores.
    fn end(&mut self) -> Result<(), RunError> {
        for managed in self.vms.values() {
            managed.vm.stop();
        }
        self.vms.clear();
        let until = Instant::now() + RESTORE;
        loop {
            let restored = lock(&self.common.journal).restore_all()?;
            log_restored(&restored);
            let failed = restored
                .iter()
                .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
                .count();
            if failed == 0 {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(RunError::NotRestored(failed));
            }
            std::thread::sleep(TICK);
        }
    }

    /// Has all VMs look for blocks that they and their guests cache. Returns a function that waits for these, and makes JSON.
    fn duplicates(&self) -> impl FnOnce() -> Vec<u8> + use<> {
        let (clock, now) = (self.common.clock, self.common.now());
        let vms = self.vms.values();
        let wanted: Vec<_> = vms.map(|managed| managed.vm.want_duplicates(now)).collect();
        move || {
            let until = Instant::now() + DUPLICATES_TIMEOUT;
            let found = wanted.iter().map(|of| of.wait(clock, until));
            json(&Duplicates {
                vms: found.collect(),
            })
        }
    }

    /// Returns a function that waits for the guests' tenants, and makes JSON of the status.
    fn with_tenants(&self) -> impl FnOnce() -> Vec<u8> + use<> {
        let (status, vms) = (self.status(), self.vms.values());
        let wanted: Vec<_> = vms
            .map(|managed| managed.vm.want_tenants(&self.common))
            .collect();
        move || json(&status.with_tenants(&wanted))
    }

    fn status(&self) -> Status {
        let now = self.common.now();
        let places = self.planned.iter().zip(&self.plan.places);
        let vms = places.filter_map(|(process, place)| {
            self.vms
                .get(process)
                .map(|managed| vm_status(now, *process, managed, place))
        });
        let (total, available) = self.memory;
        Status {
            observe: self.options.observe,
            total,
            available,
            headroom: self.options.config.headroom.of(total),
            capacity: self.plan.capacity,
            shortage: self.plan.shortage,
            urgent: self.plan.urgent,
            vms: vms.collect(),
        }
    }
}

/// Plain data always serialises.
fn json<T: Serialize>(document: &T) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_default()
}
