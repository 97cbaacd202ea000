//! What is remembered of one VM: what it was asked for, what came of it, and what that shows.

use std::collections::VecDeque;
use std::time::Duration;

use justitia_share::HalfLife;
use justitia_share::num::{to_f64, to_u64};

use super::types::{Report, Vm, WITHIN_MS};

/// For so long what a guest gave counts as coming, milliseconds: free pages are reported in batches, every 2 s.
const COMING_MS: u64 = 3000;
/// Within so many milliseconds most of what was given has come, if anything does: large blocks have to form first.
const REPORTING_MS: u64 = 5000;
/// The part of what was asked for that must come for a VM to heed. Others may grow into what it gives.
const HEEDS_PART: u64 = 8;
/// An answer that takes so many times as long as it may is none: a busy guest is late.
const LATE_PARTS: u64 = 5;
/// QEMU itself holds at most this part of its guest's memory, as far as a guest is believed: what it does not say it uses is
/// not divided.
const OVERHEAD_PART: u64 = 8;
/// The part that the agent must say it gave: else it has no more to give, or does not want to.
const GIVES_PART: u64 = 2;
/// For how long a VM that did not heed is not asked again but by its balloon, milliseconds. It may have had nothing to give.
const UNHEEDING_MS: u64 = 10_000;
/// What was asked of a VM is judged when it is this part of its memory: some of what is free stays in blocks too small to be
/// reported.
const JUDGED_PART: u64 = 16;
/// A step hurt if more than this part of it was read again.
const REFAULT_PART: u64 = 8;
/// A step hurt if tasks wait for so much more of the time than before, per mille.
const STALL_RISE: u64 = 100;
/// The pause after the first step that hurt, or the first distress, milliseconds. Doubled each time.
const PAUSE_LEAST_MS: u64 = 1000;
/// The longest pause, milliseconds.
const PAUSE_MOST_MS: u64 = 16_000;
/// For so long a guest that was in distress is asked for nothing, whatever the host lacks, milliseconds.
const SPARED_MS: u64 = 2000;
/// What a step showed to be needed counts half after so long: loads change, and one step in half a minute that hurts is no
/// load by itself.
const FLOOR_HALF_LIFE: HalfLife = HalfLife::new(Duration::from_secs(30));
/// Over how long growth is measured, milliseconds.
const GROWTH_MS: u64 = 1000;

/// The memory of one VM's past.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    /// The last report, and rates between it and the one before.
    last: Option<Report>,
    /// Bytes a second that were read again.
    refault_rate: u64,
    /// The part of the time in which a task waited, per mille.
    stall: u64,
    /// Both before the first step of a series.
    before: (u64, u64),
    /// What was taken since the last report that was judged.
    taken: u64,
    /// What it held before that.
    held_before: u64,
    /// What is needed as far as is known, when that was found.
    floor: Option<(u64, u64)>,
    floor_now: u64,
    pause_ms: u64,
    paused_until: u64,
    /// The end of the pause after distress that holds whatever the host lacks.
    spared_until: u64,
    /// What was asked for and is not answered: bytes, when that ends.
    asked: Option<(u64, u64)>,
    /// Freed, and not yet seen by the host: bytes, and when each is given up. The oldest comes first.
    pending: VecDeque<(u64, u64)>,
    /// What the host holds beyond what the guest uses: the least that was seen (QEMU itself, and what is never reported), and what was
    /// more than that at the last report. Without reports: no bound.
    held_least: u64,
    held_free: u64,
    series: Option<Series>,
    unheeding_until: u64,
    resident: u64,
    /// All that was given so far.
    given: u64,
    /// What was used at the begin of the period, with all that was given until then, and its begin.
    period: Option<(u64, u64)>,
    /// Bytes in [`GROWTH_MS`].
    growth: u64,
}

/// What was asked for, and what the host saw of it.
#[derive(Clone, Copy, Debug)]
struct Series {
    /// When it was last asked, while the series was too short to be judged.
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
    /// Looks at the VM as it is now.
    pub(super) fn look(&mut self, now: u64, vm: &Vm, distress: bool) {
        self.note_resident(now, vm);
        if let Some((_, until)) = self.asked
            && until <= now
        {
            // No answer: as one that gave nothing.
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

    /// Notes what the guest uses while so much is held for it.
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

    /// Whether what was taken since the last report hurt.
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
        // A guest that read much again before does so now more, now less.
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

    /// What was given and has not come.
    ///
    /// No more than is held of what is free in the guest: it may have used it itself.
    fn pending(&self) -> u64 {
        let pending: u64 = self.pending.iter().map(|(bytes, _)| bytes).sum();
        pending.min(self.held_free)
    }

    /// What was given or asked for and has not come.
    pub(super) fn coming(&self) -> u64 {
        self.pending() + self.asked.map_or(0, |(bytes, _)| bytes)
    }

    /// How much it will have allocated after so long, if it goes on as in the last second: what it gave it may use again.
    pub(super) const fn growth(&self, ahead_ms: u64) -> u64 {
        self.growth.saturating_mul(ahead_ms) / GROWTH_MS
    }

    /// How much cache it would read again in so long.
    pub(super) fn refaults(&self, ahead_ms: u64) -> u64 {
        self.refault_rate.saturating_mul(ahead_ms) / 1000
    }

    /// What QEMU holds itself. Where nobody knows it, the least that was held beyond what the guest said it used.
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

    /// Whether it did not give a moment ago: asked at once it would say the same.
    pub(super) const fn has_refused(&self, now: u64) -> bool {
        self.unheeding_until > now + (UNHEEDING_MS - WITHIN_MS)
    }

    pub(super) const fn is_asked(&self) -> bool {
        self.asked.is_some()
    }
}
