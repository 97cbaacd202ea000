//! When the kernel begins to write back: late, while buffered writers contend.
//!
//! By default it begins at half of what may be dirty (`vm.dirty_background_ratio` 10, `vm.dirty_ratio` 20). What it
//! hands to the disk waits there for the writer's turn, where it can be neither deleted nor written again, and is written for nothing: a tenth of what random writers do, more of file servers (docs/results). So
//! while there are buffered writers among the tenants that contend, it begins just before writers are held back.

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::knob::{Knob, read_raw};

use super::knobs::Moved;
use crate::knobs::{KnobStore, RestoreOutcome, WriteOutcome};

const KNOB: Knob = Knob::DirtyBackground;
/// The kernel's default, per cent (mm/page-writeback.c).
const USUAL: u64 = 10;

/// The setting, ours or its operator's.
#[derive(Debug)]
pub(super) struct Late {
    /// The knobs of the machine are kept under it.
    root: Cgroup,
    /// It is not to be set, for a reason that was told.
    left: bool,
}

impl Late {
    pub(super) const fn new(root: Cgroup) -> Self {
        Self { root, left: false }
    }

    /// Has the kernel write back late. `Err` is why it is left as it is, once.
    pub(super) fn hold(&mut self, store: &mut KnobStore) -> Result<Option<Moved>, String> {
        let id = self.root.id();
        if store.applied(id, KNOB).is_some() || self.left || !store.may_write(id, KNOB) {
            return Ok(None);
        }
        self.left = true;
        let told = |why: &dyn std::fmt::Display| {
            format!(
                "Device bandwidth: {KNOB} is left as it is: {why}. Where the kernel begins to write back long before it \
                 holds writers back, part of what such writers write is written for nothing"
            )
        };
        // Of a container's own hierarchy, which ends with it, though the setting is the machine's.
        if self.root.full_path().join("cgroup.type").exists() {
            return Err(told(
                &"this is a cgroup namespace, and it is of the whole machine",
            ));
        }
        let found =
            read_raw(&self.root, KNOB).and_then(|found| Ok((found, self.root.dirty_ratio()?)));
        let (found, dirty) = found.map_err(|error| told(&error))?;
        let Some(late) = late(&found, dirty).map_err(|why| told(&why))? else {
            return Ok(None);
        };
        match store.set(&self.root, KNOB, &late) {
            Ok(
                WriteOutcome::Written | WriteOutcome::Unchanged | WriteOutcome::Reapplied { .. },
            ) => {
                self.left = false;
                Ok(Some(self.moved(Some(late), WHY)))
            }
            Ok(WriteOutcome::External { .. } | WriteOutcome::Gone | WriteOutcome::GivenUp) => {
                Ok(None)
            }
            Ok(WriteOutcome::Deferred) => {
                self.left = false;
                Ok(None)
            }
            Err(_) if store.may_write(id, KNOB) => {
                // For want of something at this moment: it is tried again.
                self.left = false;
                Ok(None)
            }
            Err(error) => Err(told(&error)),
        }
    }

    /// Looks whether another writer has set it since, or what it follows.
    pub(super) fn audit(&self, store: &mut KnobStore) -> Option<Moved> {
        let id = self.root.id();
        if let Ok(Some(WriteOutcome::External { applied, found, by })) = store.audit(id, KNOB) {
            tracing::warn!(knob = %KNOB, applied, found, by, "external: another writer has set it");
            return None;
        }
        let ours = store.applied(id, KNOB)?.parse();
        let dirty = self.root.dirty_ratio().ok()?;
        if ours == Ok(dirty.saturating_sub(1)) {
            return None;
        }
        self.release(store, "vm.dirty_ratio has changed")
    }

    /// Gives it back, if it is held.
    pub(super) fn release(&self, store: &mut KnobStore, why: &str) -> Option<Moved> {
        let back = store.restore(self.root.id(), KNOB);
        (back == Some(RestoreOutcome::Restored)).then(|| self.moved(None, why))
    }

    fn moved(&self, to: Option<String>, why: &str) -> Moved {
        Moved {
            id: self.root.id(),
            knob: KNOB,
            to,
            why: why.to_owned(),
        }
    }
}

const WHY: &str = "buffered writers contend: what is written back early waits at the disk, where it can be neither \
                   deleted nor written again";

