use super::*;

fn stat(file_mib: u64, pgsteal: u64) -> MemoryCounters {
    MemoryCounters {
        stat: MemoryStat {
            inactive_file: file_mib << 20,
            pgsteal,
            ..MemoryStat::default()
        },
        swap: 0,
    }
}

#[test]
fn growth_includes_what_was_reclaimed_meanwhile() {
    let t0 = Instant::now();
    let at = |ms| t0 + Duration::from_millis(ms);
    let mut sampler = MemorySampler::new(t0);
    sampler.record(&stat(100, 0), at(0));
    assert!(!sampler.growing(at(0)), "one sample shows no growth");
    sampler.record(&stat(100, 256), at(500));
    assert!(sampler.growing(at(500)));
    sampler.record(&stat(100, 256), at(3600));
    assert!(!sampler.growing(at(3600)));
}

/// As one from which reclaim is planned: before each plan it is sampled.
#[test]
fn growth_is_over_however_often_it_is_sampled() {
    let t0 = Instant::now();
    let mut sampler = MemorySampler::new(t0);
    sampler.record(&stat(100, 0), t0);
    for step in 1..=32 {
        let now = t0 + MIN_PERIOD * step;
        sampler.record(&stat(200, 0), now);
        let since = MIN_PERIOD * (step - 1);
        assert_eq!(sampler.growing(now), since < GROWING, "after {since:?}");
    }
}

#[test]
fn the_active_list_is_the_working_set_until_the_tenant_is_idle_for_long() {
    let t0 = Instant::now();
    let mut sampler = MemorySampler::new(t0);
    let mut stat = stat(100, 0);
    stat.stat.active_file = 30 << 20;
    sampler.record(&stat, t0);
    assert_eq!(sampler.working_set(false, t0).bytes, 30 << 20);
    // With the multi-gen LRU nothing says what of it is used: then all is.
    assert_eq!(sampler.working_set(true, t0).bytes, 130 << 20);
    let later = t0 + 2 * MIN_OBSERVATION;
    sampler.record(&stat, later);
    let seen = sampler.working_set(false, later);
    assert_eq!((seen.bytes, seen.observed_for), (0, 2 * MIN_OBSERVATION));
    assert_eq!(sampler.working_set(true, later).bytes, 0);
}

/// Its `memory.low` has the heap on top.
#[test]
fn a_heap_that_moves_makes_a_tenant_busy_and_a_high_of_ours_is_no_limit() {
    let t0 = Instant::now();
    let mut sampler = MemorySampler::new(t0);
    let mut grows = stat(100, 0);
    for second in 0..20 {
        sampler.record(&grows, t0 + Duration::from_secs(second));
    }
    assert!(sampler.period > MIN_PERIOD);
    grows.stat.inactive_anon = 500 << 20;
    sampler.record(&grows, t0 + Duration::from_secs(20));
    assert_eq!(sampler.period, MIN_PERIOD);

    sampler.limits.high = 200 << 20;
    assert_eq!(sampler.high(), 200 << 20, "its operator's");
    sampler.limits_at = Some(t0);
    sampler.note_high(true);
    assert_eq!(sampler.high(), u64::MAX);
    sampler.note_high(false);
    assert_eq!(sampler.high(), u64::MAX, "until it is read again");
    assert_eq!(sampler.limits_at, None, "which is with the next sample");
}

#[test]
fn a_quiet_tenant_is_sampled_less_and_less_often() {
    let t0 = Instant::now();
    let mut sampler = MemorySampler::new(t0);
    let mut now = t0;
    for _ in 0..30 {
        sampler.record(&stat(100, 0), now);
        now = sampler.due(now);
    }
    assert_eq!(sampler.period, MAX_PERIOD);
    assert!(sampler.idle_for(now) > Duration::from_secs(60));
    sampler.record(&stat(120, 0), now);
    assert_eq!(sampler.period, MIN_PERIOD);
    assert_eq!(sampler.idle_for(now), Duration::ZERO);
}

