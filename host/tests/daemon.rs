//! The daemon beside real QEMU processes, with monitors and agents of all manners.

#![expect(clippy::unwrap_used, reason = "a test")]

mod daemon {
    mod operators;
    pub(crate) mod peers;
}

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use justitia_host::channel::Agent;
use justitia_host::config::Config;
use justitia_host::journal::Outcome;
use justitia_host::monitor::{Monitor, MonitorError};
use justitia_host::run::{Options, reset, run};
use justitia_host::socket::Socket;
use justitia_host::status::VmStatus;

use daemon::peers::{
    Balloon, CACHED, DISK, Daemon, MIB, Manner, Qemu, RAM, SHORT, ServiceManager, agent, monitor,
    own, vm, wait_until,
};

/// Not a test: the daemon, for the others.
#[test]
#[ignore = "started by others"]
fn daemon_itself() {
    let Some(directory) = std::env::var_os("JUSTITIA_HOST_DIRECTORY") else {
        return;
    };
    let config = std::env::var_os("JUSTITIA_HOST_CONFIG").unwrap();
    run(Options {
        config: Config::load(Some(config.as_ref())).unwrap(),
        config_file: Some(config.into()),
        directory: directory.into(),
        observe: std::env::var("JUSTITIA_HOST_OBSERVE").unwrap() == "1",
    })
    .unwrap();
}

/// A VM and the daemon that has moved its balloon.
fn moved(name: &str, directory: &Path) -> (Qemu, Arc<Mutex<Balloon>>, Daemon) {
    let qemu = Qemu::start(name, None);
    let balloon = monitor(&directory.join(format!("{name}.qmp")));
    let config = SHORT.to_owned() + &vm(name, directory, &["qmp"]);
    let daemon = Daemon::start(directory, &config, false);
    wait_until("the balloon moves", || balloon.lock().unwrap().actual < RAM);
    (qemu, balloon, daemon)
}

fn kills(times: usize) {
    let directory = tempfile::tempdir().unwrap();
    let _qemu = Qemu::start("killed", None);
    let balloon = monitor(&directory.path().join("killed.qmp"));
    let config = SHORT.to_owned() + &vm("killed", directory.path(), &["qmp"]);
    for time in 0..times {
        let mut daemon = Daemon::start(directory.path(), &config, false);
        // At another moment each time: before the first step, while it goes on, and after the last.
        let moved = RAM - (time as u64 % 4) * 2 * MIB;
        wait_until("the balloon moves", || {
            balloon.lock().unwrap().actual <= moved
        });
        daemon.kill();
        if time % 2 == 0 {
            let outcomes = reset(&daemon.directory, false).unwrap();
            let restored = outcomes
                .iter()
                .all(|(_, outcome)| matches!(outcome, Some(Outcome::Restored)));
            assert!(restored, "{outcomes:?}");
        } else {
            // The next start restores, then it moves on.
            let mut next = Daemon::start(directory.path(), "headroom = \"1MiB\"\n", false);
            wait_until("it is restored", || balloon.lock().unwrap().actual == RAM);
            next.stop();
        }
        let now = balloon.lock().unwrap();
        assert_eq!((now.actual, now.interval), (RAM, 0), "kill {time}");
        assert!(!daemon.directory.join("balloons").exists());
    }
}

#[test]
fn balloons_are_restored_after_kills() {
    kills(3);
}

#[test]
#[ignore = "a minute: make test-vms"]
fn balloons_are_restored_after_fifty_kills() {
    kills(50);
}

#[test]
fn a_stop_signal_restores() {
    let directory = tempfile::tempdir().unwrap();
    let (_qemu, balloon, mut daemon) = moved("stopped", directory.path());
    daemon.stop();
    let now = balloon.lock().unwrap();
    assert_eq!((now.actual, now.interval), (RAM, 0));
}

#[test]
fn a_balloon_that_could_not_be_given_back_is_given_back_later() {
    let directory = tempfile::tempdir().unwrap();
    let (_qemu, balloon, _daemon) = moved("refused", directory.path());
    wait_until("the balloon moves far", || {
        balloon.lock().unwrap().actual <= RAM - 32 * MIB
    });
    // Its guest lacks memory, and the monitor does not take the order that gives it back.
    {
        let mut now = balloon.lock().unwrap();
        (now.refuses, now.available) = (1, 0);
    }
    wait_until("all of it is given back", || {
        let now = balloon.lock().unwrap();
        (now.refuses, now.actual) == (0, RAM)
    });
}

