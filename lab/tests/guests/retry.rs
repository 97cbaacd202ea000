//! Emulated kernels oops now and then for no reason of ours (patching their own code under TCG): then, and only then,
//! a test runs again in a fresh guest, twice at most.

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

/// How often a test runs at most.
const ATTEMPTS: u32 = 3;

/// Runs a test, and again if the guest's kernel gave up.
pub(crate) fn retry_after_a_crash(test: impl Fn()) {
    for attempt in 1..=ATTEMPTS {
        let Err(why) = catch_unwind(AssertUnwindSafe(&test)) else {
            return;
        };
        if !CRASHED.take() || attempt == ATTEMPTS {
            resume_unwind(why);
        }
        eprintln!("the guest's kernel gave up; again in a fresh guest");
    }
}
