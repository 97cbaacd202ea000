//! The speed of the guest's disk, which the host sets, and writing back.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cgroup::meminfo;
use super::host::RequestContext;
use crate::spec::Throttle;

/// At most this many dirty bytes count as written back.
const CLEAN: u64 = 4 << 20;
/// Writing back takes no longer.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// The disk, and its speed.
pub(super) struct ThrottledDisk<'a> {
    context: &'a RequestContext,
    /// Where it is throttled.
    throttle: Throttle,
    /// Now; `None` where nothing was set yet.
    now: Option<Throttle>,
}

impl<'a> ThrottledDisk<'a> {
    /// With this speed where it is throttled.
    pub(super) fn new(context: &'a RequestContext, throttle: Throttle) -> Self {
        Self {
            context,
            throttle,
            now: None,
        }
    }

    /// What it can do where it is throttled.
    pub(super) const fn speed(&self) -> Throttle {
        self.throttle
    }

    /// Throttles it, or lets it be as fast as it can.
    pub(super) fn throttle(&mut self, on: bool) -> Result<()> {
        let speed = if on {
            self.throttle
        } else {
            Throttle::default()
        };
        if self.now != Some(speed) {
            self.context.set_disk_speed(speed)?;
            self.now = Some(speed);
        }
        Ok(())
    }

    /// Throttles it to another speed, and returns the one before.
    pub(super) fn set_bytes_per_second(&mut self, bytes_per_second: u64) -> Result<u64> {
        let before = self.throttle.bytes_per_second;
        self.throttle.bytes_per_second = bytes_per_second;
        self.throttle(true)?;
        Ok(before)
    }

    /// Writes all dirty pages back, without throttle.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.throttle(false)?;
        let begin = Instant::now();
        loop {
            let status = Command::new("sync").status().context("starting sync")?;
            ensure!(status.success(), "sync: {status}");
            let dirty = meminfo("Dirty:")? + meminfo("Writeback:")?;
            if dirty <= CLEAN {
                return Ok(());
            }
            ensure!(
                begin.elapsed() <= SYNC_TIMEOUT,
                "expected all dirty pages to be written back within {} s, {dirty} bytes are left",
                SYNC_TIMEOUT.as_secs()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
