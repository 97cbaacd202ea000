//! The thread that carries out jobs.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::job::{JobResult, RechargeJob};

/// The thread that carries out jobs.
#[derive(Debug)]
pub(super) struct RechargeWorker {
    jobs: Sender<RechargeJob>,
    results: Receiver<Result<JobResult, String>>,
}

impl RechargeWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn start() -> std::io::Result<Self> {
        let (jobs, queue) = channel::<RechargeJob>();
        let (sender, results) = channel();
        std::thread::Builder::new()
            .name("recharge".to_owned())
            .spawn(move || {
                while let Ok(job) = queue.recv() {
                    if sender.send(job.run()).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { jobs, results })
    }

    /// Queues a job.
    pub(super) fn send(&self, job: RechargeJob) {
        // The thread lives as long as the worker.
        let _ = self.jobs.send(job);
    }

    /// The results that have come since the last call: of each job what was done, or why nothing was.
    pub(super) fn results(&self) -> impl Iterator<Item = Result<JobResult, String>> {
        self.results.try_iter()
    }
}
