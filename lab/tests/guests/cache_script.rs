//! Scripts beside a cache in a guest.

use std::time::Duration;

use justitia_lab::vm::Guest;

/// What every script may call. `begin COMMAND…` starts a server with the socket `/run/n`, whose log is `/run/log` and whose
/// process `/run/server` names, and waits until it serves; where it ends instead, or takes half a minute, its log is shown.
const SERVER: &str = r#"
begin() {
    "$@" >/run/log 2>&1 &
    echo $! >/run/server
    for i in $(seq 300); do
        [ -S /run/n ] && return
        grep -q '^justitia: cannot' /run/log && break
        sleep 0.1
    done
    cat /run/log >&2; return 1
}
"#;

/// Runs a script, which may call the functions of [`SERVER`] and must succeed within this time. If it fails, the cache's log (`/run/log`) and the kernel's are shown.
pub(crate) fn run_within(guest: &Guest, script: &str, limit: Duration) -> String {
    let done = guest.sh_within(&format!("{SERVER}{script}"), limit);
    let done = done.unwrap();
    if done.status != 0 {
        let log = guest.sh("cat /run/log; dmesg | tail -20").unwrap().stdout;
        panic!(
            "expected this to succeed:{script}\nfound {done:#?}\nthe server said, and the kernel:\n{log}"
        );
    }
    done.stdout
}
