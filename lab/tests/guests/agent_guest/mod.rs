//! What the tests of the agent share: a guest for the tests of a file with the same machine, the shell functions in `lib.sh`, and the agent's
//! status.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use justitia_lab::vm::{DiskSpec, ShResult, Vm, VmSpec};
use serde_json::Value;

use super::retry::{fail, retry_after_a_crash};

/// One guest and its file and machine, for one test at a time. It ends when a test of another file or with another machine
/// runs, or with the test program.
static GUEST: Mutex<Option<(String, Vm)>> = Mutex::new(None);

/// Tests that wait for a guest of their own.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The turn of a test that boots a guest of its own. One guest at a time runs on a machine: while there is a turn, the shared
/// guest ends after the test that it runs.
pub(crate) struct Turn(());

pub(crate) fn turn() -> Turn {
    WAITING.fetch_add(1, Ordering::SeqCst);
    match GUEST.try_lock() {
        Ok(mut slot) => *slot = None,
        Err(TryLockError::Poisoned(slot)) => *slot.into_inner() = None,
        // The test that has it sees that this one waits.
        Err(TryLockError::WouldBlock) => {}
    }
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether the guest's kernel gave up under the test that is running.
static CRASHED: AtomicBool = AtomicBool::new(false);

/// A machine that suffices for most: memory that is soon full, and a disk.
pub(crate) fn small() -> VmSpec {
    VmSpec {
        memory: 768 << 20,
        disks: vec![DiskSpec::ext4(2 << 30)],
        ..VmSpec::default()
    }
}

/// The guest, for one test.
pub(crate) struct Guest(MutexGuard<'static, Option<(String, Vm)>>);

impl Drop for Guest {
    fn drop(&mut self) {
        if WAITING.load(Ordering::SeqCst) > 0 {
            *self.0 = None;
        }
    }
}

/// Runs a test in its file's guest of this machine, booted if it is not yet, with nothing left of the test before; once more in a
/// fresh guest if its kernel gave up.
pub(crate) fn in_guest(spec: impl Fn() -> VmSpec, test: impl Fn(&Guest)) {
    retry_after_a_crash(|| test(&guest(&spec)));
}

fn guest(spec: impl Fn() -> VmSpec) -> Guest {
    let mut slot = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let spec = spec();
    // A test's thread has its name: what tests of one file leave is known to that file alone.
    let thread = std::thread::current();
    let file = thread.name().and_then(|name| name.split("::").next());
    let machine = format!("{file:?} {spec:?}");
    let is_another = slot.as_ref().is_some_and(|(of, _)| *of != machine);
    if CRASHED.swap(false, Ordering::SeqCst) || is_another {
        *slot = None;
    }
    if slot.is_none() {
        let vm = Vm::boot(&spec).unwrap();
        let guest = vm.guest();
        guest
            .push("/root/lib.sh", 0o644, include_bytes!("lib.sh"))
            .unwrap();
        guest
            .ok("test -x /bin/justitia && mkdir -p /data && mount /dev/vda /data")
            .unwrap();
        *slot = Some((machine, vm));
    }
    let guest = Guest(slot);
    guest.ok("clean");
    guest
}

impl Guest {
    /// Runs a script after `lib.sh`; it may take three minutes.
    pub(crate) fn sh(&self, script: &str) -> ShResult {
        let script = format!(". /root/lib.sh\n{script}");
        let limit = Duration::from_secs(180);
        let (_, vm) = self.0.as_ref().unwrap();
        vm.guest()
            .sh_within(&script, limit)
            .unwrap_or_else(|error| {
                CRASHED.store(error.is_crash(), Ordering::SeqCst);
                fail(&error)
            })
    }

    /// Runs a script that must succeed, and returns what it prints.
    #[track_caller]
    pub(crate) fn ok(&self, script: &str) -> String {
        let ShResult {
            status,
            stdout,
            stderr,
            timed_out,
        } = self.sh(script);
        assert!(
            status == 0 && !timed_out,
            "expected the script to succeed, found status {status}\n{script}\nstdout: {stdout}\nstderr: {stderr}\n\
             the agent's log:\n{}",
            self.log()
        );
        stdout
    }

    /// A number that a script prints.
    #[track_caller]
    pub(crate) fn number(&self, script: &str) -> u64 {
        let text = self.ok(script);
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("expected a number from {script}, found {text:?}"))
    }

    /// The agent's status.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.ok("justitia status --json")).unwrap()
    }

    /// Asks each second, for `seconds` at most, whether something has come to pass.
    #[track_caller]
    pub(crate) fn comes(&self, seconds: u32, mut is_so: impl FnMut() -> bool) -> bool {
        (0..seconds).any(|_| is_so() || self.sh("sleep 1").timed_out)
    }

    /// The multi-generational LRU (`y`) or the classic one (`n`), with nothing running: the switch rewrites the kernel's code,
    /// which an emulated guest does not always survive.
    #[track_caller]
    pub(crate) fn choose_lru(&self, multi_gen: &str) {
        self.ok(&format!(
            "clean; sleep 1; [ $(($(cat /sys/kernel/mm/lru_gen/enabled) & 1)) = {} ] || echo {multi_gen} >/sys/kernel/mm/lru_gen/enabled",
            u8::from(multi_gen == "y")
        ));
    }

    /// The end of the agent's log.
    pub(crate) fn log(&self) -> String {
        if CRASHED.load(Ordering::SeqCst) {
            return String::new();
        }
        self.sh("tail -n 60 $LOG 2>/dev/null").stdout
    }
}

/// The paths of all tenants.
pub(crate) fn paths(status: &Value) -> Vec<&str> {
    let tenants = status["tenants"].as_array().unwrap();
    tenants.iter().filter_map(|t| t["path"].as_str()).collect()
}

/// What the status says of one tenant.
#[track_caller]
pub(crate) fn tenant<'a>(status: &'a Value, path: &str) -> &'a Value {
    status["tenants"]
        .as_array()
        .and_then(|all| all.iter().find(|t| t["path"] == path))
        .unwrap_or_else(|| panic!("expected a tenant {path:?} in {status:#}"))
}
