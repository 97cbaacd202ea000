//! The control law: how much memory each VM gives back now.
//!
//! *Measured*: the host's available memory, each VM's resident memory, and the guests' reports. *Actuated*: requests to
//! guests' agents to give cache back, and balloons as the last resort. A request hides no memory: the guest may use it again.
//! *Error fed back*: the headroom that the host lacks, now and after the VMs' growth in the next seconds. *Stable* for three
//! reasons. Requested memory counts before it arrives. No VM is asked for memory below its entitlement. A harmful step raises
//! the estimate of the VM's working set (`watch`).
//!
//! **Entitlement**: [`entitlements`] divides the memory that all VMs hold, and the host's above the headroom. In order, each
//! by weight: configured minimums, memory in use (not reclaimable without swapping), working sets, and the rest. Reported
//! memory in use counts up to the VM's share by weight: more would come before other VMs' working sets, and a guest can
//! report anything. When the host is about to swap, all of it counts unless the balloon's statistics contradict it. The
//! guest's kernel makes these, not its agent.
//!
//! Amounts are bytes, times milliseconds of the caller's clock.

#[cfg(test)]
mod tests;
mod types;
mod watch;

use std::collections::BTreeMap;

use justitia_share::{Demand, Tree, entitlements};

use types::STEP_PART;
pub use types::{
    Balloon, Decision, Host, Order, Place, Plan, Report, STEP_LEAST, STEP_MOST, Vm, VmId,
    WITHIN_MS, Why,
};
use watch::Watch;

/// How far ahead growth is provided for, milliseconds: a report is a second old, a request takes another, and free pages are
/// reported in batches every 2 s (`PAGE_REPORTING_DELAY` in the kernel's mm/page_reporting.c).
const AHEAD_MS: u64 = 3000;
/// How long urgency lasts, milliseconds: it changes entitlements, and balloons would oscillate.
const URGENT_MS: u64 = 5000;
/// A balloon returns more than the entitlement only from host memory above this multiple of the headroom: otherwise the same
/// memory would be taken again.
const SPARE_PARTS: u64 = 2;

/// If a VM holds this part of its memory more than its balloon leaves, the balloon frees nothing. QEMU's own memory is less.
const PINNED_PART: u64 = 8;

/// A shortage below this part of the headroom takes no cache worth having, and inflates no balloon of a guest that answers.
const BEARABLE_PARTS: u64 = 4;

/// Below this part of the headroom only the host's own measurements count, and balloons take the missing memory.
const DOUBT_PARTS: u64 = 4;

/// The law with its history of each VM.
#[derive(Clone, Debug, Default)]
pub struct Law {
    watches: BTreeMap<VmId, Watch>,
    urgent_until: u64,
}

impl Law {
    /// Notes an agent's answer to [`Order::Reclaim`]: the bytes that it gave. An answer without a request is ignored.
    pub fn answered(&mut self, now: u64, vm: VmId, given: u64) {
        if let Some(watch) = self.watches.get_mut(&vm) {
            watch.answered(now, given);
        }
    }

    /// Makes a plan. To be called a few times a second, with every VM.
    pub fn decide(&mut self, now: u64, host: Host, vms: &[Vm]) -> Plan {
        self.watches
            .retain(|id, _| vms.iter().any(|vm| vm.id == *id));
        for vm in vms {
            let watch = self.watches.entry(vm.id).or_default();
            watch.look(now, vm, vm.distress());
        }
        // QEMU's own memory is not the guest's: it is not divided.
        let mut vms = vms.to_vec();
        for vm in &mut vms {
            let overhead = self.watches[&vm.id].overhead(vm);
            vm.resident = vm.resident.saturating_sub(overhead);
            if vm.is_pinned {
                vm.most = vm.resident;
            }
        }
        let vms = &vms[..];
        let mut plan = self.divide(now, host, vms);
        let mut decisions = Vec::new();
        for (vm, place) in vms.iter().zip(&plan.places) {
            decisions.extend(given_back(host, vm, place));
        }
        self.take(now, vms, &plan, &mut decisions);
        plan.decisions = decisions;
        plan
    }

