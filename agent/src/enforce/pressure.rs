//! Whether a tenant thrashes: whether its tasks wait for memory, and not for limits that it has set itself.
//!
//! Where a subtree was delegated, whoever has it can make the pressure of any cgroup in there: with a `memory.high` just
//! below what one holds, and one task that runs into it. So what counts is the pressure of the whole that was delegated
//! (PSI `full`: nobody in it gets anything done), and only where no limit that is set within has been hit as long as that
//! average can tell of it. A limit that the administrator has set, on a service say, is none that the tenant can move: the
//! pressure behind it counts.

use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, Ownership};
use justitia_kernel::knob::Knob;
use justitia_kernel::psi::PsiResource;

/// The time constant of PSI's `avg10`.
const AVG10: Duration = Duration::from_secs(10);
/// `avg10` follows what happens every two seconds, and a task that is over a `memory.high` sleeps for two at most between
/// two hits.
const LATE: Duration = Duration::from_secs(4);

/// The pressure that says whether a tenant thrashes.
#[derive(Clone, Debug)]
pub struct Pressure {
    /// The tenant's cgroup; where that is in a subtree which was delegated, the topmost of it.
    pub unit: Cgroup,
    /// From this `full avg10` on it thrashes, percent.
    pub thrash_full: f64,
    /// What is known of the limits within.
    pub own_limits: OwnLimits,
}

/// How often limits that a tenant has set itself were hit, from look to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLimits {
    seen: Option<(Instant, u64)>,
    hit: Option<Instant>,
}

impl Pressure {
    /// The tenant's `full avg10` in percent, if it thrashes. Without PSI the kernel does not say.
    pub fn thrashes(&mut self, now: Instant) -> Option<f64> {
        let full = self.unit.pressure(PsiResource::Memory).ok()?.full.avg10;
        // A cgroup that is about to go, perhaps: then its pressure alone decides.
        let hits = own_hits(&self.unit).unwrap_or_default();
        let window = told_for(self.thrash_full);
        let own = self.own_limits.hit_within(window, hits, now);
        (full >= self.thrash_full && !own).then_some(full)
    }
}

impl OwnLimits {
    /// Takes note of how often limits were hit so far; says whether they were in the last `window`. What is new since a
    /// look that is longer ago may be older.
    fn hit_within(&mut self, window: Duration, hits: u64, now: Instant) -> bool {
        let recent = |at: Instant| now.saturating_duration_since(at) <= window;
        if self
            .seen
            .is_some_and(|(at, seen)| recent(at) && hits != seen)
        {
            self.hit = Some(now);
        }
        self.seen = Some((now, hits));
        self.hit.is_some_and(recent)
    }
}

/// How long `avg10` can say `thrash_full` percent or more after the last wait.
fn told_for(thrash_full: f64) -> Duration {
    AVG10.mul_f64((100.0 / thrash_full.clamp(0.1, 100.0)).ln()) + LATE
}

/// How often tasks below `unit` ran into limits that others than the administrator may have set. Each hit is counted where
/// the limit is, and above.
fn own_hits(unit: &Cgroup) -> Result<u64> {
    let all = unit.memory_events()?;
    let mut hits = all.high.saturating_add(all.max);
    let administrators = unit.file_ownership(Knob::MemoryHigh.file())? == Ownership::Admin;
    if administrators {
        let own = unit.memory_events_local()?;
        hits = hits.saturating_sub(own.high.saturating_add(own.max));
    }
    Ok(hits.saturating_add(unit.swap_high_events()?.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    #[test]
    fn how_long_the_average_tells_of_it() {
        // From 100 to 60 percent in 5.1 s, and what comes late.
        assert_eq!(told_for(60.0).as_millis(), 9108);
        assert_eq!(told_for(100.0), LATE);
    }

    #[test]
    fn hits_count_as_long_as_the_average_tells_of_them() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let window = Duration::from_secs(9);
        let mut own = OwnLimits::default();
        let mut hit = |seconds, hits| own.hit_within(window, hits, at(seconds));
        assert!(!hit(0, 5), "nobody knows when");
        assert!(!hit(1, 5));
        assert!(hit(2, 6));
        assert!(hit(11, 6), "the average tells of it");
        assert!(!hit(12, 6));
        assert!(!hit(30, 9), "nobody knows when");
        assert!(hit(31, 10));
    }

    /// A cgroup of plain files whose tasks wait nearly all the time.
    struct Unit {
        _dir: tempfile::TempDir,
        path: PathBuf,
        pressure: Pressure,
        begin: Instant,
    }

    impl Unit {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a");
            std::fs::create_dir(&path).unwrap();
            let line = |kind| format!("{kind} avg10=92.00 avg60=9.00 avg300=9.00 total=9\n");
            std::fs::write(path.join("memory.pressure"), line("some") + &line("full")).unwrap();
            std::fs::write(path.join("memory.high"), "max\n").unwrap();
            let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
            let unit = Self {
                pressure: Pressure {
                    unit: Cgroup::open_at(&fs, Path::new("a")).unwrap(),
                    thrash_full: 60.0,
                    own_limits: OwnLimits::default(),
                },
                _dir: dir,
                path,
                begin: Instant::now(),
            };
            unit.events(0, 0, 0);
            unit
        }

        /// Hits of limits in all, of its own, and of `memory.swap.high`.
        fn events(&self, all: u64, own: u64, swap: u64) {
            let write = |file, text: String| std::fs::write(self.path.join(file), text).unwrap();
            write("memory.events", format!("low 0\nhigh {all}\nmax 0\n"));
            write("memory.events.local", format!("low 0\nhigh {own}\nmax 0\n"));
            write(
                "memory.swap.events",
                format!("high {swap}\nmax 0\nfail 0\n"),
            );
        }

        fn thrashes(&mut self, seconds: u64) -> bool {
            let now = self.begin + Duration::from_secs(seconds);
            self.pressure.thrashes(now).is_some()
        }
    }

    #[test]
    fn pressure_of_limits_that_the_tenant_has_set_does_not_count() {
        let mut unit = Unit::new();
        assert!(unit.thrashes(0));
        unit.events(3, 0, 0);
        assert!(!unit.thrashes(1), "a limit within");
        unit.events(3, 0, 2);
        assert!(!unit.thrashes(10));
        assert!(unit.thrashes(20), "it has not been hit for long");
    }

    #[test]
    fn pressure_of_the_administrators_limit_counts() {
        let mut unit = Unit::new();
        assert!(unit.thrashes(0));
        unit.events(3, 3, 0);
        assert!(unit.thrashes(1));
        // Unless that one is not the administrator's alone to set.
        let high = unit.path.join("memory.high");
        std::fs::set_permissions(high, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!unit.thrashes(2));
    }

    #[test]
    fn without_psi_or_pressure_nobody_thrashes() {
        let mut unit = Unit::new();
        unit.pressure.thrash_full = 93.0;
        assert!(!unit.thrashes(0));
        std::fs::remove_file(unit.path.join("memory.pressure")).unwrap();
        unit.pressure.thrash_full = 60.0;
        assert!(!unit.thrashes(1));
    }
}
