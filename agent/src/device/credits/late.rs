//! The start of background writeback: late, while buffered writers contend.
//!
//! By default it begins at half of the allowed dirty pages (`vm.dirty_background_ratio` 10, `vm.dirty_ratio` 20). Pages that it
//! submits wait at the disk for the writer's turn. There they can be neither deleted nor rewritten first, so some are written
//! in vain: a tenth of random writers' pages, more of file servers' (docs/results). So while buffered writers are among the
//! contending tenants, it begins just before writers are throttled.

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::knob::Knob;

use super::knobs::Moved;
use crate::knobs::{KnobStore, RestoreOutcome, WriteOutcome, machine_setting};

const KNOB: Knob = Knob::DirtyBackground;

/// The setting, ours or its operator's.
#[derive(Debug)]
pub(super) struct Late {
    /// The root cgroup: the knob store keeps the machine's knobs under it.
    root: Cgroup,
    /// Why it is left alone, once known.
    left: Option<String>,
}

impl Late {
    pub(super) const fn new(root: Cgroup) -> Self {
        Self { root, left: None }
    }

    /// Starts background writeback late.
    pub(super) fn hold(&mut self, store: &mut KnobStore) -> Option<Moved> {
        let id = self.root.id();
        let stands = store.applied(id, KNOB).is_some();
        if stands || self.left.is_some() || !store.may_write(id, KNOB) {
            return None;
        }
        let (found, late) = match self.look() {
            Ok(seen) => seen,
            Err(why) => {
                self.left = Some(why);
                return None;
            }
        };
        if found.parse::<u64>().is_ok_and(|found| found >= late) {
            return None;
        }
        self.left = store.leave_to_operator(&self.root, KNOB, &found);
        if self.left.is_some() {
            return None;
        }
        let late = late.to_string();
        match store.set(&self.root, KNOB, &late) {
            Ok(
                WriteOutcome::Written | WriteOutcome::Unchanged | WriteOutcome::Reapplied { .. },
            ) => Some(self.moved(Some(late), WHY)),
            Ok(_) => None,
            Err(error) => {
                // It is retried if only a resource was lacking.
                if !store.may_write(id, KNOB) {
                    self.left = Some(error.to_string());
                }
                None
            }
        }
    }

    /// The current value, and the one that the agent would write; or why it writes none, even at the operator's request.
    fn look(&self) -> Result<(String, u64), String> {
        let found = machine_setting(&self.root, KNOB)?;
        let dirty = self.root.dirty_ratio().map_err(|error| error.to_string())?;
        let late = late(&found, dirty)?;
        Ok((found, late))
    }

    /// The operator has the agent take it.
    ///
    /// # Errors
    /// Why the agent still does not write it.
    pub(super) fn take(&mut self) -> Result<(), String> {
        self.look()?;
        self.left = None;
        Ok(())
    }

    /// Why it is left alone, and the consequence, if so.
    pub(super) fn limit(&self) -> Option<String> {
        let why = self.left.as_ref()?;
        Some(format!(
            "Device bandwidth: {KNOB} is left as it is: {why}. Where the kernel begins to write back long before it \
             holds writers back, part of what such writers write is written for nothing"
        ))
    }

    /// Checks whether another writer has changed it, or the setting that it depends on.
    pub(super) fn audit(&self, store: &mut KnobStore) -> Option<Moved> {
        let id = self.root.id();
        if let Ok(Some(WriteOutcome::External { applied, found, by })) = store.audit(id, KNOB) {
            tracing::warn!(knob = %KNOB, applied, found, by, "external: another writer has set it");
            return None;
        }
        let ours = store.applied(id, KNOB)?;
        let dirty = self.root.dirty_ratio().ok()?;
        if ours.parse() == Ok(dirty.saturating_sub(1)) {
            return None;
        }
        self.release(store, "vm.dirty_ratio has changed")
    }

