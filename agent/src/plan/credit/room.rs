//! `memory.high` of buffered writers that contend: room for their dirty pages in the proportion of their
//! credits, so that the kernel's throttling of writers follows the weights (on a stock kernel, the part of
//! Justitia's weight-aware lock, section III-A).

use justitia_kernel::cgroup::CgroupId;
use justitia_share::credit::rooms;
use justitia_share::num::to_f64;

use crate::plan::mib;

/// A writer that contends. Amounts in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writer {
    /// Who.
    pub id: CgroupId,
    /// Its part of the disk's credits, any scale.
    pub part: f64,
    /// Its file pages.
    pub file: u64,
    /// Its dirty pages and those under writeback.
    pub dirty: u64,
    /// Its other memory.
    pub other: u64,
    /// What stands in its `memory.high`, if that is ours.
    pub standing: Option<u64>,
}

impl Writer {
    /// The room that it wants, where it does not fill what it has.
    fn wanted(&self) -> Option<u64> {
        let room = self.standing?.saturating_sub(self.other);
        (self.file < room - room / ROOMY).then(|| self.file + self.file / GROWTH)
    }

    /// Whether it may have room that others leave and want as well: with more room it would have more dirty pages,
    /// too, and those are what is divided.
    fn modest(&self, parts: f64, dirty: u64) -> bool {
        to_f64(self.dirty) * parts <= self.part * to_f64(dirty) / 2.0
    }
}

/// Set `memory.high` of one writer. Amounts in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoomIntent {
    /// Whose.
    pub id: CgroupId,
    /// The new value, a multiple of the page size.
    pub high: u64,
    /// The room for its file pages that this leaves in the end.
    pub room: u64,
    /// Of that, what its own part gives it; the rest is what other writers do not fill.
    pub own: u64,
    /// What is divided: the writers' file pages and the free memory.
    pub pool: u64,
    /// Its part of the credits that the writers have together, 0 to 1.
    pub part: f64,
    /// Its memory beside file pages, which the knob counts as well.
    pub other: u64,
}

impl RoomIntent {
    /// Where the knob goes in the end.
    fn goal(&self) -> u64 {
        goal(self.other, self.room)
    }
}

/// Where the knob of a writer with so much room goes in the end.
fn goal(other: u64, room: u64) -> u64 {
    other + room.max(LEAST_ROOM)
}

impl std::fmt::Display for RoomIntent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "buffered writers wait for the same disk; of the {:.1} MiB that their file pages and the free memory make, \
             {:.1} MiB are its room by its part of the disk's time that they are allowed together ({:.1} %)",
            mib(self.pool),
            mib(self.own),
            self.part * 100.0
        )?;
        if self.room > self.own + self.own / 64 {
            write!(
                f,
                ", {:.1} MiB with what the others do not fill",
                mib(self.room)
            )?;
        }
        let goal = self.goal();
        write!(
            f,
            "; with {:.1} MiB of other memory beside it the goal is {:.1} MiB, ",
            mib(self.other),
            mib(goal)
        )?;
        if goal.abs_diff(self.high) <= PAGE {
            f.write_str("and there it stands")
        } else {
            write!(f, "and {:.1} MiB are a step towards it", mib(self.high))
        }
    }
}

const PAGE: u64 = 4096;
/// No writer has less room for file pages than this.
pub const LEAST_ROOM: u64 = 16 << 20;
/// Lowering the knob reclaims at once, in the write: at most this part of the memory a step. So it goes up, too,
/// beyond a writer's own part.
const STEP: u64 = 8;
/// A knob that would move by less than this part stays: a writer stands still until what is dirty beyond its new
/// room is written.
const DEADBAND: u64 = 4;
/// A writer whose room is empty by this part does not want more.
const ROOMY: u64 = 8;
/// And may grow by this part until the next look.
const GROWTH: u64 = 4;

