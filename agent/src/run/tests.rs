use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use justitia_api::client::ask;
use justitia_api::control::{Answer, Request, is_starting, request};
use justitia_common::answer_socket::AnswerSocket;
use justitia_common::signals::Signals;
use justitia_kernel::capabilities::{Capabilities, Paths};
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::knob::Knob;
use justitia_kernel::proc::ProcFs;

use super::checks::check_features;
use super::event_loop::{AgentLoop, Waits};
use super::reload::{Exporter, Live};
use crate::agent::Agent;
use crate::config::Config;
use crate::knobs::KnobStore;
use crate::monitor::{AppIoMonitor, thread_cpu};
use crate::page_cache::ReclaimFeatures;
use crate::page_cache::system_memory::SystemMemory;
use crate::status::control::Control;

/// An agent that only observes a tree of plain files with one cgroup.
fn agent(root: &std::path::Path) -> Agent {
    agent_with(root, None)
}

/// An agent with this knob store.
fn agent_with(root: &std::path::Path, store: Option<KnobStore>) -> Agent {
    std::fs::create_dir_all(root.join("a")).unwrap();
    std::fs::write(root.join("a/cgroup.controllers"), "memory\n").unwrap();
    let fs = CgroupFs::open_fixture(root).unwrap();
    let config = Config {
        cpu_budget: 5.0,
        ..Config::default()
    };
    let app_io = AppIoMonitor::unavailable("a test");
    Agent::new(config, &fs, ReclaimFeatures::default(), store, None, app_io).unwrap()
}

/// What a loop waits for, with the path of its socket, and the other ends of its signals: to stop, and SIGHUP.
fn waits(dir: &Path) -> (Waits, PathBuf, [UnixStream; 2]) {
    let path = dir.join("j.sock");
    let ((stop, stopped), (hang_up, hung_up)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    hang_up.set_nonblocking(true).unwrap();
    let signals = Signals {
        stop,
        hang_up,
        at_terminal: false,
    };
    let waits = Waits {
        signals,
        socket: AnswerSocket::listen(&path).unwrap(),
        control: Control::listen(&path).unwrap(),
    };
    (waits, path, [stopped, hung_up])
}

/// The configuration of an agent without metrics, read from `file`.
fn live(agent: &Agent, file: Option<PathBuf>) -> Live {
    let mut config = agent.config.clone();
    config.metrics.listen = None;
    Live {
        file,
        metrics: Exporter::start(&config),
        limitations: Vec::new(),
        doubts: Vec::new(),
        doubts_due: None,
    }
}

/// A kernel of arm64 with pages of 64 KiB, for instance: it rounds `memory.low` to them.
#[test]
fn pages_of_another_size_are_refused_even_to_an_observer() {
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path().join("proc");
    std::fs::create_dir_all(proc.join("self")).unwrap();
    let paths = Paths {
        proc: proc.clone(),
        sys: dir.path().join("sys"),
        verify_cgroup2: false,
    };
    let checked = |page_size: u64| {
        let vector = [6, page_size, 0, 0].map(u64::to_ne_bytes).concat();
        std::fs::write(proc.join("self/auxv"), vector).unwrap();
        check_features(&Capabilities::detect(&paths), true)
    };
    let error = checked(64 << 10).unwrap_err().to_string();
    assert!(
        error.contains("the page size is 65536 bytes, expected 4096"),
        "{error}"
    );
    let told =
        error.starts_with("page-cache protection cannot work here: it needs pages of 4 KiB (");
    assert!(told && !error.contains("cannot work without"), "{error}");
    // All else that is missing here does not keep it from observing.
    assert!(checked(4 << 10).is_ok());
}

#[test]
fn answers_do_not_count_against_the_monitors_budget() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = agent(dir.path());
    let spend = || {
        let begun = thread_cpu();
        while thread_cpu() - begun < Duration::from_millis(400) {}
    };
    // A twentieth of this time is saved in the budget; what follows takes more.
    std::thread::sleep(Duration::from_millis(400));
    agent.answer(|_| spend());
    assert!(agent.monitor.budget.allows());
}