#[test]
fn a_balloon_that_could_not_be_restored_at_the_start_is_restored_later() {
    let directory = tempfile::tempdir().unwrap();
    let (_qemu, balloon, mut daemon) = moved("late", directory.path());
    daemon.kill();
    balloon.lock().unwrap().refuses = 1;
    let own = vm("late", directory.path(), &["qmp"]);
    let config = format!("headroom = \"1MiB\"\n{own}");
    let mut next = Daemon::start(directory.path(), &config, false);
    wait_until("it is restored", || {
        let now = balloon.lock().unwrap();
        (now.refuses, now.actual) == (0, RAM)
    });
    next.stop();
    let now = balloon.lock().unwrap();
    assert_eq!((now.actual, now.interval), (RAM, 0));
}

/// A VM that the daemon has left, by its configuration, while its monitor refused to restore its balloon.
fn left(name: &str, directory: &Path) -> (Qemu, Arc<Mutex<Balloon>>, Daemon) {
    let (qemu, balloon, daemon) = moved(name, directory);
    balloon.lock().unwrap().refuses = 1;
    daemon.reload(SHORT);
    wait_until("it is left", || balloon.lock().unwrap().refuses == 0);
    (qemu, balloon, daemon)
}

#[test]
fn a_balloon_that_could_not_be_restored_when_its_vm_was_left_is_restored_later() {
    let directory = tempfile::tempdir().unwrap();
    let (_qemu, balloon, daemon) = left("left", directory.path());
    let own = vm("left", directory.path(), &["qmp"]);
    daemon.reload(&format!("headroom = \"1MiB\"\n{own}"));
    wait_until("it is restored", || balloon.lock().unwrap().actual == RAM);
}

#[test]
fn a_vm_that_was_left_and_ends_is_not_in_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let (qemu, _balloon, daemon) = left("ended", directory.path());
    let journal = daemon.directory.join("balloons");
    assert!(journal.exists());
    drop(qemu);
    wait_until("it is taken out", || !journal.exists());
}

#[test]
fn a_signal_has_the_configuration_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let (_qemu, balloon, daemon) = moved("reloaded", directory.path());
    let own = vm("reloaded", directory.path(), &["qmp"]);
    daemon.reload(&format!("{SHORT}{own}weight = 300\n"));
    daemon.comes("its weight is another one", "reloaded", |vm| {
        vm.weight == 300
    });
    assert!(balloon.lock().unwrap().actual < RAM);
    // One with an error changes nothing, and one without the VM leaves it alone.
    daemon.reload(&format!("{SHORT}{own}weight = 0\n"));
    daemon.reload(&format!("{SHORT}{own}weight = 400\n"));
    daemon.comes("its weight is another one", "reloaded", |vm| {
        vm.weight == 400
    });
    daemon.reload(SHORT);
    wait_until("its balloon is restored", || {
        let now = balloon.lock().unwrap();
        (now.actual, now.interval) == (RAM, 0)
    });
    assert!(daemon.vm("reloaded").is_none());
}

/// It is told what it has to know when it reads again.
#[test]
fn a_service_manager_that_does_not_read_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (manager, path) = ServiceManager::start(directory.path());
    ServiceManager::fill(&path);
    let notify = [("NOTIFY_SOCKET", path.as_path())];
    let daemon = Daemon::start_with(directory.path(), "", true, &notify);
    wait_until("it is told", || manager.is_told("READY=1"));
    ServiceManager::fill(&path);
    daemon.reload("headroom = \"3GiB\"\n");
    wait_until("it is read", || daemon.status().headroom == 3 << 30);
    wait_until("it is told again", || manager.is_told("READY=1"));
}

#[test]
fn a_guest_in_need_gets_its_balloon_back() {
    let directory = tempfile::tempdir().unwrap();
    let (_qemu, balloon, daemon) = moved("needy", directory.path());
    balloon.lock().unwrap().available = 0;
    wait_until("all is given back", || {
        balloon.lock().unwrap().actual == RAM
    });
    let vm = daemon.vm("needy").unwrap();
    let told = |what: &str| {
        vm.decisions
            .iter()
            .any(|decision| decision.what.contains(what))
    };
    assert!(told("its guest lacks memory"), "{vm:?}");
}

