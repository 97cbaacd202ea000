//! The history of one VM: requests, their results, and the conclusions.

use std::collections::VecDeque;
use std::time::Duration;

use justitia_share::HalfLife;
use justitia_share::num::{to_f64, to_u64};

use super::types::{Report, Vm, WITHIN_MS};

/// How long memory that a guest gave counts as on its way, milliseconds: free pages are reported in batches, every 2 s.
const COMING_MS: u64 = 3000;
/// Most of the given memory arrives within this time, milliseconds, if any does: large blocks have to form first.
const REPORTING_MS: u64 = 5000;
/// A VM heeds if this part of the requested memory arrives. Its programs may use some of it again.
const HEEDS_PART: u64 = 8;
/// A request is given up after this many times [`WITHIN_MS`]: a busy guest is late.
const LATE_PARTS: u64 = 5;
/// The most that counts as QEMU's own memory by a guest's reports, as a part of the guest's memory. Memory that it does not
/// report as used is not divided.
const OVERHEAD_PART: u64 = 8;
/// An agent that gives less than this part of a request has no more, or does not want to give more.
const GIVES_PART: u64 = 2;
/// How long only the balloon takes memory from a VM that did not heed, milliseconds. It may have had nothing to give.
const UNHEEDING_MS: u64 = 10_000;
/// A VM is judged once it was asked for this part of its memory: some free memory stays in blocks too small to be reported.
const JUDGED_PART: u64 = 16;
/// A step is harmful if more than this part of it is read again.
const REFAULT_PART: u64 = 8;
/// A step is harmful if tasks wait for this much more of the time than before, per mille.
const STALL_RISE: u64 = 100;
/// The pause after the first harmful step, or the first distress, milliseconds. It doubles each time.
const PAUSE_LEAST_MS: u64 = 1000;
/// The longest pause, milliseconds.
const PAUSE_MOST_MS: u64 = 16_000;
/// How long a guest is asked for nothing after distress, even if the host is about to swap, milliseconds.
const SPARED_MS: u64 = 2000;
/// The half-life of a need that a harmful step has shown: loads change, and one harmful step in half a minute is no load by
/// itself.
const FLOOR_HALF_LIFE: HalfLife = HalfLife::new(Duration::from_secs(30));
/// The period over which growth is measured, milliseconds.
const GROWTH_MS: u64 = 1000;

/// The history of one VM.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    /// The last report. The rates are between it and the one before.
    last: Option<Report>,
    /// Refaults, bytes a second.
    refault_rate: u64,
    /// The part of the time in which a task waited, per mille.
    stall: u64,
    /// Both rates before the first step of a series.
    before: (u64, u64),
    /// Bytes taken since the last judged report.
    taken: u64,
    /// Its resident memory before that.
    held_before: u64,
    /// The memory that it needs, and when that was found.
    floor: Option<(u64, u64)>,
    floor_now: u64,
    pause_ms: u64,
    paused_until: u64,
    /// The end of the pause after distress that holds even if the host is about to swap.
    spared_until: u64,
    /// An open request: bytes, and when it is given up.
    asked: Option<(u64, u64)>,
    /// Freed, and not yet seen by the host: bytes, and when each is given up. The oldest comes first.
    pending: VecDeque<(u64, u64)>,
    /// Memory that is held beyond the guest's use: the least so far (QEMU's own, and pages that are never reported), and the
    /// rest at the last report. Without reports: no bound.
    held_least: u64,
    held_free: u64,
    series: Option<Series>,
    unheeding_until: u64,
    resident: u64,
    /// All bytes given so far.
    given: u64,
    /// The memory used or given by the start of the period, and this start.
    period: Option<(u64, u64)>,
    /// Bytes in [`GROWTH_MS`].
    growth: u64,
}

