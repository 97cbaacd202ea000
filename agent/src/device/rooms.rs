//! `memory.high` of contending buffered writers. It divides the memory for their dirty pages in proportion to their parts of
//! the disk, so that the kernel's throttling of writers follows the weights. On a stock kernel this replaces Justitia's
//! weight-aware lock (section III-A): the kernel throttles a tenant less if it has more room for dirty pages.

use justitia_api::units::bytes;
use justitia_kernel::cgroup::CgroupId;
use justitia_share::num::{to_f64, to_u64};
use justitia_share::{Bid, PAGE_SIZE, max_min};

/// A contending writer. Amounts in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writer {
    /// Its cgroup.
    pub id: CgroupId,
    /// Its part of the disk, any scale.
    pub part: f64,
    /// Its file pages.
    pub file: u64,
    /// Its dirty pages and those under writeback.
    pub dirty: u64,
    /// Its other memory.
    pub other: u64,
    /// The value of its `memory.high`, if it is ours.
    pub standing: Option<u64>,
}

/// Set `memory.high` of one writer. Amounts in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoomIntent {
    /// The writer.
    pub id: CgroupId,
    /// The new value, a multiple of the page size.
    pub high: u64,
    /// Clean file pages to reclaim from it in this step: those beyond its room.
    pub surplus: u64,
    /// The final room for its file pages: its part of `pool`.
    pub room: u64,
    /// The divided memory: the writers' file pages and the free memory.
    pub pool: u64,
    /// Its part of the writers' sum of the disk, 0 to 1.
    pub part: f64,
    /// Its memory beside file pages, which the knob counts as well.
    pub other: u64,
}

impl RoomIntent {
    /// The final value of the knob.
    fn goal(&self) -> u64 {
        goal(self.other, self.room)
    }
}

/// The final value of the knob of a writer with this room.
fn goal(other: u64, room: u64) -> u64 {
    other + room.max(LEAST_ROOM)
}

impl std::fmt::Display for RoomIntent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "buffered writers wait for the same disk; of the {} that their file pages and the free memory make, \
             {} are its dirty budget by its part of the disk's time that they are allowed together ({:.1} %)",
            bytes(self.pool),
            bytes(self.room),
            self.part * 100.0
        )?;
        let goal = self.goal();
        write!(
            f,
            "; with {} of other memory beside it the goal is {}, ",
            bytes(self.other),
            bytes(goal)
        )?;
        if goal.abs_diff(self.high) <= PAGE_SIZE {
            f.write_str("and there it stands")
        } else if self.surplus > 0 {
            write!(f, "and {} are a step towards it", bytes(self.high))
        } else {
            write!(
                f,
                "and {} are what it holds, which is left to it for now",
                bytes(self.high)
            )
        }
    }
}

/// The least room of a writer for file pages.
pub const LEAST_ROOM: u64 = 16 << 20;
/// The largest part of a writer's memory that one step reclaims: one in this many.
pub const STEP: u64 = 4;
/// The knob stays above a writer's memory by one part in this many. Below it, the kernel would put the writer to sleep at its
/// next allocation, perhaps within a journal's transaction, and all other writers with it.
const MARGIN: u64 = 64;
/// While more than one part in this many of the pool is free, a writer keeps pages up to [`KEEPS`] times its room: if it reads
/// them again and again, then with slightly fewer it would hit none of them.
pub const SPARE: u64 = 8;
/// The multiple of its room that a writer keeps then.
pub const KEEPS: f64 = 1.5;
/// A change of a knob by less than one part in this many is not made.
pub const DEADBAND: u64 = 8;

/// Divides `pool` bytes in proportion to `parts` (any scale), at least [`LEAST_ROOM`] for each as far as possible.
fn rooms(pool: u64, parts: &[f64]) -> Vec<u64> {
    let most = parts.iter().copied().fold(0.0, f64::max);
    let weight = |part: f64| match most > 0.0 {
        true => u32::try_from(to_u64(part / most * 1e6).max(1)).unwrap_or(u32::MAX),
        false => 1,
    };
    let bid = |part: &f64| Bid {
        weight: weight(*part),
        minimum: LEAST_ROOM,
        demand: u64::MAX,
        ..Bid::default()
    };
    max_min(pool, &parts.iter().map(bid).collect::<Vec<_>>())
}

