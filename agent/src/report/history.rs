//! What was decided lately, bounded: a few deeds a tenant, the same ones in a row told as one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use justitia_api::Decision;

use crate::model::Key;

/// Deeds that are remembered of one tenant.
const OF_ONE: usize = 8;
/// Deeds that are remembered of all.
const OF_ALL: usize = 1024;
/// The same deed within this time is the same story.
const SAME: Duration = Duration::from_secs(10);

/// Something that the agent did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// File pages reclaimed, bytes.
    Reclaim(u64),
    /// A knob moved.
    Set {
        /// The knob's file.
        knob: String,
        /// What stood there before, bytes.
        from: u64,
        /// What stands there now.
        to: u64,
    },
    /// A limit of the disk's credits set, or given back.
    Limit {
        /// The knob's file, with its device.
        knob: String,
        /// What stands there now; `None` for what stood there before the agent.
        to: Option<String>,
    },
    /// A knob left to someone else who wrote it.
    Yield {
        /// The knob's file.
        knob: String,
    },
    /// A shared file's pages handed to this tenant, bytes.
    Own(u64),
    /// The same, taken from this tenant's account.
    Disown(u64),
    /// A shared file's pages that could not be handed to this tenant.
    NotOwned,
    /// The kernel refused an order.
    Refused,
    /// The tenant is left alone for a while.
    Rest,
}

impl Deed {
    /// Takes a later deed of the same kind in, if it is one.
    fn absorb(&mut self, later: &Self) -> bool {
        match (self, later) {
            (Self::Reclaim(sum), Self::Reclaim(more)) => *sum = sum.saturating_add(*more),
            (
                Self::Set { knob, to, .. },
                Self::Set {
                    knob: same,
                    to: new,
                    ..
                },
            ) if knob == same => *to = *new,
            (
                Self::Limit { knob, to },
                Self::Limit {
                    knob: same,
                    to: new,
                },
            ) if knob == same => to.clone_from(new),
            (Self::Yield { knob }, Self::Yield { knob: same }) if knob == same => {}
            (Self::Own(sum), Self::Own(more)) | (Self::Disown(sum), Self::Disown(more)) => {
                *sum = sum.saturating_add(*more);
            }
            (Self::Refused, Self::Refused) | (Self::Rest, Self::Rest) => {}
            _ => return false,
        }
        true
    }

    fn tell(&self, times: u32, would: bool) -> String {
        let would = if would { "would " } else { "" };
        let often = if times > 1 {
            format!(" in {times} steps")
        } else {
            String::new()
        };
        match self {
            Self::Reclaim(bytes) => format!("{would}reclaim {} KiB{often}", bytes >> 10),
            Self::Set { knob, from, to } => format!(
                "{would}set {knob} from {} to {} KiB{often}",
                from >> 10,
                to >> 10
            ),
            Self::Limit { knob, to: Some(to) } => format!("set {knob} to {to}{often}"),
            Self::Limit { knob, to: None } => format!("give {knob} back{often}"),
            Self::Yield { knob } => format!("yield {knob}"),
            Self::Own(bytes) => {
                format!("{would}own {} KiB of a shared file{often}", bytes >> 10)
            }
            Self::Disown(bytes) => format!(
                "hand {} KiB of a shared file to a heavier tenant{often}",
                bytes >> 10
            ),
            Self::NotOwned => "a shared file could not be owned".to_owned(),
            Self::Refused => format!("reclaim refused{often}"),
            Self::Rest => format!("leave alone{often}"),
        }
    }
}

#[derive(Debug)]
struct Entry {
    first: Instant,
    last: Instant,
    times: u32,
    key: Key,
    path: String,
    deed: Deed,
    why: String,
}

/// The last deeds.
#[derive(Debug)]
pub struct History {
    begun: Instant,
    would: bool,
    entries: VecDeque<Entry>,
}

