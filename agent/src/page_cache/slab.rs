//! The cap of reclaimable slab: "Page/Slab Cache Control in a Virtualized Environment" (Linux Symposium 2010), 5.2.
//!
//! No interface shrinks slab alone. Every reclaim shrinks slab by the scanned part of the lists, times `vm.vfs_cache_pressure`
//! in per cent (`vfs_pressure_ratio` in fs/super.c and fs/dcache.c). While slab is above its cap, the agent raises that knob,
//! and reclaims a little from the tenants whose slab exceeds their share of the cap. This frees some hundred KiB of file pages,
//! and much slab.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use justitia_api::{Action, Reason, Rule, SlabReason};
use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::knob::Knob;
use justitia_share::{Demand, entitlements};

use super::entitlements::Policy;
use crate::knobs::{KnobStore, RestoreOutcome, WriteOutcome, machine_setting};
use crate::model::{Key, Snapshot};
use crate::status::decision_log::Decided;

const KNOB: Knob = Knob::VfsCachePressure;
/// The value while slab is above its cap, per cent. One request then frees a twentieth of a cgroup's slab. 1000 frees too
/// little of a crawler's with MGLRU (docs/results/vms.md).
const RAISED: &str = "10000";
/// It is restored once slab is below the cap by one part in this many.
const BELOW: u64 = 8;
/// A tenant with less slab is left alone, bytes.
const MIN_SLAB: u64 = 256 << 10;
/// Bytes of file pages that one request asks for: the least that the kernel reclaims at once.
pub(crate) const NUDGE: u64 = 128 << 10;
/// A tenant with fewer clean file pages is left to the kernel's own reclaim, bytes: without clean file pages, one request drops
/// all slab of the cgroup.
const MIN_FILE: u64 = 8 * NUDGE;

/// A tenant's slab is compared after this many requests.
const JUDGED: u32 = 8;
/// The first pause after requests in vain; each further one is twice as long.
const PAUSE_LEAST: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MOST: Duration = Duration::from_secs(60);

/// The effect of a tenant's requests.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Its slab before the first request, bytes.
    slab: u64,
    requests: u32,
    pause: Duration,
    until: Instant,
}

/// Slab against its cap. Bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabPlan {
    /// The cap of reclaimable slab.
    pub cap: u64,
    /// Reclaimable slab.
    pub held: u64,
    /// Tenants above their share of the goal that can be shrunk.
    pub above: Vec<(Key, SlabReason)>,
}

/// Divides the goal of slab by weight, and finds tenants above their shares while slab is above the goal; `None` without a cap.
/// No slab counts as used.
#[must_use]
pub fn plan_slab(snapshot: &Snapshot, policy: &Policy) -> Option<SlabPlan> {
    let cap = policy.slab_cap(&snapshot.memory)?;
    let tenants = &snapshot.tenants;
    let held = tenants.values().map(|tenant| tenant.slab).sum();
    let demands = tenants.map(|id, tenant| Demand {
        sums_weights: !tenants.is_leaf(id) && tenant.sums_weights,
        total: if tenants.is_leaf(id) {
            tenant.slab
        } else {
            u64::MAX
        },
        ..Demand::unlimited(tenant.weight)
    });
    let goal = cap - cap / BELOW;
    let shares = entitlements(&demands, goal);
    let leaves = tenants.iter().filter(|(id, _)| tenants.is_leaf(*id));
    let above = leaves.filter_map(|(id, tenant)| {
        let share = shares[id.index()];
        let clean = tenant
            .own
            .saturating_sub(tenant.slab + tenant.unreclaimable);
        let shrinks = tenant.exempt.is_none() && tenant.key != Key::Unmanaged && clean >= MIN_FILE;
        let is_above = held > goal && tenant.slab > share && tenant.slab >= MIN_SLAB;
        let reason = SlabReason {
            slab: tenant.slab,
            share,
            held,
            cap,
        };
        (shrinks && is_above).then_some((tenant.key, reason))
    });
    let above = above.collect();
    Some(SlabPlan { cap, held, above })
}

impl Effort {
    fn is_due(&mut self, slab: u64, now: Instant) -> bool {
        if now < self.until {
            return false;
        }
        if self.requests == JUDGED {
            let in_vain = self.slab < slab + u64::from(JUDGED) * NUDGE;
            self.pause = match in_vain {
                true => (self.pause * 2).clamp(PAUSE_LEAST, PAUSE_MOST),
                false => Duration::ZERO,
            };
            (self.slab, self.requests, self.until) = (slab, 0, now + self.pause);
            return !in_vain;
        }
        self.requests += 1;
        true
    }
}

