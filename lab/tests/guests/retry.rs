//! Emulated kernels oops now and then for no reason of ours (patching their own code under TCG): then, and only then,
//! a test runs once more, in a fresh guest.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use justitia_lab::vm::VmError;

thread_local! {
    /// Whether the guest's kernel gave up under the test that runs in this thread.
    static CRASHED: Cell<bool> = const { Cell::new(false) };
}

/// Ends the test by this error, and remembers whether it was the guest's kernel that gave up.
pub(crate) fn fail(error: &VmError) -> ! {
    CRASHED.set(error.is_crash());
    panic!("{error}")
}

/// Runs a test, and once more if the guest's kernel gave up.
pub(crate) fn retry_after_a_crash(test: impl Fn()) {
    let attempt = || catch_unwind(AssertUnwindSafe(&test));
    let Err(first) = attempt() else { return };
    if !CRASHED.take() {
        resume_unwind(first);
    }
    eprintln!("the guest's kernel gave up; once more in a fresh guest");
    if let Err(second) = attempt() {
        resume_unwind(second);
    }
}
