//! What tenants do. A load gets the time, in seconds, and tells the next block that is read, or the next operation, or
//! none.

use super::Random;

/// An operation of a tenant.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    /// A read of a file block, of which so many pages are read and cached.
    Read { block: u64, pages: u64 },
    /// Use of a file block that is mapped.
    Map(u64),
    /// Use of 64 KiB of anonymous memory, new or not.
    Touch(u64),
    /// Look-ups of names that fill a page of slab.
    Stat(u64),
    /// All anonymous memory is freed.
    Exit,
}

/// One page here and there: of each of `blocks` blocks.
pub(crate) fn sparse(blocks: u64) -> impl FnMut(f64, &mut Random) -> Option<Op> + 'static {
    move |_, random| {
        let block = random.below(blocks);
        Some(Op::Read { block, pages: 1 })
    }
}

/// Names that do not exist, so many pages of slab a second.
pub(crate) fn crawl(rate: f64) -> impl FnMut(f64, &mut Random) -> Option<Op> + 'static {
    let mut next = 0;
    paced(rate, move |_, _: &mut Random| {
        next += 1;
        Some(Op::Stat(next))
    })
}

/// `megabytes` of mapped files, each block touched once.
pub(crate) fn maps(megabytes: u64) -> impl FnMut(f64, &mut Random) -> Option<Op> + 'static {
    let mut next = 0;
    move |_, _| {
        next += 1;
        (next <= megabytes * 16).then_some(Op::Map(next))
    }
}

/// `megabytes` of anonymous memory, touched once.
pub(crate) fn cold(megabytes: u64) -> impl FnMut(f64, &mut Random) -> Option<Op> + 'static {
    let mut next = 0;
    move |_, _| {
        next += 1;
        (next <= megabytes * 16).then_some(Op::Touch(next))
    }
}

/// `megabytes` of anonymous memory, used at random.
pub(crate) fn heap(megabytes: u64) -> impl FnMut(f64, &mut Random) -> Option<Op> + 'static {
    move |_, random| Some(Op::Touch(random.below(megabytes * 16)))
}

/// Anonymous memory that grows by so many megabytes a second up to `megabytes`, and is freed at `end`.
pub(crate) fn hog(
    rate: f64,
    megabytes: u64,
    end: f64,
) -> impl FnMut(f64, &mut Random) -> Option<Op> + 'static {
    let mut next = 0;
    let mut ended = false;
    paced(16.0 * rate, move |now, _: &mut Random| {
        if now >= end {
            return (!std::mem::replace(&mut ended, true)).then_some(Op::Exit);
        }
        next += 1;
        (next <= megabytes * 16).then_some(Op::Touch(next))
    })
}

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
pub(crate) fn paced<T>(
    rate: f64,
    mut load: impl FnMut(f64, &mut Random) -> Option<T> + 'static,
) -> impl FnMut(f64, &mut Random) -> Option<T> + 'static {
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
pub(crate) fn then<T>(
    end: f64,
    mut first: impl FnMut(f64, &mut Random) -> Option<T> + 'static,
    mut second: impl FnMut(f64, &mut Random) -> Option<T> + 'static,
) -> impl FnMut(f64, &mut Random) -> Option<T> + 'static {
    move |now, random| {
        if now < end {
            first(now, random)
        } else {
            second(now, random)
        }
    }
}
