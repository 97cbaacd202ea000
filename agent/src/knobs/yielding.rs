//! Knobs that are left to others, and those that become ours again: the table of [`writers`](super::writers) at work, and
//! what an operator asks for.

use std::time::Instant;

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::knob::{Knob, read_raw};

use super::lock::KnobStoreError;
use super::put_back::{KnobKey, Until, Unwritable, WriteOutcome};
use super::store::{KnobStore, OwnedKnob};
use super::writers::{Author, AuthorKind, Value, Verdict, decide};

impl Default for Author {
    /// It is not known who.
    fn default() -> Self {
        Self {
            kind: AuthorKind::Unknown,
            name: String::new(),
        }
    }
}

/// A knob that was left to systemd or the kubelet, and is ours again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBack {
    /// Whose.
    pub id: CgroupId,
    /// Which.
    pub knob: Knob,
    /// The value that its operator has there: that before our first write, or the kernel's default.
    pub value: String,
    /// The value that was found.
    pub found: String,
    /// Who set it back, in words; empty where that is not known.
    pub by: String,
}

impl KnobStore {
    /// Watches who writes our knobs from now on.
    ///
    /// # Errors
    /// What the kernel refuses: then the value alone decides.
    pub fn watch_writers(&mut self) -> justitia_kernel::Result<()> {
        self.writers.start()
    }

    /// As [`KnobStore::set`], and who else writes the knob is watched from before our first write on. Not for knobs of a
    /// delegatee's cgroups: it could fill the kernel's queue.
    ///
    /// # Errors
    /// As of that.
    pub fn hold(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        value: &str,
    ) -> Result<WriteOutcome, KnobStoreError> {
        if self.applied(cgroup.id(), knob).is_none() {
            self.writers.watch(cgroup, knob);
        }
        self.set(cgroup, knob, value)
    }

    /// Takes note of who has written our knobs. Once a tick.
    pub fn note_writers(&mut self) {
        self.writers.drain();
    }

    /// Whether a knob of ours in which `author` wrote `found` is ours again. If not, it is left to that one.
    pub(super) fn is_ours_again(
        &mut self,
        key: KnobKey,
        found: &str,
        author: &Author,
        now: Instant,
    ) -> bool {
        let Some(owned) = self.owned.get(&key) else {
            return false;
        };
        let until = Until {
            original: owned.original.clone(),
            applied: owned.applied.clone(),
            paused: false,
        };
        let cgroup = owned.cgroup.clone();
        self.is_to_be_written(&cgroup, key, found, author, until, now)
    }

    /// The same of a knob in which the values of `until` are known.
    fn is_to_be_written(
        &mut self,
        cgroup: &Cgroup,
        key: KnobKey,
        found: &str,
        author: &Author,
        mut until: Until,
        now: Instant,
    ) -> bool {
        let verdict = decide(author.kind, value(key.1, found, &until));
        let (tenant, knob) = (escape::encode(cgroup.path().as_os_str()), key.1);
        let by = author.name.as_str();
        if self.is_allowed(key, verdict, now) {
            tracing::debug!(tenant, %knob, found, by, "the original value was reapplied: written again");
            return true;
        }
        if let Verdict::Again(limit) | Verdict::AgainUntil(limit) = verdict {
            let (times, seconds) = (limit.times, limit.within.as_secs());
            tracing::info!(tenant, %knob, found, by, times, seconds, "reapplied too often: it is left as it is");
        }
        until.paused = matches!(verdict, Verdict::Again(_));
        let until = matches!(verdict, Verdict::Again(_) | Verdict::Policy).then_some(until);
        self.leave(key, found, author.name.clone(), until);
        false
    }

    /// Watches who writes a knob that is not ours yet; see [`KnobStore::hold`].
    pub fn watch(&mut self, cgroup: &Cgroup, knob: Knob) {
        self.writers.watch(cgroup, knob);
    }

