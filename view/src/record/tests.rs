//! What was recorded comes back, from whole files and from broken ones.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::*;
use crate::record::encode::BlockBuilder;
use crate::top::fixture;
use justitia_api::{Status, TenantStatus};

fn recorded(
    seconds: usize,
    tenants: usize,
) -> (tempfile::TempDir, std::path::PathBuf, Vec<Status>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut recorder = Recorder::create(&path).unwrap();
    let mut statuses: Vec<Status> = (0..seconds).map(|s| fixture::status(tenants, s)).collect();
    for status in &mut statuses {
        let every_third = status.tenants.iter_mut().step_by(3);
        every_third.for_each(|tenant| tenant.working_set_unknown = true);
    }
    statuses.iter().for_each(|s| recorder.record(s).unwrap());
    recorder.finish().unwrap();
    (dir, path, statuses)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.006 * a.abs().max(b.abs()) + 4096.0 * 0.006
}

fn same(told: &Status, recorded: &Status) {
    use justitia_share::num::to_f64;
    let text = |t: &TenantStatus| t.exempt.as_ref().map(ToString::to_string);
    assert!((told.time - recorded.time).abs() < 0.001);
    assert_eq!(told.tenants.len(), recorded.tenants.len());
    for (a, b) in told.tenants.iter().zip(&recorded.tenants) {
        assert_eq!(
            (
                &a.path,
                a.id,
                a.parent,
                a.weight,
                a.leaf,
                text(a),
                a.growing,
                a.backlogged
            ),
            (
                &b.path,
                b.id,
                b.parent,
                b.weight,
                b.leaf,
                text(b),
                b.growing,
                b.backlogged
            )
        );
        for (x, y) in [
            (a.usage, b.usage),
            (a.entitlement, b.entitlement),
            (a.reclaimed, b.reclaimed),
            (a.working_set, b.working_set),
            (a.demand.unwrap_or(0), b.demand.unwrap_or(0)),
        ] {
            assert!(close(to_f64(x), to_f64(y)), "{x} {y}");
        }
        assert_eq!(
            (a.app.is_some(), a.demand.is_some(), a.evidence),
            (b.app.is_some(), b.demand.is_some(), b.evidence)
        );
        assert_eq!(a.working_set_unknown, b.working_set_unknown);
        assert!(
            close(a.observed_for, b.observed_for),
            "{} {}",
            a.observed_for,
            b.observed_for
        );
        if let (Some(a), Some(b)) = (&a.app, &b.app) {
            assert!(close(a.read_rate, b.read_rate));
            assert!((a.hit_ratio.unwrap_or(-1.0) - b.hit_ratio.unwrap_or(-1.0)).abs() <= 0.0026);
        }
        assert_eq!(a.knobs.len(), b.knobs.len());
    }
}

#[test]
fn what_was_recorded_comes_back_at_any_position() {
    let (_dir, path, statuses) = recorded(150, 12);
    let mut recording = Recording::open(&path).unwrap();
    assert_eq!((recording.len(), recording.lost()), (150, 0));
    for position in [149, 0, 60, 59, 119, 120] {
        same(&statuses[position], &recording.status(position).unwrap());
    }
    let (first, last) = recording.span();
    assert!((last - first - 149.0).abs() < 0.01);
    for (time, position) in [(first + 75.5, 75), (first - 100.0, 0), (last + 100.0, 149)] {
        assert_eq!(recording.position(time).unwrap(), position);
    }
    // The decisions made in its minute are in a block.
    assert!(!recording.status(149).unwrap().decisions.is_empty());
}

#[test]
fn tenants_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut recorder = Recorder::create(&path).unwrap();
    let mut statuses = Vec::new();
    for second in 0..30 {
        let mut status = fixture::status(if second % 10 < 5 { 8 } else { 5 }, second);
        status.tenants.iter_mut().for_each(|t| t.weight += 1);
        recorder.record(&status).unwrap();
        statuses.push(status);
    }
    drop(recorder);
    let mut recording = Recording::open(&path).unwrap();
    for (position, status) in statuses.iter().enumerate() {
        same(status, &recording.status(position).unwrap());
    }
}