/// Raises `vm.vfs_cache_pressure` while slab is above its cap.
#[derive(Debug)]
pub struct SlabController {
    /// The root cgroup: the knob store keeps the machine's knobs under it.
    root: Cgroup,
    /// Whether slab exceeded its cap, and has not fallen well below it since.
    over: bool,
    /// Whether the knob is left alone, for a reported reason.
    left: bool,
    /// The reason of the last raise.
    reason: Option<SlabReason>,
    efforts: BTreeMap<Key, Effort>,
}

impl SlabController {
    /// `root` is the root cgroup.
    #[must_use]
    pub const fn new(root: Cgroup) -> Self {
        Self {
            root,
            over: false,
            left: false,
            reason: None,
            efforts: BTreeMap::new(),
        }
    }

    /// The tenants from which something is reclaimed now. Slab that is in use, or too little for a batch of the kernel's
    /// shrinkers, does not shrink. Requests that free more file pages of a tenant than slab are in vain: then it pauses.
    pub fn due(&mut self, above: Vec<(Key, SlabReason)>, now: Instant) -> Vec<(Key, SlabReason)> {
        self.efforts
            .retain(|key, _| above.iter().any(|(other, _)| other == key));
        let mut due = above;
        due.retain(|(key, reason)| {
            let effort = self.efforts.entry(*key).or_insert(Effort {
                slab: reason.slab,
                requests: 0,
                pause: Duration::ZERO,
                until: now,
            });
            effort.is_due(reason.slab, now)
        });
        due
    }

    /// Whether slab is being shrunk.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// The operator has the agent take `vm.vfs_cache_pressure`.
    ///
    /// # Errors
    /// Why the agent still does not write it.
    pub fn take(&mut self) -> Result<(), String> {
        machine_setting(&self.root, KNOB)?;
        self.left = false;
        Ok(())
    }