    /// Writes the value that was declared for a knob over another that stands there, unless who wrote that means it: by the
    /// same table as of a knob of ours, where the declared value and the kernel's default are known ones. `watched`: whether
    /// [`KnobStore::watch`] was called before that was written; else it is not known who.
    ///
    /// # Errors
    /// As of [`KnobStore::set`].
    pub fn put_declared(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        declared: &str,
        watched: bool,
        now: Instant,
    ) -> Result<WriteOutcome, KnobStoreError> {
        let key = (cgroup.id(), knob);
        if self.owned.contains_key(&key) || self.unwritable.contains_key(&key) {
            return self.set(cgroup, knob, declared);
        }
        let found = match read_raw(cgroup, knob) {
            Ok(found) => found,
            Err(error) if error.is_gone() || error.is_missing() => return Ok(WriteOutcome::Gone),
            Err(error) => return Err(error.into()),
        };
        if found == declared {
            return Ok(WriteOutcome::Unchanged);
        }
        let author = self.writers.take(key.0, knob, watched).unwrap_or_default();
        let until = Until {
            original: declared.to_owned(),
            applied: declared.to_owned(),
            paused: false,
        };
        if self.is_to_be_written(cgroup, key, &found, &author, until, now) {
            return self.set(cgroup, knob, declared);
        }
        let (applied, by) = (String::new(), author.name);
        Ok(WriteOutcome::External { applied, found, by })
    }

    /// A knob of ours was found to hold our value: who has written it until now has changed nothing.
    pub fn settle(&mut self, id: CgroupId, knob: Knob) {
        self.writers.settle(id, knob);
    }

    /// A knob was found to hold what was declared for it: it is no other writer's any more, unless its operator has released
    /// it.
    pub fn settle_declared(&mut self, id: CgroupId, knob: Knob) {
        self.writers.settle(id, knob);
        if self.external_by(id, knob) != OPERATOR {
            self.take_over(id, knob);
        }
    }

    /// Whether a verdict makes a knob ours again now; counts it then.
    fn is_allowed(&mut self, key: KnobKey, verdict: Verdict, now: Instant) -> bool {
        match verdict {
            Verdict::Again(limit) | Verdict::AgainUntil(limit) => {
                self.reapplied.entry(key).or_default().allow(limit, now)
            }
            Verdict::Policy | Verdict::Yield => false,
        }
    }

    /// Looks at the knobs that are left to systemd or the kubelet: those that were set back, and those whose pause is over,
    /// are ours again. `cgroup` is the cgroup of an id.
    pub fn take_back<'a>(
        &mut self,
        cgroup: impl Fn(CgroupId) -> Option<&'a Cgroup>,
        now: Instant,
    ) -> Vec<TakenBack> {
        let left = self.unwritable.iter().filter_map(|(key, why)| match why {
            Unwritable::External {
                found,
                until: Some(until),
                ..
            } => Some((*key, found.clone(), until.clone())),
            _ => None,
        });
        let left: Vec<(KnobKey, String, Until)> = left.collect();
        let mut back = Vec::new();
        for (key, before, until) in left {
            // What cannot be read now is looked at again.
            let found = cgroup(key.0).map(|cgroup| (cgroup, read_raw(cgroup, key.1)));
            if let Some((cgroup, Ok(found))) = found {
                back.extend(self.judge_left(cgroup, key, &before, found, until, now));
            }
        }
        back
    }

    /// Judges a knob that was left with the value `before`.
    fn judge_left(
        &mut self,
        cgroup: &Cgroup,
        key: KnobKey,
        before: &str,
        found: String,
        mut until: Until,
        now: Instant,
    ) -> Option<TakenBack> {
        let (id, knob) = key;
        let author = self.writers.take(id, knob, found != before);
        if author.is_none() && found == before && !until.paused {
            return None;
        }
        // One that pauses was left to a manager, and has not been written since.
        let author = author.unwrap_or(Author {
            kind: match found == before {
                true => AuthorKind::Manager,
                false => AuthorKind::Unknown,
            },
            name: String::new(),
        });
        let verdict = decide(author.kind, value(knob, &found, &until));
        let by = author.name;
        if self.is_allowed(key, verdict, now) {
            self.unwritable.remove(&key);
            let value = match found == until.applied {
                true => until.original,
                false => found.clone(),
            };
            // A declared weight is not planned anew each second: what was written is judged once, here.
            if found == until.applied || matches!(knob, Knob::IoWeight | Knob::IoBfqWeight) {
                self.own(cgroup, key, value.clone(), until.applied);
            }
            return Some(TakenBack {
                id,
                knob,
                value,
                found,
                by,
            });
        }
        until.paused = matches!(verdict, Verdict::Again(_));
        let stays = matches!(verdict, Verdict::Again(_) | Verdict::Policy);
        // Without a new name the one from before stays.
        let by = match by.is_empty() {
            true => self.external_by(id, knob).to_owned(),
            false => by,
        };
        self.leave(key, &found, by, stays.then_some(until));
        None
    }

    /// Holds a knob at our value: it is noted, and written.
    fn own(&mut self, cgroup: &Cgroup, key: KnobKey, original: String, applied: String) {
        let owned = OwnedKnob {
            cgroup: cgroup.clone(),
            original,
            applied,
            restore_pending: false,
        };
        if let Err(error) = self.write(key, owned) {
            tracing::debug!(knob = %key.1, %error, "could not be written again");
        }
    }

    /// Restores a knob because its operator asks for it, and leaves it as it is from then on. Returns the value that stands
    /// there; `None` if the cgroup has no such knob any more.
    ///
    /// # Errors
    /// If it cannot be restored or read now. It is not written again all the same.
    pub fn release(&mut self, cgroup: &Cgroup, knob: Knob) -> justitia_kernel::Result<String> {
        let id = cgroup.id();
        self.restore(id, knob);
        let found = read_raw(cgroup, knob)?;
        let key = (id, knob);
        self.writers.settle(id, knob);
        // A restore that has failed is still tried again.
        let pending = self.owned.remove(&key);
        self.leave(key, &found, OPERATOR.to_owned(), None);
        if let Some(pending) = pending {
            self.owned.insert(key, pending);
        }
        Ok(found)
    }

    /// Takes a knob that was left to another writer, or given up, or holds another's value of which we do not know yet, because
    /// its operator asks for it: what stands there now is restored once we need the knob no more. Until it is planned anew it has
    /// the kernel's default. Returns whether it was not ours to write.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn take(&mut self, cgroup: &Cgroup, knob: Knob) -> Result<bool, KnobStoreError> {
        let key = (cgroup.id(), knob);
        let is_left = self.unwritable.remove(&key).is_some();
        let is_free = || read_raw(cgroup, knob).map(|found| knob.is_default(&found));
        if !is_left && (self.owned.contains_key(&key) || is_free()?) {
            return Ok(false);
        }
        self.reapplied.remove(&key);
        self.writers.settle(key.0, knob);
        let taken = self.set(cgroup, knob, &knob.default_value())?;
        if let Some(owned) = self.owned.get(&key) {
            self.taken.insert(key, owned.original.clone());
        }
        Ok(!matches!(taken, WriteOutcome::Gone))
    }
}

