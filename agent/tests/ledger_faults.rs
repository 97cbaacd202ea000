//! The ledger where the system runs out of something. Limits are of a whole process, so these tests have one of their
//! own, and one thread.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use justitia_agent::enforce::ledger::{Back, Ledger, Written};
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::io::DevId;
use justitia_kernel::knob::Knob;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const DISK: Knob = Knob::IoMax(DevId { major: 8, minor: 0 });
const FREE: &str = "8:0 rbps=max wbps=max riops=max wiops=max";

fn limit(wbps: u32) -> String {
    format!("8:0 rbps=max wbps={wbps} riops=max wiops=max")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Runs `then` while the process may have no more than `most` of `what`.
fn with_at_most<T>(what: Resource, most: u64, then: impl FnOnce() -> T) -> T {
    let before = getrlimit(what);
    let lowered = Rlimit {
        current: Some(most),
        ..before
    };
    setrlimit(what, lowered).unwrap();
    let done = then();
    setrlimit(what, before).unwrap();
    done
}

/// A ledger that limits one cgroup, whose `io.max` is at the path.
fn limited(dir: &Path) -> (Ledger, Cgroup, std::path::PathBuf) {
    // Otherwise the kernel ends who writes beyond the limit.
    signal_hook::flag::register(
        signal_hook::consts::SIGXFSZ,
        Arc::new(AtomicBool::new(false)),
    )
    .unwrap();
    let max = dir.join("cgroup/a/io.max");
    std::fs::create_dir_all(dir.join("cgroup/a")).unwrap();
    std::fs::write(&max, "").unwrap();
    std::fs::write(dir.join("cgroup/a/memory.low"), "0\n").unwrap();
    let fs = CgroupFs::open_fixture(&dir.join("cgroup"), true).unwrap();
    let cgroup = Cgroup::open_at(&fs, Path::new("a")).unwrap();
    let (mut ledger, _) = Ledger::open(&fs, &dir.join("state")).unwrap();
    assert_eq!(
        ledger.set(&cgroup, DISK, &limit(100)).unwrap(),
        Written::Yes
    );
    (ledger, cgroup, max)
}

#[test]
fn where_the_ledger_cannot_grow_limits_go_and_come_back_later() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, cgroup, max) = limited(dir.path());
    let length = std::fs::metadata(dir.path().join("state/ledger"))
        .unwrap()
        .len();
    let refused = with_at_most(Resource::Fsize, length + 10, || {
        let refused = ledger.set(&cgroup, DISK, &limit(200)).unwrap_err();
        assert!(
            ledger.set(&cgroup, Knob::MemoryLow, "4096").is_err(),
            "and nothing new is written"
        );
        refused
    });
    assert!(refused.to_string().contains("File too large"), "{refused}");
    assert_eq!(
        (read(&max).as_str(), ledger.len()),
        (FREE, 0),
        "its tenant would stay limited"
    );
    assert_eq!(read(&dir.path().join("cgroup/a/memory.low")), "0");
    assert!(
        ledger
            .trouble()
            .is_some_and(|why| why.contains("File too large"))
    );
    // It is tried again, and nothing is given up for it.
    assert!(ledger.may_write(cgroup.id(), DISK));
    assert_eq!(
        ledger.set(&cgroup, DISK, &limit(300)).unwrap(),
        Written::Yes
    );
    assert_eq!((read(&max), ledger.trouble()), (limit(300), None));
    ledger.restore();
    assert_eq!(read(&max), FREE);
}

#[test]
fn without_descriptors_a_limit_is_given_back_as_soon_as_there_are_some() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, cgroup, max) = limited(dir.path());
    with_at_most(Resource::Nofile, 3, || {
        assert!(ledger.set(&cgroup, DISK, &limit(200)).is_err());
        let back = ledger.release(cgroup.id(), DISK);
        assert!(matches!(back, Some(Back::Failed { .. })), "{back:?}");
        assert_eq!((ledger.len(), ledger.retry()), (1, Vec::new()));
        // Nor is it lost at an end in order.
        let returned = ledger.restore();
        assert!(matches!(returned[0].back, Back::Failed { .. }) && ledger.len() == 1);
    });
    assert_eq!(read(&max), limit(100));
    let back = ledger.retry();
    assert!(
        back.len() == 1 && back[0].back == Back::Restored,
        "{back:?}"
    );
    assert_eq!((read(&max).as_str(), ledger.len()), (FREE, 0));
    assert!(ledger.may_write(cgroup.id(), DISK));
}
