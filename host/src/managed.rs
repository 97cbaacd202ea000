//! A managed VM with its decisions, as the law sees it and as the status shows it.

use std::collections::VecDeque;

use justitia_api::escape::plain;
use justitia_share::Weight;

use crate::channel::Agent;
use crate::discover::Process;
use crate::law::{Balloon, Place, Report, Vm as LawVm};
use crate::status::{Told, VmStatus};
use crate::vm::{Seen, Vm};

/// A VM and the decisions about it.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) vm: Vm,
    pub(crate) weight: Weight,
    pub(crate) minimum: u64,
    pub(crate) asked: u64,
    pub(crate) given: u64,
    pub(crate) decisions: VecDeque<(u64, String)>,
    /// When it was found, milliseconds.
    pub(crate) found_at: u64,
}

impl Managed {
    pub(crate) const fn new(vm: Vm, weight: Weight, minimum: u64, now: u64) -> Self {
        Self {
            vm,
            weight,
            minimum,
            asked: 0,
            given: 0,
            decisions: VecDeque::new(),
            found_at: now,
        }
    }
}

/// Its id in the law.
pub(crate) const fn id(process: Process) -> u64 {
    // A PID names one process at a time.
    process.pid as u64
}

/// The VM as the law sees it.
pub(crate) fn view(process: Process, managed: &Managed, seen: &Seen) -> LawVm {
    let original = seen.original.unwrap_or(managed.vm.found.ram);
    let balloon = seen.balloon.as_ref().map(|balloon| Balloon {
        actual: balloon.actual,
        target: seen.target.unwrap_or(original),
        deflates_on_oom: balloon.deflates_on_oom,
        available: balloon.statistics.map(|(available, _)| available),
        free: balloon.statistics.map_or(0, |(_, free)| free),
    });
    let balloons = seen.balloon.as_ref().filter(|found| found.deflates_on_oom);
    let found = &managed.vm.found;
    let inflated = balloons.map_or(0, |balloon| found.ram.saturating_sub(balloon.actual));
    let ram = original.min(found.most_ram);
    // QEMU's own memory counts toward the limit, too.
    let limit = found.limit.saturating_sub(seen.own.unwrap_or(0));
    LawVm {
        id: id(process),
        weight: managed.weight,
        minimum: managed.minimum,
        ram,
        most: ram.min(limit),
        resident: seen.held.resident,
        is_pinned: seen.held.is_pinned(found.ram),
        own: seen.own,
        balloon,
        guest: seen
            .report
            .map(|(at, state)| Report::new(at, &state, inflated)),
    }
}

/// Whether its balloon is read often and has statistics: for a VM that lacks memory or gives none back, requests are not
/// enough. A pinned VM gives nothing.
pub(crate) fn is_watched(seen: &Seen, ram: u64, place: &Place) -> bool {
    let excess = seen.held.resident > place.entitled && !seen.held.is_pinned(ram);
    seen.target.is_some() || place.distress || (!place.heeds && excess)
}

/// The VM as the status shows it.
pub(crate) fn vm_status(now: u64, process: Process, managed: &Managed, place: &Place) -> VmStatus {
    let seen = managed.vm.seen().clone();
    let vm = view(process, managed, &seen);
    let told = managed.decisions.iter().map(|(at, what)| Told {
        age_s: now.saturating_sub(*at) / 1000,
        what: what.clone(),
    });
    VmStatus {
        name: plain(&managed.vm.found.name),
        pid: process.pid,
        weight: managed.weight.get(),
        minimum: managed.minimum,
        ram: vm.ram,
        resident: vm.resident,
        share: place.share,
        entitled: place.entitled,
        in_use: place.in_use,
        working_set: place.working_set,
        floor: place.floor,
        paused_ms: place.paused_ms,
        heeds: place.heeds,
        distress: place.distress,
        is_pinned: vm.is_pinned,
        agent: seen.agent.unwrap_or(Agent::None),
        wrong: seen.wrong,
        reported: seen.report.map(|(_, state)| (state.available, state.worth)),
        balloon: vm.balloon.map(|balloon| (balloon.actual, balloon.target)),
        deflates_on_oom: vm.balloon.is_some_and(|balloon| balloon.deflates_on_oom),
        monitor_error: seen.monitor_error,
        asked: managed.asked,
        given: managed.given,
        decisions: told.collect(),
        tenants: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::Held;

    /// QEMU's own memory exceeds the entitlement.
    #[test]
    fn what_is_pinned_is_not_watched_for_what_it_holds() {
        let place = Place {
            vm: 7,
            share: 0,
            entitled: 100,
            in_use: 0,
            working_set: 0,
            floor: 0,
            paused_ms: 0,
            heeds: false,
            distress: false,
        };
        for (pinned, target, distress, expected) in [
            (0, None, false, true),
            (1000, None, false, false),
            (1000, Some(7), false, true),
            (1000, None, true, true),
        ] {
            let resident = 110;
            let held = Held { resident, pinned };
            let seen = Seen {
                held,
                target,
                ..Seen::default()
            };
            let place = Place { distress, ..place };
            let found = is_watched(&seen, 1000, &place);
            assert_eq!(found, expected, "{pinned} {target:?} {distress}");
        }
    }
}
