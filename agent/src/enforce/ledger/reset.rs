//! Giving back what an agent has left, without starting one.

use std::path::{Path, PathBuf};

use justitia_kernel::cgroup::CgroupFs;
use justitia_kernel::knob::Knob;

use super::lock::lock;
use super::restore::give_back;
use super::{LedgerError, Returned};
use crate::enforce::journal::Journal;

/// What [`reset`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reset {
    /// The knobs that the ledger named, and how each came back.
    pub returned: Vec<Returned>,
    /// What could not be read of it.
    pub damage: Option<Damage>,
}

/// What a damaged ledger has lost: knobs that only these lines named may hold our values still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// How many lines could not be read, at least 1.
    pub lines: usize,
    /// Where the file is now.
    pub aside: PathBuf,
}

/// Gives back what a killed agent has left, without starting one. With `damaged`, does what can be done for a
/// damaged ledger: intact entries whose knob still holds our value; the file is put aside as
/// `ledger.damaged`.
///
/// # Errors
/// If an agent runs, or the ledger cannot be read, or is damaged and `damaged` was not asked for: nothing was changed
/// then. If the ledger's file cannot be replaced: its knobs are back all the same.
pub fn reset(fs: &CgroupFs, state: &Path, damaged: bool) -> Result<Reset, LedgerError> {
    if !state.exists() {
        return Ok(Reset::default());
    }
    let _lock = lock(state)?;
    let path = state.join("ledger");
    let contents = Journal::read(&path)?;
    let aside = state.join("ledger.damaged");
    let damage = match contents.damage {
        Some(error) if !damaged => return Err(error.into()),
        damage => damage.map(|_| Damage {
            lines: contents.damaged,
            aside: aside.clone(),
        }),
    };
    let (returned, failed) = give_back(fs, contents.entries);
    let state_error = |source| LedgerError::State {
        path: state.to_owned(),
        source,
    };
    if damage.is_some() {
        std::fs::rename(&path, &aside).map_err(state_error)?;
    }
    if failed.is_empty() {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(state_error(e)),
            _ => {}
        }
    } else {
        Journal::create(&path, &failed)?;
    }
    Ok(Reset { returned, damage })
}

/// Gives back what throttles (`io.max`, `memory.high`), and when the kernel writes back, by the journal in `state`,
/// while its agent still holds it but cannot act. The journal stays as it is: the agent, or the next start, goes by
/// it. Lines that are damaged are passed over.
///
/// # Errors
/// If the journal cannot be read.
pub fn lapse(fs: &CgroupFs, state: &Path) -> Result<Vec<Returned>, LedgerError> {
    let mut entries = Journal::read(&state.join("ledger"))?.entries;
    entries.retain(|e| {
        matches!(
            e.knob,
            Knob::IoMax(_) | Knob::MemoryHigh | Knob::DirtyBackground
        )
    });
    Ok(give_back(fs, entries).0)
}
