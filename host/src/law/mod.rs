//! The law: which VM gives back how much, now.
//!
//! *Measured*: the host's available memory, each VM's resident memory, and what its guest reports. *Actuated*: requests to
//! the guest's agent to give cache back (nothing is hidden from the guest: it takes the memory again as it likes), and, as the
//! last resort, the balloon. *Error fed back*: the headroom that the host lacks, now and by the VMs' growth in the next
//! seconds. *Stable*, because what was asked for and has not come yet counts as come, because a VM is never asked below
//! its entitlement, and because a step that hurt raises what is believed of the VM's working set (`watch`).
//!
//! **Entitlement**: what all VMs hold and what the host has above the headroom is divided by [`entitlements`]: configured
//! minimums, then what is in use (cannot be given back without swapping), then working sets, then the rest, each by weight.
//! A report of what is in use counts up to the VM's share by weight: beyond that it would come before the working sets of
//! others, and anybody can report anything. When the host is about to swap it counts whole where the balloon's statistics,
//! which the guest's kernel makes and not its agent, do not contradict it.
//!
//! Amounts are bytes, times milliseconds of a clock that the caller has.

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
/// What is urgent stays so for this long, milliseconds: entitlements differ then, and balloons would follow to and fro.
const URGENT_MS: u64 = 5000;
/// A balloon gives back beyond a share only what the host has above so many parts of its headroom: else the same memory would
/// be taken again.
const SPARE_PARTS: u64 = 2;

/// What is held beyond what a balloon leaves, as a part of the memory, shows that the balloon frees nothing. What QEMU holds itself is less.
const PINNED_PART: u64 = 8;

/// For less than this part of the headroom no cache worth having is asked for, and no balloon of a guest that answers is inflated.
const BEARABLE_PARTS: u64 = 4;

/// Below this part of the headroom only what the host sees counts, and balloons take what is lacking.
const DOUBT_PARTS: u64 = 4;

/// The law, with what it remembers of each VM.
#[derive(Clone, Debug, Default)]
pub struct Law {
    watches: BTreeMap<VmId, Watch>,
    urgent_until: u64,
}

impl Law {
    /// Notes the answer of a VM's agent to [`Order::Reclaim`]: how much it gave. An answer to nothing is ignored.
    pub fn answered(&mut self, now: u64, vm: VmId, given: u64) {
        if let Some(watch) = self.watches.get_mut(&vm) {
            watch.answered(now, given);
        }
    }

    /// Decides. To be called a few times a second, with every VM.
    pub fn decide(&mut self, now: u64, host: Host, vms: &[Vm]) -> Plan {
        self.watches
            .retain(|id, _| vms.iter().any(|vm| vm.id == *id));
        for vm in vms {
            let watch = self.watches.entry(vm.id).or_default();
            watch.look(now, vm, vm.distress());
        }
        // What QEMU holds itself is no memory of the guest: it is not divided.
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
        // What guests say they gave does not count once little is left: some may not have given it.
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

    /// Asks for what the host lacks: the VM furthest above its entitlement first, and of all of these VMs first what is not
    /// worth having.
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
            // It has given what it has: hiding free memory from it as well is worse than a little less headroom.
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

/// What each of these VMs is to give of what the host lacks: first what is not worth having of all of them, then what is. That is
/// lent a part of the headroom while nothing is urgent.
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

/// Takes at most so much off what is lacking.
fn taken(lacks: &mut u64, most: u64) -> u64 {
    let taken = most.min(*lacks);
    *lacks -= taken;
    taken
}

fn excess(vm: &Vm, place: &Place) -> u64 {
    vm.resident.saturating_sub(place.entitled)
}

/// `capacity` over VMs that demand this.
fn divided(capacity: u64, demands: impl Iterator<Item = Demand>) -> Vec<u64> {
    let mut tree = Tree::new();
    for demand in demands {
        tree.push(None, demand);
    }
    entitlements(&tree, capacity)
}

/// What a VM demands. Reports count up to what the host sees.
fn demand(vm: &Vm, watch: &Watch, share: u64, urgent: bool) -> Demand {
    // What the guest's kernel says is not available to programs.
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
            // A guest that reads again what it had needs more than it has; nobody knows how much.
            let refaults = watch.refaults(AHEAD_MS);
            let needs = if refaults >= STEP_LEAST {
                vm.resident.saturating_add(room)
            } else {
                0
            };
            let worth = worth.saturating_add(refaults).max(needs);
            (guest.unreclaimable, worth)
        }
        // Without an agent nobody says what its cache is worth: it counts as worth having, up to what the weight allows.
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

/// The balloon by `most` larger, if that is safe: the guest's kernel has so much available beyond its reserve and takes back
/// what it needs. Never below what it is entitled to.
fn inflated(vm: &Vm, place: &Place, most: u64) -> Option<Decision> {
    let balloon = vm.balloon?;
    // It is still at the last step, or the guest has taken some back.
    if balloon.actual.abs_diff(balloon.target) >= STEP_LEAST || !balloon.deflates_on_oom {
        return None;
    }
    // The host has got nothing of what is in it: the memory is pinned, as with an assigned device.
    if vm.resident > balloon.actual.saturating_add(vm.ram / PINNED_PART) {
        return None;
    }
    let available = balloon.available?.saturating_sub(2 * vm.reserve());
    // Free memory that the host does not hold goes into a balloon first, and frees nothing.
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

/// What a balloon gives back: everything to a guest that lacks memory; else up to the entitlement, and what the host has to
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
