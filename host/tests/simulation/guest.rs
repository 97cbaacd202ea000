//! A guest: anonymous memory, cache with a working set, a kernel that reclaims, a balloon, free page reporting, an agent.

use justitia_host::law::{Balloon, Report, Vm};
use justitia_share::Weight;

pub(crate) const MIB: u64 = 1 << 20;
/// One step of the simulation.
pub(crate) const TICK_MS: u64 = 250;
/// What a guest reclaims in a second, for a request or a balloon.
const RECLAIM: u64 = 300 * MIB;
/// Of the cache that is reclaimed, this part was worth having although other was there: the kernel does not know.
const WRONG_PART: u64 = 16;

/// How a guest behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With our agent. `guards`: it refuses to give what is worth having.
    Honest { guards: bool },
    /// No agent; the balloon as usual.
    Plain,
    /// No agent, no balloon.
    Sealed,
    /// Its agent says that everything is in use and that it is in need, and gives nothing. Its kernel is honest.
    Liar,
    /// Its agent says that it gave, and did not.
    Boaster,
    /// Agent and kernel lie, the balloon does nothing.
    Hostile,
    /// Its agent never answers.
    Silent,
}

/// What runs in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) anonymous: u64,
    /// Bytes of cache that are read again and again.
    pub(crate) working_set: u64,
    /// Bytes a second read of them, and of files that are read once.
    pub(crate) reads: u64,
    pub(crate) stream: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) kind: Kind,
    pub(crate) weight: u64,
    pub(crate) ram: u64,
    pub(crate) load: Load,
    /// Bytes a second that its programs allocate at most.
    pub(crate) allocates: u64,
    pub(crate) kernel: u64,
    /// What QEMU holds itself.
    pub(crate) qemu: u64,
    pub(crate) anonymous: u64,
    pub(crate) hot: u64,
    pub(crate) cold: u64,
    /// Free, and still held by the host's side.
    pub(crate) free_held: u64,
    /// In the balloon, and what is to be.
    pub(crate) balloon: u64,
    pub(crate) balloon_target: u64,
    pub(crate) deflates_on_oom: bool,
    /// What it has read of this working set so far: what was lost of that and is read again is a refault.
    seen: u64,
    pub(crate) refaulted: u64,
    stalled_us: u64,
    pub(crate) ooms: u64,
    pub(crate) puffs: u64,
    reported: Option<(u64, Report)>,
    /// Its estimate of what is worth having, per cent of the truth.
    pub(crate) estimate: u64,
}

impl Guest {
    pub(crate) fn new(kind: Kind, weight: u64, ram: u64, load: Load) -> Self {
        Self {
            kind,
            weight,
            ram,
            load,
            allocates: 64 * MIB,
            kernel: 48 * MIB,
            qemu: ram / 16,
            anonymous: load.anonymous.min(ram / 4),
            hot: 0,
            cold: 0,
            free_held: 0,
            balloon: 0,
            balloon_target: 0,
            deflates_on_oom: true,
            seen: 0,
            refaulted: 0,
            stalled_us: 0,
            ooms: 0,
            puffs: 0,
            reported: None,
            estimate: 100,
        }
    }

    fn used(&self) -> u64 {
        self.kernel + self.anonymous + self.hot + self.cold
    }

    fn free(&self) -> u64 {
        (self.ram - self.balloon).saturating_sub(self.used())
    }

    fn watermark(&self) -> u64 {
        self.ram / 100
    }

    pub(crate) fn available(&self) -> u64 {
        let kept = (self.hot + self.cold).min(2 * self.watermark()) / 2;
        (self.free() + self.hot + self.cold - kept).saturating_sub(self.watermark())
    }

    pub(crate) fn resident(&self) -> u64 {
        self.used() + self.free_held + self.qemu
    }

    /// What it needs, in truth: without reading anything again.
    pub(crate) fn need(&self) -> u64 {
        self.kernel + self.anonymous + self.load.working_set
    }

    /// Gives cache up, what is not worth having first; says how much.
    fn reclaim(&mut self, bytes: u64, least_hot: u64) -> u64 {
        let mut left = bytes;
        let wrong = (left / WRONG_PART).min(self.hot.saturating_sub(least_hot));
        let cold = (left - wrong).min(self.cold);
        let wrong = if cold == 0 { 0 } else { wrong };
        self.cold -= cold;
        self.hot -= wrong;
        left -= cold + wrong;
        let hot = left.min(self.hot.saturating_sub(least_hot));
        self.hot -= hot;
        left -= hot;
        self.free_held += bytes - left;
        bytes - left
    }

    /// Makes room for an allocation, and says how much there is.
    fn room(&mut self, bytes: u64, may_oom: bool) -> u64 {
        let lacks = (bytes + self.watermark()).saturating_sub(self.free());
        self.reclaim(lacks, 0);
        let mut lacks = bytes.saturating_sub(self.free());
        if lacks > 0 && may_oom && self.deflates_on_oom {
            let back = lacks.min(self.balloon);
            self.balloon -= back;
            // The balloon inflates again when it is told to.
            self.balloon_target = self.balloon_target.min(self.balloon);
            lacks -= back;
        }
        if lacks > 0 && may_oom {
            self.ooms += 1;
        }
        bytes - lacks
    }