/// Where it should stand: one below `dirty`, what `vm.dirty_ratio` says; `None` if it stands there, or above; or why
/// `background`, what is found, stays.
fn late(background: &str, dirty: u64) -> Result<Option<String>, String> {
    let late = dirty.saturating_sub(1);
    match (background.parse(), dirty) {
        (Ok(0), _) => Err("its operator has set vm.dirty_background_bytes".to_owned()),
        (_, 0) => Err("its operator has set vm.dirty_bytes".to_owned()),
        (Ok(found), _) if found >= late => Ok(None),
        (Ok(USUAL), _) => Ok(Some(late.to_string())),
        _ => Err(format!("its operator has set it to {background}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;

    #[test]
    fn just_before_writers_are_held_back_unless_its_operator_has_chosen() {
        let stands = |value: &str| Ok(Some(value.to_owned()));
        assert_eq!(late("10", 20), stands("19"));
        assert_eq!(late("10", 40), stands("39"));
        for (background, dirty) in [("19", 20), ("10", 11), ("10", 5), ("30", 20)] {
            assert_eq!(late(background, dirty), Ok(None), "{background} {dirty}");
        }
        for (background, dirty, why) in [
            ("0", 20, "vm.dirty_background_bytes"),
            ("10", 0, "vm.dirty_bytes"),
            ("5", 20, "set it to 5"),
        ] {
            let found = late(background, dirty).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
    }

    /// A machine, with its knob store.
    fn machine(dir: &std::path::Path, background: &str) -> (Late, KnobStore) {
        let root = dir.join("cgroup");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("dirty_ratio"), "20\n").unwrap();
        std::fs::write(root.join(KNOB.file()), background).unwrap();
        let fs = CgroupFs::open_fixture(&root, true).unwrap();
        let (store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
        (Late::new(fs.root().clone()), store)
    }

    fn stands(dir: &std::path::Path) -> String {
        std::fs::read_to_string(dir.join("cgroup").join(KNOB.file())).unwrap()
    }

    #[test]
    fn comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "10");
        let moved = late.hold(&mut store).unwrap().unwrap();
        assert_eq!(
            (moved.to.as_deref(), stands(dir.path()).as_str()),
            (Some("19"), "19")
        );
        assert_eq!(late.hold(&mut store), Ok(None), "it stands already");
        assert_eq!(late.release(&mut store, "").unwrap().to, None);
        assert_eq!(stands(dir.path()), "10");
        assert_eq!(late.release(&mut store, ""), None);
        // However the agent ends.
        late.hold(&mut store).unwrap();
        assert_eq!(stands(dir.path()), "19");
        drop(store);
        assert_eq!(stands(dir.path()), "10");
    }

    #[test]
    fn its_operators_choice_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "5");
        assert!(late.hold(&mut store).unwrap_err().contains("set it to 5"));
        assert_eq!(late.hold(&mut store), Ok(None), "told once");
        assert_eq!(stands(dir.path()), "5");
    }

    #[test]
    fn a_setting_that_is_read_only_here_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "10");
        store.write_knob = |cgroup, knob, _| {
            Err(justitia_kernel::Error::Io {
                operation: justitia_kernel::Operation::Write,
                path: cgroup.full_path().join(knob.file()),
                errno: rustix::io::Errno::ROFS,
            })
        };
        let told = late.hold(&mut store).unwrap_err();
        assert!(told.contains("Read-only"), "{told}");
        assert_eq!(late.hold(&mut store), Ok(None), "told once");
        assert_eq!(store.read_only(), None, "it says nothing of the cgroups");
    }

    #[test]
    fn who_sets_it_meanwhile_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "10");
        late.hold(&mut store).unwrap();
        assert_eq!(late.audit(&mut store), None);
        assert_eq!(store.applied(late.root.id(), KNOB), Some("19"));
        std::fs::write(dir.path().join("cgroup").join(KNOB.file()), "7").unwrap();
        assert_eq!(late.audit(&mut store), None);
        assert_eq!(store.applied(late.root.id(), KNOB), None);
        assert_eq!(late.hold(&mut store), Ok(None));
        let again = store.set(&late.root, KNOB, "19").unwrap();
        assert!(matches!(again, WriteOutcome::External { .. }), "{again:?}");
        assert_eq!(stands(dir.path()), "7");
    }

    #[test]
    fn it_follows_when_writers_are_held_back() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "10");
        late.hold(&mut store).unwrap();
        std::fs::write(dir.path().join("cgroup/dirty_ratio"), "30\n").unwrap();
        let back = late.audit(&mut store).unwrap();
        assert_eq!((back.to, stands(dir.path()).as_str()), (None, "10"));
        late.hold(&mut store).unwrap();
        assert_eq!(stands(dir.path()), "29");
    }

    #[test]
    fn a_container_does_not_set_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "10");
        std::fs::write(dir.path().join("cgroup/cgroup.type"), "domain\n").unwrap();
        assert!(late.hold(&mut store).unwrap_err().contains("namespace"));
        assert_eq!(stands(dir.path()), "10");
    }
}