/// Who an operator is who asks us.
const OPERATOR: &str = "its operator, by `justitia release`";

/// What a value is to us.
fn value(knob: Knob, found: &str, until: &Until) -> Value {
    let known = found == until.original || found == until.applied || knob.is_default(found);
    if known { Value::Known } else { Value::New }
}

#[cfg(test)]
mod tests {
    use super::super::writers::{MANAGER, UNKNOWN};
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;
    use justitia_kernel::error::Operation;
    use justitia_kernel::knob::write_raw;
    use rustix::io::Errno;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    const KNOB: Knob = Knob::MemoryLow;

    /// A store with one knob that is ours, at 5, and was 1 before.
    struct Held {
        dir: tempfile::TempDir,
        store: KnobStore,
        cgroup: Cgroup,
        now: Instant,
    }

    impl Held {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("cgroup");
            std::fs::create_dir_all(root.join("a")).unwrap();
            std::fs::write(root.join("a/memory.low"), "1\n").unwrap();
            let fs = CgroupFs::open_fixture(&root).unwrap();
            let (mut store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
            let cgroup = Cgroup::open_at(&fs, Path::new("a")).unwrap();
            store.set(&cgroup, KNOB, "5").unwrap();
            Self {
                dir,
                store,
                cgroup,
                now: Instant::now(),
            }
        }

        fn file(&self) -> PathBuf {
            self.dir.path().join("cgroup/a/memory.low")
        }

        fn stands(&self) -> String {
            let low = std::fs::read_to_string(self.file()).unwrap();
            low.trim().to_owned()
        }

        /// One of this kind writes a value; the store looks.
        fn writes(&mut self, kind: AuthorKind, value: &str) -> Option<WriteOutcome> {
            std::fs::write(self.file(), format!("{value}\n")).unwrap();
            self.store.writers.say(self.cgroup.id(), KNOB, kind);
            self.store.audit(self.cgroup.id(), KNOB).unwrap()
        }

        /// What is taken back so much later.
        fn back(&mut self, seconds: u64) -> Vec<TakenBack> {
            self.now += Duration::from_secs(seconds);
            let cgroup = self.cgroup.clone();
            let now = self.now;
            self.store.take_back(|_| Some(&cgroup), now)
        }

        fn may_write(&self) -> bool {
            self.store.may_write(self.cgroup.id(), KNOB)
        }
    }

