//! `io.max` of the tenants of one disk.

use std::collections::HashMap;

use justitia_api::units;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::io::DevId;
use justitia_share::credit::limit::{LEAST_BYTES, LEAST_REQUESTS};
use justitia_share::credit::{Allowance, Limits, Settings};
use justitia_share::num::{to_f64, to_u64};

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
    /// Nobody contends with it any more, or it does no I/O there.
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
/// least that anybody gets says nothing about that.
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
    // Whoever is freed is freed first: nobody waits for another's limit.
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
}
