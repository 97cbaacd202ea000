use justitia_guest_protocol::memory::State;
use justitia_share::Weight;

use super::*;

const MIB: u64 = 1 << 20;
const HEADROOM: u64 = 200 * MIB;

/// A VM of 1 GiB that holds `resident` MiB, of which `in_use` are in use and `worth` are cache worth having.
fn vm(id: VmId, resident: u64, in_use: u64, worth: u64) -> Vm {
    Vm {
        id,
        weight: Weight::default(),
        minimum: 0,
        ram: 1024 * MIB,
        most: 1024 * MIB,
        resident: resident * MIB,
        is_pinned: false,
        own: None,
        balloon: None,
        guest: Some(Report {
            at: 0,
            available: (1024 - in_use) * MIB,
            used: resident * MIB,
            unreclaimable: in_use * MIB,
            worth: worth * MIB,
            refaulted: 0,
            stalled_us: 0,
        }),
    }
}

fn balloon(available: u64) -> Option<Balloon> {
    Some(Balloon {
        actual: 1024 * MIB,
        target: 1024 * MIB,
        deflates_on_oom: true,
        available: Some(available * MIB),
        free: 0,
    })
}

fn decide(law: &mut Law, now: u64, available: u64, vms: &[Vm]) -> Plan {
    let host = Host {
        available: available * MIB,
        headroom: HEADROOM,
        over: 0,
    };
    law.decide(now, host, vms)
}

/// The memory that VMs may hold together is divided, however much more they hold.
#[test]
fn what_is_held_beyond_the_bound_is_not_divided() {
    let vms = [vm(1, 900, 50, 0), vm(2, 900, 50, 0)];
    for over in [0, 100, 800] {
        let host = Host {
            available: 0,
            headroom: HEADROOM,
            over: over * MIB,
        };
        let plan = Law::default().decide(1000, host, &vms);
        assert_eq!(plan.capacity, 1800 * MIB - HEADROOM - over * MIB);
        assert!(plan.shortage >= HEADROOM + over * MIB, "{over}");
    }
}

/// The VMs that are asked, for how many MiB, and why.
fn asked(plan: &Plan) -> Vec<(VmId, u64, Why)> {
    let decisions = plan.decisions.iter();
    let asked = decisions.filter_map(|decision| match decision.order {
        Order::Reclaim(bytes) => Some((decision.vm, bytes / MIB, decision.why)),
        Order::Balloon(_) => None,
    });
    asked.collect()
}

#[test]
fn nobody_is_asked_while_the_host_has_memory() {
    let vms = [vm(1, 900, 50, 0), vm(2, 100, 50, 50)];
    let plan = decide(&mut Law::default(), 0, 201, &vms);
    assert_eq!((plan.decisions.len(), plan.shortage), (0, 0));
}

#[test]
fn what_is_not_worth_having_goes_first_of_who_has_the_most() {
    // The first holds the most, all of it worth having; the second holds cache that is not worth having.
    let vms = [
        vm(1, 700, 100, 600),
        vm(2, 600, 100, 0),
        vm(3, 300, 100, 200),
    ];
    let plan = decide(&mut Law::default(), 0, 180, &vms);
    assert_eq!(asked(&plan), [(2, 20, Why::Idle)]);
}

/// Only a shortage beyond a quarter of the headroom; all of it once it is urgent.
#[test]
fn a_part_of_the_headroom_is_lent_to_cache_worth_having() {
    for (available, expected) in [(199, 0), (150, 0), (140, 10), (110, 40), (60, 128)] {
        let vms = [vm(1, 900, 100, 800), vm(2, 100, 100, 0)];
        let plan = decide(&mut Law::default(), 0, available, &vms);
        let given: Vec<_> = asked(&plan).iter().map(|(_, mib, _)| *mib).collect();
        let expected: Vec<u64> = [expected].into_iter().filter(|mib| *mib > 0).collect();
        assert_eq!(given, expected, "{available}: {plan:?}");
    }
}

#[test]
fn steps_are_bounded_and_one_at_a_time() {
    let mut law = Law::default();
    let vms = [vm(1, 900, 50, 0)];
    assert_eq!(asked(&decide(&mut law, 0, 110, &vms)), [(1, 64, Why::Idle)]);
    assert_eq!(asked(&decide(&mut law, 250, 110, &vms)), []);
    law.answered(500, 1, 64 * MIB);
    // Given memory counts before it arrives.
    assert_eq!(
        asked(&decide(&mut law, 500, 110, &vms)),
        [(1, 26, Why::Idle)]
    );
}

