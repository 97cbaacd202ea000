//! The knob store over trees of plain files: original values are restored, values of other writers are left.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod external;
mod journal;
mod restore;
mod state_directory;
mod watchdog;

use justitia_agent::knobs::watchdog::watch;
use justitia_agent::knobs::{
    Corruption, KnobStore, KnobStoreError, ResetReport, RestoreOutcome, RestoredKnob, WriteOutcome,
    preview_reset, reset,
};
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::Knob;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const KNOB: Knob = Knob::MemoryLow;

/// A tree of fixtures, and a state directory beside it. Values have four digits, since a write to a plain file, unlike one
/// to a knob, does not truncate it.
struct Tree {
    dir: TempDir,
    fs: CgroupFs,
}

impl Tree {
    fn new(cgroups: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        for name in cgroups {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("memory.low"), "1000\n").unwrap();
        }
        let fs = CgroupFs::open_fixture(&root).unwrap();
        Self { dir, fs }
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("cgroup").join(name)
    }

    fn cgroup(&self, name: &str) -> Cgroup {
        Cgroup::open_at(&self.fs, Path::new(name)).unwrap()
    }

    fn low(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path(name).join("memory.low")).unwrap();
        text.trim().to_owned()
    }

    fn write(&self, name: &str, low: &str) {
        std::fs::write(self.path(name).join("memory.low"), format!("{low}\n")).unwrap();
    }

    fn open(&self) -> (KnobStore, Vec<RestoredKnob>) {
        KnobStore::open(&self.fs, &self.state()).unwrap()
    }

    fn lows<const N: usize>(&self, names: [&str; N]) -> [String; N] {
        names.map(|name| self.low(name))
    }

    /// Ends a store as when its agent is killed: its journal stays. What its knobs hold has to be written again.
    fn kill(&self, store: KnobStore) {
        let path = self.state().join("ledger");
        let journal = std::fs::read(&path).unwrap();
        drop(store);
        std::fs::write(path, journal).unwrap();
    }

    /// What an agent leaves that is killed after these writes.
    fn killed(&self, writes: &[(&str, &str)]) {
        let (mut store, _) = self.open();
        for (name, low) in writes {
            let written = store.set(&self.cgroup(name), KNOB, low).unwrap();
            assert_eq!(written, WriteOutcome::Written);
        }
        let left: Vec<String> = writes.iter().map(|(name, _)| self.low(name)).collect();
        self.kill(store);
        for ((name, _), low) in writes.iter().zip(left) {
            self.write(name, &low);
        }
    }
}

fn outcomes(mut restored: Vec<RestoredKnob>) -> Vec<(String, RestoreOutcome)> {
    restored.sort_by(|a, b| a.path.cmp(&b.path));
    restored.into_iter().map(|r| (r.path, r.outcome)).collect()
}

/// The original value of a cgroup's [`KNOB`], if the store owns it.
fn original(store: &KnobStore, id: CgroupId) -> Option<&str> {
    let mut owned = store.owned();
    let found = owned.find(|(of, knob, ..)| (*of, *knob) == (id, KNOB))?;
    Some(found.2)
}

/// A knob that another writer has set to this.
fn external(found: &str) -> RestoreOutcome {
    let found = found.to_owned();
    RestoreOutcome::External { found }
}

fn restored(name: &str) -> (String, RestoreOutcome) {
    (name.to_owned(), RestoreOutcome::Restored)
}

/// Drops root's capability to ignore permissions, for this thread.
fn obey_permissions() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let now = capabilities(None).unwrap();
    let root = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(
        None,
        CapabilitySets {
            effective: now.effective.difference(root),
            ..now
        },
    )
    .unwrap();
}
