//! What is known beside the status.

/// What is known of the machine beside the agent's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentValues {
    /// What stands in the tenant's cgroup's files now, by the knob's name, where that can be read.
    pub knobs: Vec<(String, String)>,
    /// What disks are called, by their numbers (`8:0`, `sda`).
    pub disks: Vec<(String, String)>,
}

impl CurrentValues {
    /// A knob's name, with the name of the disk that it is for.
    pub(super) fn name(&self, knob: &str) -> String {
        let disk = knob
            .split_once(' ')
            .and_then(|(_, number)| self.disks.iter().find(|(of, _)| of == number));
        disk.map_or_else(|| knob.to_owned(), |(_, name)| format!("{knob} ({name})"))
    }
}
