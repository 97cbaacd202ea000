//! The guard of the limits, started when there are any.

use std::path::Path;
use std::time::Instant;

use super::super::guard::{Guard, LAPSE};

/// Why every limit is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetGo {
    /// The guard has heard nothing for so long that what we take for ours may be given back already.
    Lapsed,
    /// No guard watches, and none can be started.
    NoGuard,
}

impl std::fmt::Display for LetGo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lapsed => write!(f, "the agent has not run for {} s", LAPSE.as_secs()),
            Self::NoGuard => {
                f.write_str("the guard of the limits has ended, and none can be started")
            }
        }
    }
}

/// The guard, if one watches.
#[derive(Debug)]
pub(super) struct Guarded {
    guard: Option<Guard>,
    start: fn(&Path) -> std::io::Result<Guard>,
    /// None could be started, which was said.
    refused: bool,
}

impl Guarded {
    /// Nobody watches yet; `start` starts a guard of the ledger in a directory.
    pub(super) const fn new(start: fn(&Path) -> std::io::Result<Guard>) -> Self {
        Self {
            guard: None,
            start,
            refused: false,
        }
    }

    /// Whether a guard watches; starts one if not. One that does is not told here that we live: whether it has given
    /// limits back has to be asked before ([`Guarded::trusted`]).
    pub(super) fn ready(&mut self, state: &Path) -> bool {
        if self.guard.is_none() {
            match (self.start)(state) {
                Ok(started) => {
                    self.guard = Some(started);
                    self.refused = false;
                }
                Err(error) if !self.refused => {
                    tracing::warn!(%error, "no guard can be started: nobody is limited until one can");
                    self.refused = true;
                }
                Err(_) => {}
            }
        }
        self.watches()
    }

    /// See [`Guard::take_over`].
    pub(super) const fn take_over(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.take_over();
        }
    }

    /// Whether a guard watches.
    pub(super) const fn watches(&self) -> bool {
        self.guard.is_some()
    }

    /// Tells the guard that the agent lives.
    pub(super) fn beat(&mut self, now: Instant) {
        if self.guard.as_mut().is_some_and(|guard| !guard.beat(now)) {
            tracing::warn!("the guard of the limits has ended; it is started anew");
            self.guard = None;
        }
    }

    /// Whether what we take for ours still is. Asked before each look at a knob of ours and before each write, with
    /// the clock of that moment: a turn can be held up anywhere.
    pub(super) fn trusted(&self, moment: Instant) -> Result<(), LetGo> {
        match &self.guard {
            Some(guard) if guard.silent_for(moment) >= LAPSE => Err(LetGo::Lapsed),
            _ => Ok(()),
        }
    }

    /// With this guard.
    #[cfg(test)]
    pub(super) fn of(guard: Guard, start: fn(&Path) -> std::io::Result<Guard>) -> Self {
        Self {
            guard: Some(guard),
            ..Self::new(start)
        }
    }
}
