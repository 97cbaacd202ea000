//! What was recorded comes back, from whole files and from broken ones.

use justitia_common::checksum::crc32;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::*;
use crate::top::fixture;
use justitia_api::Status;

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

fn same(told: &Status, recorded: &Status) {
    let text = |status: &Status| serde_json::to_string(status).unwrap();
    assert!(text(told) == text(recorded), "{}", told.time);
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
}

#[test]
fn a_clock_that_is_set_back_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut recorder = Recorder::create(&path).unwrap();
    let mut status = fixture::status(3, 0);
    let times = (2000..2010).chain(1000..1070);
    for time in times.map(f64::from) {
        status.time = time;
        recorder.record(&status).unwrap();
        // Nothing is new.
        recorder.record(&status).unwrap();
    }
    assert_eq!(recorder.finish().unwrap().statuses, 80);
    assert_eq!(
        Recording::open(&path).unwrap().status(79).unwrap().time,
        1069.0
    );
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
    for end in (0..whole.len())
        .step_by(whole.len() / 200)
        .chain([whole.len()])
    {
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
        Err(RecordError::Create { .. })
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

/// A file of one block that says it has 60 statuses.
fn crafted(path: &std::path::Path, lines: &[u8]) -> usize {
    let frame = zstd::encode_all(lines, 1).unwrap();
    let mut rest = u32::try_from(frame.len()).unwrap().to_le_bytes().to_vec();
    rest.extend([0; 16]);
    rest.extend(60u32.to_le_bytes());
    rest.extend(&frame);
    let mut file = TITLE.to_vec();
    file.extend(MARK);
    file.extend(crc32(&rest).to_le_bytes());
    file.extend(&rest);
    std::fs::write(path, &file).unwrap();
    file.len()
}

/// Each says much in few bytes.
#[test]
fn crafted_blocks_take_memory_in_proportion_to_their_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let status = serde_json::to_string(&fixture::status(1, 0)).unwrap();
    let tenant = serde_json::to_string(&fixture::status(1, 0).tenants[0]).unwrap();
    let with = |tenants: &str| status.replacen(&tenant, tenants, 1);
    for (name, lines) in [
        ("line ends", "\n".repeat(1 << 20)),
        ("tenants", with(&vec![tenant.as_str(); 20_000].join(","))),
        ("lists", "[".repeat(1 << 20)),
        ("a string", format!("\"{}\"", "x".repeat(1 << 20))),
    ] {
        crafted(&path, lines.as_bytes());
        let held = peak(|| {
            let mut recording = Recording::open(&path).unwrap();
            for position in [0, 1, 59] {
                let _ = recording.status(position);
            }
        });
        let least = lines.len();
        assert!(held < 8 * least, "{name}: {held} bytes for {least}");
    }
}

/// A block that unpacks to far more than a block may hold.
#[test]
fn a_block_that_unpacks_without_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    crafted(&path, &vec![0; 2 * MAX_BYTES]);
    let mut recording = Recording::open(&path).unwrap();
    let held = peak(|| assert!(recording.status(0).is_err()));
    assert!(held < 4 * MAX_BYTES, "{held}");
}

#[test]
fn random_changes_are_no_panic() {
    let (_dir, path, _) = recorded(3, 3);
    let good = std::fs::read(&path).unwrap();
    let mut state = 1u64;
    for _ in 0..500 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut bad = good.clone();
        let at = usize::try_from(state >> 33).unwrap() % bad.len();
        bad[at] = u8::try_from(state >> 25 & 255).unwrap();
        // As one who knows the format would: with the right checksum.
        let sum = crc32(&bad[TITLE.len() + SUMMED..]).to_le_bytes();
        bad[TITLE.len() + SUM..TITLE.len() + SUMMED].copy_from_slice(&sum);
        std::fs::write(&path, &bad).unwrap();
        let held = peak(|| {
            if let Ok(mut recording) = Recording::open(&path) {
                for position in [0, 1, 60] {
                    let _ = recording.status(position);
                }
                let _ = recording.position(3.0);
            }
        });
        assert!(held < 4 * MAX_BYTES, "{held} bytes for {}", bad.len());
    }
}

/// A recording is what zstd's own program prints as JSON lines.
#[test]
fn any_decoder_of_zstd_reads_json_lines() {
    let (_dir, path, statuses) = recorded(150, 3);
    let text = zstd::decode_all(std::fs::File::open(&path).unwrap()).unwrap();
    let lines: Vec<Status> = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 150);
    same(&lines[149], &statuses[149]);
}