#[test]
fn an_agent_that_does_not_give_is_not_asked_again_and_its_balloon_is_the_last_resort() {
    for (balloon, oom, expected) in [
        (balloon(900), true, true),
        (balloon(900), false, false),
        // Its kernel has nothing to spare.
        (balloon(60), true, false),
        (None, true, false),
    ] {
        let mut law = Law::default();
        let mut one = vm(1, 900, 50, 0);
        one.balloon = balloon.map(|balloon| Balloon {
            deflates_on_oom: oom,
            ..balloon
        });
        let vms = [one, vm(2, 850, 50, 800)];
        assert_eq!(asked(&decide(&mut law, 0, 140, &vms)).len(), 1);
        law.answered(250, 1, 0);
        let plan = decide(&mut law, 500, 140, &vms);
        let inflated = plan.decisions.iter().find(|decision| decision.vm == 1);
        assert_eq!(inflated.is_some(), expected, "{plan:?}");
        if let Some(decision) = inflated {
            assert_eq!(
                (decision.order, decision.why),
                (Order::Balloon(964 * MIB), Why::Unheeded)
            );
        }
    }
}

/// The agent says that it gave, and the host sees nothing. While enough may be on its way it waits, then the balloon takes it.
#[test]
fn what_is_only_said_to_be_given_does_not_count_once_little_is_left() {
    for (available, believed) in [(60, true), (50, true), (49, false)] {
        let mut law = Law::default();
        let mut one = vm(1, 900, 50, 0);
        one.balloon = balloon(900);
        let vms = [one, vm(2, 850, 50, 800)];
        let [(1, mib, _)] = asked(&decide(&mut law, 0, 60, &vms))[..] else {
            panic!("the first is asked");
        };
        law.answered(250, 1, mib * MIB);
        let plan = decide(&mut law, 500, available, &vms);
        let inflated = plan
            .decisions
            .iter()
            .any(|decision| decision.vm == 1 && matches!(decision.order, Order::Balloon(_)));
        assert_eq!(inflated, !believed, "{available}: {plan:?}");
    }
}

/// The balloon is left as it is while the host lacks a quarter of its headroom at most.
#[test]
fn a_guest_that_answers_is_not_squeezed_for_a_little_headroom() {
    for (available, expected) in [(150, false), (149, true)] {
        let mut law = Law::default();
        let mut one = vm(1, 900, 50, 0);
        one.balloon = balloon(900);
        let vms = [one, vm(2, 850, 50, 800)];
        decide(&mut law, 0, available, &vms);
        law.answered(250, 1, 0);
        let plan = decide(&mut law, 500, available, &vms);
        let inflated = plan.decisions.iter().any(|decision| decision.vm == 1);
        assert_eq!(inflated, expected, "{plan:?}");
    }
}

/// QEMU keeps the pages of a balloon for an assigned device.
#[test]
fn a_balloon_that_frees_nothing_is_not_inflated_further() {
    for (left, expected) in [(1000, true), (872, true), (871, false)] {
        let mut one = vm(1, 1000, 50, 0);
        (one.guest, one.own) = (None, Some(0));
        one.balloon = balloon(800).map(|balloon| Balloon {
            actual: left * MIB,
            target: left * MIB,
            ..balloon
        });
        let vms = [one, vm(2, 850, 50, 800)];
        let plan = decide(&mut Law::default(), 0, 10, &vms);
        let inflated = plan.decisions.iter().any(|decision| decision.vm == 1);
        assert_eq!(inflated, expected, "{left}: {plan:?}");
    }
}

#[test]
fn a_guest_in_distress_gets_all_and_is_spared() {
    let mut one = vm(1, 900, 880, 0);
    one.balloon = balloon(20).map(|balloon| Balloon {
        actual: 920 * MIB,
        target: 920 * MIB,
        ..balloon
    });
    let mut law = Law::default();
    let plan = decide(&mut law, 0, 10, &[one.clone()]);
    assert_eq!(plan.decisions[0].order, Order::Balloon(one.ram));
    assert_eq!(plan.decisions[0].why, Why::Distress);
    // It has what it needs again, and still nothing is taken.
    let mut vms = [vm(1, 900, 400, 0)];
    vms[0].balloon = balloon(500);
    assert!(decide(&mut law, 1000, 10, &vms).decisions.is_empty());
    assert!(!decide(&mut law, 2000, 10, &vms).decisions.is_empty());
}

#[test]
fn a_step_that_hurt_raises_the_working_set() {
    let mut law = Law::default();
    let mut one = vm(1, 900, 50, 100);
    decide(&mut law, 0, 150, &[one.clone()]);
    law.answered(250, 1, 50 * MIB);
    one.resident = 850 * MIB;
    if let Some(report) = &mut one.guest {
        report.at = 1000;
        report.refaulted = 20 * MIB;
    }
    let place = decide(&mut law, 1000, 200, &[one.clone()]).places[0];
    assert_eq!(place.floor, 900 * MIB);
    assert!(place.working_set >= 900 * MIB);
    // Half of it is forgotten after 30 s.
    let place = decide(&mut law, 31_000, 200, &[one]).places[0];
    assert_eq!(place.floor, 450 * MIB);
}

/// Two answers come at once, and the guest says what it likes.
#[test]
fn no_counter_of_a_guest_is_too_large() {
    let mut law = Law::default();
    let mut one = vm(1, 900, 50, 100);
    for (now, available, refaulted) in [(0, 500, 0), (1, 110, u64::MAX), (2, 110, 0)] {
        if let Some(report) = &mut one.guest {
            (report.at, report.refaulted) = (now, refaulted);
        }
        let plan = decide(&mut law, now, available, &[one.clone()]);
        assert_eq!(asked(&plan).len(), usize::from(now == 1), "{plan:?}");
    }
}