/// Divides the writers' file pages and the `free` memory (what may be used of it) in proportion to their
/// credits, one careful step at a time. None if there is nobody to share with.
#[must_use]
pub fn plan_rooms(writers: &[Writer], free: u64) -> Vec<RoomIntent> {
    if writers.len() < 2 {
        return Vec::new();
    }
    let pool = writers
        .iter()
        .map(|w| w.file)
        .sum::<u64>()
        .saturating_add(free);
    let parts: Vec<f64> = writers.iter().map(|w| w.part).collect();
    let own = rooms(pool, &parts, &[], LEAST_ROOM);
    let (all_parts, all_dirty) = (
        parts.iter().sum::<f64>(),
        writers.iter().map(|w| w.dirty).sum(),
    );
    let wanted: Vec<Option<u64>> = writers
        .iter()
        .zip(&own)
        .map(|(writer, own)| {
            let modest = writer.modest(all_parts, all_dirty);
            writer.wanted().or_else(|| (!modest).then_some(*own))
        })
        .collect();
    let open = rooms(pool, &parts, &wanted, LEAST_ROOM);
    writers
        .iter()
        .zip(open.into_iter().zip(own))
        .filter_map(|(writer, (room, own))| {
            let used = writer.file + writer.other;
            let goal = goal(writer.other, room);
            let standing = writer.standing;
            let moves = standing.is_none_or(|now| goal.abs_diff(now) > now / DEADBAND);
            // Its own part it may have at once; what others leave may be wanted again soon.
            let most = standing.map_or(goal, |now| (writer.other + own).max(now + now / STEP));
            let high = goal.min(most).max(used - used / STEP) / PAGE * PAGE;
            moves.then_some(RoomIntent {
                id: writer.id,
                high,
                room,
                own,
                pool,
                part: writer.part / all_parts.max(f64::MIN_POSITIVE),
                other: writer.other,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_share::num;

    const MIB: u64 = 1 << 20;

    fn writer(id: u64, part: f64, file: u64, standing: Option<u64>) -> Writer {
        Writer {
            id: CgroupId(id),
            part,
            file: file * MIB,
            dirty: num::to_u64(part * 100.0) * MIB,
            other: 10 * MIB,
            standing: standing.map(|high| high * MIB),
        }
    }

    fn says(intent: &RoomIntent, facts: &[&str]) {
        let text = intent.to_string();
        for fact in facts {
            assert!(text.contains(fact), "{fact:?} is not in {text}");
        }
    }

    #[test]
    fn alone_nobody_is_capped() {
        assert_eq!(plan_rooms(&[writer(1, 1.0, 500, None)], 0), []);
        assert_eq!(plan_rooms(&[], 0), []);
    }

    #[test]
    fn room_follows_credits_in_careful_steps() {
        let writers = [writer(1, 0.1, 200, None), writer(2, 0.3, 200, None)];
        let intents = plan_rooms(&writers, 400 * MIB);
        // In the end 200 and 600 MiB of file pages, and 10 beside them.
        let near = |high: u64, mib: u64| high.abs_diff(mib * MIB) <= PAGE;
        assert!(near(intents[0].high, 210) && near(intents[1].high, 610));
        let intents = plan_rooms(&writers, 0);
        says(
            &intents[0],
            &[
                "of the 400.0 MiB",
                "100.0 MiB are its room",
                "(25.0 %)",
                "10.0 MiB of other memory",
                "the goal is 110.0 MiB, and 183.8 MiB are a step towards it",
            ],
        );
        says(&intents[1], &["goal is 310.0 MiB, and there it stands"]);
        // The goal is 110 MiB; a step goes an eighth of the way down from 210.
        assert_eq!(intents[0].high, (210 * MIB - 210 * MIB / 8) / PAGE * PAGE);
        assert!(near(intents[1].high, 310));
    }

    #[test]
    fn small_movements_and_small_rooms_are_avoided() {
        let writers = [
            writer(1, 0.5, 100, Some(108)),
            writer(2, 0.5, 100, Some(300)),
        ];
        let intents = plan_rooms(&writers, 0);
        assert_eq!(intents.len(), 1, "{intents:?}");
        assert_eq!(intents[0].id, CgroupId(2));
        let tiny = [writer(1, 0.001, 10, None), writer(2, 0.999, 10, None)];
        let intents = plan_rooms(&tiny, 0);
        assert!(intents.iter().all(|i| i.high >= 10 * MIB + LEAST_ROOM));
    }

    #[test]
    fn what_others_leave_goes_to_whoever_holds_few_dirty_pages() {
        // The heaviest fills a tenth of its room; the other two want more.
        let with = |dirty: u64| {
            let writer = |id, part, file, standing, dirty: u64| Writer {
                dirty: dirty * MIB,
                ..writer(id, part, file, Some(standing))
            };
            let writers = [
                writer(1, 0.1, 100, 110, dirty),
                writer(2, 0.1, 100, 110, 1),
                writer(3, 0.8, 90, 810, 40),
            ];
            let room = |id| {
                let intents = plan_rooms(&writers, 710 * MIB);
                let intent = intents.iter().find(|i| i.id == CgroupId(id));
                intent.map(|i| i.room / MIB)
            };
            (room(1), room(2))
        };
        assert_eq!(with(1), (Some(443), Some(443)));
        assert_eq!(with(20), (None, Some(787)));
    }
}