    fn divide(&mut self, now: u64, host: Host, vms: &[Vm]) -> Plan {
        let held: u64 = vms.iter().map(|vm| vm.resident).sum();
        let capacity = host.available.saturating_add(held);
        let capacity = capacity.saturating_sub(host.headroom.saturating_add(host.over));
        let whole = |vm: &Vm| Demand {
            minimum: vm.minimum,
            total: vm.most.max(vm.resident),
            ..Demand::unlimited(vm.weight)
        };
        let shares = divided(capacity, vms.iter().map(whole));
        let wanted = |vm: &Vm| {
            let growth = self.watches[&vm.id].growth(AHEAD_MS);
            growth.min(vm.most.saturating_sub(vm.resident))
        };
        let wanted: u64 = vms.iter().map(wanted).sum();
        // With little memory left, announced memory does not count: some guests may not have given it.
        let believed = host.available >= host.headroom / DOUBT_PARTS;
        let coming = vms.iter().map(|vm| self.watches[&vm.id].coming());
        let coming: u64 = if believed { coming.sum() } else { 0 };
        let needed = wanted.saturating_add(host.headroom / 2);
        if host.available.saturating_add(coming) < needed {
            self.urgent_until = now + URGENT_MS;
        }
        let urgent = now < self.urgent_until;
        let demands: Vec<Demand> = vms
            .iter()
            .zip(&shares)
            .map(|(vm, share)| demand(vm, &self.watches[&vm.id], *share, urgent))
            .collect();
        let entitled = divided(capacity, demands.iter().copied());
        let mut places = Vec::new();
        for (((vm, demand), share), entitled) in vms.iter().zip(&demands).zip(shares).zip(entitled)
        {
            let watch = &self.watches[&vm.id];
            places.push(Place {
                vm: vm.id,
                share,
                entitled,
                in_use: demand.in_use,
                working_set: demand.working_set,
                floor: watch.floor(),
                paused_ms: watch.paused(now),
                heeds: vm.guest.is_some()
                    && believed
                    && (watch.heeds(now) || (vm.resident <= share && !urgent)),
                distress: vm.distress(),
            });
        }
        let needed = host.headroom.saturating_add(wanted);
        let needed = needed.saturating_add(host.over);
        Plan {
            decisions: Vec::new(),
            places,
            capacity,
            urgent,
            shortage: needed.saturating_sub(host.available).saturating_sub(coming),
            bearable: host.headroom / BEARABLE_PARTS,
        }
    }

    /// Asks for the memory that the host lacks: first for cache that is not worth having, of all VMs. The VMs furthest above
    /// their entitlement come first.
    fn take(&mut self, now: u64, vms: &[Vm], plan: &Plan, decisions: &mut Vec<Decision>) {
        let urgent = plan.urgent;
        let mut order: Vec<(&Vm, &Place)> = vms.iter().zip(&plan.places).collect();
        order.sort_by_key(|(vm, place)| std::cmp::Reverse(excess(vm, place)));
        order.retain(|(vm, place)| {
            let paused = place.paused_ms > 0 && !urgent;
            let watch = &self.watches[&vm.id];
            let asked = watch.is_asked() || watch.spared(now);
            let decided = decisions.iter().any(|decision| decision.vm == vm.id);
            !(vm.is_pinned || place.distress || paused || asked || decided)
        });
        for ((vm, place), (idle, rest)) in order.iter().zip(steps(&order, plan)) {
            let (Some(watch), step) = (self.watches.get_mut(&vm.id), idle + rest) else {
                continue;
            };
            if step < STEP_LEAST {
                continue;
            }
            // It has given what it can: to hide free memory from it is worse than a little less headroom.
            if vm.guest.is_some() && !place.heeds && !urgent && plan.shortage <= plan.bearable {
                continue;
            }
            let balloon = if place.heeds {
                None
            } else {
                inflated(vm, place, step)
            };
            if let Some(decision) = balloon {
                watch.inflated(now, step);
                decisions.push(decision);
            } else if place.heeds || (urgent && vm.guest.is_some() && !watch.has_refused(now)) {
                watch.asked(now, step, vm);
                decisions.push(Decision {
                    vm: vm.id,
                    order: Order::Reclaim(step),
                    why: if rest == 0 { Why::Idle } else { Why::Excess },
                });
            }
        }
    }
}

/// The part of the shortage that each of these VMs gives: cache not worth having, and cache worth having. Unless urgent, the
/// latter only for a shortage beyond `bearable`.
fn steps(vms: &[(&Vm, &Place)], plan: &Plan) -> Vec<(u64, u64)> {
    let mut lacks = plan.shortage;
    let most = |vm: &Vm, place: &Place| {
        let step = if plan.urgent {
            vm.ram / STEP_PART
        } else {
            vm.step()
        };
        excess(vm, place).min(step)
    };
    let mut idle = Vec::new();
    for (vm, place) in vms {
        let not_worth = vm.resident.saturating_sub(place.working_set);
        idle.push(taken(&mut lacks, most(vm, place).min(not_worth)));
    }
    if !plan.urgent {
        lacks = lacks.saturating_sub(plan.bearable);
    }
    let mut steps = Vec::new();
    for ((vm, place), idle) in vms.iter().zip(idle) {
        steps.push((idle, taken(&mut lacks, most(vm, place) - idle)));
    }
    steps
}