#[test]
fn a_file_cut_anywhere_keeps_its_whole_blocks() {
    let (_dir, path, _) = recorded(180, 5);
    let whole = std::fs::read(&path).unwrap();
    let cut = path.with_extension("cut");
    let mut lengths = Vec::new();
    for end in (0..whole.len()).step_by(7).chain([whole.len()]) {
        std::fs::write(&cut, &whole[..end]).unwrap();
        match Recording::open(&cut) {
            Ok(mut recording) => {
                assert!(recording.len() % 60 == 0 && recording.status(usize::MAX).is_ok());
                lengths.push(recording.len());
            }
            Err(RecordError::NotOne { .. }) => assert!(end < TITLE.len()),
            Err(RecordError::Empty { .. }) => assert!(end < whole.len() / 2),
            Err(other) => panic!("{other}"),
        }
    }
    lengths.dedup();
    assert_eq!(lengths, [60, 120, 180]);
}

#[test]
fn damage_costs_the_block_that_it_hits() {
    let (_dir, path, statuses) = recorded(180, 5);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&path, &bytes).unwrap();
    let mut recording = Recording::open(&path).unwrap();
    assert_eq!(recording.len(), 120);
    assert!(recording.lost() > 0);
    same(&statuses[0], &recording.status(0).unwrap());
    same(&statuses[179], &recording.status(119).unwrap());
}

#[test]
fn something_else_is_refused_and_nothing_is_overwritten() {
    let (_dir, path, _) = recorded(1, 1);
    assert!(matches!(
        Recorder::create(&path),
        Err(RecordError::System { .. })
    ));
    std::fs::write(&path, b"{\"x\":1}").unwrap();
    assert!(matches!(
        Recording::open(&path),
        Err(RecordError::NotOne { .. })
    ));
}

