//! Whether the agent may write a tenant's knob, and whether its value is still there.

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::knob::{Knob, read_raw};

use crate::knobs::{KnobStore, KnobStoreError, WriteOutcome};

/// Whether a knob may be written: it does not hold another writer's value.
pub(super) fn ours_to_write(
    store: &mut KnobStore,
    cgroup: &Cgroup,
    knob: Knob,
    nothing: &str,
) -> bool {
    let id = cgroup.id();
    if !store.may_write(id, knob) {
        return false;
    }
    if store.applied(id, knob).is_some() {
        return true;
    }
    match read_raw(cgroup, knob) {
        Ok(found) if found == nothing || store.is_taken(id, knob, &found) => true,
        // An earlier agent's value, restored soon.
        Ok(found) if store.original_of_left(id, knob, &found).is_some() => false,
        Ok(found) => {
            let tenant = escape::encode(cgroup.path().as_os_str());
            tracing::info!(tenant, %knob, found, "set by its operator: it is theirs");
            store.mark_external(id, knob, &found);
            false
        }
        // No io controller there.
        Err(_) => false,
    }
}

/// Whether a knob still holds our value, read now. If not, it is external from now on, or its cgroup was removed, and the
/// reason is logged. A knob that its operator has released does not hold it.
pub(super) fn still_stands(store: &mut KnobStore, id: CgroupId, knob: Knob) -> bool {
    if store.applied(id, knob).is_none() {
        return false;
    }
    match store.audit(id, knob) {
        Ok(None | Some(WriteOutcome::Reapplied { .. })) => return true,
        Ok(Some(WriteOutcome::External { by, .. })) => {
            tracing::warn!(cgroup = id.0, %knob, by, "external: another writer has set it");
        }
        Ok(Some(_)) => {}
        Err(error) => tracing::warn!(cgroup = id.0, %knob, %error, "not held for now"),
    }
    false
}

/// Whether our value was written. If not, the knob holds none of ours, and the reason is logged.
pub(super) fn told(
    cgroup: &Cgroup,
    knob: Knob,
    written: Result<WriteOutcome, KnobStoreError>,
    store: &KnobStore,
) -> bool {
    let tenant = escape::encode(cgroup.path().as_os_str());
    match written {
        Ok(WriteOutcome::Written | WriteOutcome::Unchanged | WriteOutcome::Reapplied { .. }) => {
            true
        }
        Ok(WriteOutcome::External { applied, found, by }) => {
            tracing::warn!(tenant, %knob, applied, found, by, "external: another writer has set it");
            false
        }
        Ok(WriteOutcome::Gone | WriteOutcome::GivenUp | WriteOutcome::Deferred) => false,
        Err(error) if store.may_write(cgroup.id(), knob) => {
            tracing::debug!(tenant, %knob, %error, "could not be set; it is tried again");
            false
        }
        Err(error) => {
            tracing::warn!(tenant, %knob, %error, "given up: it could not be set");
            false
        }
    }
}