/// Takes at most `most` off the shortage.
fn taken(lacks: &mut u64, most: u64) -> u64 {
    let taken = most.min(*lacks);
    *lacks -= taken;
    taken
}

fn excess(vm: &Vm, place: &Place) -> u64 {
    vm.resident.saturating_sub(place.entitled)
}

/// Divides `capacity` among VMs with these demands.
fn divided(capacity: u64, demands: impl Iterator<Item = Demand>) -> Vec<u64> {
    let mut tree = Tree::new();
    for demand in demands {
        tree.push(None, demand);
    }
    entitlements(&tree, capacity)
}

/// The demand of a VM. Reports count up to the host's own measurements.
fn demand(vm: &Vm, watch: &Watch, share: u64, urgent: bool) -> Demand {
    // Memory that is not available to programs, as the guest's kernel says.
    let used = |balloon: Balloon| Some(balloon.actual.saturating_sub(balloon.available?));
    let guest = vm.guest.filter(|_| !vm.is_pinned);
    let balloon = vm
        .balloon
        .filter(|balloon| !vm.is_pinned && (balloon.deflates_on_oom || guest.is_some()));
    let witnessed = balloon.and_then(used);
    let room = watch.growth(AHEAD_MS).max(vm.ram / STEP_PART);
    let (in_use, working_set) = match (guest, witnessed) {
        (Some(guest), _) => {
            let worth = guest.unreclaimable.saturating_add(guest.worth);
            let worth = worth.max(watch.floor());
            // A guest that refaults needs more memory than it has; how much more is unknown.
            let refaults = watch.refaults(AHEAD_MS);
            let needs = if refaults >= STEP_LEAST {
                vm.resident.saturating_add(room)
            } else {
                0
            };
            let worth = worth.saturating_add(refaults).max(needs);
            (guest.unreclaimable, worth)
        }
        // Without an agent the worth of its cache is unknown: all counts as worth having, within its share by weight.
        (None, Some(used)) => (used, vm.resident.saturating_add(room)),
        // Nothing can be taken from it.
        (None, None) => (vm.resident, vm.resident.saturating_add(room)),
    };
    let in_use = in_use.min(vm.resident);
    let in_use = if urgent {
        in_use.min(witnessed.unwrap_or(in_use))
    } else {
        in_use.min(share)
    };
    let total = vm.resident.saturating_add(room);
    let total = total.min(vm.most.max(vm.resident));
    Demand {
        minimum: vm.minimum.min(vm.most),
        in_use,
        working_set: working_set.max(in_use).min(total),
        total: total.max(vm.minimum.min(vm.most)),
        ..Demand::unlimited(vm.weight)
    }
}

/// Inflates the balloon by at most `most`, if that is safe: the guest's kernel has that available beyond its reserve, and
/// takes memory back when it needs some. Never below the entitlement.
fn inflated(vm: &Vm, place: &Place, most: u64) -> Option<Decision> {
    let balloon = vm.balloon?;
    // The last step is not done, or the guest has taken memory back.
    if balloon.actual.abs_diff(balloon.target) >= STEP_LEAST || !balloon.deflates_on_oom {
        return None;
    }
    // The host got none of the balloon's memory: it is pinned, as with an assigned device.
    if vm.resident > balloon.actual.saturating_add(vm.ram / PINNED_PART) {
        return None;
    }
    let available = balloon.available?.saturating_sub(2 * vm.reserve());
    // Free memory that the host does not hold enters a balloon first, and frees nothing.
    let hollow = balloon.actual.saturating_sub(vm.resident).min(balloon.free);
    let least = place.entitled.max(vm.minimum);
    let target = balloon
        .actual
        .saturating_sub((most + hollow).min(available))
        .max(least);
    (target + STEP_LEAST <= balloon.actual).then_some(Decision {
        vm: vm.id,
        order: Order::Balloon(target),
        why: Why::Unheeded,
    })
}

/// Deflates the balloon: fully for a guest that lacks memory, otherwise to the entitlement and by memory that the host can
/// spare.
fn given_back(host: Host, vm: &Vm, place: &Place) -> Option<Decision> {
    let balloon = vm.balloon?;
    if balloon.target >= vm.ram {
        return None;
    }
    let spare = host
        .available
        .saturating_sub(SPARE_PARTS * host.headroom)
        .min(vm.step());
    let target = balloon.target.saturating_add(spare).max(place.entitled);
    let (target, why) = if place.distress {
        (vm.ram, Why::Distress)
    } else {
        (target.min(vm.ram), Why::Spare)
    };
    (target >= balloon.target + STEP_LEAST || target == vm.ram).then_some(Decision {
        vm: vm.id,
        order: Order::Balloon(target),
        why,
    })
}
