//! What is known beside the status.

/// What is known of the machine beside the agent's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentValues {
    /// What stands in the tenant's cgroup's files now, by the knob's name, where that can be read.
    pub knobs: Vec<(String, String)>,
    /// What disks are called, by their numbers (`8:0`, `sda`).
    pub disks: Vec<(String, String)>,
    /// What an agent that was killed has left in the tenant's knobs, where no agent runs.
    pub left: Vec<LeftKnob>,
    /// The knob journal, or a part of it, could not be read: a value may be a killed agent's that is not in `left`.
    pub left_unknown: bool,
}

/// A knob that still holds a killed agent's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftKnob {
    /// Its file, with the device for `io.max`.
    pub knob: String,
    /// The value before that agent wrote it.
    pub original: String,
}

impl CurrentValues {
    /// A knob's name, with the name of the disk that it is for.
    pub(super) fn name(&self, knob: &str) -> String {
        let disk = knob
            .split_once(' ')
            .and_then(|(_, number)| self.disks.iter().find(|(of, _)| of == number));
        disk.map_or_else(|| knob.to_owned(), |(_, name)| format!("{knob} ({name})"))
    }
    /// Drops from `left` what holds its original value already.
    pub fn drop_restored(&mut self) {
        let knobs = &self.knobs;
        let holds = |left: &LeftKnob| (left.knob.clone(), left.original.clone());
        self.left.retain(|left| !knobs.contains(&holds(left)));
    }

    /// What a knob that a killed agent has left was before.
    pub(super) fn left(&self, knob: &str) -> Option<&str> {
        let left = self.left.iter().find(|left| left.knob == knob);
        left.map(|left| left.original.as_str())
    }
}
