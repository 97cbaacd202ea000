//! Whether a tenant's working set is known.

use justitia_api::{DemandModel, Evidence};

use crate::model::MIN_OBSERVATION;
use crate::plan::{Key, Tenant};

/// Whether nothing shows what a tenant uses of its cache: working sets are not asked for (`demand = "usage"`); or its
/// accesses are not sampled, it has not been idle for long, and the kernel's lists do not tell.
pub(super) fn is_unknown(tenant: &Tenant, demand: DemandModel, multi_gen: bool) -> bool {
    let lists_tell = !multi_gen && tenant.key != Key::Unmanaged;
    let unused = !tenant.populated || tenant.working_set.observed_for >= MIN_OBSERVATION;
    let told = tenant.working_set.evidence == Evidence::Accesses || lists_tell || unused;
    demand == DemandModel::Usage || !told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{WorkingSet, fixture};
    use justitia_kernel::cgroup::CgroupId;
    use std::time::Duration;

    fn tenant(evidence: Evidence, seconds: u64) -> Tenant {
        Tenant {
            working_set: WorkingSet {
                bytes: 0,
                observed_for: Duration::from_secs(seconds),
                evidence,
            },
            ..fixture::tenant(Key::Cgroup(CgroupId(1)), 100, 0)
        }
    }

    #[test]
    fn a_working_set_that_nothing_shows_is_unknown() {
        let (lists, sampled) = (Evidence::Lists, Evidence::Accesses);
        for (evidence, seconds, demand, multi_gen, unknown) in [
            (sampled, 0, DemandModel::Use, true, false),
            (sampled, 0, DemandModel::Usage, true, true),
            (lists, 0, DemandModel::Use, true, true),
            (lists, 0, DemandModel::Use, false, false),
            // Idle for long: it uses what is mapped, and nothing else.
            (lists, 120, DemandModel::Use, true, false),
        ] {
            let found = is_unknown(&tenant(evidence, seconds), demand, multi_gen);
            assert_eq!(
                found, unknown,
                "{evidence:?} {seconds} {demand:?} {multi_gen}"
            );
        }
        let mut other = tenant(lists, 0);
        other.populated = false;
        assert!(!is_unknown(&other, DemandModel::Use, true));
        other = tenant(lists, 0);
        other.key = Key::Unmanaged;
        assert!(is_unknown(&other, DemandModel::Use, false));
    }
}
