//! Who uses the disks: those are looked at often, the others now and then, since of a thousand tenants most rest.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::io::{DevId, IoStat};

use super::tenant_io::{AppBytes, TenantIo, TenantIoSampler};
use crate::monitor::{CgroupTree, Node};

/// Tenants that rest are looked after this often.
const ALL: Duration = Duration::from_secs(1);
/// So few tenants are always looked after.
const FEW: usize = 64;
/// A tenant that has done nothing for so long rests.
const LATELY: Duration = Duration::from_secs(10);
/// What the probes do not count, mapped pages that are written back for instance, is looked for in the `io.stat` of so many
/// tenants that rest, a different part of them each time …
const ASKED: usize = 16;
/// … without probes, or while disks move more than those who are known to use them do, of so many …
const ASKED_AT_MOST: usize = 640;
/// … and of each at least every so many times.
const RESTS: usize = 240;
/// Of what disks move; the rest may be the file system's own.
const NEARLY_ALL: f64 = 0.9;
/// Of a tenant with more cgroups than this the probes are not asked at each look.
const MANY: usize = 32;

/// What the probes know of tenants.
pub trait AppIoSource {
    /// What a tenant's applications have had disks do when the probes were last read, as a number that grows with it, and
    /// whether any in the last seconds: at no cost. `None` without probes.
    fn known(&self, id: CgroupId) -> Option<(u64, bool)>;
    /// What they have got up to now.
    fn got(&self, id: CgroupId) -> Option<AppBytes>;
}

/// A tenant that rests.
#[derive(Debug, Default)]
struct Resting {
    /// What [`AppIoSource::known`] said.
    disk: u64,
    io: Option<Vec<(DevId, IoStat)>>,
}

/// Tenants, by whether they use the disks.
#[derive(Debug, Default)]
pub struct ActiveSet {
    meters: TenantIoSampler,
    /// Since when nothing was seen of each.
    using: BTreeMap<CgroupId, Instant>,
    resting: HashMap<CgroupId, Resting>,
    searched: Option<Instant>,
    /// How often.
    round: usize,
    unattributed_io: bool,
}

impl ActiveSet {
    /// Those who use the disks, and what they did since the last look.
    pub fn sample(
        &mut self,
        cgroups: &CgroupTree,
        probed: &impl AppIoSource,
        now: Instant,
    ) -> Vec<(CgroupId, TenantIo)> {
        let few = cgroups.len() <= FEW;
        let due = self.searched.is_none_or(|at| now - at >= ALL);
        if due {
            self.searched = Some(now);
            self.round = self.round.wrapping_add(1);
        }
        if few || due {
            self.find_newly_active(cgroups, probed, (few, due), now);
        }
        let mut seen = Vec::new();
        let mut rest = Vec::new();
        for (id, since) in &mut self.using {
            let got = got(cgroups, probed, *id);
            let look = unit(cgroups, *id).map(|cgroup| self.meters.sample(cgroup, got, now));
            match look {
                Some(Ok(Some(io))) => {
                    if io.is_active() {
                        *since = now;
                    } else if now - *since >= LATELY {
                        rest.push(*id);
                    }
                    seen.push((*id, io));
                }
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    tracing::trace!(%error, "a tenant's I/O cannot be read");
                    rest.push(*id);
                }
                None => rest.push(*id),
            }
        }
        for id in rest {
            self.using.remove(&id);
            let known = cgroups
                .get(id)
                .and_then(|node| known(cgroups, probed, node));
            let resting = Resting {
                disk: known.map_or(0, |(disk, _)| disk),
                io: self.meters.remove(id),
            };
            self.resting.insert(id, resting);
        }
        seen
    }

    /// Looks for who rested and does so no more: whether there are `few`, and whether it is time to ask some.
    fn find_newly_active(
        &mut self,
        cgroups: &CgroupTree,
        probed: &impl AppIoSource,
        (few, due): (bool, bool),
        now: Instant,
    ) {
        for (number, node) in cgroups.io_domains().enumerate() {
            let cgroup = &node.cgroup;
            let id = cgroup.id();
            if self.using.contains_key(&id) {
                continue;
            }
            let known = known(cgroups, probed, node);
            let asked = if known.is_none() || self.unattributed_io {
                ASKED_AT_MOST
            } else {
                ASKED
            };
            let every = cgroups.len().div_ceil(asked).clamp(1, RESTS);
            let turn = due && number % every == self.round % every;
            let wakes = match known {
                Some(known) => self.becomes_active(id, known) || (turn && self.moves(cgroup)),
                None => few || (turn && self.moves(cgroup)),
            };
            if wakes {
                self.resting.remove(&id);
                self.using.insert(id, now);
            }
        }
    }

    /// Disks move this many bytes a second, and those whom the last look found move that many of them: if that is not
    /// nearly all, others are looked for sooner.
    pub fn note_throughput(&mut self, moved: f64, known: f64) {
        self.unattributed_io = known < NEARLY_ALL * moved;
    }

    /// Whether the probes know of one that it rests no more.
    fn becomes_active(&mut self, id: CgroupId, (disk, lately): (u64, bool)) -> bool {
        match self.resting.entry(id) {
            Entry::Occupied(mut known) => disk > std::mem::replace(&mut known.get_mut().disk, disk),
            Entry::Vacant(unknown) => {
                unknown.insert(Resting { disk, io: None });
                lately
            }
        }
    }

    /// Whether the I/O of one that rests has moved since this was asked last.
    fn moves(&mut self, cgroup: &Cgroup) -> bool {
        let Ok(io) = cgroup.io_stat() else {
            return false;
        };
        let resting = self.resting.entry(cgroup.id()).or_default();
        let moved = resting.io.as_ref().is_some_and(|before| *before != io);
        resting.io = Some(io);
        moved
    }

    /// Forgets a cgroup that is gone.
    pub fn remove(&mut self, id: CgroupId) {
        self.meters.remove(id);
        self.using.remove(&id);
        self.resting.remove(&id);
    }

    /// What comes next is no continuation.
    pub fn reset(&mut self) {
        self.meters = TenantIoSampler::default();
    }
}