    /// Restores it, if it is held.
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

/// The wanted value: one below `dirty`, the value of `vm.dirty_ratio`. Or why the found value `background` stays: a write would
/// set an operator's bytes to 0.
fn late(background: &str, dirty: u64) -> Result<u64, &'static str> {
    match (background, dirty) {
        ("0", _) => Err("its operator has set vm.dirty_background_bytes"),
        (_, 0) => Err("its operator has set vm.dirty_bytes"),
        _ => Ok(dirty.saturating_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;

    #[test]
    fn just_before_writers_are_held_back_unless_bytes_are_set() {
        assert_eq!(late("10", 20), Ok(19));
        assert_eq!(late("5", 40), Ok(39));
        for (background, dirty, why) in [
            ("0", 20, "vm.dirty_background_bytes"),
            ("10", 0, "vm.dirty_bytes"),
        ] {
            let found = late(background, dirty).unwrap_err();
            assert!(found.ends_with(why), "{found}");
        }
    }

    /// A machine, with its knob store.
    fn machine(dir: &std::path::Path, background: &str) -> (Late, KnobStore) {
        let root = dir.join("cgroup");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("dirty_ratio"), "20\n").unwrap();
        std::fs::write(root.join(KNOB.file()), background).unwrap();
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (mut store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
        // The file keeps the last write, as the kernel's do.
        store.write_knob = |cgroup, knob, value| {
            std::fs::write(cgroup.full_path().join(knob.file()), value).unwrap();
            Ok(())
        };
        (Late::new(fs.root().clone()), store)
    }

    fn stands(dir: &std::path::Path) -> String {
        std::fs::read_to_string(dir.join("cgroup").join(KNOB.file())).unwrap()
    }

    #[test]
    fn comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "10");
        let moved = late.hold(&mut store).unwrap();
        assert_eq!(
            (moved.to.as_deref(), stands(dir.path()).as_str()),
            (Some("19"), "19")
        );
        assert_eq!(late.hold(&mut store), None, "it stands already");
        assert_eq!(late.release(&mut store, "").unwrap().to, None);
        assert_eq!(stands(dir.path()), "10");
        assert_eq!(late.release(&mut store, ""), None);
        // The same when the agent ends.
        late.hold(&mut store).unwrap();
        assert_eq!(stands(dir.path()), "19");
        drop(store);
        assert_eq!(stands(dir.path()), "10");
    }

    #[test]
    fn its_operators_choice_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "5");
        assert_eq!(late.hold(&mut store), None);
        assert!(late.limit().unwrap().contains("set it to 5"));
        let external: Vec<_> = store.external().collect();
        assert_eq!(external, [(late.root.id(), KNOB, "5")]);
        assert_eq!(stands(dir.path()), "5");
        // A higher value than the wanted one is no loss.
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "30");
        assert_eq!((late.hold(&mut store), late.limit()), (None, None));
        assert!(store.may_write(late.root.id(), KNOB));
    }

    #[test]
    fn what_its_operator_has_us_take_is_moved_and_comes_back_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "5");
        late.hold(&mut store);
        assert_eq!(late.take(), Ok(()));
        assert!(store.take(&late.root, KNOB).unwrap());
        assert_eq!(stands(dir.path()), "5", "nobody needs it yet");
        assert_eq!((late.audit(&mut store), late.limit()), (None, None));
        for _ in 0..2 {
            assert!(late.hold(&mut store).is_some());
            assert_eq!(stands(dir.path()), "19");
            assert!(late.release(&mut store, "").is_some());
            assert_eq!(stands(dir.path()), "5");
        }
        // A write of it would make the bytes 0.
        let dir = tempfile::tempdir().unwrap();
        let (mut late, _store) = machine(dir.path(), "0");
        assert!(late.take().unwrap_err().contains("bytes"));
    }

    #[test]
    fn a_setting_that_is_read_only_here_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut store) = machine(dir.path(), "10");
        store.write_knob = |cgroup, knob, _| {
            Err(justitia_kernel::Error::Io {
                operation: justitia_kernel::Operation::Write,
                path: cgroup.full_path().join(knob.file()),
                errno: rustix::io::Errno::ROFS,
            })
        };
        assert_eq!(late.hold(&mut store), None);
        let told = late.limit().unwrap();
        assert!(told.contains("Read-only"), "{told}");
        assert_eq!(late.hold(&mut store), None);
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
        assert_eq!(late.hold(&mut store), None);
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
        assert_eq!(late.hold(&mut store), None);
        assert!(late.limit().unwrap().contains("namespace"));
        assert!(late.take().is_err());
        assert_eq!(stands(dir.path()), "10");
    }
}