    fn is_external(outcome: Option<&WriteOutcome>, kind: AuthorKind) -> bool {
        let name = format!("{kind:?}");
        matches!(outcome, Some(WriteOutcome::External { by, .. }) if *by == name)
    }

    #[test]
    fn what_systemd_applies_again_is_ours_again_and_beyond_that_after_a_pause() {
        let mut held = Held::new();
        for n in 0..MANAGER.times {
            // The value from before us, and then the kernel's default.
            let value = if n < 3 { "1" } else { "0" };
            let found = value.to_owned();
            let outcome = held.writes(AuthorKind::Manager, value);
            assert_eq!(outcome, Some(WriteOutcome::Reapplied { found }), "{n}");
            assert_eq!(held.stands(), "5");
        }
        let outcome = held.writes(AuthorKind::Manager, "0");
        assert!(
            is_external(outcome.as_ref(), AuthorKind::Manager),
            "{outcome:?}"
        );
        assert!(held.back(1).is_empty() && !held.may_write());
        assert_eq!(held.stands(), "0");
        // Not for good.
        let back = held.back(MANAGER.within.as_secs());
        assert_eq!((back.len(), back[0].value.as_str()), (1, "0"));
        assert!(held.may_write());
        held.store.set(&held.cgroup, KNOB, "6").unwrap();
        assert_eq!(held.stands(), "6");
        held.store.restore_all();
        assert_eq!(held.stands(), "0");
    }

    /// A paused weight was judged twice: when its pause was over, and when it was written, then as nobody knows whose. The
    /// fourth such time it was left for good.
    #[test]
    fn a_declared_weight_is_ours_again_after_each_of_many_pauses() {
        const KNOB: Knob = Knob::IoWeight;
        let mut held = Held::new();
        let file = held.dir.path().join("cgroup/a/io.weight");
        std::fs::write(&file, "default 100\n").unwrap();
        let (cgroup, id) = (held.cgroup.clone(), held.cgroup.id());
        let put = |held: &mut Held| {
            let now = held.now;
            let put = held
                .store
                .put_declared(&cgroup, KNOB, "default 400", true, now);
            put.unwrap()
        };
        assert_eq!(put(&mut held), WriteOutcome::Written);
        for pause in 0..2 * UNKNOWN.times {
            while held.store.may_write(id, KNOB) {
                std::fs::write(&file, "default 100\n").unwrap();
                held.store.writers.say(id, KNOB, AuthorKind::Manager);
                put(&mut held);
            }
            // The store's own clock is a little ahead.
            let back = held.back(MANAGER.within.as_secs() + 1);
            let back: Vec<_> = back.iter().map(|back| back.knob).collect();
            assert_eq!(back, [KNOB], "pause {pause}");
            let stands = std::fs::read_to_string(&file).unwrap();
            assert_eq!(stands.trim(), "default 400", "pause {pause}");
            assert_eq!(put(&mut held), WriteOutcome::Unchanged);
        }
        held.store.restore_all();
        let stands = std::fs::read_to_string(&file).unwrap();
        assert_eq!(stands.trim(), "default 100");
    }

    #[test]
    fn what_could_not_be_restored_is_not_forgotten_as_an_operators() {
        let mut held = Held::new();
        let (id, low) = (held.cgroup.id(), held.file());
        held.store.write_knob = |cgroup, _, _| {
            let (operation, path) = (Operation::Write, cgroup.full_path());
            let errno = Errno::ROFS;
            Err(justitia_kernel::Error::Io {
                operation,
                path,
                errno,
            })
        };
        held.store.on_cgroup_removed(id);
        assert_eq!(held.store.original_of_left(id, KNOB, "5"), Some("1"));
        held.store.mark_external(id, KNOB, "5");
        assert!(!held.may_write());
        held.store.write_knob = write_raw;
        held.store.retry_restores();
        assert_eq!(std::fs::read_to_string(low).unwrap().trim(), "1");
        assert_eq!(held.store.owned().count(), 0);
    }

