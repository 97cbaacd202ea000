//! What the protection does when cgroups come and go, and when knobs are written.

use justitia_kernel::Result;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::{Knob, read_raw};

use super::controller::{ProtectionController, log_external, mark_external_unless};
use crate::enforce::knob_store::{KnobStoreError, WriteOutcome};
use crate::escape;
use crate::monitor::{CgroupTree, memory_low};

impl ProtectionController {
    /// A cgroup was created. A `memory.low` that it has already belongs to its operator or its delegatee.
    pub fn on_cgroup_added(&mut self, cgroups: &CgroupTree, id: CgroupId) {
        let (Some(store), Some(node)) = (&mut self.store, cgroups.get(id)) else {
            return;
        };
        if node.external_low > 0 {
            let low = node.external_low.to_string();
            let tenant = escape::encode(node.cgroup.path().as_os_str());
            if node.in_delegation {
                tracing::debug!(
                    tenant,
                    low,
                    "memory.low is set by the delegatee: it is not written"
                );
            } else {
                tracing::info!(
                    tenant,
                    low,
                    "memory.low is set by the operator: it counts as a minimum and is not written"
                );
            }
            store.mark_external(id, Knob::MemoryLow, &low);
        }
    }

    /// A cgroup was removed, or is no tenant any more.
    pub fn on_cgroup_removed(&mut self, id: CgroupId) {
        if let Some(store) = &mut self.store {
            store.on_cgroup_removed(id);
        }
        self.would_apply.remove(&id);
        self.reasons.remove(&id);
        self.raised.remove(&id);
    }

    /// A knob was written, possibly by us. If another writer has set it, it is external from now on, and its `memory.low`
    /// is returned, bytes.
    ///
    /// # Errors
    /// If it cannot be read. For lack of a file descriptor or of memory nothing is known then: it has to be read again.
    pub fn on_knob_written(
        &mut self,
        cgroups: &CgroupTree,
        id: CgroupId,
        knob: Knob,
    ) -> Result<Option<u64>> {
        let Some(node) = cgroups.get(id) else {
            return Ok(None);
        };
        let path = escape::encode(node.cgroup.path().as_os_str());
        let Some(store) = &mut self.store else {
            let low = memory_low(&node.cgroup)?;
            if low > 0 {
                self.would_apply.remove(&id);
                self.reasons.remove(&id);
            }
            return Ok(Some(low));
        };
        if store.applied(id, knob).is_some() {
            let read = read_raw(&node.cgroup, knob)?;
            match store.audit_value(id, knob, &read) {
                Ok(Some(WriteOutcome::External { applied, found })) => {
                    log_external(node, &path, knob, &applied, &found);
                }
                Ok(Some(WriteOutcome::Reapplied { found })) => {
                    tracing::debug!(tenant = path, %knob, found, "the original value was reapplied: written again");
                    return Ok(None);
                }
                Ok(_) => return Ok(None),
                Err(KnobStoreError::Kernel(error)) if error.is_exhausted() => return Err(error),
                Err(error) => {
                    tracing::debug!(tenant = path, %knob, %error, "could not be written again");
                    return Ok(None);
                }
            }
        } else if store.may_write(id, knob)
            && mark_external_unless(store, node, &path, 0)?.is_none()
        {
            return Ok(None);
        }
        memory_low(&node.cgroup).map(Some)
    }
}
