//! What the agent and its watchdog agree on.

use std::time::Duration;

/// After so long without a heartbeat the watchdog restores the limits, and `vm.dirty_background_ratio`.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// After so long without a heartbeat the agent itself no longer relies on the limits that it has set
/// ([`credits`](crate::enforce::credits)). It is shorter than [`TIMEOUT`], so that the agent notices first.
pub const LEASE_EXPIRY: Duration = Duration::from_secs(3);
/// The signal that interrupts the agent, which has to handle it. A process that sets `memory.high` reclaims in the kernel
/// until the usage is below it, without end if the tenant allocates as fast. A handled signal ends that. A process without
/// a handler ignores this signal.
pub const INTERRUPT: i32 = signal_hook::consts::SIGURG;
/// A heartbeat is sent at most this often.
pub(super) const HEARTBEAT_PERIOD: Duration = Duration::from_secs(1);
/// The byte of a heartbeat.
pub(super) const HEARTBEAT: u8 = b'.';
/// The last byte of an agent that ends in order: it restores all knobs itself.
pub(super) const CLEAN_SHUTDOWN: u8 = b'!';
