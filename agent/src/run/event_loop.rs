//! The agent's loop: ticks, answers to clients between them, and the end.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use justitia_api::client::MAX_ANSWER_BYTES;
use justitia_api::control::{Answer, Request};
use justitia_common::answer_socket::AnswerSocket;
use justitia_common::service_manager;
use justitia_common::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::checks::RunError;
use super::reload::Live;
use crate::agent::Agent;
use crate::knobs::journal::boot_id;
use crate::knobs::log_restored;
use crate::status::collect::status;
use crate::status::control::Control;

/// The least time between two ticks, even with many events.
const MIN_TICK: Duration = Duration::from_millis(20);

/// At the end, failed restores are retried for this long.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent, and the sources of wakeups for its loop.
#[derive(Debug)]
pub(super) struct AgentLoop {
    /// The sockets and the port are closed before the agent is dropped: it may still have to restore knobs, and detaching the
    /// probes takes seconds.
    waits: Waits,
    pub(super) live: Live,
    pub(super) agent: Agent,
    observe: bool,
}

/// The sources of wakeups, beside the time and the events of the cgroup tree.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) signals: Signals,
    pub(super) socket: AnswerSocket,
    pub(super) control: Control,
}

/// Why a wait has ended.
enum WakeReason {
    /// A signal to stop.
    Stop,
    /// SIGHUP.
    HangUp,
    /// A client of the control socket.
    Request,
    /// A client of the status socket.
    Client,
    /// Events of the cgroup tree, or the timeout.
    Tick,
}

impl AgentLoop {
    pub(super) const fn new(agent: Agent, waits: Waits, live: Live, observe: bool) -> Self {
        Self {
            waits,
            agent,
            live,
            observe,
        }
    }

    /// Runs until a signal stops it, or a vital file cannot be read any more; then restores all knobs.
    ///
    /// # Errors
    /// If a vital file cannot be read any more, or knobs could not be restored.
    pub(super) fn run(&mut self) -> Result<(), RunError> {
        let stopped = self.tick_until_stopped();
        service_manager::tell("STOPPING=1");
        if let Err(error) = &stopped {
            tracing::error!(%error, "the agent ends with an error; it restores all knobs first");
        }
        self.hand_over();
        let restored = self.restore();
        stopped.and(restored)
    }

    fn tick_until_stopped(&mut self) -> Result<(), RunError> {
        let mut told = false;
        loop {
            // systemd waits for this.
            told = told || service_manager::tell("READY=1");
            let now = Instant::now();
            let wait = self.agent.tick(now)?;
            self.live.doubt_late(&self.agent, now);
            service_manager::tell("WATCHDOG=1");
            if self.answer_until_due(wait) {
                return Ok(());
            }
            std::thread::sleep(MIN_TICK.saturating_sub(now.elapsed()));
        }
    }

    /// Passes the known working sets to the next agent. Without them it has to observe them again.
    fn hand_over(&self) {
        if self.observe {
            return;
        }
        let state = &self.agent.config.state_dir;
        let boot = boot_id().map_err(std::io::Error::other);
        if let Err(error) = boot.and_then(|boot| self.agent.monitor.hand_over(state, &boot)) {
            tracing::warn!(%error, "what is known of working sets is not left to the next agent");
        }
    }

    fn restore(&mut self) -> Result<(), RunError> {
        let knobs = self.agent.knobs.as_mut();
        let restored = knobs.map(|knobs| knobs.restore_all_within(RESTORE_TIMEOUT));
        let restored = restored.unwrap_or_default();
        log_restored("stopping", &restored);
        let failed = restored.iter().filter(|one| one.outcome.is_failed());
        let failed = failed.count();
        if failed > 0 {
            self.agent.credits.leave_to_watchdog();
            return Err(RunError::NotRestored(failed));
        }
        tracing::info!("{}", ended(self.observe, restored.len()));
        Ok(())
    }