#[test]
fn observing_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let _qemu = Qemu::start("observed", None);
    let balloon = monitor(&directory.path().join("observed.qmp"));
    let asked = agent(&directory.path().join("observed.channel"), Manner::Honest);
    // Its statistics are made for someone else.
    balloon.lock().unwrap().interval = 5;
    let config = SHORT.to_owned() + &vm("observed", directory.path(), &["qmp", "channel"]);
    let mut daemon = Daemon::start(directory.path(), &config, true);
    daemon.comes("it would ask", "observed", |vm| !vm.decisions.is_empty());
    assert!(daemon.status().observe);
    daemon.stop();
    assert_eq!(
        (balloon.lock().unwrap().changes, asked.lock().unwrap().bytes),
        (0, 0)
    );
}

#[test]
fn agents_of_all_manners_harm_nobody() {
    use Manner::{Floods, Honest, Lies, LongLines, Nonsense, Replays, Silent};
    let directory = tempfile::tempdir().unwrap();
    let manners = [Honest, Silent, Lies, Floods, LongLines, Replays, Nonsense];
    let mut config = SHORT.to_owned();
    let mut vms = Vec::new();
    for manner in manners {
        let name = format!("{manner:?}");
        let balloon = monitor(&directory.path().join(format!("{name}.qmp")));
        let asked = agent(&directory.path().join(format!("{name}.channel")), manner);
        config += &vm(&name, directory.path(), &["qmp", "channel"]);
        vms.push((manner, Qemu::start(&name, None), balloon, asked));
    }
    let daemon = Daemon::start(directory.path(), &config, false);
    let of = |manner: Manner| daemon.vm(&format!("{manner:?}"));
    let wrong = |manner| of(manner).map(|vm| vm.wrong).unwrap_or_default();
    wait_until("a lie is seen", || {
        of(Lies).is_some_and(|vm| vm.agent == Agent::Ignored && vm.wrong.impossible > 0)
    });
    wait_until("a flood is seen", || {
        of(Floods).is_some_and(|vm| vm.agent == Agent::Ignored && vm.wrong.floods > 0)
    });
    wait_until("long lines are dropped", || wrong(LongLines).too_long > 0);
    wait_until("replays are dropped", || wrong(Replays).unasked > 2);
    wait_until("nonsense is dropped", || wrong(Nonsense).malformed > 2);
    wait_until("silence is seen", || {
        of(Silent).is_some_and(|vm| vm.agent == Agent::Silent)
    });
    for (manner, _, balloon, asked) in &vms {
        // Who answers is asked. The others count as guests without an agent; so do long lines, when they are many.
        let is_asked = || asked.lock().unwrap().bytes > 0;
        let moves = || balloon.lock().unwrap().actual < RAM;
        let come = || match manner {
            Honest | Replays | Nonsense | Manner::Old => is_asked(),
            Silent | Lies | Floods => moves(),
            LongLines => is_asked() || moves(),
        };
        wait_until(&format!("memory of {manner:?} is taken"), come);
    }
    let held = daemon.resident();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(daemon.resident() < held + 16 * MIB, "the flood is not kept");
}

#[test]
fn what_qemu_says_of_a_balloon_is_understood() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("real.qmp");
    let _qemu = Qemu::start("real", Some(&path));
    let monitor = Monitor::Socket(Socket::trusted(path));
    let mut session = monitor.session().unwrap();
    let balloon = session.balloon(None).unwrap();
    assert_eq!(balloon.actual, RAM);
    assert!(balloon.deflates_on_oom);
    let device = balloon.device.unwrap();
    assert_eq!(device, "/machine/peripheral/b");
    session.set_interval(&device, 3).unwrap();
    session.set_balloon(RAM / 2).unwrap();
    assert_eq!(session.balloon(Some(&device)).unwrap().interval, 3);
    let refused = session.set_balloon(u64::MAX).unwrap_err();
    assert!(matches!(refused, MonitorError::Refused { .. }), "{refused}");
}

#[test]
fn a_monitor_that_another_has_is_told_and_no_obstacle() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("busy.qmp");
    let _qemu = Qemu::start("busy", Some(&path));
    let other = Monitor::Socket(Socket::trusted(path.clone()))
        .session()
        .unwrap();
    let config = vm("busy", directory.path(), &[]);
    let start = || Daemon::start(directory.path(), &config, false);
    let told = |vm: &VmStatus| {
        let error = vm.monitor_error.as_ref();
        error.is_some_and(|error| error.contains("serves one client"))
    };
    let mut daemon = start();
    daemon.comes("it is told", "busy", told);
    // More tries than QEMU lets wait. It ends nevertheless, and starts again.
    std::thread::sleep(std::time::Duration::from_secs(12));
    daemon.stop();
    let daemon = start();
    daemon.comes("it is told again", "busy", told);
    drop(other);
    daemon.comes("it is used when it is free", "busy", |vm| {
        vm.balloon == Some((RAM, RAM))
    });
}

