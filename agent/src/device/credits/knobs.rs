//! What has moved, and the watchdog of what is to be given back.

use std::path::Path;
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;

use crate::knobs::KnobStore;
use crate::knobs::watchdog::{LEASE_EXPIRY, Watchdog};

/// A knob that has moved, or was given back.
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

/// Gives these back, for this reason; returns what has moved.
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

/// Why everything is given back.
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
    /// knobs back has to be asked before ([`Guarded::check_lease`]).
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

    /// Tells the watchdog that the agent lives.
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