    /// The reason of the last raise.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.reason.map(|reason| Rule::Slab(reason).into())
    }

    /// One tick: raises or restores the knob. Without a store it only returns the decision. Without a cap there is no plan.
    pub fn tick(&mut self, store: Option<&mut KnobStore>, plan: Option<&SlabPlan>) -> Vec<Decided> {
        let was = self.over;
        self.over = plan.is_some_and(|plan| match was {
            true => plan.held > plan.cap - plan.cap / BELOW,
            false => plan.held > plan.cap,
        });
        let Some(plan) = plan.filter(|_| self.over) else {
            return self.lower(store, was);
        };
        let reason = SlabReason {
            slab: plan.held,
            share: plan.cap,
            held: plan.held,
            cap: plan.cap,
        };
        let raised = match store {
            None => !was,
            Some(store) => self.raise(store),
        };
        let action = Action::Set {
            knob: KNOB.to_string(),
            from: Some(KNOB.default_value()),
            to: RAISED.to_owned(),
        };
        let decided = Decided::new(Key::Unmanaged, action, Rule::Slab(reason));
        if raised {
            self.reason = Some(reason);
        }
        raised.then_some(decided).into_iter().collect()
    }

    /// Whether it was raised now.
    fn raise(&mut self, store: &mut KnobStore) -> bool {
        let id = self.root.id();
        if let Ok(Some(WriteOutcome::External { applied, found, by })) = store.audit(id, KNOB) {
            tracing::warn!(knob = %KNOB, applied, found, by, "external: another writer has set it");
        }
        let raised = store.applied(id, KNOB).is_some();
        if raised || self.left || !store.may_write(id, KNOB) {
            return false;
        }
        if let Some(why) = self.operators(store) {
            tracing::warn!("slab: {KNOB} is left as it is: {why}");
            self.left = true;
            return false;
        }
        match store.set(&self.root, KNOB, RAISED) {
            Ok(WriteOutcome::Written | WriteOutcome::Reapplied { .. }) => true,
            Ok(_) => false,
            Err(error) => {
                // It is retried if only a resource was lacking.
                if !store.may_write(id, KNOB) {
                    tracing::warn!("slab: {KNOB} is left as it is: {error}");
                    self.left = true;
                }
                false
            }
        }
    }

    /// Why it may not be raised, if so. An operator's value is external from then on.
    fn operators(&self, store: &mut KnobStore) -> Option<String> {
        match machine_setting(&self.root, KNOB) {
            Ok(found) if found == RAISED => None,
            Ok(found) => store.leave_to_operator(&self.root, KNOB, &found),
            Err(why) => Some(why),
        }
    }

    fn lower(&self, store: Option<&mut KnobStore>, was: bool) -> Vec<Decided> {
        let lowered = store.map_or(was, |store| {
            store.restore(self.root.id(), KNOB) == Some(RestoreOutcome::Restored)
        });
        let knob = KNOB.to_string();
        let why = "reclaimable slab is below its cap".to_owned();
        let decided = Decided::new(Key::Unmanaged, Action::Restore { knob }, Reason::Text(why));
        lowered.then_some(decided).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Memory, Tenant};
    use crate::page_cache::fixture;
    use justitia_kernel::cgroup::{CgroupFs, CgroupId};

    const MIB: u64 = 1 << 20;
    /// The kernel's default, per cent.
    const USUAL: &str = "100";

    /// A tenant with this slab and these clean file pages, MiB.
    fn tenant(id: u64, weight: u64, slab: u64, file: u64) -> Tenant {
        Tenant {
            slab: slab * MIB,
            ..fixture::tenant(Key::Cgroup(CgroupId(id)), weight, (slab + file) * MIB)
        }
    }

    /// A cap of 5 % of 1,000 MiB.
    fn plan(tenants: Vec<Tenant>) -> SlabPlan {
        let snapshot = Snapshot {
            memory: Memory {
                total: 1000 * MIB,
                ..Memory::default()
            },
            tenants: fixture::tree(tenants.into_iter().map(|tenant| (None, tenant))),
        };
        assert_eq!(plan_slab(&snapshot, &Policy::default()), None);
        let policy = Policy {
            slab_max: Some(5.0),
            ..Policy::default()
        };
        plan_slab(&snapshot, &policy).unwrap()
    }

    fn shrunk(tenants: Vec<Tenant>) -> Vec<(u64, u64)> {
        let above = plan(tenants).above;
        let of = |(key, reason): (Key, SlabReason)| (key.cgroup().unwrap().0, reason.share / MIB);
        above.into_iter().map(of).collect()
    }

    #[test]
    fn the_cap_is_divided_by_weight_and_only_what_is_above_it_shrinks() {
        assert_eq!(shrunk(vec![tenant(1, 100, 43, 10)]), []);
        // An eighth below the cap is 43.75 MiB.
        assert_eq!(shrunk(vec![tenant(1, 100, 44, 10)]), [(1, 43)]);
        // The second stays within its half, the first gets the remainder.
        let two = vec![tenant(1, 100, 90, 10), tenant(2, 100, 5, 10)];
        assert_eq!(shrunk(two), [(1, 38)]);
        let three = vec![
            tenant(1, 100, 60, 10),
            tenant(2, 300, 60, 10),
            tenant(3, 100, 5, 0),
        ];
        assert_eq!(shrunk(three), [(1, 9), (2, 29)]);
    }

    #[test]
    fn where_one_request_would_drop_all_of_it_the_kernel_is_left_alone() {
        assert_eq!(shrunk(vec![tenant(1, 100, 90, 0)]), []);
        let dirty = Tenant {
            unreclaimable: 9 * MIB + MIB / 2,
            ..tenant(1, 100, 90, 10)
        };
        assert_eq!(shrunk(vec![dirty]), []);
        let unmanaged = Tenant {
            key: Key::Unmanaged,
            ..tenant(1, 100, 90, 10)
        };
        assert_eq!(shrunk(vec![unmanaged]), []);
    }

    /// A machine, with its knob store.
    fn machine(dir: &std::path::Path, value: &str) -> (SlabController, KnobStore) {
        let root = dir.join("cgroup");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join(KNOB.file()), value).unwrap();
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (mut store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
        // The file keeps the last write, as the kernel's do.
        store.write_knob = |cgroup, knob, value| {
            std::fs::write(cgroup.full_path().join(knob.file()), value).unwrap();
            Ok(())
        };
        (SlabController::new(fs.root().clone()), store)
    }

    fn stands(dir: &std::path::Path) -> String {
        std::fs::read_to_string(dir.join("cgroup").join(KNOB.file())).unwrap()
    }

    fn held(slab: u64) -> SlabPlan {
        held_by(1, slab)
    }

    fn held_by(id: u64, slab: u64) -> SlabPlan {
        plan(vec![tenant(id, 100, slab, 10)])
    }

    #[test]
    fn it_is_raised_while_slab_is_above_the_cap_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let (mut slab, mut store) = machine(dir.path(), USUAL);
        for (mib, expected, decisions) in [
            (50, USUAL, 0),
            (51, RAISED, 1),
            (45, RAISED, 0),
            (43, USUAL, 1),
            (49, USUAL, 0),
            (60, RAISED, 1),
        ] {
            let decided = slab.tick(Some(&mut store), Some(&held(mib)));
            assert_eq!(stands(dir.path()), expected, "{mib} MiB");
            assert_eq!(decided.len(), decisions, "{mib} MiB");
        }
        // The configuration has no cap any more.
        assert_eq!(slab.tick(Some(&mut store), None).len(), 1);
        assert_eq!(stands(dir.path()), USUAL);
        // The same when the agent ends.
        slab.tick(Some(&mut store), Some(&held(60)));
        assert_eq!(stands(dir.path()), RAISED);
        drop(store);
        assert_eq!(stands(dir.path()), USUAL);
    }

    #[test]
    fn where_nothing_shrinks_it_is_tried_less_and_less() {
        let dir = tempfile::tempdir().unwrap();
        let (mut slab, _store) = machine(dir.path(), USUAL);
        let begin = Instant::now();
        // Requests in each 10 s, four ticks a second, while each lowers slab by `falls` bytes.
        let mut requests = |from: u64, mib: u64, falls: u64| {
            let (mut held, mut made) = (mib * MIB, 0);
            for tick in 0..40 {
                let now = begin + Duration::from_secs(from) + Duration::from_millis(250) * tick;
                let mut above = held_by(1, mib).above;
                above[0].1.slab = held;
                let due = slab.due(above, now).len();
                held -= falls * u64::try_from(due).unwrap();
                made += due;
            }
            made
        };
        assert!(requests(0, 600, 2 * NUDGE) >= 36);
        assert!(requests(10, 600, 0) <= 26);
        let rest: Vec<usize> = (2..12).map(|n| requests(10 * n, 600, 0)).collect();
        assert!(rest.iter().sum::<usize>() <= 48, "{rest:?}");
        // It shrinks again: soon requests are as frequent as before.
        let again: Vec<usize> = (13..22).map(|n| requests(10 * n, 600, 2 * NUDGE)).collect();
        assert!(again.last().is_some_and(|last| *last >= 36), "{again:?}");
    }

    #[test]
    fn its_operators_choice_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut slab, mut store) = machine(dir.path(), "50");
        assert!(slab.tick(Some(&mut store), Some(&held(60))).is_empty());
        assert_eq!(stands(dir.path()), "50");
        let external: Vec<_> = store.external().collect();
        assert_eq!(external, [(slab.root.id(), KNOB, "50")]);
        // Until its operator has us take it; then it is restored each time.
        assert_eq!(slab.take(), Ok(()));
        assert!(store.take(&slab.root, KNOB).unwrap());
        for (mib, expected) in [(60, RAISED), (40, "50"), (60, RAISED), (40, "50")] {
            slab.tick(Some(&mut store), Some(&held(mib)));
            assert_eq!(stands(dir.path()), expected);
        }
    }

    #[test]
    fn who_sets_it_meanwhile_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut slab, mut store) = machine(dir.path(), USUAL);
        slab.tick(Some(&mut store), Some(&held(60)));
        std::fs::write(dir.path().join("cgroup").join(KNOB.file()), "70").unwrap();
        for mib in [60, 40, 60] {
            slab.tick(Some(&mut store), Some(&held(mib)));
            assert_eq!(stands(dir.path()), "70");
        }
    }

    #[test]
    fn observing_it_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut slab, _store) = machine(dir.path(), USUAL);
        assert_eq!(slab.tick(None, Some(&held(60))).len(), 1);
        assert_eq!(slab.tick(None, Some(&held(60))).len(), 0);
        assert_eq!(slab.tick(None, Some(&held(10))).len(), 1);
        assert_eq!(stands(dir.path()), USUAL);
    }
}