/// A cgroup among which disks are divided.
fn unit(cgroups: &CgroupTree, id: CgroupId) -> Option<&Cgroup> {
    let node = cgroups.get(id)?;
    cgroups.is_io_domain(node).then_some(&node.cgroup)
}

/// What the probes know of a cgroup and all below it.
fn known(cgroups: &CgroupTree, probed: &impl AppIoSource, node: &Node) -> Option<(u64, bool)> {
    let id = node.cgroup.id();
    // So it is with nearly all, and there may be thousands.
    if node.children.is_empty() {
        return probed.known(id);
    }
    cgroups.subtree(id).try_fold((0, false), |(sum, any), id| {
        let (bytes, lately) = probed.known(id)?;
        Some((sum + bytes, any || lately))
    })
}

/// What the applications in a cgroup and all below it have got; `None` as well where asking would take long: who was given a
/// subtree may have many in it.
fn got(cgroups: &CgroupTree, probed: &impl AppIoSource, id: CgroupId) -> Option<AppBytes> {
    let within: Vec<CgroupId> = cgroups.subtree(id).take(MANY + 1).collect();
    if within.len() > MANY {
        return None;
    }
    within.into_iter().try_fold(AppBytes::default(), |sum, id| {
        Some(sum.plus(probed.got(id)?))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    use justitia_kernel::cgroup::CgroupFs;

    use super::*;
    use crate::config::Config;
    use crate::monitor::Changes;

    const MEMORY: &str =
        "anon 0\nfile 9000\ninactive_file 4000\nactive_file 4096\nfile_dirty 0\nfile_writeback 0\n";

    /// A cgroup, plain files.
    fn cgroup(root: &Path, name: &str, controllers: &str) -> PathBuf {
        let path = root.join(name);
        std::fs::create_dir(&path).unwrap();
        let write = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
        write("cgroup.controllers", controllers);
        write("cgroup.events", "populated 1\nfrozen 0\n");
        path
    }

    fn cgroups(root: &Path) -> CgroupTree {
        let fs = CgroupFs::open_fixture(root, true).unwrap();
        let mut cgroups = CgroupTree::new(&fs, false);
        cgroups.rescan(&Config::default(), Instant::now(), &mut Changes::default());
        cgroups
    }

    /// Tenants, plain files, and the probes' word for one of them.
    struct Fixture {
        dir: tempfile::TempDir,
        cgroups: CgroupTree,
        one: CgroupId,
        known: Cell<(u64, bool)>,
        asked: RefCell<Vec<CgroupId>>,
    }

    impl Fixture {
        /// A hundred.
        fn new() -> Self {
            Self::of(100)
        }

        fn of(tenants: usize) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for number in 0..tenants {
                let path = cgroup(dir.path(), &format!("t{number}"), "io memory\n");
                let write = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
                write("memory.low", "0\n");
                write("memory.stat", MEMORY);
                write("io.stat", "");
            }
            let cgroups = cgroups(dir.path());
            let path = Path::new("t7");
            let of = |id: &CgroupId| cgroups.get(*id).unwrap().cgroup.path() == path;
            let one = cgroups.preorder().into_iter().find(of).unwrap();
            Self {
                dir,
                cgroups,
                one,
                known: Cell::new((0, false)),
                asked: RefCell::default(),
            }
        }

        fn writes(&self, wbytes: u64) {
            let text = format!("8:0 rbytes=0 wbytes={wbytes} rios=0 wios=1 dbytes=0 dios=0\n");
            std::fs::write(self.dir.path().join("t7/io.stat"), text).unwrap();
        }
    }

    impl AppIoSource for Fixture {
        fn known(&self, id: CgroupId) -> Option<(u64, bool)> {
            Some(if id == self.one {
                self.known.get()
            } else {
                (0, false)
            })
        }

        fn got(&self, id: CgroupId) -> Option<AppBytes> {
            self.asked.borrow_mut().push(id);
            let bytes = self.known.get().0;
            Some(AppBytes { bytes, written: 0 })
        }
    }

    fn ids(seen: &[(CgroupId, TenantIo)]) -> Vec<CgroupId> {
        seen.iter().map(|(id, _)| *id).collect()
    }

    #[test]
    fn who_rests_costs_nothing_and_who_does_not_is_seen() {
        let tenants = Fixture::new();
        let (mut users, begin) = (ActiveSet::default(), Instant::now());
        let mut look = |seconds: f64| {
            let now = begin + Duration::from_secs_f64(seconds);
            users.sample(&tenants.cgroups, &tenants, now)
        };
        // Nobody has a disk do anything.
        for second in 0..5_u8 {
            assert_eq!(ids(&look(f64::from(second))), []);
        }
        assert!(tenants.asked.borrow().is_empty(), "nobody is looked at");
        // One reads from the disk: it is looked at from then on, between looks at all as well.
        tenants.known.set((65536, true));
        tenants.writes(65536);
        assert_eq!(ids(&look(5.0)), [], "the first look");
        assert_eq!(ids(&look(5.25)), [tenants.one]);
        assert!(tenants.asked.borrow().iter().all(|id| *id == tenants.one));
        // And no more once it has rested for long, until it comes back.
        assert_eq!(ids(&look(15.5)), [tenants.one]);
        assert_eq!(ids(&look(16.5)), []);
        tenants.known.set((1 << 20, true));
        tenants.writes(1 << 20);
        look(17.5);
        assert_eq!(ids(&look(17.75)), [tenants.one]);
    }

    #[test]
    fn disks_are_divided_where_the_administrator_does_and_their_io_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, controllers: &str| cgroup(dir.path(), name, controllers);
        // One that nobody divides; one whose children have no I/O controller; a delegated one; and one with two of these.
        make("plain", "io memory\n");
        make("whole", "io memory\n");
        make("whole/a", "memory\n");
        make("slice", "io memory\n");
        make("slice/plain", "io memory\n");
        let given = make("slice/given", "io memory\n");
        std::fs::set_permissions(&given, std::fs::Permissions::from_mode(0o777)).unwrap();
        make("slice/given/a", "io memory\n");
        make("slice/given/a/b", "io memory\n");
        let cgroups = cgroups(dir.path());
        let named = |id: &CgroupId| cgroups.get(*id).unwrap().cgroup.path().to_owned();
        let mut units: Vec<PathBuf> = cgroups
            .io_domains()
            .map(|node| node.cgroup.path().to_owned())
            .collect();
        units.sort();
        let expected = ["plain", "slice/given", "slice/plain", "whole"].map(PathBuf::from);
        assert_eq!(units, expected);

        /// Every cgroup has read a page.
        struct Page;
        impl AppIoSource for Page {
            fn known(&self, _: CgroupId) -> Option<(u64, bool)> {
                Some((4096, true))
            }
            fn got(&self, _: CgroupId) -> Option<AppBytes> {
                Some(AppBytes {
                    bytes: 4096,
                    written: 512,
                })
            }
        }
        let of = |id: &&CgroupId| named(id) == Path::new("slice/given");
        let id = *cgroups.preorder().iter().find(of).unwrap();
        let node = cgroups.get(id).unwrap();
        assert_eq!(known(&cgroups, &Page, node), Some((3 * 4096, true)));
        let all = AppBytes {
            bytes: 3 * 4096,
            written: 3 * 512,
        };
        assert_eq!(got(&cgroups, &Page, id), Some(all));
    }

    #[test]
    fn without_probes_everybody_is_asked() {
        struct Blind;
        impl AppIoSource for Blind {
            fn known(&self, _: CgroupId) -> Option<(u64, bool)> {
                None
            }
            fn got(&self, _: CgroupId) -> Option<AppBytes> {
                None
            }
        }
        let tenants = Fixture::new();
        let (mut users, begin) = (ActiveSet::default(), Instant::now());
        let mut look = |seconds| {
            let now = begin + Duration::from_secs(seconds);
            ids(&users.sample(&tenants.cgroups, &Blind, now))
        };
        assert_eq!(look(0), []);
        tenants.writes(4096);
        look(1);
        assert_eq!(look(2), [tenants.one]);
    }

    /// After how many seconds one of so many is found that uses the disk from then on.
    fn found(tenants: &Fixture, probed: &impl AppIoSource, moved: f64, known: f64) -> usize {
        let (mut users, begin) = (ActiveSet::default(), Instant::now());
        let mut look = |second: usize| {
            let now = begin + Duration::from_secs(second.try_into().unwrap());
            ids(&users.sample(&tenants.cgroups, probed, now)) == [tenants.one]
        };
        assert!(!(0..5).any(&mut look));
        tenants.known.set((4096, true));
        let mut look = |second: usize| {
            tenants.writes(4096 * u64::try_from(second).unwrap());
            users.note_throughput(moved, known);
            let now = begin + Duration::from_secs(second.try_into().unwrap());
            ids(&users.sample(&tenants.cgroups, probed, now)) == [tenants.one]
        };
        (5..1000).find(|second| look(*second)).unwrap() - 5
    }

    /// The probes count nothing of it.
    struct Unseen;

    impl AppIoSource for Unseen {
        fn known(&self, _: CgroupId) -> Option<(u64, bool)> {
            Some((0, false))
        }
        fn got(&self, _: CgroupId) -> Option<AppBytes> {
            Some(AppBytes::default())
        }
    }

    #[test]
    fn who_uses_the_disk_is_found_in_a_second_however_many_rest() {
        for number in [100, 3000] {
            let tenants = Fixture::of(number);
            assert!(found(&tenants, &tenants, 1e6, 1e6) <= 1, "of {number}");
        }
    }

    #[test]
    fn what_the_probes_do_not_count_is_found_by_asking_few_at_a_time() {
        let tenants = Fixture::new();
        let rounds = 100_usize.div_ceil(ASKED);
        let alone = found(&tenants, &Unseen, 1e6, 1e6);
        assert!((2..=2 * rounds + 1).contains(&alone), "{alone}");
        // Sooner while disks move more than is known.
        let beside = found(&Fixture::of(1000), &Unseen, 1e6, 0.5e6);
        assert!(beside <= 5, "{beside}");
    }

    #[test]
    fn who_moved_before_contention_began_is_looked_at_at_once() {
        let tenants = Fixture::new();
        tenants.known.set((4096, true));
        let (mut users, now) = (ActiveSet::default(), Instant::now());
        users.sample(&tenants.cgroups, &tenants, now);
        let seen = users.sample(&tenants.cgroups, &tenants, now + Duration::from_millis(250));
        assert_eq!(ids(&seen), [tenants.one]);
    }
}