/// A `virsh` that answers as one whose domain's guest makes no statistics, and notes what it was asked. It lists more than a pipe has room for.
const VIRSH: &str = r#"#!/bin/sh
echo "$*" >>"$(dirname "$0")/log"
case "$*" in
*query-balloon*) echo '{"return":{"actual":536870912},"id":"libvirt-7"}' ;;
*qom-list*) printf '{"return":[{"name":"b","type":"child<virtio-balloon-pci>","description":"%0100000d"}]}\n' 0 ;;
*polling*) echo '{"return":5}' ;;
*) echo '{"return":true}' ;;
esac
"#;

#[test]
fn the_monitor_of_libvirt_is_asked_through_virsh() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let virsh = directory.path().join("virsh");
    std::fs::write(&virsh, VIRSH).unwrap();
    std::fs::set_permissions(&virsh, std::fs::Permissions::from_mode(0o700)).unwrap();
    let socket = directory.path().join("monitor.sock");
    let chardev = format!(
        "socket,id=charmonitor,path={},server=on,wait=off",
        socket.display()
    );
    let mode = "chardev=charmonitor,mode=control";
    let more = ["-chardev", &chardev, "-mon", mode];
    let qemu = Qemu::start_with("domain", &more);
    let noted = NotedByLibvirt::new("domain", qemu.0.id());
    let config = vm("domain", directory.path(), &[]);
    let daemon = Daemon::start(directory.path(), &config, false);
    daemon.comes("its balloon is seen", "domain", |vm| {
        vm.balloon == Some((RAM, RAM)) && vm.deflates_on_oom
    });
    let log = std::fs::read_to_string(directory.path().join("log")).unwrap();
    let asked = format!("qemu-monitor-command -- {} ", own("domain"));
    assert!(log.lines().all(|line| line.contains(&asked)), "{log}");
    drop(noted);
}

/// Where libvirt notes the process of a domain; removed when dropped.
struct NotedByLibvirt(PathBuf);

impl NotedByLibvirt {
    fn new(name: &str, pid: u32) -> Self {
        let directory = Path::new("/run/libvirt/qemu");
        std::fs::create_dir_all(directory).unwrap();
        let file = directory.join(format!("{}.pid", own(name)));
        std::fs::write(&file, pid.to_string()).unwrap();
        Self(file)
    }
}

