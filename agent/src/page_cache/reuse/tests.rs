use super::*;

/// Bytes of the largest cache.
const CAPACITY: u64 = 1 << 30;

/// A tenant that has read 6,000 blocks again and again, 600 a second, for three minutes; and the time then.
fn reader() -> (Reuse, ReuseCounts, Instant) {
    let mut now = Instant::now();
    let mut reuse = Reuse::new(now, 0);
    let mut counts = ReuseCounts::default();
    for second in 0..180 {
        now += Duration::from_secs(1);
        read(&mut counts, 600, second < 10);
        reuse.record(counts.clone(), CAPACITY, now);
    }
    (reuse, counts, now)
}

/// Reads as many blocks of the 6,000 in order: for the first time, or again.
fn read(counts: &mut ReuseCounts, blocks: u64, first: bool) {
    counts.reuse.accesses += blocks;
    for _ in 0..blocks {
        counts.reuse.count((!first).then_some(6_000), 1);
    }
}

#[test]
fn of_sparse_blocks_the_pages_in_use_are_the_working_set() {
    let (mut reuse, mut counts, mut now) = reader();
    let whole = reuse.working_set().bytes;
    let size = |reuse: &Reuse| reuse.status().unwrap().points.last().unwrap().0;
    let curve = size(&reuse);
    counts.touched = 1.0 / 16.0;
    for _ in 0..5 {
        now += Duration::from_secs(1);
        read(&mut counts, 600, false);
        reuse.record(counts.clone(), CAPACITY, now);
    }
    for (found, whole) in [(reuse.working_set().bytes, whole), (size(&reuse), curve)] {
        assert!(
            (whole / 20..whole / 14).contains(&found),
            "{found}, {whole}"
        );
    }
    // More blocks than fit whole into the largest cache.
    let mut sparse = Reuse::new(now, 0);
    let mut counts = ReuseCounts {
        touched: 1.0 / 16.0,
        ..ReuseCounts::default()
    };
    for _ in 0..60 {
        now += Duration::from_secs(1);
        counts.reuse.accesses += 6000;
        (0..6000).for_each(|_| counts.reuse.count(Some(40_000), 1));
        sparse.record(counts.clone(), CAPACITY, now);
    }
    let blocks = sparse.working_set().bytes / (BLOCK / 16);
    assert!((40_000..50_000).contains(&blocks), "{blocks}");
}

#[test]
fn a_tenant_that_reads_little_of_its_set_is_idle() {
    // Blocks a second that it reads afterwards, and whether it uses its set. The set has 6,750 blocks with the margin:
    // 11 a second go through it in ten minutes.
    for (blocks, uses) in [(0, false), (8, false), (15, true), (600, true)] {
        let (mut reuse, mut counts, mut now) = reader();
        let set = reuse.working_set().bytes / BLOCK;
        assert!((6_000..7_500).contains(&set), "{set}");
        assert_eq!(reuse.idle_for(), Some(Duration::ZERO));
        for _ in 0..20 {
            now += Duration::from_secs(1);
            read(&mut counts, blocks, false);
            reuse.record(counts.clone(), CAPACITY, now);
        }
        let idle = reuse.idle_for().unwrap();
        assert_eq!(idle == Duration::ZERO, uses, "{blocks}: {idle:?}");
        assert_eq!(idle == Duration::from_secs(20), !uses, "{blocks}: {idle:?}");
    }
}

/// With a health check each ten seconds, and without.
#[test]
fn a_set_that_is_not_used_is_kept_for_hours_and_not_for_days() {
    for checks in [0, 1] {
        let (mut reuse, mut counts, mut now) = reader();
        let set = reuse.working_set().bytes;
        let mut rest = |reuse: &mut Reuse, hours: u64| {
            for _ in 0..hours * 360 {
                now += Duration::from_secs(10);
                counts.reuse.accesses += checks;
                (0..checks).for_each(|_| counts.reuse.count(Some(1), 1));
                reuse.record(counts.clone(), CAPACITY, now);
            }
            reuse.working_set().bytes
        };
        let kept = rest(&mut reuse, 4);
        assert!(kept > set * 3 / 4, "{checks}: {kept} of {set}");
        // What it accesses now is shown, not what it did.
        let rate = reuse.status().map_or(0.0, |status| status.accesses);
        assert!(rate < 0.2, "{checks}: {rate} a second");
        let kept = rest(&mut reuse, 20);
        assert!(kept < set / 100, "{checks}: {kept} of {set}");
    }
}