    /// Allocates from what is free.
    fn use_free(&mut self, bytes: u64) {
        self.free_held = self.free_held.saturating_sub(bytes);
    }

    pub(crate) fn step(&mut self) {
        let per_tick = |rate: u64| rate * TICK_MS / 1000;
        if self.anonymous > self.load.anonymous {
            self.free_held += self.anonymous - self.load.anonymous;
            self.anonymous = self.load.anonymous;
        }
        let grows = (self.load.anonymous - self.anonymous).min(per_tick(self.allocates));
        let grows = self.room(grows, true);
        self.use_free(grows);
        self.anonymous += grows;
        self.read(per_tick(self.load.reads));
        let once = self.room(per_tick(self.load.stream), false);
        self.use_free(once);
        self.cold += once;
        self.move_balloon();
        // Free pages in large blocks go back within seconds, in batches.
        self.free_held = self.free_held.min(self.free());
        let batch = self.free_held * TICK_MS / 2000;
        if self.free_held > self.ram / 128 {
            self.free_held -= batch;
        }
    }

    fn read(&mut self, bytes: u64) {
        let set = self.load.working_set;
        if self.hot > set {
            self.cold += self.hot - set;
            self.hot = set;
        }
        self.seen = self.seen.min(set).max(self.hot);
        let missing = set - self.hot;
        if missing == 0 {
            return;
        }
        let missed =
            (u128::from(bytes) * u128::from(missing) / u128::from(set)).min(missing.into());
        let missed = u64::try_from(missed).unwrap();
        // Of what is missing it has had a part before: that is read again.
        let had = u128::from(missed) * u128::from(self.seen - self.hot) / u128::from(missing);
        let again = u64::try_from(had).unwrap();
        self.seen += missed - again;
        let room = self.room(missed, false);
        self.use_free(room);
        self.hot = (self.hot + room).min(set);
        self.refaulted += again;
        if again > 0 {
            self.stalled_us += TICK_MS * 1000 * missing / set;
        }
    }

    fn move_balloon(&mut self) {
        if self.kind == Kind::Hostile || self.kind == Kind::Sealed {
            return;
        }
        if self.balloon_target < self.balloon {
            self.balloon = self.balloon_target;
            return;
        }
        // Free pages that the host does not hold may be the first that it gets, and it gets them fast.
        let free = self.free().saturating_sub(self.watermark());
        let hollow = free.saturating_sub(self.free_held);
        let hollow = hollow.min(self.balloon_target - self.balloon);
        self.balloon += hollow;
        let wanted = (self.balloon_target - self.balloon).min(RECLAIM * TICK_MS / 1000);
        if wanted == 0 {
            return;
        }
        let room = self.room(wanted, false);
        self.free_held = self.free_held.saturating_sub(room);
        self.balloon += room;
        if room < wanted {
            self.puffs += 1;
            // The driver tries again later; what is asked for stays.
        }
    }

    /// What its agent answers to a request: how much it gave.
    pub(crate) fn asked(&mut self, bytes: u64) -> Option<u64> {
        match self.kind {
            Kind::Honest { guards } => {
                let least = if guards { self.worth() } else { 0 };
                let given = self.reclaim(bytes, least);
                Some(given)
            }
            Kind::Liar | Kind::Hostile => Some(0),
            Kind::Boaster => Some(bytes),
            Kind::Plain | Kind::Sealed | Kind::Silent => None,
        }
    }

    fn worth(&self) -> u64 {
        self.hot.min(self.load.working_set) * self.estimate / 100
    }

    fn report(&mut self, now: u64) -> Option<Report> {
        if let Some((at, report)) = self.reported
            && now < at + 1000
        {
            return Some(report);
        }
        let report = match self.kind {
            Kind::Honest { .. } | Kind::Boaster => Report {
                at: now,
                available: self.available(),
                used: self.used(),
                unreclaimable: self.kernel + self.anonymous,
                worth: self.worth(),
                refaulted: self.refaulted,
                stalled_us: self.stalled_us,
            },
            Kind::Liar | Kind::Hostile => Report {
                at: now,
                available: 0,
                used: self.ram,
                unreclaimable: self.ram,
                worth: self.ram,
                refaulted: now * MIB,
                stalled_us: now * 1000,
            },
            Kind::Plain | Kind::Sealed | Kind::Silent => return None,
        };
        self.reported = Some((now, report));
        Some(report)
    }

    pub(crate) fn seen_by_host(&mut self, now: u64, id: u64) -> Vm {
        let available = match self.kind {
            Kind::Hostile => 0,
            _ => self.available(),
        };
        let balloon = (self.kind != Kind::Sealed).then(|| Balloon {
            actual: self.ram - self.balloon,
            target: self.ram - self.balloon_target,
            deflates_on_oom: self.deflates_on_oom,
            available: Some(available),
            free: self.free(),
        });
        Vm {
            id,
            weight: Weight::try_from(self.weight).unwrap(),
            minimum: 0,
            ram: self.ram,
            most: self.ram,
            resident: self.resident(),
            is_pinned: false,
            own: None,
            balloon,
            guest: self.report(now),
        }
    }
}