impl Drop for NotedByLibvirt {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A local user can start a process with QEMU's name, and the monitor of another VM on its command line.
#[test]
fn a_process_that_names_the_monitor_of_another_one_does_not_move_its_balloon() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("victim.qmp");
    let victim = monitor(&path);
    let program = directory.path().join("qemu-system-none");
    std::fs::copy("/bin/sh", &program).unwrap();
    let qmp = format!("unix:{},server=on", path.display());
    let mut poser = std::process::Command::new(&program)
        .args(["-c", "read end", "-name", &own("poser"), "-m", "1"])
        .args(["-qmp", &qmp])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let config = format!("{SHORT}{}", vm("poser", directory.path(), &[]));
    let daemon = Daemon::start(directory.path(), &config, false);
    daemon.comes("it is told", "poser", |vm| {
        let error = vm.monitor_error.as_ref();
        error.is_some_and(|error| error.contains("whose command line names the socket"))
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(victim.lock().unwrap().changes, 0);
    drop(daemon);
    poser.kill().unwrap();
    poser.wait().unwrap();
}

#[test]
fn a_qemu_that_dies_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let (mut qemu, balloon, mut daemon) = moved("mortal", directory.path());
    qemu.0.kill().unwrap();
    qemu.0.wait().unwrap();
    wait_until("it is gone", || daemon.vm("mortal").is_none());
    let left = balloon.lock().unwrap().actual;
    daemon.stop();
    // Nobody sets the balloon of what may be another VM by now.
    assert_eq!(balloon.lock().unwrap().actual, left);
    assert!(!daemon.directory.join("balloons").exists());
}

#[test]
fn what_a_vm_and_its_guest_cache_both_is_looked_at() {
    use std::os::unix::fs::FileExt as _;
    let directory = tempfile::tempdir().unwrap();
    let mut config = String::new();
    let mut vms = Vec::new();
    for (name, manner) in [
        ("both", Some(Manner::Honest)),
        ("none", None),
        ("dumb", Some(Manner::Silent)),
    ] {
        let image = directory.path().join(format!("{name}.img"));
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(DISK).unwrap();
        file.write_all_at(&vec![1; 1000 * 4096], 0).unwrap();
        let drive = format!("if=none,id=d,format=raw,file={}", image.display());
        vms.push(Qemu::start_with(name, &["-drive", &drive]));
        let mut keys = Vec::new();
        if let Some(manner) = manner {
            agent(&directory.path().join(format!("{name}.channel")), manner);
            keys.push("channel");
        }
        config += &vm(name, directory.path(), &keys);
    }
    let daemon = Daemon::start(directory.path(), &config, true);
    daemon.comes("the agent answers", "both", |vm| vm.agent == Agent::Answers);
    let mut found = None;
    // Nobody looks twice within seconds.
    wait_until("it was looked at", || {
        found = daemon.duplicates("both").filter(|vm| vm.why.is_none());
        found.is_some()
    });
    let both = found.unwrap();
    assert!(
        both.guest_is_whole && both.guest_file == Some(DISK),
        "{both:?}"
    );
    let disk = &both.disks[0];
    assert!(disk.image.ends_with("both.img"), "{disk:?}");
    let blocks = |bytes: Option<u64>| bytes.unwrap() / 4096;
    assert_eq!(blocks(disk.host), 1000);
    assert_eq!(blocks(disk.guest), CACHED.end - CACHED.start);
    assert!(blocks(disk.both).abs_diff(500) < 120, "{disk:?}");
    assert!((disk.share.unwrap() - 1.0 / 3.0).abs() < 0.12, "{disk:?}");
    let again = daemon.duplicates("both").unwrap();
    assert!(again.age_ms < 60_000 && again.disks.len() == 1, "{again:?}");
    for name in ["none", "dumb"] {
        let vm = daemon.duplicates(name).unwrap();
        assert!(vm.why.unwrap().contains("no agent"), "{name}");
        assert_eq!((blocks(vm.disks[0].host), vm.disks[0].share), (1000, None));
    }
}

#[test]
fn tenants_of_guests_are_asked_for_and_told_while_somebody_looks() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = String::new();
    let mut vms = Vec::new();
    for (name, manner) in [
        ("tells", Manner::Honest),
        ("old", Manner::Old),
        ("quiet", Manner::Silent),
    ] {
        let asked = agent(&directory.path().join(format!("{name}.channel")), manner);
        vms.push((Qemu::start(name, None), asked));
        config += &vm(name, directory.path(), &["channel"]);
    }
    let daemon = Daemon::start(directory.path(), &config, true);
    for name in ["tells", "old"] {
        daemon.comes("the agent answers", name, |vm| vm.agent == Agent::Answers);
    }
    let asked = |index: usize| -> u64 { vms[index].1.lock().unwrap().tenants };
    assert_eq!([asked(0), asked(1)], [0, 0], "nobody has looked");
    let mut told = None;
    wait_until("its tenants are told", || {
        told = daemon.with_tenants("tells").tenants;
        told.is_some()
    });
    let told = told.unwrap();
    assert_eq!((told.list().len(), told.more()), (16, 4));
    let first = &told.list()[0];
    let name = format!("{}?0", own("old"));
    assert_eq!((first.name.as_str(), first.weight), (name.as_str(), 300));
    assert_eq!(first.file, 20 * MIB);
    // The others are told without, and the older agent is not asked again and again.
    for _ in 0..5 {
        assert_eq!(daemon.with_tenants("old").tenants, None);
        assert_eq!(daemon.with_tenants("quiet").tenants, None);
    }
    let old = daemon.vm("old").unwrap();
    assert_eq!((asked(1), old.wrong.errors), (1, 1));
    assert_eq!((old.agent, asked(2)), (Agent::Answers, 0));
    // Who asks for the status alone asks no guest.
    assert_eq!(daemon.vm("tells").unwrap().tenants, None);
}

#[test]
fn metrics_are_served_where_they_are_configured() {
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let _qemu = Qemu::start("served", None);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let config = format!("metrics = \"{address}\"\n") + &vm("served", directory.path(), &[]);
    let daemon = Daemon::start(directory.path(), &config, true);
    wait_until("the VM is found", || daemon.vm("served").is_some());
    let mut page = String::new();
    wait_until("the page has the VM", || {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        write!(client, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        page.clear();
        client.read_to_string(&mut page).unwrap();
        page.contains(&format!(
            "justitia_host_vm_resident_bytes{{vm=\"{}\"}}",
            own("served")
        ))
    });
}