/// Counts what each thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn hold(bytes: usize, sign: isize) {
    let held = HELD.get() + sign * isize::try_from(bytes).unwrap_or(isize::MAX);
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hold(layout.size(), 1);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        hold(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` holds at most at one time, bytes.
fn peak(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    work();
    usize::try_from(PEAK.get() - before).unwrap()
}

fn read(payload: &[u8]) -> usize {
    peak(|| {
        if let Ok(columns) = decode::ColumnarBlock::read(payload) {
            for at in 0..61 {
                let _ = columns.status(at);
            }
        }
    })
}

/// Seven bits a byte, as the figures are written.
fn figure(value: usize) -> Vec<u8> {
    let mut rest = value << 1;
    let mut out = Vec::new();
    while rest >= 128 {
        out.push(u8::try_from(rest & 127).unwrap() | 128);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap());
    out
}

/// A payload that says `once` in JSON, and 60 statuses with as many figures as there are zeroes.
fn payload(once: &str, tenants: usize, zeroes: usize) -> Vec<u8> {
    let mut out = figure(once.len());
    out.extend(once.as_bytes());
    out.extend(figure(60));
    out.extend(vec![0; 60 * 14]);
    for _ in 0..tenants {
        out.extend([figure(0), figure(60)].concat());
    }
    out.extend(vec![0; zeroes]);
    out
}

/// Each says much in few bytes.
#[test]
fn crafted_blocks_take_memory_in_proportion_to_their_length() {
    let once = |tenants: usize, parts: &str| {
        let name = r#"{"path":"","id":1,"parent":null,"leaf":true,"from":"nobody"}"#;
        let names = vec![name; tenants].join(",");
        format!(
            r#"{{"version":"","observe":true,"window":1,"tenants":[{names}],"decisions":[],"yielded":[],"blind":null,{parts}}}"#
        )
    };
    let plain = r#""strings":[],"limits":[]"#;
    let many = format!(r#""strings":[],"limits":[{}""]"#, r#""","#.repeat(300_000));
    let reason = format!(r#""limits":[],"strings":["{}"]"#, "x".repeat(100_000));
    for (name, payload) in [
        // Rows without figures, and with them.
        ("no figures", payload(&once(20_000, plain), 20_000, 100)),
        ("figures", payload(&once(2000, plain), 2000, 2000 * 60 * 26)),
        ("names", payload(&once(100_000, plain), 100_000, 100)),
        ("texts", payload(&once(1, &many), 1, 60 * 26)),
        (
            "a reason",
            payload(&once(2000, &reason), 2000, 2000 * 60 * 26),
        ),
    ] {
        let held = read(&payload);
        println!("{name}: {held} bytes for {}", payload.len());
        assert!(
            held < 24 * payload.len(),
            "{name}: {held} bytes for {}",
            payload.len()
        );
    }
}

/// The first recordings had fewer figures; later ones may have more.
#[test]
fn a_recording_of_another_version_has_other_figures() {
    let once = |figures: &str| {
        format!(
            r#"{{{figures}"version":"","observe":true,"window":1,"tenants":[{{"path":"a","id":1,"parent":null,"leaf":true,"from":"nobody"}}],"decisions":[],"yielded":[],"blind":null,"strings":[],"limits":[]}}"#
        )
    };
    let read = |figures: &str, of_one: usize| {
        // There, in every status; everything else is 0.
        let mut payload = payload(&once(figures), 1, 60 * of_one);
        let flags = payload.len() - 60 * of_one;
        payload[flags] = 2;
        decode::ColumnarBlock::read(&payload)
    };
    for (figures, of_one) in [("", 23), (r#""figures":26,"#, 26), (r#""figures":31,"#, 31)] {
        let status = read(figures, of_one).unwrap().status(59).unwrap();
        assert_eq!(
            (status.tenants.len(), status.tenants[0].working_set),
            (1, 0)
        );
        let known = status.tenants[0].known_working_set();
        assert_eq!(known, (of_one > 23).then_some(0), "{figures}");
    }
    for (figures, of_one) in [
        (r#""figures":26,"#, 23),
        (r#""figures":1,"#, 23),
        (r#""figures":1000000,"#, 31),
    ] {
        assert!(read(figures, of_one).is_err(), "{figures}");
    }
}

/// A block that unpacks to far more than a block may hold.
#[test]
fn a_block_that_unpacks_without_end_is_refused() {
    let (_dir, path, _) = recorded(1, 1);
    let zeroes = vec![0; MAX_PAYLOAD_BYTES + (64 << 20)];
    let packed = zstd::encode_all(zeroes.as_slice(), 1).unwrap();
    drop(zeroes);
    let mut rest = vec![0; 16];
    rest.extend(60u32.to_le_bytes());
    rest.extend(&packed);
    let mut file = TITLE.to_vec();
    file.extend(MARK);
    file.extend(u32::try_from(packed.len()).unwrap().to_le_bytes());
    file.extend(crc32fast::hash(&rest).to_le_bytes());
    file.extend(&rest);
    std::fs::write(&path, &file).unwrap();
    let mut recording = Recording::open(&path).unwrap();
    let held = peak(|| assert!(recording.status(0).is_err()));
    assert!(held < 4 * MAX_PAYLOAD_BYTES, "{held}");
}

#[test]
fn random_bytes_are_no_columns_and_no_panic() {
    let mut state = 1u64;
    let mut columns = BlockBuilder::default();
    columns.push(&fixture::status(3, 0), 0.0);
    let good = columns.bytes();
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut bad = good.clone();
        let at = usize::try_from(state >> 33).unwrap() % bad.len();
        bad[at] = u8::try_from(state >> 25 & 255).unwrap();
        bad.truncate(bad.len() - at % 3);
        let held = read(&bad);
        assert!(held < 64 << 10, "{held} bytes for {}", bad.len());
    }
}