/// The client connects again as soon as it has an answer.
#[test]
fn requests_do_not_change_the_time_of_the_next_tick() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir.path().join("cgroup"));
    let (waits, path, _signalled) = waits(dir.path());
    let running = Arc::new(AtomicBool::new(true));
    let client = std::thread::spawn({
        let running = Arc::clone(&running);
        move || {
            let mut answers = 0;
            while running.load(Ordering::Relaxed) {
                // The last request is not answered.
                answers += u32::from(ask(&path).is_ok());
            }
            answers
        }
    });
    let live = live(&agent, None);
    let mut agent_loop = AgentLoop::new(agent, waits, live, true);
    let (begun, wait) = (Instant::now(), Duration::from_secs(2));
    let stopped = agent_loop.answer_until_due(wait);
    let took = begun.elapsed();
    running.store(false, Ordering::Relaxed);
    drop(agent_loop);
    let answers = client.join().unwrap();
    assert!(!stopped && answers >= 2, "{answers} answers");
    assert!(took >= wait && took < 10 * wait, "{took:?}");
}

/// With all the retries of an end in order, and not only when the store is dropped.
#[test]
fn an_error_restores_every_knob_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (root, proc) = (dir.path().join("cgroup"), dir.path().join("proc"));
    let low = root.join("a/memory.low");
    std::fs::create_dir_all(root.join("a")).unwrap();
    std::fs::write(&low, "1000\n").unwrap();
    let fs = CgroupFs::open_fixture(&root).unwrap();
    let a = Cgroup::open_at(&fs, "a".as_ref()).unwrap();
    let (mut store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
    store.set(&a, Knob::MemoryLow, "5000").unwrap();
    let mut agent = agent_with(&root, Some(store));
    agent.config.state_dir = dir.path().join("state");
    // A `/proc` that cannot be read.
    std::fs::create_dir(&proc).unwrap();
    for file in ["meminfo", "vmstat"] {
        std::fs::write(proc.join(file), "").unwrap();
    }
    agent.monitor.memory = SystemMemory::new(ProcFs::open(&proc).unwrap());
    let (waits, _, _signalled) = waits(dir.path());
    let live = live(&agent, None);
    let mut agent_loop = AgentLoop::new(agent, waits, live, false);
    let error = agent_loop.run().unwrap_err().to_string();
    assert!(error.contains("meminfo"), "{error}");
    assert_eq!(std::fs::read_to_string(&low).unwrap().trim(), "1000");
    assert!(dir.path().join("state/working-sets").exists());
}

/// An agent that holds the `memory.low` of two cgroups, `a` and `b`, as its configuration in `j.toml` says.
struct Reloaded {
    dir: tempfile::TempDir,
    agent_loop: AgentLoop,
    signals: [UnixStream; 2],
    socket: PathBuf,
}

impl Reloaded {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        for cgroup in ["a", "b"] {
            std::fs::create_dir_all(root.join(cgroup)).unwrap();
            for (file, text) in [("cgroup.controllers", "memory\n"), ("memory.low", "0\n")] {
                std::fs::write(root.join(cgroup).join(file), text).unwrap();
            }
        }
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
        let mut agent = agent_with(&root, Some(store));
        for cgroup in ["a", "b"] {
            let cgroup = Cgroup::open_at(&fs, cgroup.as_ref()).unwrap();
            let store = agent.knobs.as_mut().unwrap();
            store.set(&cgroup, Knob::MemoryLow, "5").unwrap();
        }
        agent.config.state_dir = dir.path().join("state");
        agent.config.metrics.listen = None;
        let (waits, socket, signals) = waits(dir.path());
        agent.config.socket.clone_from(&socket);
        let live = live(&agent, Some(dir.path().join("j.toml")));
        let agent_loop = AgentLoop::new(agent, waits, live, false);
        Self {
            dir,
            agent_loop,
            signals,
            socket,
        }
    }

    /// What stands in `a`, and in `b`.
    fn lows(&self) -> [String; 2] {
        let root = self.dir.path().join("cgroup");
        ["a", "b"].map(|name| {
            let low = std::fs::read_to_string(root.join(name).join("memory.low")).unwrap();
            low.trim().to_owned()
        })
    }

    /// Writes this beside what cannot change, after one line.
    fn configure(&self, toml: &str) {
        let dir = self.dir.path().display();
        let text = format!(
            "socket = \"{}\"\nstate_dir = \"{dir}/state\"\n{toml}",
            self.socket.display()
        );
        std::fs::write(self.dir.path().join("j.toml"), text).unwrap();
    }

    /// What a client is told that asks for a reload.
    fn reload(&mut self) -> Answer {
        let socket = self.socket.clone();
        let client = std::thread::spawn(move || request(&socket, &Request::Reload).unwrap());
        while !client.is_finished() {
            let stopped = self.agent_loop.answer_until_due(Duration::from_millis(20));
            assert!(!stopped);
        }
        client.join().unwrap()
    }
}