#[test]
fn a_minimum_is_kept_and_a_weight_counts() {
    let mut vms = [vm(1, 700, 50, 650), vm(2, 700, 50, 650)];
    vms[0].weight = Weight::try_from(300).unwrap_or_default();
    let plan = decide(&mut Law::default(), 0, 100, &vms);
    // (1400 + 100 - 200) / 4
    assert_eq!(plan.places[1].share, 325 * MIB);
    vms[1].minimum = 680 * MIB;
    let plan = decide(&mut Law::default(), 0, 100, &vms);
    assert!(plan.places[1].entitled >= 680 * MIB, "{:?}", plan.places[1]);
}

#[test]
fn what_qemu_holds_itself_is_not_divided() {
    // Of 650 MiB the guest uses 600, or so little that not all of the rest can be QEMU's.
    for (used, own) in [(600, 50), (300, 128)] {
        let mut one = vm(1, 650, 300, 0);
        if let Some(report) = &mut one.guest {
            report.used = used * MIB;
        }
        let plan = decide(&mut Law::default(), 0, 1000, &[one]);
        assert_eq!(plan.capacity, (650 + 1000 - 200 - own) * MIB);
    }
}

#[test]
fn what_qemu_is_known_to_hold_counts_whatever_the_guest_says() {
    for used in [0, 300, 600] {
        let mut one = vm(1, 650, 300, 0);
        one.own = Some(250 * MIB);
        if let Some(report) = &mut one.guest {
            report.used = used * MIB;
        }
        let plan = decide(&mut Law::default(), 0, 1000, &[one]);
        assert_eq!(plan.capacity, (650 + 1000 - 200 - 250) * MIB);
    }
}

/// Its kernel counts it as used; to the host it is given.
#[test]
fn what_is_in_the_balloon_is_not_in_use() {
    let state = State {
        total: 1000 * MIB,
        free: 100 * MIB,
        unreclaimable: 700 * MIB,
        ..State::default()
    };
    for (balloon, used, unreclaimable) in [(0, 900, 700), (300, 600, 400), (800, 100, 0)] {
        let report = Report::new(1, &state, balloon * MIB);
        let found = (report.used / MIB, report.unreclaimable / MIB);
        assert_eq!(found, (used, unreclaimable));
    }
}

#[test]
fn who_has_refused_is_asked_again_after_a_second_however_urgent_it_is() {
    let mut law = Law::default();
    let vms = [vm(1, 900, 50, 0)];
    let mut times = Vec::new();
    for now in (0..3000).step_by(250) {
        if !asked(&decide(&mut law, now, 10, &vms)).is_empty() {
            times.push(now);
            law.answered(now, 1, 0);
        }
    }
    assert_eq!(times, [0, 1000, 2000]);
}

/// Memory in hugepages is not in the divided memory. Locked memory, or memory of a device, cannot be taken.
#[test]
fn what_is_pinned_is_not_asked_for_and_takes_no_more_than_it_is() {
    for (held, available) in [(0, 150), (0, 10), (900, 150), (900, 10)] {
        let pinned = Vm {
            is_pinned: true,
            balloon: balloon(900),
            ..vm(1, held, 50, 0)
        };
        let vms = [pinned, vm(2, 600, 50, 0)];
        let plan = decide(&mut Law::default(), 0, available, &vms);
        let asked: Vec<VmId> = plan.decisions.iter().map(|of| of.vm).collect();
        assert_eq!(asked, [2], "{plan:?}");
        assert_eq!(plan.places[0].entitled, held * MIB, "{plan:?}");
    }
}

/// The kernel would swap it at its cgroup's limit: memory beyond that is for others.
#[test]
fn who_is_limited_has_no_share_beyond_that() {
    let limited = Vm {
        most: 500 * MIB,
        minimum: 600 * MIB,
        ..vm(1, 400, 50, 0)
    };
    let vms = [limited, vm(2, 900, 50, 850)];
    let plan = decide(&mut Law::default(), 0, 300, &vms);
    let shares: Vec<u64> = plan.places.iter().map(|of| of.share / MIB).collect();
    let entitled: Vec<u64> = plan.places.iter().map(|of| of.entitled / MIB).collect();
    assert_eq!((shares, entitled), (vec![500, 900], vec![500, 900]));
}

#[test]
fn a_report_of_use_counts_up_to_the_share_until_the_host_would_swap() {
    let vms = [vm(1, 1000, 1000, 0), vm(2, 800, 100, 700)];
    let place = decide(&mut Law::default(), 0, 150, &vms).places[0];
    assert_eq!(place.in_use, place.share);
    let place = decide(&mut Law::default(), 0, 50, &vms).places[0];
    assert_eq!(place.in_use, 1000 * MIB);
}
