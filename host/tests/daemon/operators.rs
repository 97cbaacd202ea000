//! What operators of VMs change while the daemon runs.

use std::sync::{Arc, Mutex};

use justitia_host::journal::Outcome;
use justitia_host::run::reset;
use tempfile::TempDir;

use super::peers::{Balloon, Daemon, MIB, Qemu, RAM, SHORT, monitor, vm, wait_until};

/// A daemon that has inflated the balloon of one VM.
struct Inflated {
    daemon: Daemon,
    balloon: Arc<Mutex<Balloon>>,
    /// The configuration of the VM.
    vm: String,
    _qemu: Qemu,
    directory: TempDir,
}

impl Inflated {
    /// Its operator's balloon leaves so many bytes.
    fn from(name: &str, before: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let qemu = Qemu::start(name, None);
        let balloon = monitor(&directory.path().join(format!("{name}.qmp")));
        balloon.lock().unwrap().actual = before;
        let vm = vm(name, directory.path(), &["qmp"]);
        let config = SHORT.to_owned() + &vm;
        let daemon = Daemon::start(directory.path(), &config, false);
        wait_until("the balloon moves", || {
            balloon.lock().unwrap().actual < before
        });
        Self {
            daemon,
            balloon,
            vm,
            _qemu: qemu,
            directory,
        }
    }

    /// The next daemon, on a host that lacks nothing, once this one is killed.
    fn next(&self, observe: bool) -> Daemon {
        let config = format!("headroom = \"1MiB\"\n{}", self.vm);
        Daemon::start(self.directory.path(), &config, observe)
    }

    fn actual(&self) -> u64 {
        self.balloon.lock().unwrap().actual
    }
}

/// Its operator has raised it beyond what it was, as `virsh setmem` does.
#[test]
fn a_balloon_that_was_raised_meanwhile_is_left_to_its_operator() {
    let mut inflated = Inflated::from("raised", RAM - 48 * MIB);
    // A step that was decided before may undo it.
    wait_until("what it was raised to is seen", || {
        inflated.balloon.lock().unwrap().actual = RAM;
        let vm = inflated.daemon.vm("raised");
        vm.is_some_and(|vm| vm.ram == RAM)
    });
    inflated.daemon.stop();
    assert_eq!(inflated.actual(), RAM);
}

/// Its operator has raised it before the next start, or `justitia host reset`.
#[test]
fn a_balloon_that_was_raised_after_a_kill_is_left_to_its_operator() {
    let mut inflated = Inflated::from("late-raised", RAM - 48 * MIB);
    inflated.daemon.kill();
    inflated.balloon.lock().unwrap().actual = RAM;
    let mut next = inflated.next(false);
    next.comes("it is seen", "late-raised", |vm| {
        vm.balloon == Some((RAM, RAM))
    });
    next.stop();
    assert_eq!(inflated.actual(), RAM);
}

/// Its driver begins with an empty balloon, and fills it up to what was asked for.
#[test]
fn a_balloon_that_its_guest_fills_anew_is_not_taken_for_a_raised_one() {
    let before = RAM - 48 * MIB;
    let mut inflated = Inflated::from("boots", before);
    inflated.balloon.lock().unwrap().boots = vec![RAM - 32 * MIB, RAM - 16 * MIB];
    wait_until("its boot is seen", || {
        inflated.balloon.lock().unwrap().boots.is_empty()
    });
    let moved = inflated.actual();
    inflated
        .daemon
        .comes("it is as it was asked for", "boots", |vm| {
            vm.ram == before && vm.balloon.is_some_and(|(actual, _)| actual <= moved)
        });
    inflated.daemon.stop();
    assert_eq!(inflated.actual(), before);
}

#[test]
fn who_observes_leaves_what_a_killed_one_has_left() {
    let mut inflated = Inflated::from("left-over", RAM);
    inflated.daemon.kill();
    let mut observer = inflated.next(true);
    observer.comes("its balloon is seen", "left-over", |vm| {
        vm.balloon.is_some()
    });
    observer.stop();
    {
        let now = inflated.balloon.lock().unwrap();
        assert!(now.actual < RAM && now.interval == 1, "{now:?}");
    }
    let outcomes = reset(&observer.directory, false).unwrap();
    assert!(
        matches!(outcomes[..], [(_, Some(Outcome::Restored))]),
        "{outcomes:?}"
    );
    let now = inflated.balloon.lock().unwrap();
    assert_eq!((now.actual, now.interval), (RAM, 0));
}

/// Each ten seconds is too seldom: they would be too old half of the time.
#[test]
fn how_often_statistics_are_made_is_as_it_was_or_as_another_one_set_it() {
    for (name, meanwhile, expected) in [("seldom", 1, 10), ("often", 5, 5)] {
        let directory = tempfile::tempdir().unwrap();
        let _qemu = Qemu::start(name, None);
        let balloon = monitor(&directory.path().join(format!("{name}.qmp")));
        balloon.lock().unwrap().interval = 10;
        let config = SHORT.to_owned() + &vm(name, directory.path(), &["qmp"]);
        let mut daemon = Daemon::start(directory.path(), &config, false);
        wait_until("they are made each second", || {
            balloon.lock().unwrap().interval == 1
        });
        balloon.lock().unwrap().interval = meanwhile;
        daemon.stop();
        assert_eq!(balloon.lock().unwrap().interval, expected, "{name}");
    }
}
