//! What operators of VMs change while the daemon runs.

use justitia_host::journal::Outcome;
use justitia_host::run::reset;

use super::peers::{Daemon, MIB, Qemu, RAM, SHORT, monitor, vm, wait_until};

/// Its operator has raised it beyond what it was, as `virsh setmem` does.
#[test]
fn a_balloon_that_was_raised_meanwhile_is_left_to_its_operator() {
    let directory = tempfile::tempdir().unwrap();
    let _qemu = Qemu::start("raised", None);
    let balloon = monitor(&directory.path().join("raised.qmp"));
    let before = RAM - 48 * MIB;
    balloon.lock().unwrap().actual = before;
    let config = SHORT.to_owned() + &vm("raised", directory.path(), &["qmp"]);
    let mut daemon = Daemon::start(directory.path(), &config, false);
    wait_until("the balloon moves", || {
        balloon.lock().unwrap().actual < before
    });
    // A step that was decided before may undo it.
    wait_until("what it was raised to is seen", || {
        balloon.lock().unwrap().actual = RAM;
        daemon.vm("raised").is_some_and(|vm| vm.ram == RAM)
    });
    daemon.stop();
    assert_eq!(balloon.lock().unwrap().actual, RAM);
}

/// Its operator has raised it before the next start, or `justitia host reset`.
#[test]
fn a_balloon_that_was_raised_after_a_kill_is_left_to_its_operator() {
    let directory = tempfile::tempdir().unwrap();
    let _qemu = Qemu::start("late-raised", None);
    let balloon = monitor(&directory.path().join("late-raised.qmp"));
    let before = RAM - 48 * MIB;
    balloon.lock().unwrap().actual = before;
    let own = vm("late-raised", directory.path(), &["qmp"]);
    let mut daemon = Daemon::start(directory.path(), &(SHORT.to_owned() + &own), false);
    wait_until("the balloon moves", || {
        balloon.lock().unwrap().actual < before
    });
    daemon.kill();
    balloon.lock().unwrap().actual = RAM;
    let config = format!("headroom = \"1MiB\"\n{own}");
    let mut next = Daemon::start(directory.path(), &config, false);
    wait_until("it is seen", || {
        next.vm("late-raised")
            .is_some_and(|vm| vm.balloon == Some((RAM, RAM)))
    });
    next.stop();
    assert_eq!(balloon.lock().unwrap().actual, RAM);
}

/// Its driver begins with an empty balloon, and fills it up to what was asked for.
#[test]
fn a_balloon_that_its_guest_fills_anew_is_not_taken_for_a_raised_one() {
    let directory = tempfile::tempdir().unwrap();
    let _qemu = Qemu::start("boots", None);
    let balloon = monitor(&directory.path().join("boots.qmp"));
    let before = RAM - 48 * MIB;
    balloon.lock().unwrap().actual = before;
    let config = SHORT.to_owned() + &vm("boots", directory.path(), &["qmp"]);
    let mut daemon = Daemon::start(directory.path(), &config, false);
    wait_until("the balloon moves", || {
        balloon.lock().unwrap().actual < before
    });
    balloon.lock().unwrap().boots = vec![RAM - 32 * MIB, RAM - 16 * MIB];
    wait_until("its boot is seen", || {
        balloon.lock().unwrap().boots.is_empty()
    });
    let moved = balloon.lock().unwrap().actual;
    daemon.comes("it is as it was asked for", "boots", |vm| {
        vm.ram == before && vm.balloon.is_some_and(|(actual, _)| actual <= moved)
    });
    daemon.stop();
    assert_eq!(balloon.lock().unwrap().actual, before);
}

#[test]
fn who_observes_leaves_what_a_killed_one_has_left() {
    let directory = tempfile::tempdir().unwrap();
    let _qemu = Qemu::start("left-over", None);
    let balloon = monitor(&directory.path().join("left-over.qmp"));
    let own = vm("left-over", directory.path(), &["qmp"]);
    let mut daemon = Daemon::start(directory.path(), &(SHORT.to_owned() + &own), false);
    wait_until("the balloon moves", || balloon.lock().unwrap().actual < RAM);
    daemon.kill();
    let config = format!("headroom = \"1MiB\"\n{own}");
    let mut observer = Daemon::start(directory.path(), &config, true);
    wait_until("its balloon is seen", || {
        observer
            .vm("left-over")
            .is_some_and(|vm| vm.balloon.is_some())
    });
    observer.stop();
    {
        let now = balloon.lock().unwrap();
        assert!(now.actual < RAM && now.interval == 1, "{now:?}");
    }
    let outcomes = reset(&observer.directory, false).unwrap();
    assert!(
        matches!(outcomes[..], [(_, Some(Outcome::Restored))]),
        "{outcomes:?}"
    );
    let now = balloon.lock().unwrap();
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