impl History {
    /// An empty history; times count from `begun`. With `would` nothing was done, only decided.
    #[must_use]
    pub const fn new(begun: Instant, would: bool) -> Self {
        Self {
            begun,
            would,
            entries: VecDeque::new(),
        }
    }

    /// Remembers a deed. The oldest one of this tenant, or of all, makes room.
    pub fn remember(&mut self, key: Key, path: &str, deed: Deed, why: String, now: Instant) {
        let mut of_one = self
            .entries
            .iter_mut()
            .enumerate()
            .rev()
            .filter(|(_, e)| e.key == key);
        if let Some((i, entry)) = of_one.next() {
            if now - entry.last < SAME && entry.deed.absorb(&deed) {
                (entry.last, entry.why) = (now, why);
                entry.times = entry.times.saturating_add(1);
                // The latest stand last, so that the first is the oldest.
                let latest = self.entries.remove(i);
                self.entries.extend(latest);
                return;
            }
            if let Some((oldest, _)) = of_one.nth(OF_ONE - 2) {
                self.entries.remove(oldest);
            }
        }
        if self.entries.len() == OF_ALL {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            first: now,
            last: now,
            times: 1,
            key,
            path: path.to_owned(),
            deed,
            why,
        });
    }

    /// Forgets a tenant that is gone.
    pub fn gone(&mut self, key: Key) {
        self.entries.retain(|e| e.key != key);
    }

    /// Everything remembered, oldest first.
    #[must_use]
    pub fn told(&self) -> Vec<Decision> {
        let seconds = |at: Instant| at.saturating_duration_since(self.begun).as_secs_f64();
        let tell = |e: &Entry| Decision {
            at: seconds(e.last),
            since: seconds(e.first),
            path: e.path.clone(),
            what: e.deed.tell(
                e.times,
                self.would && matches!(e.deed, Deed::Reclaim(_) | Deed::Set { .. } | Deed::Own(_)),
            ),
            why: e.why.clone(),
        };
        self.entries.iter().map(tell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupId;

    fn remember(history: &mut History, id: u64, deed: Deed, ms: u64) {
        let now = history.begun + Duration::from_millis(ms);
        let key = Key::Cgroup(CgroupId(id));
        history.remember(key, &format!("t{id}"), deed, format!("at {ms}"), now);
    }

    #[test]
    fn the_same_in_a_row_is_one_story() {
        let mut history = History::new(Instant::now(), true);
        for n in 0..5 {
            remember(&mut history, 1, Deed::Reclaim(1 << 20), n * 1000);
        }
        remember(&mut history, 2, Deed::Reclaim(1 << 20), 4500);
        remember(&mut history, 1, Deed::Rest, 5000);
        remember(&mut history, 1, Deed::Reclaim(1 << 10), 30_000);
        let told = history.told();
        let what: Vec<&str> = told.iter().map(|d| d.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "would reclaim 5120 KiB in 5 steps",
                "would reclaim 1024 KiB",
                "leave alone",
                "would reclaim 1 KiB"
            ]
        );
        assert_eq!((told[0].since, told[0].at), (0.0, 4.0));
        assert_eq!(told[0].why, "at 4000", "the latest reason");
    }

    #[test]
    fn it_is_bounded_for_one_and_for_all() {
        let mut history = History::new(Instant::now(), false);
        for n in 0..100 {
            remember(&mut history, 1, Deed::Reclaim(n), n * 20_000);
        }
        let told = history.told();
        assert_eq!(told.len(), OF_ONE);
        assert_eq!(told[0].why, format!("at {}", 92 * 20_000), "the last ones");
        for n in 0..2000 {
            remember(&mut history, n, Deed::Rest, 4_000_000 + n);
        }
        assert_eq!(history.told().len(), OF_ALL);
        history.gone(Key::Cgroup(CgroupId(1999)));
        assert_eq!(history.told().len(), OF_ALL - 1);
    }
}
