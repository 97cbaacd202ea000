//! Planning the limits of contended disks: `io.max` of tenants, and `memory.high` of writers.

use std::collections::HashMap;

use justitia_api::units::{self, bytes};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::io::DevId;
use justitia_share::PAGE_SIZE;
use justitia_share::credit::limit::{LEAST_BYTES, LEAST_REQUESTS};
use justitia_share::credit::{Allowance, Limits, Settings, rooms};
use justitia_share::num::{self, to_f64, to_u64};

/// Set one tenant's limits on one disk.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitIntent {
    /// Whose.
    pub id: CgroupId,
    /// On which disk.
    pub device: DevId,
    /// The limits; none at all gives back what stood there.
    pub limits: Limits,
    /// The facts behind it.
    pub reason: LimitReason,
}

/// Why a tenant's limits stand where they stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitReason {
    /// The disk is contended.
    Contended {
        /// The part of the disk's time that it is allowed, corrected.
        part: f64,
        /// The same with what is carried over from before: what the limits were made of.
        spends: f64,
        /// The part that its weight gives it when all want all they can get.
        share: f64,
        /// Whether it uses up what it is allowed.
        held: bool,
        /// The factor by which what its applications get was corrected.
        correction: f64,
        /// Whether the limits let it move more than that.
        lifted: bool,
        /// The limits that follow.
        limits: Limits,
    },
    /// No other tenant contends with it any more, or it does no I/O there.
    Over,
}

impl std::fmt::Display for LimitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Contended {
                part,
                spends,
                share,
                held,
                correction,
                lifted,
                limits,
            } => {
                write!(
                    f,
                    "the disk is contended; its share by weight is {:.1} % of the disk's time, among those that use it, after \
                     what keeps its queue short ({:.0} % or more); allowed are {:.1} %: its share times the correction of \
                     {correction:.2}",
                    share * 100.0,
                    Settings::default().reserve * 100.0,
                    part * 100.0,
                )?;
                let left = part - share * correction;
                if left >= 0.0005 {
                    write!(f, ", and {:.1} % that others leave", left * 100.0)?;
                }
                f.write_str(if *held {
                    " (it uses them up)"
                } else {
                    " (it does not use them up)"
                })?;
                if (spends - part).abs() >= 0.0005 {
                    write!(
                        f,
                        ", {:.1} % with what is carried over from before",
                        spends * 100.0
                    )?;
                }
                if *lifted && limits.wbps.or(limits.wiops).is_none() {
                    return f.write_str(
                        "; its writes are not limited: much of what its applications write is written again, or deleted, \
                         before it reaches a disk, and behind a limit it could not be; they are held by the room for \
                         dirty pages (memory.high)",
                    );
                }
                if *lifted {
                    return f.write_str(
                        "; its limits leave it more: as long as others wait for what it is writing back (a file system's \
                         journal makes them), or another's writes are not limited, or it has just got another share, \
                         that may go out within a second or two, and its applications are held by the room for dirty \
                         pages (memory.high)",
                    );
                }
                whole(f, *spends, limits)
            }
            Self::Over => f.write_str("it does not contend for the disk any more"),
        }
    }
}