/// Divides the writers' file pages and the usable `free` memory in proportion to their parts of the disk, in careful steps.
/// None for fewer than two writers.
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
    let all_parts: f64 = parts.iter().sum();
    let spare = free > pool / SPARE;
    writers
        .iter()
        .zip(rooms(pool, &parts))
        .filter_map(|(writer, room)| {
            let used = writer.file + writer.other;
            let goal = goal(writer.other, room);
            let high = goal.max(used + used / MARGIN) / PAGE_SIZE * PAGE_SIZE;
            let clean = writer.file.saturating_sub(writer.dirty);
            // Less than the knob's margin is noise. Half of the clean pages: the others may be dirty by then.
            let part = writer.part / all_parts.max(f64::MIN_POSITIVE);
            let keeps = if spare {
                writer.other + to_u64(part * KEEPS * to_f64(pool))
            } else {
                goal
            };
            let most = goal.max(keeps);
            let beyond = used.saturating_sub(most + most / MARGIN);
            let surplus = beyond.min(used / STEP).min(clean / 2);
            let moves = |now: u64| high.abs_diff(now) > now / DEADBAND;
            (writer.standing.is_none_or(moves) || surplus > 0).then_some(RoomIntent {
                id: writer.id,
                high,
                surplus,
                room,
                pool,
                part,
                other: writer.other,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn writer(id: u64, part: f64, file: u64, standing: Option<u64>) -> Writer {
        Writer {
            id: CgroupId(id),
            part,
            file: file * MIB,
            dirty: to_u64(part * 100.0) * MIB,
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
    fn rooms_are_in_proportion_above_a_minimum() {
        let all = [0.1, 0.2, 0.4, 0.8];
        assert_eq!(
            rooms(1500 * MIB, &all),
            [100, 200, 400, 800].map(|m| m * MIB)
        );
        assert_eq!(rooms(100 * MIB, &[0.0, 1.0])[0], LEAST_ROOM);
        assert_eq!(rooms(100 * MIB, &[0.0, 0.0]), [50 * MIB, 50 * MIB]);
        assert!(rooms(100, &[]).is_empty());
    }

    #[test]
    fn room_follows_parts_of_the_disk_in_careful_steps() {
        let writers = [writer(1, 0.1, 200, None), writer(2, 0.3, 200, None)];
        let intents = plan_rooms(&writers, 400 * MIB);
        // In the end 200 and 600 MiB of file pages, and 10 beside them.
        let near = |high: u64, mib: u64| high.abs_diff(mib * MIB) <= PAGE_SIZE;
        assert!(intents.iter().all(|intent| intent.surplus == 0));
        assert_eq!(intents[0].high, 210 * MIB * 65 / 64 / PAGE_SIZE * PAGE_SIZE);
        assert!(near(intents[1].high, 610));
        let intents = plan_rooms(&writers, 0);
        says(
            &intents[0],
            &[
                "of the 400M",
                "100M are its dirty budget",
                "(25.0 %)",
                "10.0M of other memory",
                "the goal is 110M, and 213M are a step towards it",
            ],
        );
        says(&intents[1], &["goal is 310M, and there it stands"]);
        // The goal is 110 MiB; a step takes a quarter of the 210 at most, and the knob never stands below them.
        assert_eq!(intents[0].surplus, 210 * MIB / 4);
        assert!(intents[0].high > 210 * MIB && near(intents[1].high, 310));
    }

    #[test]
    fn while_memory_is_free_a_writer_keeps_half_more_than_its_room() {
        // Of 800 MiB a tenth is its room; 10 are other memory.
        let plan = |file: u64, free: u64| {
            let light = Writer {
                dirty: 0,
                ..writer(1, 0.1, file, Some(400))
            };
            let heavy = writer(2, 0.9, 800 - file - free, None);
            let intents = plan_rooms(&[light, heavy], free * MIB);
            intents.into_iter().find(|intent| intent.id == CgroupId(1))
        };
        let surplus = |file, free| plan(file, free).map_or(0, |intent| intent.surplus);
        says(
            &plan(110, 200).unwrap(),
            &["goal is 90.0M, and 122M are what it holds, which is left to it for now"],
        );
        assert_eq!(surplus(110, 200), 0);
        let beyond = |file: u64, keeps: u64| (file + 10) * MIB - (keeps + 10) * MIB * 65 / 64;
        assert!(surplus(160, 200).abs_diff(beyond(160, 120)) <= PAGE_SIZE);
        let little_free = surplus(110, 90);
        assert!(little_free.abs_diff(beyond(110, 80)) <= PAGE_SIZE);
        assert_eq!(surplus(81, 90), 0, "the knob's margin");
    }

    #[test]
    fn what_is_dirty_is_not_reclaimed() {
        let full = |dirty: u64| Writer {
            dirty: dirty * MIB,
            ..writer(1, 0.1, 200, Some(400))
        };
        let surplus = |dirty| plan_rooms(&[full(dirty), writer(2, 0.9, 200, None)], 0)[0].surplus;
        assert_eq!(surplus(200), 0);
        assert_eq!(surplus(180), 10 * MIB);
        assert_eq!(surplus(0), 210 * MIB / 4);
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
}
