//! When the kernel begins to write back: late, while writers are limited.
//!
//! By default it begins at half of what may be dirty (`vm.dirty_background_ratio` 10, `vm.dirty_ratio` 20). What it
//! hands to the throttling layer then waits behind the writer's limit, where it can be neither deleted nor written
//! again, and is written for nothing: a tenth of what random writers do, more of file servers (docs/results.md). So
//! while there are buffered writers among those who contend, it begins just before writers are held back.

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::knob::{Knob, read_raw};

use super::{Moved, told};
use crate::act::ledger::Ledger;

const KNOB: Knob = Knob::DirtyBackground;
/// What stands there where nobody has set anything, per cent (mm/page-writeback.c).
const USUAL: &str = "10";

/// The setting, ours or its operator's.
#[derive(Debug)]
pub(super) struct Late {
    /// The knobs of the machine are kept under it.
    root: Cgroup,
    held: bool,
}

impl Late {
    pub(super) const fn new(root: Cgroup) -> Self {
        Self { root, held: false }
    }

    /// Has the kernel write back late. `Err` is why its operator's setting stays, once.
    pub(super) fn hold(&mut self, ledger: &mut Ledger) -> Result<Option<Moved>, String> {
        let id = self.root.id();
        if self.held || !ledger.may_write(id, KNOB) {
            return Ok(None);
        }
        let found =
            read_raw(&self.root, KNOB).and_then(|found| Ok((found, self.root.dirty_ratio()?)));
        let (found, dirty) = found.map_err(|error| {
            ledger.leave(id, KNOB, "");
            format!("Device credits: {KNOB} is left as it is: {error}")
        })?;
        let late = late(&found, dirty).inspect_err(|_| ledger.leave(id, KNOB, &found))?;
        let written = ledger.set(&self.root, KNOB, &late);
        self.held = told(&self.root, KNOB, written, ledger);
        Ok(self.held.then(|| self.moved(Some(late), WHY)))
    }

    /// Looks whether someone else has set it since.
    pub(super) fn audit(&mut self, ledger: &mut Ledger) {
        if self.held && ledger.audit(self.root.id(), KNOB).is_some() {
            tracing::warn!(knob = %KNOB, "someone else wrote it: yielded");
            self.held = false;
        }
    }

    /// Gives it back, if it is held.
    pub(super) fn release(&mut self, ledger: &mut Ledger, why: &str) -> Option<Moved> {
        if !std::mem::take(&mut self.held) {
            return None;
        }
        ledger.release(self.root.id(), KNOB);
        Some(self.moved(None, why))
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

const WHY: &str = "buffered writers contend: what is written back early waits behind their limits, where it can be \
                   neither deleted nor written again";

/// Where it should stand: one below `dirty`, what `vm.dirty_ratio` says; or why `background`, what is found, stays.
fn late(background: &str, dirty: u64) -> Result<String, String> {
    let left = |found: &str| {
        Err(format!(
            "Device credits: {KNOB} is left as it is, since {found}. Where the kernel begins to write back long before \
             it holds writers back, part of what limited writers write is written for nothing"
        ))
    };
    match (background, dirty) {
        ("0", _) => left("its operator has set vm.dirty_background_bytes"),
        (_, 0) => left("its operator has set vm.dirty_bytes"),
        (USUAL, dirty) if dirty > 11 => Ok((dirty - 1).to_string()),
        (USUAL, dirty) => left(&format!("vm.dirty_ratio is {dirty}")),
        (found, _) => left(&format!("its operator has set it to {found}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::ledger::Written;
    use justitia_kernel::cgroup::CgroupFs;

    #[test]
    fn just_before_writers_are_held_back_unless_its_operator_has_chosen() {
        assert_eq!(late("10", 20), Ok("19".to_owned()));
        assert_eq!(late("10", 40), Ok("39".to_owned()));
        for (background, dirty, why) in [
            ("0", 20, "vm.dirty_background_bytes"),
            ("10", 0, "vm.dirty_bytes"),
            ("10", 11, "vm.dirty_ratio is 11"),
            ("5", 20, "set it to 5"),
        ] {
            let found = late(background, dirty).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
    }

    /// A machine, with its ledger.
    fn machine(dir: &std::path::Path, background: &str) -> (Late, Ledger) {
        let root = dir.join("cgroup");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("dirty_ratio"), "20\n").unwrap();
        std::fs::write(root.join(KNOB.file()), background).unwrap();
        let fs = CgroupFs::open_fixture(&root, true).unwrap();
        let (ledger, _) = Ledger::open(&fs, &dir.join("state")).unwrap();
        (Late::new(fs.root().clone()), ledger)
    }

    fn stands(dir: &std::path::Path) -> String {
        std::fs::read_to_string(dir.join("cgroup").join(KNOB.file())).unwrap()
    }

    #[test]
    fn comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut ledger) = machine(dir.path(), "10");
        let moved = late.hold(&mut ledger).unwrap().unwrap();
        assert_eq!(
            (moved.to.as_deref(), stands(dir.path()).as_str()),
            (Some("19"), "19")
        );
        assert_eq!(late.hold(&mut ledger), Ok(None), "it stands already");
        assert_eq!(late.release(&mut ledger, "").unwrap().to, None);
        assert_eq!(stands(dir.path()), "10");
        assert_eq!(late.release(&mut ledger, ""), None);
        // However the agent ends.
        late.hold(&mut ledger).unwrap();
        assert_eq!(stands(dir.path()), "19");
        drop(ledger);
        assert_eq!(stands(dir.path()), "10");
    }

    #[test]
    fn its_operators_choice_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut ledger) = machine(dir.path(), "5");
        assert!(late.hold(&mut ledger).unwrap_err().contains("set it to 5"));
        assert_eq!(late.hold(&mut ledger), Ok(None), "told once");
        assert_eq!(stands(dir.path()), "5");
    }

    #[test]
    fn who_sets_it_meanwhile_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut late, mut ledger) = machine(dir.path(), "10");
        late.hold(&mut ledger).unwrap();
        late.audit(&mut ledger);
        assert!(late.held);
        std::fs::write(dir.path().join("cgroup").join(KNOB.file()), "7").unwrap();
        late.audit(&mut ledger);
        assert!(!late.held);
        assert_eq!(late.hold(&mut ledger), Ok(None));
        let again = ledger.set(&late.root, KNOB, "19").unwrap();
        assert!(matches!(again, Written::Yielded { .. }), "{again:?}");
        assert_eq!(stands(dir.path()), "7");
    }
}
