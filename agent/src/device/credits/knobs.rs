//! Changed knobs, and the watchdog for knobs that must be restored.

use std::path::Path;
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;

use crate::knobs::KnobStore;
use crate::knobs::watchdog::{LEASE_EXPIRY, Watchdog};

/// A knob that was changed or restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its cgroup.
    pub id: CgroupId,
    /// The knob.
    pub knob: Knob,
    /// The new value; `None` for the original one.
    pub to: Option<String>,
    /// The reason.
    pub why: String,
}

/// Restores these for this reason; returns the changes.
pub(super) fn give_back(
    store: &mut KnobStore,
    held: Vec<(CgroupId, Knob)>,
    why: &str,
) -> Vec<Moved> {
    let give_back = |(id, knob)| {
        store.restore(id, knob);
        Moved {
            id,
            knob,
            to: None,
            why: why.to_owned(),
        }
    };
    held.into_iter().map(give_back).collect()
}

// The watchdog, started before the first `memory.high`.

/// Why everything is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetGo {
    /// The last heartbeat is so long ago that the watchdog may have restored our knobs already.
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
            Self::NoWatchdog => f.write_str("the watchdog has ended, and none can be started"),
            Self::SwitchedOff => f.write_str("[io] was switched off"),
        }
    }
}

/// The watchdog, if one watches.
#[derive(Debug)]
pub(super) struct Guarded {
    watchdog: Option<Watchdog>,
    start: fn(&Path) -> std::io::Result<Watchdog>,
    /// Whether a watchdog could not be started, which was logged.
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

    /// Whether a watchdog watches; starts one if not. This sends no heartbeat to a running one: the caller must first check
    /// whether it has restored knobs ([`Guarded::check_lease`]).
    pub(super) fn ready(&mut self, state: &Path) -> bool {
        if self.watchdog.is_none() {
            match (self.start)(state) {
                Ok(started) => {
                    self.watchdog = Some(started);
                    self.refused = false;
                }
                Err(error) if !self.refused => {
                    tracing::warn!(%error, "no watchdog can be started: no writer has a dirty budget until one can");
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

    /// Sends a heartbeat to the watchdog.
    pub(super) fn heartbeat(&mut self, now: Instant) {
        if self
            .watchdog
            .as_mut()
            .is_some_and(|watchdog| !watchdog.heartbeat(now))
        {
            tracing::warn!("the watchdog has ended; it is started anew");
            self.watchdog = None;
        }
    }

    /// Whether our knobs are still ours. Called before each check of a knob of ours and before each write, with the time of
    /// that moment: a turn can be delayed anywhere.
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
