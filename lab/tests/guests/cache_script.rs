//! Scripts beside a cache in a guest.

use std::time::Duration;

use justitia_lab::vm::Guest;

/// Runs a script that must succeed within this time. If it fails, the cache's log (`/run/log`) and the kernel's are shown.
pub(crate) fn run_within(guest: &Guest, script: &str, limit: Duration) -> String {
    let done = guest.sh_within(script, limit).unwrap();
    if done.status != 0 {
        let log = guest.sh("cat /run/log; dmesg | tail -20").unwrap().stdout;
        panic!(
            "expected this to succeed:{script}\nfound {done:#?}\nthe server said, and the kernel:\n{log}"
        );
    }
    done.stdout
}
