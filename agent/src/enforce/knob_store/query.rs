//! What the knob store owns, and which knobs belong to other writers.

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;

use super::outcome::Unwritable;
use super::put_back::KnobKey;
use super::read_only::ReadOnly;
use super::store::KnobStore;

impl KnobStore {
    /// Whether the knob may be written: it is neither external nor given up.
    #[must_use]
    pub fn may_write(&self, id: CgroupId, knob: Knob) -> bool {
        !self.unwritable.contains_key(&(id, knob))
    }

    /// The value of our last write to a knob.
    #[must_use]
    pub fn applied(&self, id: CgroupId, knob: Knob) -> Option<&str> {
        self.owned.get(&(id, knob)).map(|o| o.applied.as_str())
    }

    /// The knobs owned: cgroup, knob, original value, our value.
    pub fn owned(&self) -> impl Iterator<Item = (CgroupId, Knob, &str, &str)> {
        self.owned
            .iter()
            .map(|((id, knob), o)| (*id, *knob, o.original.as_str(), o.applied.as_str()))
    }

    /// The number of knobs owned, with those of an earlier agent that could not be restored yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owned.len() + self.inherited.len()
    }

    /// Whether no knob is owned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why no knob can be written at the moment, if so: a write that is not in the journal is not made.
    #[must_use]
    pub fn write_error(&self) -> Option<&str> {
        self.write_error.as_deref()
    }

    /// Why no knob can be written at the moment, if the mount of the cgroups is read-only: the error of the last write.
    #[must_use]
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_ref().map(ReadOnly::why)
    }

    /// The knobs that are not written any more, and why.
    pub fn unwritable(&self) -> impl Iterator<Item = (CgroupId, Knob, &Unwritable)> {
        self.unwritable
            .iter()
            .map(|((id, knob), why)| (*id, *knob, why))
    }

    /// The knobs of other writers, and the values found there.
    pub fn external(&self) -> impl Iterator<Item = (CgroupId, Knob, &str)> {
        self.unwritable().filter_map(|(id, knob, why)| match why {
            Unwritable::External { found } => Some((id, knob, found.as_str())),
            Unwritable::GivenUp { .. } => None,
        })
    }

    /// The knobs that were given up, and what happened.
    pub fn given_up(&self) -> impl Iterator<Item = (CgroupId, Knob, &str)> {
        self.unwritable().filter_map(|(id, knob, why)| match why {
            Unwritable::GivenUp { why } => Some((id, knob, why.as_str())),
            Unwritable::External { .. } => None,
        })
    }

    /// Marks a knob as another writer's, as when it held a value before our first write. If it is ours, it is restored
    /// first.
    pub fn mark_external(&mut self, id: CgroupId, knob: Knob, found: &str) {
        self.restore(id, knob);
        let found = found.to_owned();
        self.unwritable
            .insert((id, knob), Unwritable::External { found });
    }

    /// Writes a knob that is external, although it is: its operator's value becomes the original, which is restored. For
    /// values that keep what the operator's promises.
    pub fn take_over(&mut self, id: CgroupId, knob: Knob) {
        let key = (id, knob);
        if let Some(Unwritable::External { .. }) = self.unwritable.get(&key) {
            self.unwritable.remove(&key);
        }
    }

    /// Restores a knob, and writes it no more. One that turns out to be external stays that.
    pub fn give_up(&mut self, id: CgroupId, knob: Knob, why: &str) {
        self.restore(id, knob);
        let why = why.to_owned();
        self.unwritable
            .entry((id, knob))
            .or_insert(Unwritable::GivenUp { why });
    }

    /// Forgets that a knob is external or given up, in each cgroup, as when its device is gone, and with it the values.
    pub fn forget_unwritable(&mut self, knob: Knob) {
        self.unwritable.retain(|(_, other), _| *other != knob);
        self.reapplied.retain(|(_, other), _| *other != knob);
    }

    /// Restores and forgets the knobs of a cgroup that was removed, or that is no tenant any more though it exists.
    pub fn on_cgroup_removed(&mut self, id: CgroupId) {
        let keys = self.owned.keys().filter(|(of, _)| *of == id);
        for (id, knob) in keys.copied().collect::<Vec<KnobKey>>() {
            self.restore(id, knob);
        }
        self.unwritable.retain(|(of, _), _| *of != id);
        self.reapplied.retain(|(of, _), _| *of != id);
    }
}
