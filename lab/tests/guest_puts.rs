//! A stock guest that puts: what its page cache evicts comes back from the host's memory, byte for byte.
//!
//! The host's daemon runs on this machine and serves an image and a port over NBD. In the guest `justitia guest` offers
//! what is evicted while files of twice the guest's memory are read.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests are tests"
)]

mod guest_host;
mod retry;

use guest_host::{Host, boot, comes, end_agent, run, start_agent, status};
use justitia_lab::vm::Vm;
use retry::retry_after_a_crash;

/// The guest's memory, MiB: small, so that a working set of twice as much is read soon.
const MEMORY: u64 = 512;

/// Reads the file once; returns its checksum.
fn read(vm: &Vm) -> String {
    run(vm, "md5sum </mnt/data | cut -d' ' -f1")
}

#[test]
fn what_a_guest_evicts_comes_back_from_the_host() {
    retry_after_a_crash(|| {
        let mut host = Host::new(1200, 2 * MEMORY, 1200);
        host.start();
        let vm = boot(&host, MEMORY << 20);
        start_agent(&vm);
        let sum = host.sum();
        assert_eq!(read(&vm), sum);
        assert_eq!(read(&vm), sum);
        comes(&vm, "sleep 3");
        let (gets, hits) = host.lookups();
        let accepted = host.verdict("accepted");
        println!(
            "{gets} lookups, {hits} hits; {}\n{:#}",
            host.stats()["ports"],
            status(&vm)
        );
        assert!(accepted > 20_000, "accepted {accepted}");
        assert_eq!(host.verdict("mismatch"), 0);
        assert!(hits > 10_000, "{hits} of {gets}");
        end_agent(&vm);
    });
}