/// Requests, and the memory that arrived.
#[derive(Clone, Copy, Debug)]
struct Series {
    /// The last request before the series was long enough to be judged.
    last: u64,
    asked: u64,
    came: u64,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            last: None,
            refault_rate: 0,
            stall: 0,
            before: (0, 0),
            taken: 0,
            held_before: 0,
            floor: None,
            floor_now: 0,
            pause_ms: 0,
            paused_until: 0,
            spared_until: 0,
            asked: None,
            pending: VecDeque::new(),
            held_least: u64::MAX,
            held_free: u64::MAX,
            series: None,
            unheeding_until: 0,
            resident: 0,
            given: 0,
            period: None,
            growth: 0,
        }
    }
}

impl Watch {
    /// Updates the history.
    pub(super) fn look(&mut self, now: u64, vm: &Vm, distress: bool) {
        self.note_resident(now, vm);
        if let Some((_, until)) = self.asked
            && until <= now
        {
            // No answer counts as a refusal.
            self.asked = None;
            self.unheeding_until = now + UNHEEDING_MS;
        }
        if let Some((floor, at)) = self.floor {
            let left = FLOOR_HALF_LIFE.decay(Duration::from_millis(now - at));
            self.floor_now = to_u64(to_f64(floor) * left);
        }
        if let Some(report) = vm.guest
            && self.last.is_none_or(|last| last.at < report.at)
        {
            self.note_used(vm.resident, report.used);
            self.judge(now, report);
        }
        if let Some(balloon) = vm.balloon
            && vm.guest.is_none()
            && balloon.available.is_some()
        {
            self.note_used(vm.resident, balloon.actual.saturating_sub(balloon.free));
        }
        if distress && self.spared_until <= now {
            self.pause(now);
            self.spared_until = now + SPARED_MS;
        }
    }

    /// Notes the guest's use while the host holds `resident` for it.
    fn note_used(&mut self, resident: u64, used: u64) {
        let held = resident.saturating_sub(used);
        self.held_least = self.held_least.min(held);
        self.held_free = held - self.held_least;
    }

    fn note_resident(&mut self, now: u64, vm: &Vm) {
        let resident = vm.resident;
        let fallen = self.resident.saturating_sub(resident);
        self.held_free = self.held_free.saturating_sub(fallen);
        let mut came = fallen;
        while let Some((bytes, until)) = self.pending.front_mut() {
            let of_this = came.min(*bytes);
            *bytes -= of_this;
            came -= of_this;
            if *bytes > 0 && now < *until {
                break;
            }
            self.pending.pop_front();
        }
        self.resident = resident;
        let used = (resident + self.given).saturating_sub(self.pending());
        match self.period {
            Some((then, at)) if at + GROWTH_MS <= now => {
                self.growth = used.saturating_sub(then) * GROWTH_MS / (now - at);
                self.period = Some((used, now));
            }
            Some(_) => {}
            None => self.period = Some((used, now)),
        }
        let Some(series) = &mut self.series else {
            return;
        };
        series.came += fallen;
        if series.asked >= vm.ram / JUDGED_PART && series.last + REPORTING_MS <= now {
            if series.came < series.asked / HEEDS_PART {
                self.unheeding_until = now + UNHEEDING_MS;
            }
            self.series = None;
        }
    }

    /// Judges whether the memory taken since the last report was needed.
    fn judge(&mut self, now: u64, report: Report) {
        let last = self.last.replace(report);
        let Some(last) = last else {
            return;
        };
        let ms = (report.at - last.at).max(1);
        let again = report.refaulted.saturating_sub(last.refaulted);
        self.refault_rate = again.saturating_mul(1000) / ms;
        self.stall = (report.stalled_us.saturating_sub(last.stalled_us) / ms).min(1000);
        if self.taken == 0 {
            self.before = (self.refault_rate, self.stall);
            return;
        }
        // The refaults of a guest that read much again before vary.
        let usual = self.before.0.saturating_add(self.before.0 / 2);
        let more = self.refault_rate.saturating_sub(usual) * ms / 1000;
        let stalls = self.stall > self.before.1 + STALL_RISE;
        if more > self.taken / REFAULT_PART {
            let needed = self.held_before.max(self.floor_now);
            self.floor = Some((needed, now));
            self.floor_now = needed;
        }
        if stalls {
            self.pause(now);
        } else {
            self.pause_ms /= 2;
        }
        self.taken = 0;
    }

