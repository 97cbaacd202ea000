//! Settings of the whole machine (`vm.*`): their values, and whether the agent may change them.

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::knob::{Knob, read_raw};

use super::KnobStore;

/// The value of a setting of the machine.
///
/// # Errors
/// Why the agent does not write it, even at the operator's request: in a cgroup namespace, or if it cannot be read.
pub fn machine_setting(root: &Cgroup, knob: Knob) -> Result<String, String> {
    // Only the root of a cgroup namespace has this file. The setting would be that of the machine outside, too.
    if root.full_path().join("cgroup.type").exists() {
        return Err("this is a cgroup namespace, and it is of the whole machine".to_owned());
    }
    read_raw(root, knob).map_err(|error| error.to_string())
}

impl KnobStore {
    /// Leaves a setting of the machine to its operator, and returns why. `None` if `found` is the kernel's default, or the
    /// value at the operator's request to take it.
    pub fn leave_to_operator(&mut self, root: &Cgroup, knob: Knob, found: &str) -> Option<String> {
        let id = root.id();
        if knob.is_default(found) || self.is_taken(id, knob, found) {
            return None;
        }
        self.mark_external(id, knob, found);
        Some(format!("its operator has set it to {found}"))
    }
}
