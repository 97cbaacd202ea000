//! Working sets that an agent leaves to the next one, as at an upgrade, until the next one has observed the tenants' accesses
//! itself.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_api::EstimateBasis;
use justitia_common::regular_file;
use justitia_kernel::cgroup::CgroupId;
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::model::{MIN_OBSERVATION, WorkingSet};

/// The file in the state directory.
const FILE_NAME: &str = "working-sets";
/// Longer files are not read, bytes: 10,000 tenants need a twentieth of it.
const MAX_LENGTH: u64 = 8 << 20;
/// Working sets of the previous agent count for at most this time after the start: until the probes are attached, and then
/// until accesses have been observed for [`MIN_OBSERVATION`].
const COUNTS_FOR: Duration = Duration::from_secs(2 * MIN_OBSERVATION.as_secs());
/// Those of tenants that have not used theirs since count for this time: about as long as a set is known that is not used.
const COUNTS_UNUSED_FOR: Duration = Duration::from_secs(6 * 3600);

/// The working sets that the previous agent knew.
#[derive(Debug, Default)]
pub struct Handover {
    sets: HashMap<CgroupId, Left>,
    taken_at: Option<Instant>,
}

/// A tenant's working set in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Left {
    /// Its cgroup.
    id: u64,
    /// Its working set, bytes.
    bytes: u64,
    /// How long its accesses had been observed, seconds.
    observed_for: u64,
}

/// The contents of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    /// The boot in which it was written: cgroup ids are not valid in another.
    boot: String,
    /// The time of writing, seconds since that boot.
    at: u64,
    sets: Vec<Left>,
}

impl Handover {
    /// Reads and removes an earlier agent's file in the state directory. Empty if the file is of another boot, older than
    /// [`MIN_OBSERVATION`], or damaged.
    #[must_use]
    pub fn take(state: &Path, boot: &str, now: Instant) -> Self {
        let path = state.join(FILE_NAME);
        let read = regular_file::read(&path, MAX_LENGTH);
        if matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
            return Self::default();
        }
        let removed = std::fs::remove_file(&path);
        let contents = read
            .and_then(|bytes| serde_json::from_slice::<Contents>(&bytes).map_err(Into::into))
            .and_then(|contents| removed.map(|()| contents));
        match contents {
            Ok(contents) => Self::of(contents, boot, since_boot(), now),
            Err(error) => {
                tracing::info!(path = %path.display(), %error, "what the last agent knew of working sets is not used");
                Self::default()
            }
        }
    }

    fn of(contents: Contents, boot: &str, since_boot: u64, now: Instant) -> Self {
        let age = since_boot.checked_sub(contents.at);
        if contents.boot != boot || age.is_none_or(|age| age > MIN_OBSERVATION.as_secs()) {
            return Self::default();
        }
        let sets = contents.sets.into_iter();
        Self {
            sets: sets.map(|left| (CgroupId(left.id), left)).collect(),
            taken_at: Some(now),
        }
    }

    /// A tenant's known working set: this agent's `observed` one, or the previous agent's if that is larger, in the first minutes and
    /// while the tenant has not `used` its set since. Its observation time is that of both agents together.
    #[must_use]
    pub fn known(
        &self,
        id: CgroupId,
        observed: Option<WorkingSet>,
        used: bool,
        now: Instant,
    ) -> Option<WorkingSet> {
        let fresh = observed.is_none_or(|set| set.observed_for < MIN_OBSERVATION);
        let counts_for = match used || observed.is_none() {
            true if fresh => COUNTS_FOR,
            true => Duration::ZERO,
            false => COUNTS_UNUSED_FOR,
        };
        if self.taken_at.is_none_or(|taken| now >= taken + counts_for) {
            return observed;
        }
        let Some(left) = self.sets.get(&id) else {
            return observed;
        };
        let (bytes, observed_for) =
            observed.map_or((0, Duration::ZERO), |set| (set.bytes, set.observed_for));
        Some(WorkingSet {
            bytes: bytes.max(left.bytes),
            observed_for: observed_for.saturating_add(Duration::from_secs(left.observed_for)),
            evidence: EstimateBasis::Accesses,
        })
    }
}

