//! What requests have added and removed, for the program that is executed next: it does it again.

use super::api::{ControlRequest, Table};

/// Requests that are remembered: more than a host has VMs. Of more the first are forgotten.
const MAX_CHANGES: usize = 4096;

/// Requests that were done, in their order. What was added and removed again is not among them.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<ControlRequest>);

impl Changes {
    /// A request has added or removed a VM or a disk.
    pub(super) fn push(&mut self, request: ControlRequest) {
        let before = self.0.len();
        match &request {
            ControlRequest::RemoveDisk { disk: gone } => self.0.retain(
                |of| !matches!(of, ControlRequest::AddDisk { disk, .. } if is_named(disk, gone)),
            ),
            ControlRequest::RemoveVm { vm: gone } => {
                let added = |of: &ControlRequest| matches!(of, ControlRequest::AddVm { vm } if is_named(vm, gone));
                if self.0.iter().any(added) {
                    self.0.retain(|of| {
                        !added(of)
                            && !matches!(of, ControlRequest::AddDisk { vm, .. } if vm == gone)
                    });
                }
            }
            _ => {}
        }
        if self.0.len() < before {
            return;
        }
        self.0.push(request);
        if self.0.len() > MAX_CHANGES {
            self.0.remove(0);
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> &[ControlRequest] {
        &self.0
    }
}

fn is_named(table: &Table, name: &str) -> bool {
    table.get("name").is_some_and(|found| found == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(name: &str) -> Table {
        json!({ "name": name }).as_object().unwrap().clone()
    }

    #[test]
    fn what_was_added_and_removed_again_is_forgotten() {
        let add = |vm: &str, disk: &str| ControlRequest::AddDisk {
            vm: vm.into(),
            disk: table(disk),
        };
        let add_vm = |name| ControlRequest::AddVm { vm: table(name) };
        let remove = |disk: &str| ControlRequest::RemoveDisk { disk: disk.into() };
        let remove_vm = |vm: &str| ControlRequest::RemoveVm { vm: vm.into() };
        let mut changes = Changes::default();
        for request in [
            add("old", "a"),
            add_vm("new"),
            add("new", "b"),
            remove("a"),
            remove("configured"),
            remove_vm("new"),
            add("old", "c"),
            remove_vm("configured"),
        ] {
            changes.push(request);
        }
        let expected = [
            remove("configured"),
            add("old", "c"),
            remove_vm("configured"),
        ];
        assert_eq!(changes.all(), expected);
        for n in 0..MAX_CHANGES {
            changes.push(add("old", &n.to_string()));
        }
        assert_eq!(changes.all().len(), MAX_CHANGES);
    }
}