    #[test]
    fn a_new_value_of_systemd_is_a_policy_while_it_stands() {
        for (set_back, value) in [("0", "0"), ("1", "1"), ("5", "1")] {
            let mut held = Held::new();
            let outcome = held.writes(AuthorKind::Manager, "7");
            assert!(is_external(outcome.as_ref(), AuthorKind::Manager));
            assert!(held.back(1).is_empty() && !held.may_write());
            // Another policy, and the same one again.
            for policy in ["8", "8"] {
                held.writes(AuthorKind::Manager, policy);
                assert!(held.back(1).is_empty());
                let found = held.store.found_external(held.cgroup.id(), KNOB);
                assert_eq!(found, Some(policy));
            }
            held.writes(AuthorKind::Manager, set_back);
            let back = held.back(1);
            let [one] = back.as_slice() else {
                panic!("{back:?}");
            };
            assert_eq!((one.found.as_str(), one.value.as_str()), (set_back, value));
            assert_eq!(one.by, "Manager");
            assert!(held.may_write());
            // What was there before us is restored at the end, however it became ours again.
            held.store.set(&held.cgroup, KNOB, "6").unwrap();
            held.store.restore_all();
            assert_eq!(held.stands(), value);
        }
    }

    #[test]
    fn what_anybody_else_writes_is_left_for_good() {
        for value in ["0", "1", "7"] {
            let mut held = Held::new();
            let outcome = held.writes(AuthorKind::Other, value);
            assert!(
                is_external(outcome.as_ref(), AuthorKind::Other),
                "{outcome:?}"
            );
            held.writes(AuthorKind::Manager, "0");
            assert!(held.back(1000).is_empty());
            assert!(!held.may_write());
        }
        // Over a policy, too.
        let mut held = Held::new();
        held.writes(AuthorKind::Manager, "7");
        held.writes(AuthorKind::Other, "0");
        assert!(held.back(1).is_empty() && held.back(1000).is_empty());
        assert!(!held.may_write());
    }

    #[test]
    fn who_cannot_be_told_has_a_few_tries_and_then_has_decided() {
        let mut held = Held::new();
        for _ in 0..UNKNOWN.times {
            let outcome = held.writes(AuthorKind::Unknown, "1");
            assert!(matches!(outcome, Some(WriteOutcome::Reapplied { .. })));
        }
        let outcome = held.writes(AuthorKind::Unknown, "1");
        assert!(is_external(outcome.as_ref(), AuthorKind::Unknown));
        assert!(held.back(100_000).is_empty() && !held.may_write());
        let mut held = Held::new();
        let outcome = held.writes(AuthorKind::Unknown, "7");
        assert!(is_external(outcome.as_ref(), AuthorKind::Unknown));
    }

    /// A write that is found while a value is planned, before its event is handled, is told as any other.
    #[test]
    fn a_value_that_is_applied_again_is_judged_where_it_is_found_first() {
        let mut held = Held::new();
        std::fs::write(held.file(), "7\n").unwrap();
        held.store
            .writers
            .say(held.cgroup.id(), KNOB, AuthorKind::Manager);
        let outcome = held.store.set(&held.cgroup, KNOB, "6").unwrap();
        assert!(is_external(Some(&outcome), AuthorKind::Manager));
        held.writes(AuthorKind::Manager, "0");
        assert_eq!(held.back(1).len(), 1);
    }

    #[test]
    fn an_operator_releases_and_takes() {
        let mut held = Held::new();
        let (id, cgroup) = (held.cgroup.id(), held.cgroup.clone());
        assert!(!held.store.take(&cgroup, KNOB).unwrap(), "it is ours");
        assert_eq!(held.store.release(&cgroup, KNOB).unwrap(), "1");
        assert!(!held.may_write());
        assert_eq!(held.store.external_by(id, KNOB), OPERATOR);
        assert!(held.back(100_000).is_empty());
        // Whatever stands there then is restored at the end.
        std::fs::write(held.file(), "9\n").unwrap();
        assert!(held.store.take(&cgroup, KNOB).unwrap());
        assert_eq!(held.stands(), "0");
        held.store.set(&cgroup, KNOB, "6").unwrap();
        held.store.restore_all();
        assert_eq!(held.stands(), "9");
        let is_taken = |held: &Held, found| held.store.is_taken(id, KNOB, found);
        assert!(is_taken(&held, "9") && !is_taken(&held, "7"));
        held.store.release(&cgroup, KNOB).unwrap();
        assert!(!is_taken(&held, "9"));
        // What another one has written, and what was given up.
        let mut held = Held::new();
        let cgroup = held.cgroup.clone();
        held.writes(AuthorKind::Other, "7");
        assert!(held.store.take(&cgroup, KNOB).unwrap() && held.may_write());
        held.store.give_up(cgroup.id(), KNOB, "too slow");
        assert!(held.store.take(&cgroup, KNOB).unwrap() && held.may_write());
    }
}
