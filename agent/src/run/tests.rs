use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use justitia_api::client::ask;
use justitia_kernel::capabilities::{Capabilities, Paths};
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::knob::Knob;
use justitia_kernel::proc::ProcFs;

use super::checks::check_features;
use super::event_loop::{AgentLoop, ended};
use crate::agent::Agent;
use crate::config::Config;
use crate::knobs::KnobStore;
use crate::monitor::{AppIoMonitor, thread_cpu};
use crate::page_cache::ReclaimFeatures;
use crate::page_cache::system_memory::SystemMemory;
use crate::status::socket::Socket;

/// An agent that only observes a tree of plain files with one cgroup.
fn agent(root: &std::path::Path) -> Agent {
    agent_with(root, None)
}

/// An agent with this knob store.
fn agent_with(root: &std::path::Path, store: Option<KnobStore>) -> Agent {
    std::fs::create_dir_all(root.join("a")).unwrap();
    std::fs::write(root.join("a/cgroup.controllers"), "memory\n").unwrap();
    let fs = CgroupFs::open_fixture(root, true).unwrap();
    let config = Config {
        cpu_budget: 5.0,
        ..Config::default()
    };
    let app_io = AppIoMonitor::unavailable("a test");
    Agent::new(config, &fs, ReclaimFeatures::default(), store, None, app_io).unwrap()
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
    let path = dir.path().join("j.sock");
    let socket = Socket::listen(&path).unwrap();
    let (stop, _signalled) = UnixStream::pair().unwrap();
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
    let mut agent_loop = AgentLoop::new(agent, stop, socket, Vec::new(), true);
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
    let fs = CgroupFs::open_fixture(&root, true).unwrap();
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
    let socket = Socket::listen(&dir.path().join("j.sock")).unwrap();
    let (stop, _signalled) = UnixStream::pair().unwrap();
    let mut agent_loop = AgentLoop::new(agent, stop, socket, Vec::new(), false);
    let error = agent_loop.run().unwrap_err().to_string();
    assert!(error.contains("meminfo"), "{error}");
    assert_eq!(std::fs::read_to_string(&low).unwrap().trim(), "1000");
    assert!(dir.path().join("state/working-sets").exists());
}

#[test]
fn what_is_said_at_the_end_is_what_was_done() {
    assert_eq!(ended(true, 0), "stopped: it observed, and changed no knob");
    assert_eq!(ended(false, 0), "stopped: no knob had a value of ours");
    assert_eq!(
        ended(false, 7),
        "stopped: all 7 knobs with a value of ours were restored"
    );
}
