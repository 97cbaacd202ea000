//! The law, case by case.

use super::*;

const MEMORY: u64 = 65_536;
const NOW: Duration = Duration::from_secs(1000);

const SINCE: Figures = Figures {
    accepted: 1_000_000,
    hits: 1000,
    lost: 10_000,
    reclaimed: 2_000_000,
    refaults: 500,
};

/// While the price is not known: one put in 20 must be hit.
fn terms(clock: Duration) -> Terms {
    Terms {
        memory: MEMORY,
        price: Price::default(),
        measured: 1,
        clock,
    }
}

fn priced(cost: u64, saving: u64, clock: Duration) -> Terms {
    let price = Price::new(Some(cost), Some(saving));
    Terms {
        price,
        ..terms(clock)
    }
}

fn at(shift: u32) -> OfferRate {
    OfferRate {
        shift,
        ..OfferRate::from(SINCE)
    }
}

fn pausing(until: u64, refaulted: bool) -> OfferRate {
    let until = Duration::from_secs(until);
    OfferRate {
        pause: Some(Pause {
            until,
            why: Why::Unread { refaulted },
        }),
        pauses: 3,
        ..at(LEAST)
    }
}

#[test]
fn what_is_never_read_again_is_offered_less() {
    // (shift before, accepted, hits and lost since), and the shift after; whether it was a decision.
    for (before, accepted, hits, lost, shift, decided) in [
        // Nothing is known yet of what became of them.
        (0, 100_000, 0, 0, 0, false),
        (0, 100_000, 500, 500, 0, false),
        // Worth it: one in ten is read again.
        (0, 5000, 200, 1000, 0, true),
        (6, 2000, 20, 80, 4, true),
        // Not.
        (0, 5000, 10, 1100, 2, true),
        (2, 5000, 0, 300, 4, true),
        // In between.
        (2, 5000, 80, 1000, 2, true),
        // Not even of few.
        (6, 2000, 0, 64, NOTHING, true),
        // A cache that is never full: after twice the memory.
        (0, 2 * MEMORY, 0, 0, NOTHING, true),
        (0, 2 * MEMORY, MEMORY, 0, 0, true),
        (4, MEMORY / 8, 0, 0, NOTHING, true),
    ] {
        let before = at(before);
        let now = Figures {
            accepted: SINCE.accepted + accepted,
            hits: SINCE.hits + hits,
            lost: SINCE.lost + lost,
            ..SINCE
        };
        let after = decide(before, now, &terms(NOW));
        let case = (before.shift, accepted, hits, lost);
        assert_eq!(
            (after.in_kernel(), after.since == now),
            (shift, decided),
            "{case:?}"
        );
    }
}

#[test]
fn a_pause_ends_when_puts_would_be_worth_it() {
    // The pause's end, whether it is no news that pages are read again; hits, lost, reclaimed and refaults since.
    for (until, refaulted, hits, lost, reclaimed, refaults, shift) in [
        (1001, false, 0, 0, 1 << 30, 0, NOTHING),
        // It is over: a little is offered.
        (1000, false, 0, 0, 0, 0, LEAST),
        (1000, true, 0, 500, MEMORY, 0, LEAST),
        // The guest reads again what it has evicted.
        (2000, false, 0, 0, 8192, 1024, 0),
        (2000, false, 0, 0, 8192, 700, NOTHING),
        // Too few to say so.
        (2000, false, 0, 0, 5000, 1000, NOTHING),
        // It did before, and nothing was hit.
        (2000, true, 0, 0, 8192, 4096, NOTHING),
        (1000, true, 0, 0, 8192, 4096, 0),
        // What was put before is hit.
        (2000, true, 64, 500, 0, 0, 0),
        (2000, true, 63, 0, 0, 0, NOTHING),
        (2000, true, 64, 900, 0, 0, NOTHING),
    ] {
        let before = pausing(until, refaulted);
        let now = Figures {
            accepted: SINCE.accepted,
            hits: SINCE.hits + hits,
            lost: SINCE.lost + lost,
            reclaimed: SINCE.reclaimed + reclaimed,
            refaults: SINCE.refaults + refaults,
        };
        let after = decide(before, now, &terms(NOW));
        let case = (until, refaulted, hits, lost, reclaimed, refaults);
        assert_eq!(after.in_kernel(), shift, "{case:?}");
        assert_eq!(after.pauses, 3, "{case:?}");
    }
}

/// Where most blocks are dropped on their way, it does not take as many accepted ones.
#[test]
fn what_was_dropped_has_come_round_too() {
    for (reclaimed, accepted, shift) in [
        (2 * MEMORY, MEMORY / 4, NOTHING),
        (2 * MEMORY - 1, MEMORY / 4, 0),
        (2 * MEMORY, MEMORY / 4 - 1, 0),
    ] {
        let now = Figures {
            accepted: SINCE.accepted + accepted,
            reclaimed: SINCE.reclaimed + reclaimed,
            ..SINCE
        };
        assert_eq!(
            decide(at(0), now, &terms(NOW)).in_kernel(),
            shift,
            "{reclaimed} {accepted}"
        );
    }
}

