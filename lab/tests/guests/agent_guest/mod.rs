//! What the tests of the agent share: a guest for all tests of a file, the shell functions in `lib.sh`, and
//! the agent's status.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use justitia_lab::vm::{DiskSpec, ShResult, Vm, VmSpec};
use serde_json::Value;

use super::retry::{fail, retry_after_a_crash};

/// One guest for all tests of a file, one test at a time. It ends with the test program.
static GUEST: Mutex<Option<Vm>> = Mutex::new(None);

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
pub(crate) struct Guest(MutexGuard<'static, Option<Vm>>);

/// Runs a test in the file's guest, booted if it is not yet, with nothing left of the test before; once more in a fresh
/// guest if its kernel gave up.
pub(crate) fn in_guest(spec: impl Fn() -> VmSpec, test: impl Fn(&Guest)) {
    retry_after_a_crash(|| test(&guest(&spec)));
}

fn guest(spec: impl Fn() -> VmSpec) -> Guest {
    let mut slot = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    if CRASHED.swap(false, Ordering::SeqCst) {
        *slot = None;
    }
    if slot.is_none() {
        let vm = Vm::boot(&spec()).unwrap();
        let guest = vm.guest();
        guest
            .push("/root/lib.sh", 0o644, include_bytes!("lib.sh"))
            .unwrap();
        guest
            .ok("test -x /bin/justitia && mkdir -p /data && mount /dev/vda /data")
            .unwrap();
        *slot = Some(vm);
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
        let vm = self.0.as_ref().unwrap();
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

    /// Asks each second, for so many seconds at most, whether something has come to pass.
    #[track_caller]
    pub(crate) fn comes(&self, seconds: u32, is_so: impl Fn() -> bool) -> bool {
        (0..seconds).any(|_| is_so() || self.sh("sleep 1").timed_out)
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
