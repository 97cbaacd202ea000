//! What tenants read. A load gets the time, in seconds, and tells the next block, or none.

use super::Random;

/// `megabytes` at random.
pub(crate) fn hot(
    megabytes: u64,
    base: u64,
) -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    move |_, random| Some(base + random.below(megabytes * 16))
}

/// Through everything once.
pub(crate) fn stream() -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    let mut next = 1 << 40;
    move |_, _| {
        next += 1;
        Some(next)
    }
}

/// `megabytes` once, then nothing.
pub(crate) fn once(megabytes: u64) -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    let mut next = 0;
    move |_, _| {
        next += 1;
        (next <= megabytes * 16).then_some(next)
    }
}

/// `megabytes` so many times, then nothing.
pub(crate) fn times(
    count: u64,
    megabytes: u64,
) -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    let mut next = 0;
    move |_, _| {
        next += 1;
        (next <= count * megabytes * 16).then_some(next % (megabytes * 16))
    }
}

/// A loop over `megabytes`.
pub(crate) fn round(
    megabytes: u64,
    base: u64,
) -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    let mut next = 0;
    move |_, _| {
        next = (next + 1) % (megabytes * 16);
        Some(base + next)
    }
}

/// `megabytes` at random, the first ones more often than the last (an eighth of them gets half of the reads, and so on).
pub(crate) fn skewed(
    megabytes: u64,
    base: u64,
) -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    move |_, random| {
        let mut size = megabytes * 16;
        while size > 8 && random.below(2) == 0 {
            size /= 8;
        }
        Some(base + random.below(size.max(1)))
    }
}

/// So many reads a second at most.
pub(crate) fn paced(
    rate: f64,
    mut load: impl FnMut(f64, &mut Random) -> Option<u64> + 'static,
) -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    let mut due = 0.0_f64;
    move |now, random| {
        if now < due {
            return None;
        }
        due = due.max(now - 0.1) + 1.0 / rate;
        load(now, random)
    }
}

/// The first load until `end`, then the second.
pub(crate) fn then(
    end: f64,
    mut first: impl FnMut(f64, &mut Random) -> Option<u64> + 'static,
    mut second: impl FnMut(f64, &mut Random) -> Option<u64> + 'static,
) -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    move |now, random| {
        if now < end {
            first(now, random)
        } else {
            second(now, random)
        }
    }
}