#[test]
fn what_is_swapped_out_is_no_growth_of_the_cache() {
    let t0 = Instant::now();
    let at = |ms| t0 + Duration::from_millis(ms);
    let mut sampler = MemorySampler::new(t0);
    sampler.record(&stat(100, 0), at(0));
    // 4 MiB of anonymous memory were reclaimed.
    let mut swapped = stat(100, 1024);
    swapped.swap = 4 << 20;
    sampler.record(&swapped, at(500));
    assert!(!sampler.growing(at(500)));
    assert_eq!(sampler.swapped(at(500)), (4 << 20, 0));
    // 1 MiB of them comes back: no more has gone out.
    swapped.swap = 3 << 20;
    swapped.stat.workingset_refault_anon = 256;
    sampler.record(&swapped, at(500));
    assert_eq!(sampler.swapped(at(500)), (4 << 20, 1 << 20));
    let (out, _) = sampler.swapped(at(10_500));
    assert_eq!(out, 2 << 20, "half of it after ten seconds");
}

/// As where one job after the other swaps, and ends.
#[test]
fn what_is_swapped_out_again_after_it_was_freed_is_no_growth_either() {
    let t0 = Instant::now();
    let at = |ms| t0 + Duration::from_millis(ms);
    let mut sampler = MemorySampler::new(t0);
    let mut swapped = stat(100, 512);
    swapped.swap = 2 << 20;
    sampler.record(&swapped, at(0));
    // When it swaps out, of all pages that were reclaimed, and what is in swap.
    for (ms, pgsteal, swap) in [(500, 1536, 6), (9_500, 1536, 0), (20_000, 2560, 4)] {
        (swapped.stat.pgsteal, swapped.swap) = (pgsteal, swap << 20);
        sampler.record(&swapped, at(ms));
        assert!(!sampler.growing(at(ms)), "{ms} ms");
    }
    let (out, _) = sampler.swapped(at(20_000));
    assert!((5 << 20..6 << 20).contains(&out), "{out}");
    // What comes back is added up later than it leaves swap.
    for (ms, swap) in [(20_100, 1), (21_900, 4)] {
        swapped.swap = swap << 20;
        sampler.record(&swapped, at(ms));
    }
    assert!(sampler.swapped(at(21_900)).0 < out);
}

/// They count as a minimum.
#[test]
fn no_more_is_unreclaimable_than_there_is() {
    let t0 = Instant::now();
    let mut sampler = MemorySampler::new(t0);
    let mut written = stat(100, 0);
    for (dirty, writeback, expected) in [(20, 30, 50), (80, 80, 100)] {
        (written.stat.file_dirty, written.stat.file_writeback) = (dirty << 20, writeback << 20);
        sampler.record(&written, t0);
        assert_eq!(sampler.unreclaimable, expected << 20);
    }
}

#[test]
fn slab_that_grows_is_growth() {
    let t0 = Instant::now();
    let mut sampler = MemorySampler::new(t0);
    sampler.record(&stat(0, 0), t0);
    let mut crawled = stat(0, 0);
    crawled.stat.slab_reclaimable = 8 << 20;
    let later = t0 + Duration::from_secs(1);
    sampler.record(&crawled, later);
    assert!(sampler.growing(later) && sampler.slab == 8 << 20);
}

#[test]
fn pages_from_before_the_first_sample_are_unseen_until_others_have_replaced_them() {
    let t0 = Instant::now();
    let at = |s| t0 + Duration::from_secs(s);
    let mut sampler = MemorySampler::new(t0);
    let unknown = WorkingSet::default();
    sampler.record(&stat(300, 512), at(0));
    assert_eq!(sampler.unseen(&unknown, at(0)), 300 << 20);
    // 100 MiB were paged in, and as many reclaimed.
    sampler.record(&stat(300, 512 + 25_600), at(10));
    assert_eq!(sampler.unseen(&unknown, at(10)), 200 << 20);
    sampler.record(&stat(50, 512 + 25_600), at(20));
    assert_eq!(
        sampler.unseen(&unknown, at(20)),
        50 << 20,
        "what it holds at most"
    );
    sampler.record(&stat(50, 512 + 25_600), at(120));
    assert_eq!(sampler.unseen(&unknown, at(120)), 0);
    // The probes were attached later.
    let observed_for = |seconds| WorkingSet {
        observed_for: Duration::from_secs(seconds),
        evidence: EstimateBasis::Accesses,
        ..unknown
    };
    assert_eq!(sampler.unseen(&observed_for(100), at(120)), 50 << 20);
    assert_eq!(sampler.unseen(&observed_for(120), at(140)), 0);
}
