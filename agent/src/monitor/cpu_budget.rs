//! What observing may cost: a part of one CPU, held by measuring our own thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that may be spent, earned by the passing of time.
#[derive(Debug)]
pub struct CpuBudget {
    /// CPU seconds per second.
    rate: f64,
    /// CPU seconds left; below zero when overdrawn.
    left: f64,
    /// Our thread's CPU time when it was last looked at.
    cpu: Duration,
    wall: Duration,
}

/// At most this much is saved up, in seconds of earning.
const SAVE: f64 = 20.0;

impl CpuBudget {
    /// A budget of `rate` CPU seconds per second, with nothing saved.
    #[must_use]
    pub fn new(rate: f64) -> Self {
        Self {
            rate,
            left: 0.0,
            cpu: thread_cpu(),
            wall: monotonic(),
        }
    }

    /// Whether anything is left. Charges what this thread has used since the last call.
    pub fn allows(&mut self) -> bool {
        let (cpu, wall) = (thread_cpu(), monotonic());
        let spent = cpu.saturating_sub(self.cpu).as_secs_f64();
        let earned = wall.saturating_sub(self.wall).as_secs_f64() * self.rate;
        (self.cpu, self.wall) = (cpu, wall);
        self.left = (self.left + earned - spent).clamp(-SAVE * self.rate, SAVE * self.rate);
        self.left > 0.0
    }

    /// Takes back what this thread has spent on something else than observing.
    pub fn refund(&mut self, cost: Duration) {
        self.cpu += cost;
    }

    /// Forgives what was spent so far: the first look at a tree has to be whole.
    pub fn reset(&mut self) {
        self.cpu = thread_cpu();
        self.wall = monotonic();
        self.left = 0.0;
    }
}

/// The CPU time that this process has used, all threads.
#[must_use]
pub fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// The CPU time that this thread has used.
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
    fn other_work_is_not_charged() {
        let mut budget = CpuBudget::new(0.001);
        budget.left = 0.1;
        let begun = thread_cpu();
        spend(Duration::from_millis(300));
        budget.refund(thread_cpu() - begun);
        assert!(budget.allows());
        spend(Duration::from_millis(300));
        assert!(!budget.allows());
    }
}