    fn pause(&mut self, now: u64) {
        self.pause_ms = (self.pause_ms * 2).clamp(PAUSE_LEAST_MS, PAUSE_MOST_MS);
        self.paused_until = now + self.pause_ms;
    }

    /// Notes that the agent was asked for `bytes` of this VM.
    pub(super) fn asked(&mut self, now: u64, bytes: u64, vm: &Vm) {
        self.note_taken(bytes, vm.resident);
        self.asked = Some((bytes, now + LATE_PARTS * WITHIN_MS));
        let series = self.series.get_or_insert(Series {
            last: now,
            asked: 0,
            came: 0,
        });
        if series.asked < vm.ram / JUDGED_PART {
            series.last = now;
            series.asked += bytes;
        }
    }

    /// Notes that the balloon was asked for `bytes`.
    pub(super) fn inflated(&mut self, now: u64, bytes: u64) {
        let resident = self.resident;
        self.note_taken(bytes, resident);
        self.note_given(now, bytes);
    }

    fn note_taken(&mut self, bytes: u64, resident: u64) {
        if self.taken == 0 {
            self.held_before = resident;
        }
        self.taken += bytes;
    }

    /// Notes the agent's answer.
    pub(super) fn answered(&mut self, now: u64, given: u64) {
        let Some((asked, _)) = self.asked.take() else {
            return;
        };
        if given < asked / GIVES_PART {
            self.unheeding_until = now + UNHEEDING_MS;
        }
        self.note_given(now, given.min(asked));
    }

    fn note_given(&mut self, now: u64, bytes: u64) {
        self.given += bytes;
        self.held_free = self.held_free.saturating_add(bytes);
        self.pending.push_back((bytes, now + COMING_MS));
    }

    /// Given memory that has not arrived.
    ///
    /// At most the free memory that is held for the guest: it may have used the rest itself.
    fn pending(&self) -> u64 {
        let pending: u64 = self.pending.iter().map(|(bytes, _)| bytes).sum();
        pending.min(self.held_free)
    }

    /// Given or requested memory that has not arrived.
    pub(super) fn coming(&self) -> u64 {
        self.pending() + self.asked.map_or(0, |(bytes, _)| bytes)
    }

    /// Its growth in `ahead_ms`, at the rate of the last second: it may use again the memory that it gave.
    pub(super) const fn growth(&self, ahead_ms: u64) -> u64 {
        self.growth.saturating_mul(ahead_ms) / GROWTH_MS
    }

    /// The cache that it would read again in `ahead_ms`.
    pub(super) fn refaults(&self, ahead_ms: u64) -> u64 {
        self.refault_rate.saturating_mul(ahead_ms) / 1000
    }

    /// QEMU's own memory. If unknown, the least that was held beyond the guest's reported use.
    pub(super) fn overhead(&self, vm: &Vm) -> u64 {
        let least = Some(self.held_least).filter(|held| *held < u64::MAX);
        let estimate = || least.unwrap_or(0).min(vm.ram / OVERHEAD_PART);
        vm.own.unwrap_or_else(estimate)
    }

    pub(super) const fn floor(&self) -> u64 {
        self.floor_now
    }

    pub(super) const fn paused(&self, now: u64) -> u64 {
        self.paused_until.saturating_sub(now)
    }

    pub(super) const fn spared(&self, now: u64) -> bool {
        self.spared_until > now
    }

    pub(super) const fn heeds(&self, now: u64) -> bool {
        self.unheeding_until <= now
    }

    /// Whether it refused a moment ago: asked at once, it would refuse again.
    pub(super) const fn has_refused(&self, now: u64) -> bool {
        self.unheeding_until > now + (UNHEEDING_MS - WITHIN_MS)
    }

    pub(super) const fn is_asked(&self) -> bool {
        self.asked.is_some()
    }
}