    /// Answers clients until `wait` has passed, or events or a signal arrive. Returns whether to stop. Even with many clients,
    /// the next tick does not come earlier, and their cost does not count against the monitor's budget.
    pub(super) fn answer_until_due(&mut self, wait: Duration) -> bool {
        let due = Instant::now() + wait;
        loop {
            let begun = Instant::now();
            let (socket, live, observe) = (&self.waits.socket, &self.live, self.observe);
            self.agent.answer(|agent| {
                socket.answer(|| {
                    agent.monitor.sample_now(Instant::now());
                    let status = status(agent, &live.limitations(), observe);
                    move || status.encode(MAX_ANSWER_BYTES)
                });
            });
            match self.wait(due.saturating_duration_since(begun)) {
                WakeReason::Stop => return true,
                WakeReason::HangUp => {
                    let stop = self.waits.signals.take_hang_up();
                    if !stop {
                        // The result is in the log.
                        let _ = self.reload();
                    }
                    return stop;
                }
                WakeReason::Request => {
                    self.answer_requests();
                    return false;
                }
                WakeReason::Client if Instant::now() < due => {
                    std::thread::sleep(MIN_TICK.saturating_sub(begun.elapsed()));
                }
                WakeReason::Client | WakeReason::Tick => return false,
            }
        }
    }

    /// Reloads the configuration, or reports why not.
    fn reload(&mut self) -> Answer {
        match self.live.reload(&mut self.agent) {
            Ok(done) => {
                tracing::info!("the configuration was read again, and is in effect");
                let errors = Vec::new();
                Answer { done, errors }
            }
            Err(errors) => {
                for error in &errors {
                    tracing::error!("{error}");
                }
                tracing::error!(
                    "the configuration was not changed: the one from before stays in effect"
                );
                let done = Vec::new();
                Answer { done, errors }
            }
        }
    }

    /// Handles the requests of the control socket.
    fn answer_requests(&mut self) {
        for asked in self.waits.control.requests() {
            let answer = match &asked.request {
                Request::Reload => self.reload(),
                Request::Release { knob } => self.agent.release(knob),
                Request::Take { knob } => self.agent.take(knob),
            };
            asked.answer(&answer);
        }
    }

    /// Waits for the timeout, events, a client or a signal.
    fn wait(&self, timeout: Duration) -> WakeReason {
        let waits = &self.waits;
        let mut fds = vec![
            PollFd::new(&waits.signals.stop, PollFlags::IN),
            PollFd::new(&waits.signals.hang_up, PollFlags::IN),
            PollFd::new(waits.control.listener(), PollFlags::IN),
            PollFd::new(waits.control.wake(), PollFlags::IN),
            PollFd::new(waits.socket.listener(), PollFlags::IN),
        ];
        if let Some(watcher) = self.agent.monitor.cgroups.watcher() {
            fds.push(PollFd::from_borrowed_fd(watcher.as_fd(), PollFlags::IN));
        }
        let timeout = Timespec::try_from(timeout).ok();
        // An interrupt shortens the wait.
        let _ = poll(&mut fds, timeout.as_ref());
        let ready = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
        let ready: Vec<bool> = fds.iter().map(ready).collect();
        match *ready {
            [true, ..] => WakeReason::Stop,
            [_, true, ..] => WakeReason::HangUp,
            [_, _, true, ..] | [_, _, _, true, ..] => WakeReason::Request,
            // With events of the tree, the tick comes now.
            [.., true] if ready.len() > 5 => WakeReason::Tick,
            [_, _, _, _, true, ..] => WakeReason::Client,
            _ => WakeReason::Tick,
        }
    }
}

/// The log line at the end.
fn ended(observe: bool, restored: usize) -> String {
    if observe {
        return "stopped: it observed, and changed no knob".to_owned();
    }
    match restored {
        0 => "stopped: no knob had a value of ours".to_owned(),
        1 => "stopped: the knob with a value of ours was restored".to_owned(),
        _ => format!("stopped: all {restored} knobs with a value of ours were restored"),
    }
}
