//! A limit for the CPU time of monitoring, kept by measuring the calling thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that may be spent. It is earned at a fixed rate.
#[derive(Debug)]
pub struct CpuBudget {
    /// CPU seconds per second.
    rate: f64,
    /// CPU seconds; below zero when overdrawn.
    balance: f64,
    /// The thread's CPU time at the last update.
    cpu: Duration,
    /// The monotonic clock at the last update.
    wall: Duration,
}

/// The balance is at most the earnings of this time, seconds, and at least minus them.
const MAX_BALANCE: f64 = 20.0;

impl CpuBudget {
    /// A budget of `rate` CPU seconds per second, with a balance of 0.
    #[must_use]
    pub fn new(rate: f64) -> Self {
        Self {
            rate,
            balance: 0.0,
            cpu: thread_cpu(),
            wall: monotonic(),
        }
    }

    /// Sets another rate, CPU seconds per second. The balance stays, within the limits of the new rate.
    pub fn set_rate(&mut self, rate: f64) {
        self.allows();
        self.rate = rate;
    }

    /// Whether the balance is above 0. Charges this thread's CPU time since the last call.
    pub fn allows(&mut self) -> bool {
        let (cpu, wall) = (thread_cpu(), monotonic());
        let spent = cpu.saturating_sub(self.cpu).as_secs_f64();
        let earned = wall.saturating_sub(self.wall).as_secs_f64() * self.rate;
        (self.cpu, self.wall) = (cpu, wall);
        let max = MAX_BALANCE * self.rate;
        self.balance = (self.balance + earned - spent).clamp(-max, max);
        self.balance > 0.0
    }

    /// Does not charge `cost`: CPU time that this thread has spent on something else since the last call of
    /// [`CpuBudget::allows`].
    pub fn refund(&mut self, cost: Duration) {
        self.cpu += cost;
    }

    /// Sets the balance to 0, without charging the time spent so far.
    pub fn reset(&mut self) {
        self.cpu = thread_cpu();
        self.wall = monotonic();
        self.balance = 0.0;
    }
}

/// The CPU time of all threads of this process.
#[must_use]
pub fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// The CPU time of this thread.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(cpu: Duration) {
        let begun = thread_cpu();
        while thread_cpu() - begun < cpu {}
    }

    #[test]
    fn refunded_work_is_not_charged() {
        let mut budget = CpuBudget::new(0.001);
        budget.balance = 0.1;
        let begun = thread_cpu();
        spend(Duration::from_millis(300));
        budget.refund(thread_cpu() - begun);
        assert!(budget.allows());
        spend(Duration::from_millis(300));
        assert!(!budget.allows());
    }
}
