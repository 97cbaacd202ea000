//! Settings of the whole machine (`vm.*`): what stands there, and whether the agent may change it.

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::knob::{Knob, read_raw};

use super::KnobStore;

/// The value of a setting of the machine.
///
/// # Errors
/// Why the agent does not write it, even where the operator asks for that: in a cgroup namespace, or where it cannot be read.
pub fn machine_setting(root: &Cgroup, knob: Knob) -> Result<String, String> {
    // The root of a cgroup namespace has this file. The setting is of the machine outside, too.
    if root.full_path().join("cgroup.type").exists() {
        return Err("this is a cgroup namespace, and it is of the whole machine".to_owned());
    }
    read_raw(root, knob).map_err(|error| error.to_string())
}

impl KnobStore {
    /// Leaves a setting of the machine to its operator, and returns why. `None` where `found` is the kernel's default, or what stood
    /// there when the operator had the agent take it.
    pub fn leave_to_operator(&mut self, root: &Cgroup, knob: Knob, found: &str) -> Option<String> {
        let id = root.id();
        if knob.is_default(found) || self.is_taken(id, knob, found) {
            return None;
        }
        self.mark_external(id, knob, found);
        Some(format!("its operator has set it to {found}"))
    }
}
