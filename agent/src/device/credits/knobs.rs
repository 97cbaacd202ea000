//! Knobs of tenants, through the knob store: whose they are, and one disk's limits.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use justitia_api::escape;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::io::DevId;
use justitia_kernel::knob::Knob;
use justitia_share::credit::Limits;

use crate::device::ours::{still_stands, told};
use crate::device::plan::{LimitIntent, io_max};
use crate::knobs::KnobStore;
use crate::knobs::watchdog::{LEASE_EXPIRY, Watchdog};
use crate::monitor::Monitor;

/// By less than this part limits move all the time, by chance.
const LITTLE: f64 = 0.4;

pub(super) fn unlimited(device: DevId) -> String {
    io_max(device, &Limits::default())
}

/// Cedes the limits of a disk that another writer has written, and forgets those that are gone.
pub(super) fn yield_foreign(
    device: DevId,
    standing: &mut HashMap<CgroupId, Limits>,
    store: &mut KnobStore,
    watchdog: &Guarded,
) -> Result<(), LetGo> {
    let knob = Knob::IoMax(device);
    let ids: Vec<CgroupId> = standing.keys().copied().collect();
    for id in ids {
        watchdog.check_lease(Instant::now())?;
        if !still_stands(store, id, knob) {
            standing.remove(&id);
        }
    }
    Ok(())
}

/// Whether an intent moves a limit by more than a [`LITTLE`].
pub(super) fn far(intent: &LimitIntent, standing: &HashMap<CgroupId, Limits>) -> bool {
    let standing = standing.get(&intent.id);
    standing.is_none_or(|standing| !intent.limits.near(standing, LITTLE))
}

/// Moves one disk's limits to where they should be.
pub(super) fn limit(
    standing: &mut HashMap<CgroupId, Limits>,
    intents: Vec<LimitIntent>,
    monitor: &Monitor,
    store: &mut KnobStore,
    watchdog: &Guarded,
    moved: &mut Vec<Moved>,
) -> Result<(), LetGo> {
    for intent in intents {
        let device = intent.device;
        let knob = Knob::IoMax(device);
        if intent.limits.none() {
            standing.remove(&intent.id);
            store.restore(intent.id, knob);
            moved.push(Moved {
                id: intent.id,
                knob,
                to: None,
                why: intent.reason.to_string(),
            });
            continue;
        }
        let Some(node) = monitor.cgroups.get(intent.id) else {
            continue;
        };
        let value = io_max(device, &intent.limits);
        tracing::debug!(tenant = escape::encode(node.cgroup.path().as_os_str()), value, why = %intent.reason, "io.max");
        watchdog.check_lease(Instant::now())?;
        let written = store.hold(&node.cgroup, knob, &value);
        if told(&node.cgroup, knob, written, store) {
            standing.insert(intent.id, intent.limits);
            moved.push(Moved {
                id: intent.id,
                knob,
                to: Some(value),
                why: intent.reason.to_string(),
            });
        } else {
            standing.remove(&intent.id);
        }
    }
    Ok(())
}

/// A limit that has moved, or has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Whose.
    pub id: CgroupId,
    /// Which knob.
    pub knob: Knob,
    /// What stands there now; `None` for what stood there before us.
    pub to: Option<String>,
    /// The facts behind it.
    pub why: String,
}

// The watchdog of the limits, started when there are any.

/// Why every limit is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetGo {
    /// The watchdog has received no heartbeat for so long that what we take for ours may be given back already.
    LeaseExpired,
    /// No watchdog watches, and none can be started.
    NoWatchdog,
    /// The configuration does not divide disks any more.
    SwitchedOff,
}

impl std::fmt::Display for LetGo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LeaseExpired => {
                write!(f, "the agent has not run for {} s", LEASE_EXPIRY.as_secs())
            }
            Self::NoWatchdog => {
                f.write_str("the watchdog of the limits has ended, and none can be started")
            }
            Self::SwitchedOff => f.write_str("[io] was switched off"),
        }
    }
}

/// The watchdog, if one watches.
#[derive(Debug)]
pub(super) struct Guarded {
    watchdog: Option<Watchdog>,
    start: fn(&Path) -> std::io::Result<Watchdog>,
    /// None could be started, which was said.
    refused: bool,
}

impl Guarded {
    /// There is no watchdog yet; `start` starts a watchdog of the journal in a directory.
    pub(super) const fn new(start: fn(&Path) -> std::io::Result<Watchdog>) -> Self {
        Self {
            watchdog: None,
            start,
            refused: false,
        }
    }

    /// Whether a watchdog watches; starts one if not. One that does is not told here that we live: whether it has given
    /// limits back has to be asked before ([`Guarded::check_lease`]).
    pub(super) fn ready(&mut self, state: &Path) -> bool {
        if self.watchdog.is_none() {
            match (self.start)(state) {
                Ok(started) => {
                    self.watchdog = Some(started);
                    self.refused = false;
                }
                Err(error) if !self.refused => {
                    tracing::warn!(%error, "no watchdog can be started: nobody is limited until one can");
                    self.refused = true;
                }
                Err(_) => {}
            }
        }
        self.watches()
    }

    /// See [`Watchdog::take_over`].
    pub(super) const fn take_over(&mut self) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.take_over();
        }
    }

    /// Whether a watchdog watches.
    pub(super) const fn watches(&self) -> bool {
        self.watchdog.is_some()
    }

    /// Tells the watchdog that the agent lives.
    pub(super) fn heartbeat(&mut self, now: Instant) {
        if self
            .watchdog
            .as_mut()
            .is_some_and(|watchdog| !watchdog.heartbeat(now))
        {
            tracing::warn!("the watchdog of the limits has ended; it is started anew");
            self.watchdog = None;
        }
    }

    /// Whether what we take for ours still is. Asked before each look at a knob of ours and before each write, with
    /// the clock of that moment: a turn can be held up anywhere.
    pub(super) fn check_lease(&self, moment: Instant) -> Result<(), LetGo> {
        match &self.watchdog {
            Some(watchdog) if watchdog.since_heartbeat(moment) >= LEASE_EXPIRY => {
                Err(LetGo::LeaseExpired)
            }
            _ => Ok(()),
        }
    }

    /// With this watchdog.
    #[cfg(test)]
    pub(super) fn of(watchdog: Watchdog, start: fn(&Path) -> std::io::Result<Watchdog>) -> Self {
        Self {
            watchdog: Some(watchdog),
            ..Self::new(start)
        }
    }
}