/// What limits make of the disk's whole time, so that they can be recomputed from the part. A limit at the
/// least that a tenant gets says nothing about that.
fn whole(f: &mut std::fmt::Formatter<'_>, spends: f64, limits: &Limits) -> std::fmt::Result {
    let of = |limit: Option<u64>, least: f64| {
        let limit = limit.map(to_f64).filter(|limit| *limit > least)?;
        Some(limit / spends.max(f64::MIN_POSITIVE))
    };
    let bytes = |limit, what: &str| {
        let rate = of(limit, LEAST_BYTES)?;
        Some(format!("{}/s {what}", units::bytes(to_u64(rate))))
    };
    let requests = |limit, what: &str| Some(format!("{:.0} {what}/s", of(limit, LEAST_REQUESTS)?));
    let rates: Vec<String> = [
        bytes(limits.rbps, "read"),
        requests(limits.riops, "reads"),
        bytes(limits.wbps, "written"),
        requests(limits.wiops, "writes"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if rates.is_empty() {
        return Ok(());
    }
    write!(
        f,
        "; so the disk's whole time is taken for {} of its mixture, and the limits are its part of that",
        rates.join(" and ")
    )
}

/// What has to change: `allowances` are those of the tenants that contend now, `standing` what each tenant
/// holds on this disk. The loop that makes allowances keeps small movements back itself.
#[must_use]
pub fn plan_limits(
    device: DevId,
    allowances: &[Allowance],
    standing: &HashMap<CgroupId, Limits>,
) -> Vec<LimitIntent> {
    let mut intents: Vec<LimitIntent> = allowances
        .iter()
        .filter(|a| !a.limits.none() && standing.get(&CgroupId(a.id)) != Some(&a.limits))
        .map(|a| LimitIntent {
            id: CgroupId(a.id),
            device,
            limits: a.limits,
            reason: LimitReason::Contended {
                part: a.part,
                spends: a.spends(),
                share: a.share,
                held: a.held(),
                correction: a.correction,
                lifted: a.lifted,
                limits: a.limits,
            },
        })
        .collect();
    let limited = |id: CgroupId| allowances.iter().any(|a| a.id == id.0 && !a.limits.none());
    let mut over: Vec<LimitIntent> = standing
        .keys()
        .filter(|id| !limited(**id))
        .map(|id| LimitIntent {
            id: *id,
            device,
            limits: Limits::default(),
            reason: LimitReason::Over,
        })
        .collect();
    over.sort_by_key(|intent| intent.id);
    // Limits are removed first, so that a tenant that is freed does not wait until another is limited.
    over.append(&mut intents);
    over
}

/// As the kernel prints the limits, so that our own value is recognised.
#[must_use]
pub fn io_max(device: DevId, limits: &Limits) -> String {
    let say = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |n| n.to_string());
    format!(
        "{device} rbps={} wbps={} riops={} wiops={}",
        say(limits.rbps),
        say(limits.wbps),
        say(limits.riops),
        say(limits.wiops)
    )
}

// `memory.high` of buffered writers that contend: room for their dirty pages in the proportion of their
// credits, so that the kernel's throttling of writers follows the weights (on a stock kernel, the part of
// Justitia's weight-aware lock, section III-A).

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

/// Set `memory.high` of one writer. Amounts in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoomIntent {
    /// Whose.
    pub id: CgroupId,
    /// The new value, a multiple of the page size.
    pub high: u64,
    /// File pages to reclaim from it, clean ones: what it holds beyond the room, a step of it.
    pub surplus: u64,
    /// The room for its file pages that this leaves in the end: its part of what is divided.
    pub room: u64,
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

/// No writer has less room for file pages than this.
pub const LEAST_ROOM: u64 = 16 << 20;
/// At most this part of a writer's memory is reclaimed in one step.
pub const STEP: u64 = 4;
/// The knob stays above what a writer holds by this part of it. Below, the kernel would put the writer to sleep where it
/// next asks for memory, perhaps within a journal's transaction, and all others with it.
const MARGIN: u64 = 64;
/// While more than this part of what is divided is free, a writer keeps pages up to [`KEEPS`] times its room: if they are what
/// it reads again and again, then with a little less it would find none of them.
pub const SPARE: u64 = 8;
/// How many times its room a writer keeps then.
pub const KEEPS: f64 = 1.5;
/// A knob that would move by less than this part stays.
pub const DEADBAND: u64 = 8;

/// Divides the writers' file pages and the `free` memory (what may be used of it) in proportion to their
/// credits, one careful step at a time. None if there is no second writer.
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
        .zip(rooms(pool, &parts, LEAST_ROOM))
        .filter_map(|(writer, room)| {
            let used = writer.file + writer.other;
            let goal = goal(writer.other, room);
            let high = goal.max(used + used / MARGIN) / PAGE_SIZE * PAGE_SIZE;
            let clean = writer.file.saturating_sub(writer.dirty);
            // Less than the knob's margin is noise. Half of the clean pages: the others may be dirty by then.
            let part = writer.part / all_parts.max(f64::MIN_POSITIVE);
            let keeps = if spare {
                writer.other + num::to_u64(part * KEEPS * num::to_f64(pool))
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

    const DEV: DevId = DevId { major: 8, minor: 0 };

    fn limits(wbps: u64) -> Limits {
        Limits {
            wbps: Some(wbps),
            ..Limits::default()
        }
    }

    fn allowance(id: u64, limits: Limits) -> Allowance {
        Allowance {
            id,
            part: 0.25,
            share: 0.2,
            demand: None,
            correction: 1.0,
            residual: 0.0,
            lifted: false,
            limits,
        }
    }

    #[test]
    fn table() {
        type Held = Vec<(u64, Limits)>;
        let cases: [(&str, Vec<Allowance>, Held, Held); 5] = [
            ("nothing", vec![], vec![], vec![]),
            (
                "contention begins",
                vec![allowance(1, limits(5)), allowance(2, limits(9))],
                vec![],
                vec![(1, limits(5)), (2, limits(9))],
            ),
            (
                "it stays",
                vec![allowance(1, limits(5))],
                vec![(1, limits(5))],
                vec![],
            ),
            (
                "one moves, one has left",
                vec![allowance(1, limits(6))],
                vec![(1, limits(5)), (2, limits(9))],
                vec![(2, Limits::default()), (1, limits(6))],
            ),
            (
                "it is over, and who cannot be limited is not",
                vec![allowance(3, Limits::default())],
                vec![(1, limits(5))],
                vec![(1, Limits::default())],
            ),
        ];
        for (what, allowances, standing, expected) in cases {
            let standing = standing
                .into_iter()
                .map(|(id, l)| (CgroupId(id), l))
                .collect();
            let planned: Held = plan_limits(DEV, &allowances, &standing)
                .into_iter()
                .map(|intent| (intent.id.0, intent.limits))
                .collect();
            assert_eq!(planned, expected, "{what}");
        }
    }

    #[test]
    fn it_is_said_as_the_kernel_says_it_and_why() {
        assert_eq!(
            io_max(DEV, &limits(7)),
            "8:0 rbps=max wbps=7 riops=max wiops=max"
        );
        let intents = plan_limits(DEV, &[allowance(1, limits(5))], &HashMap::new());
        let reason = intents[0].reason.to_string();
        assert!(reason.contains("share by weight is 20.0 %"), "{reason}");
        assert!(
            reason.ends_with("and 5.0 % that others leave (it uses them up)"),
            "the least says nothing about the disk: {reason}"
        );
    }

    #[test]
    fn a_lifted_limit_is_not_said_to_follow_from_the_part() {
        let lifted = Allowance {
            lifted: true,
            ..allowance(1, limits(5 << 20))
        };
        let reason = plan_limits(DEV, &[lifted], &HashMap::new())[0]
            .reason
            .to_string();
        assert!(reason.contains("its limits leave it more"), "{reason}");
        assert!(!reason.contains("whole time"), "{reason}");
    }

    #[test]
    fn who_may_write_without_limit_is_told_so() {
        let reads = Limits {
            rbps: Some(5 << 20),
            ..Limits::default()
        };
        let lifted = Allowance {
            lifted: true,
            ..allowance(1, reads)
        };
        let reason = plan_limits(DEV, &[lifted], &HashMap::new())[0]
            .reason
            .to_string();
        assert!(reason.contains("its writes are not limited"), "{reason}");
    }

    #[test]
    fn a_limit_can_be_recomputed_from_the_part_and_what_the_disk_does() {
        let both = Limits {
            rbps: Some(5 << 20),
            wiops: Some(250),
            ..Limits::default()
        };
        let mut allowance = allowance(1, both);
        let reason = |a: Allowance| {
            let intents = plan_limits(DEV, &[a], &HashMap::new());
            intents[0].reason.to_string()
        };
        let text = reason(allowance);
        assert!(
            text.contains("20.0M/s read and 1000 writes/s of its mixture"),
            "{text}"
        );
        assert!(!text.contains("carried over"), "{text}");
        allowance.residual = -0.05;
        let text = reason(allowance);
        assert!(
            text.contains("20.0 % with what is carried over")
                && text.contains("25.0M/s read and 1250 writes/s"),
            "{text}"
        );
    }

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