/// Each time that it was worth nothing the pause is longer; hits end that.
#[test]
fn pauses_grow_until_something_is_hit() {
    let mut worth = OfferRate::from(Figures::default());
    let mut figures = Figures::default();
    let mut clock = Duration::ZERO;
    let mut pauses = Vec::new();
    while pauses.len() < 9 {
        figures.accepted += (2 * MEMORY) >> worth.shift;
        worth = decide(worth, figures, &terms(clock));
        let until = worth.pause.unwrap().until;
        pauses.push((until - clock).as_secs());
        clock = until;
        worth = decide(worth, figures, &terms(clock));
        assert_eq!(worth.in_kernel(), LEAST);
    }
    assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3840, 3840, 3840]);
    figures.accepted += 100;
    figures.hits += 64;
    worth = decide(worth, figures, &terms(clock));
    assert_eq!((worth.shift, worth.pauses), (LEAST - 2, 0));
}

/// If a put costs more than a hit saves, offering pauses as soon as that is measured, even if all is hit. It is tried again.
#[test]
fn a_price_that_nothing_makes_up_for_ends_puts_at_once() {
    let at_price = |saving: u64, measured: u64, clock: Duration| Terms {
        measured,
        ..priced(100, saving, clock)
    };
    let mut figures = SINCE;
    figures.accepted += 63;
    figures.hits += 63;
    assert_eq!(
        decide(at(0), figures, &at_price(99, 0, NOW)),
        at(0),
        "nothing was measured"
    );
    let worth = decide(at(0), figures, &at_price(99, 1, NOW));
    assert_eq!((worth.in_kernel(), worth.pauses), (NOTHING, 1));

    // Neither refaults nor hits end that, but a disk that has become slow.
    figures.hits += 10_000;
    figures.refaults += 10_000;
    figures.reclaimed += 10_000;
    assert_eq!(decide(worth, figures, &at_price(199, 1, NOW)), worth);
    let slow = decide(worth, figures, &at_price(200, 1, NOW));
    assert_eq!(slow.in_kernel(), 0);

    // At its end the price is measured anew, and the old one does not count.
    let end = NOW + Duration::from_secs(60);
    let over = decide(worth, figures, &at_price(99, 7, end));
    assert_eq!(over.in_kernel(), 0);
    assert_eq!(decide(over, figures, &at_price(99, 7, end)), over);
    let again = decide(over, figures, &at_price(99, 8, end));
    assert_eq!((again.in_kernel(), again.pauses), (NOTHING, 2));
    let good = decide(over, figures, &at_price(101, 8, end));
    assert_eq!(good.in_kernel(), 0);
    // A new pool need not measure a known price.
    let new = [at_price(99, 1, NOW), at_price(101, 1, NOW), terms(NOW)];
    let new = new.map(|at| OfferRate::of_new(SINCE, &at).in_kernel());
    assert_eq!(new, [NOTHING, 0, 0]);
}

#[test]
fn the_price_says_how_much_must_be_hit() {
    // Shift before, cost and saving of it, hits and lost since; the shift after.
    for (before, cost, saving, hits, lost, shift) in [
        // One in 100 is hit: enough, as a hit saves 200 times as much as a put costs.
        (0, 50, 10_000, 11, 1089, 0),
        (6, 50, 10_000, 11, 1089, 4),
        // Less than one in 200.
        (0, 50, 10_000, 5, 1089, 2),
        (6, 50, 10_000, 5, 1089, NOTHING),
        // So few outcomes say nothing at that price.
        (6, 50, 10_000, 0, 599, 6),
        (6, 50, 10_000, 0, 600, NOTHING),
        // Half is hit, and must be.
        (6, 50, 100, 600, 600, 6),
        (6, 50, 100, 590, 610, NOTHING),
        (4, 50, 101, 1000, 10, 2),
        (4, 50, 100, 1000, 10, 4),
    ] {
        let now = Figures {
            accepted: SINCE.accepted + hits + lost,
            hits: SINCE.hits + hits,
            lost: SINCE.lost + lost,
            ..SINCE
        };
        let after = decide(at(before), now, &priced(cost, saving, NOW));
        let case = (before, cost, saving, hits, lost);
        assert_eq!(after.in_kernel(), shift, "{case:?}");
    }
}

#[test]
fn puts_are_worth_it_while_their_hits_save_more_than_they_cost() {
    let price = |cost, saving| Price::new(Some(cost), Some(saving));
    for (price, hits, puts, times, expected) in [
        (price(10, 100), 10, 100, 1, true),
        (price(10, 100), 9, 100, 1, false),
        (price(10, 100), 20, 100, 2, true),
        (price(10, 100), 19, 100, 2, false),
        // What is not known.
        (Price::new(None, Some(0)), 5, 100, 1, true),
        (Price::new(Some(9), None), 4, 100, 1, false),
        (Price::default(), 10, 100, 2, true),
        // A hit saves nothing, or less than a put costs.
        (price(10, 0), u64::MAX, 1, 1, false),
        (price(1, 0), 100, 100, 1, false),
        (price(50, 49), 100, 100, 1, false),
        // A host that says that it saves ages: one in 500 must be hit, all the same.
        (price(10, u64::MAX), 0, 1, 1, false),
        (price(10, u64::MAX), 1, 500, 1, true),
        (price(10, u64::MAX), 1, 501, 1, false),
        (price(0, 1), 1, 1, 1, true),
        (price(u64::MAX, u64::MAX), u64::MAX, u64::MAX, 2, false),
    ] {
        let found = price.is_worth(hits, puts, times);
        assert_eq!(found, expected, "{price:?} {hits} of {puts}, {times} times");
    }
    let hopeless = [(10, 0), (10, 9), (10, 10), (0, 0)].map(|(c, s)| price(c, s).is_hopeless());
    assert_eq!(hopeless, [true, true, false, true]);
    assert_eq!(price(10, 1000).puts_of(3), 300);
    assert_eq!(price(1, u64::MAX).puts_of(u64::MAX), u64::MAX);
}