#[test]
fn a_reload_keeps_knobs_and_gives_back_what_is_excluded() {
    let mut it = Reloaded::start();
    it.configure("[metrics]\nlisten = \"\"\n[[tenant]]\nmatch = \"b\"\nexclude = true\n[cache]\nswap = false\n");
    let answer = it.reload();
    assert_eq!(answer.errors, Vec::<String>::new());
    let read = format!("read: {}", it.dir.path().join("j.toml").display());
    assert_eq!(answer.done[0], read);
    assert_eq!(it.lows(), ["5", "0"]);
    assert!(!it.agent_loop.agent.config.cache.swap);
    // What is held is in the journal, and what was given back is not.
    let journal = std::fs::read_to_string(it.dir.path().join("state/ledger")).unwrap();
    assert!(journal.contains("\"a\""), "{journal}");
    let knobs = it.agent_loop.agent.knobs.as_ref().unwrap();
    assert_eq!(knobs.owned().count(), 1);
    // It comes back as one that is new.
    it.configure("[metrics]\nlisten = \"\"\n[[tenant]]\nmatch = \"b\"\nweight = 300\n");
    assert_eq!(it.reload().errors, Vec::<String>::new());
    assert_eq!(it.agent_loop.agent.monitor.cgroups.len(), 2);
    assert_eq!(it.lows(), ["5", "0"]);
}

#[test]
fn a_rule_that_no_cgroup_matches_is_told_a_minute_later_until_one_does() {
    let mut it = Reloaded::start();
    it.configure(
        "[metrics]\nlisten = \"\"\n[[tenant]]\nmatch = \"a\"\nweight = 300\n[[tenant]]\nmatch = \"b\"\nexclude = true\n\
         [[tenant]]\ncontainer = \"webb\"\nimage = \"*nginx:*\"\nexclude = true\n[[tenant]]\nmatch = \"/later\"\nweight = 5\n",
    );
    assert_eq!(it.reload().errors, Vec::<String>::new());
    let AgentLoop { live, agent, .. } = &mut it.agent_loop;
    let due = live.doubts_due.unwrap();
    live.doubt_late(agent, due - Duration::from_nanos(1));
    assert_eq!(live.limitations(), Vec::<String>::new());
    let doubt = |rule: &str| {
        format!(
            "Configuration: [[tenant]] {rule} has matched no cgroup yet: `justitia status --all` shows paths and names"
        )
    };
    let webb = doubt("container = \"webb\", image = \"*nginx:*\"");
    let later = doubt("match = \"later\"");
    live.doubt_late(agent, due);
    assert_eq!(live.limitations(), [webb.clone(), later]);
    let cgroup = it.dir.path().join("cgroup/later");
    std::fs::create_dir(&cgroup).unwrap();
    std::fs::write(cgroup.join("cgroup.controllers"), "memory\n").unwrap();
    agent.monitor.process_events(&agent.config, Instant::now());
    assert_eq!(live.limitations(), [webb]);
}