#[test]
fn another_set_takes_the_place_of_the_one_before_within_minutes() {
    for rate in [100, 8] {
        let (mut reuse, mut counts, mut now) = reader();
        for _ in 0..1800 {
            now += Duration::from_secs(1);
            counts.reuse.accesses += rate;
            (0..rate).for_each(|_| counts.reuse.count(Some(50), 1));
            reuse.record(counts.clone(), CAPACITY, now);
        }
        let set = reuse.working_set().bytes / BLOCK;
        assert!((50..70).contains(&set), "{rate}: {set} blocks");
    }
}

/// An excluded cgroup is made below it, and removed; then its own counter begins anew.
#[test]
fn a_working_set_stays_when_accesses_are_counted_another_way() {
    let mut now = Instant::now();
    let mut reuse = Reuse::new(now, 0);
    let mut counts = ReuseCounts::default();
    // It was sampled before.
    let mut own = 1_000_000_u64;
    let mut accesses = AccessCount::new(Some(own));
    let mut sampled = 0;
    for second in 0..240 {
        now += Duration::from_secs(1);
        own = if second == 200 { 300 } else { own + 600 };
        read(&mut counts, 600, second < 10);
        sampled += 600;
        let excluded = (100..120).contains(&second);
        // Those of the excluded cgroup.
        sampled += if excluded { 50 } else { 0 };
        let of_itself = (!excluded && second != 150).then_some(own);
        counts.reuse.accesses = accesses.record(of_itself, sampled);
        reuse.record(counts.clone(), CAPACITY, now);
        let set = reuse.working_set().bytes / BLOCK;
        let known = second < 90 || (6_000..7_500).contains(&set);
        assert!(known, "after {second} s: {set} blocks");
    }
    assert_eq!(accesses.all, 240 * 600 + 20 * 50);
}

/// Without the accesses of its threads a virtual machine would seem to use none of its cache.
#[test]
fn the_samples_tell_the_accesses_of_cgroups_below() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("libvirt")).unwrap();
    let fs = justitia_kernel::cgroup::CgroupFs::open_fixture(dir.path()).unwrap();
    let cgroup = Cgroup::open_at(&fs, "libvirt".as_ref()).unwrap();
    assert!(!is_alone(&cgroup), "that is not known");
    for (below, alone) in [(0, true), (3, false)] {
        let stat = format!("nr_descendants {below}\nnr_dying_descendants 1\n");
        std::fs::write(dir.path().join("libvirt/cgroup.stat"), stat).unwrap();
        assert_eq!(is_alone(&cgroup), alone, "{below} cgroups below");
    }
}

const MIB: u64 = 1 << 20;

fn ids(ids: &[u64]) -> Vec<CgroupId> {
    ids.iter().map(|id| CgroupId(*id)).collect()
}

#[test]
fn those_that_hold_most_are_sampled() {
    // File pages of each, MiB; the sampled ones; number of curves; which stop; which start.
    type Case<'a> = (&'a [u64], &'a [u64], usize, &'a [u64], &'a [u64]);
    let cases: [Case<'_>; 6] = [
        (&[100, 50, 0], &[], 8, &[], &[0, 1]),
        (&[100, 50, 70], &[], 2, &[], &[0, 2]),
        // One that has shrunk keeps its curve while there are enough. One that was removed does not.
        (&[0, 50], &[0, 7], 8, &[7], &[1]),
        // It takes twice as much to lose a curve.
        (&[40, 70], &[0], 1, &[], &[]),
        (&[40, 90], &[0], 1, &[0], &[1]),
        // Many small ones do not keep a large one out.
        (&[300, 2, 2, 2, 2], &[1, 2, 3], 3, &[3], &[0]),
    ];
    for (holds, sampled, curves, stop, start) in cases {
        let holders: Vec<_> = (0..)
            .map(CgroupId)
            .zip(holds.iter().map(|h| h * MIB))
            .collect();
        let sampled = ids(sampled).into_iter().collect();
        let change = choose(&holders, &sampled, curves);
        let expected = Change {
            stop: ids(stop),
            start: ids(start),
        };
        assert_eq!(change, expected, "{holds:?}");
    }
}
