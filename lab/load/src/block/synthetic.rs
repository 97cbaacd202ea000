//! The traces that are shipped for experiments: made here, so that it is known what they are. One is a cut of a
//! real one.

use std::fmt::Write as _;
use std::path::Path;

use justitia_share::num::{to_f64, to_u64};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::line::Request;
use super::trace::{Format, read};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Requests whose distances in time are exponentially distributed; in `burst` of every four seconds there are
/// five times as many.
struct Clock {
    rng: ChaCha8Rng,
    at: f64,
    per_second: f64,
    burst: std::ops::Range<f64>,
}

impl Clock {
    fn next(&mut self) -> u64 {
        let uniform = to_f64((self.rng.next_u64() >> 11) + 1) / to_f64(1 << 53);
        let busy = self.burst.contains(&(self.at % 4.0));
        let rate = self.per_second * if busy { 5.0 } else { 1.0 };
        self.at += -uniform.ln() / rate;
        to_u64(self.at * 1e9)
    }
}

fn make(
    seed: u64,
    per_second: f64,
    burst: std::ops::Range<f64>,
    mut request: impl FnMut(&mut ChaCha8Rng) -> (bool, u64, u64),
) -> Vec<Request> {
    let rng = ChaCha8Rng::seed_from_u64(seed);
    let mut clock = Clock {
        rng: rng.clone(),
        at: 0.0,
        per_second,
        burst,
    };
    let mut rng = rng;
    rng.set_stream(1);
    let mut all: Vec<Request> = (0..1500)
        .map(|_| {
            let (write, offset, bytes) = request(&mut rng);
            Request {
                at: clock.next() / 1000 * 1000,
                write,
                offset,
                bytes,
            }
        })
        .collect();
    let begin = all[0].at;
    for request in &mut all {
        request.at -= begin;
    }
    all
}

/// A database: 8 KiB at random places of 2 GiB, two of three read.
fn database() -> Vec<Request> {
    make(1, 150.0, 0.0..1.0, |rng| {
        let place = rng.next_u64() % (2048 * MIB / (8 * KIB));
        (rng.next_u64() % 3 == 0, place * 8 * KIB, 8 * KIB)
    })
}

/// Web servers: 4 to 128 KiB, nine of ten read, the more often the nearer to the beginning of 4 GiB.
fn web() -> Vec<Request> {
    make(2, 100.0, 1.0..2.0, |rng| {
        let (a, b) = (rng.next_u64() % MIB, rng.next_u64() % MIB);
        let bytes = (4 * KIB) << (rng.next_u64() % 6);
        (rng.next_u64() % 10 == 0, a.min(b) * 4 * KIB, bytes)
    })
}

/// Streams: runs of 256 KiB from beginning to end of some MiB, written and read in turns.
fn streams() -> Vec<Request> {
    let (mut left, mut next, mut write) = (0, 0, false);
    make(3, 60.0, 2.0..3.0, move |rng| {
        if left == 0 {
            left = 16 + rng.next_u64() % 48;
            next = rng.next_u64() % 4096 * MIB;
            write = !write;
        }
        left -= 1;
        next += 256 * KIB;
        (write, next - 256 * KIB, 256 * KIB)
    })
}

fn spc(requests: &[Request]) -> String {
    requests.iter().fold(String::new(), |mut text, r| {
        let kind = if r.write { 'W' } else { 'R' };
        let at = to_f64(r.at) / 1e9;
        writeln!(text, "0,{},{},{kind},{at:.6}", r.offset / 512, r.bytes).unwrap();
        text
    })
}

fn msr(requests: &[Request]) -> String {
    requests.iter().fold(String::new(), |mut text, r| {
        let kind = if r.write { "Write" } else { "Read" };
        let at = 128_166_372_000_000_000 + r.at / 100;
        writeln!(text, "{at},web,0,{kind},{},{},0", r.offset, r.bytes).unwrap();
        text
    })
}

fn blkparse(requests: &[Request]) -> String {
    let mut text = String::new();
    for (number, r) in requests.iter().enumerate() {
        let kind = if r.write { "WS" } else { "R" };
        let (first, sectors) = (r.offset / 512, r.bytes / 512);
        let at = format!("{}.{:09}", r.at / 1_000_000_000, r.at % 1_000_000_000);
        writeln!(
            text,
            "254,0 0 {number} {at} 1 Q {kind} {first} + {sectors} [stream]"
        )
        .unwrap();
    }
    text
}

#[test]
fn the_shipped_traces_are_these_and_are_read_back() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces");
    for (name, format, requests, text) in [
        (
            "database.spc",
            Format::Spc,
            database(),
            spc as fn(&[Request]) -> String,
        ),
        ("web.msr", Format::Msr, web(), msr),
        ("streams.blkparse", Format::Blkparse, streams(), blkparse),
    ] {
        let (path, text) = (directory.join(name), text(&requests));
        assert_eq!(
            read(text.as_bytes(), format, 10_000).unwrap(),
            requests,
            "{name}"
        );
        if std::env::var_os("JUSTITIA_WRITE_TRACES").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let shipped = std::fs::read_to_string(&path).unwrap();
        assert!(
            shipped == text,
            "expected {name} to be what this makes: run this test with JUSTITIA_WRITE_TRACES=1 to write it anew"
        );
    }
    let real = std::fs::File::open(directory.join("vm.cloudphysics")).unwrap();
    let real = read(std::io::BufReader::new(real), Format::Cloudphysics, 10_000).unwrap();
    assert_eq!(real.len(), 2000);
}