/// Leaves the working sets that are known by accesses to the next agent.
///
/// # Errors
/// If the file cannot be written. Then there is none.
pub(crate) fn leave(
    state: &Path,
    boot: &str,
    sets: impl Iterator<Item = (CgroupId, WorkingSet)>,
) -> std::io::Result<()> {
    let known = sets.filter(|(_, set)| set.evidence == EstimateBasis::Accesses);
    let left = known.map(|(id, set)| Left {
        id: id.0,
        bytes: set.bytes,
        observed_for: set.observed_for.as_secs(),
    });
    let contents = Contents {
        boot: boot.to_owned(),
        at: since_boot(),
        sets: left.collect(),
    };
    let (path, temporary) = (state.join(FILE_NAME), state.join("working-sets.new"));
    write(&temporary, &serde_json::to_vec(&contents)?)
        .and_then(|()| std::fs::rename(&temporary, &path))
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&temporary);
        })
}

fn write(path: &PathBuf, bytes: &[u8]) -> std::io::Result<()> {
    let _ = std::fs::remove_file(path);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    regular_file::open(path, flags)?.write_all(bytes)
}

/// Seconds since the machine's boot, including suspend.
fn since_boot() -> u64 {
    u64::try_from(clock_gettime(ClockId::Boottime).tv_sec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "6d1c";

    fn set(bytes: u64, seconds: u64, evidence: EstimateBasis) -> WorkingSet {
        WorkingSet {
            bytes,
            observed_for: Duration::from_secs(seconds),
            evidence,
        }
    }

    #[test]
    fn what_was_known_counts_until_it_is_known_anew() {
        let dir = tempfile::tempdir().unwrap();
        let sets = [
            (CgroupId(1), set(100, 300, EstimateBasis::Accesses)),
            (CgroupId(2), set(200, 30, EstimateBasis::Accesses)),
            (CgroupId(3), set(300, 300, EstimateBasis::Lists)),
        ];
        leave(dir.path(), BOOT, sets.into_iter()).unwrap();
        let now = Instant::now();
        let handover = Handover::take(dir.path(), BOOT, now);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "read once");
        let of = |id, observed, after| {
            let now = now + Duration::from_secs(after);
            let known = handover.known(CgroupId(id), observed, true, now);
            known.map(|set| (set.bytes, set.observed_for.as_secs()))
        };
        let long = MIN_OBSERVATION.as_secs();
        let observed = |bytes, seconds| Some(set(bytes, seconds, EstimateBasis::Accesses));
        for (id, seen, after, expected) in [
            (1, None, 0, Some((100, 300))),
            (1, observed(40, 10), 10, Some((100, 310))),
            (1, observed(140, 10), 10, Some((140, 310))),
            (1, observed(40, long), long + 20, Some((40, long))),
            (1, observed(40, 10), 2 * long, Some((40, 10))),
            (2, None, 0, Some((200, 30))),
            (2, observed(40, 10), 10, Some((200, 40))),
            (3, None, 0, None),
        ] {
            assert_eq!(of(id, seen, after), expected, "{id}, {seen:?}, {after} s");
        }
        // One that rests since.
        let rested = |hours: u64| {
            let now = now + Duration::from_secs(hours * 3600);
            let known = handover.known(CgroupId(1), observed(0, hours * 3600), false, now);
            known.map(|set| set.bytes)
        };
        assert_eq!((rested(5), rested(7)), (Some(100), Some(0)));
    }

    #[test]
    fn what_is_of_another_boot_old_damaged_or_no_file_is_not_used() {
        let now = Instant::now();
        let contents = |boot: &str, at| Contents {
            boot: boot.to_owned(),
            at,
            sets: vec![Left {
                id: 1,
                bytes: 100,
                observed_for: 300,
            }],
        };
        for (boot, at, used) in [
            (BOOT, 1000, true),
            (BOOT, 1000 - MIN_OBSERVATION.as_secs(), true),
            (BOOT, 999 - MIN_OBSERVATION.as_secs(), false),
            (BOOT, 1001, false),
            ("other", 1000, false),
        ] {
            let handover = Handover::of(contents(boot, at), BOOT, 1000, now);
            assert_eq!(handover.sets.len() == 1, used, "{boot}, {at}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        for damaged in [
            "",
            "{",
            "{\"boot\":\"6d1c\",\"at\":1,\"sets\":[{\"id\":-1,\"bytes\":2,\"observed_for\":1}]}",
        ] {
            std::fs::write(&path, damaged).unwrap();
            assert!(Handover::take(dir.path(), BOOT, now).sets.is_empty());
            assert!(!path.exists(), "{damaged}");
        }
        std::fs::File::create(&path)
            .unwrap()
            .set_len(MAX_LENGTH + 1)
            .unwrap();
        assert!(Handover::take(dir.path(), BOOT, now).sets.is_empty());
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(Handover::take(dir.path(), BOOT, now).sets.is_empty());
    }
}