#[test]
fn a_configuration_with_an_error_changes_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let mut it = Reloaded::start();
    let file = it.dir.path().join("j.toml");
    let exclude = "[metrics]\nlisten = \"\"\n[[tenant]]\nmatch = \"b\"\nexclude = true\n";
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let listens = format!("[metrics]\nlisten = \"{taken}\"\n");
    for (toml, mode, expected) in [
        (
            "[cache]\nswap = 7\n",
            0o600,
            "j.toml:7: cache.swap: expected true or false, found 7",
        ),
        (
            "[probes]\nmax_cgroups = 17\n",
            0o600,
            "probes.max_cgroups cannot change while the agent runs: restart to change it",
        ),
        (
            "",
            0o602,
            "that only root may write, found one of mode 0602",
        ),
        (&listens, 0o600, "Metrics are not served at 127.0.0.1:"),
    ] {
        let toml = match toml.starts_with("[metrics]") {
            true => toml.to_owned() + exclude.split_once("\"\"\n").unwrap().1,
            false => exclude.to_owned() + toml,
        };
        let toml = toml.replace("[metrics]\nlisten = \"\"\n[[", "[[");
        it.configure(&toml);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let answer = it.reload();
        assert_eq!(answer.done, Vec::<String>::new());
        assert!(
            answer.errors.iter().any(|error| error.contains(expected)),
            "{answer:?}"
        );
        assert_eq!(it.lows(), ["5", "5"], "{expected}");
        assert_eq!(it.agent_loop.agent.config.rules.len(), 0, "{expected}");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let knobs = it.agent_loop.agent.knobs.as_ref().unwrap();
    assert_eq!(knobs.owned().count(), 2);
}

/// It limits the agent, and is no reason to refuse other changes.
#[test]
fn a_reload_works_though_the_metrics_address_is_another_s_from_the_start() {
    let mut it = Reloaded::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    it.agent_loop.agent.config.metrics.listen = Some(address);
    let live = &mut it.agent_loop.live;
    live.metrics = Exporter::start(&it.agent_loop.agent.config);
    let served_not = format!("Metrics are not served at {address}");
    let told = |it: &Reloaded| {
        let limits = it.agent_loop.live.limitations();
        limits.iter().any(|one| one.starts_with(&served_not))
    };
    assert!(told(&it));
    let listen = format!("[metrics]\nlisten = \"{address}\"\n");
    it.configure(&format!(
        "{listen}[[tenant]]\nmatch = \"b\"\nexclude = true\n"
    ));
    assert_eq!(it.reload().errors, Vec::<String>::new());
    assert_eq!(it.lows(), ["5", "0"]);
    assert!(told(&it));
    drop(taken);
    it.configure(&listen);
    assert_eq!(it.reload().errors, Vec::<String>::new());
    assert!(!told(&it), "it is free now");
}

#[test]
fn sighup_reloads_but_where_the_terminal_is_gone() {
    let mut it = Reloaded::start();
    it.configure("[metrics]\nlisten = \"\"\n[[tenant]]\nmatch = \"b\"\nexclude = true\n");
    it.signals[1].write_all(&[1]).unwrap();
    assert!(!it.agent_loop.answer_until_due(Duration::from_secs(20)));
    assert_eq!(it.lows(), ["5", "0"]);
    it.signals[0].write_all(&[1]).unwrap();
    assert!(it.agent_loop.answer_until_due(Duration::from_secs(20)));
}

/// However long the kernel takes to check the programs.
#[test]
fn a_signal_ends_it_while_the_probes_are_being_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = agent(&dir.path().join("cgroup"));
    let (loaded, never) = std::sync::mpsc::channel::<()>();
    agent.monitor.app_io = AppIoMonitor::meanwhile(move || {
        let _ = never.recv();
        AppIoMonitor::unavailable("a test")
    });
    let (waits, _, [mut stop, _hang_up]) = waits(dir.path());
    stop.write_all(&[1]).unwrap();
    let live = live(&agent, None);
    let mut agent_loop = AgentLoop::new(agent, waits, live, true);
    agent_loop.run().unwrap();
    assert!(agent_loop.agent.monitor.app_io.is_attaching());
    drop(agent_loop);
    // The thread still waits for this.
    drop(loaded);
}

/// Between the two sockets that it makes.
#[test]
fn an_agent_that_starts_is_told_from_one_that_answers_and_from_a_dead_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.sock");
    assert!(!is_starting(&path), "there is none");
    let socket = AnswerSocket::listen(&path).unwrap();
    assert!(is_starting(&path));
    let control = Control::listen(&path).unwrap();
    assert!(!is_starting(&path), "it answers");
    drop((socket, control));
    // Killed before it was ready: its socket stays.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists() && !is_starting(&path));
}
