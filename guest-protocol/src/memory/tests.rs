//! Both sides: each understands the other's messages, and nothing else.

use crate::memory::*;
use proptest::prelude::*;

fn state() -> State {
    State {
        total: 1,
        free: 2,
        available: 3,
        file: 4,
        mapped: 5,
        dirty: 6,
        slab_reclaimable: 7,
        anonymous: 8,
        unreclaimable: 9,
        worth: 10,
        swap_used: 11,
        refaults: 12,
        psi_some_us: 13,
        psi_full_us: 14,
        oom_kills: 15,
        reporting_order: Some(9),
        uptime_ms: 16,
    }
}

fn cached() -> Cached {
    let mut sampler = Sampler::new(5, [("root", 40_960)]);
    for block in [7, 2] {
        sampler.add(0, block);
    }
    sampler.finish(65_536, true)
}

fn tenant(name: &str, weight: u64, file: u64) -> Tenant {
    Tenant {
        name: TenantName::new(name),
        weight,
        file,
    }
}

fn text(line: &[u8]) -> &str {
    std::str::from_utf8(line).unwrap()
}

#[test]
fn requests_are_these_lines() {
    let requests = [
        (Request::State { id: 7 }, r#"{"request":"state","id":7}"#),
        (
            Request::Reclaim {
                id: 8,
                bytes: 67_108_864,
                within_ms: 2000,
            },
            r#"{"request":"reclaim","id":8,"bytes":67108864,"within_ms":2000}"#,
        ),
        (
            Request::Cached { id: 9, seed: 7 },
            r#"{"request":"cached","id":9,"seed":7}"#,
        ),
        (
            Request::Tenants { id: 10 },
            r#"{"request":"tenants","id":10}"#,
        ),
    ];
    for (request, line) in requests {
        assert_eq!(text(&encode(&request)), format!("{line}\n"));
        assert_eq!(Request::decode(line.as_bytes()), Ok(request));
    }
}

#[test]
fn answers_are_these_lines() {
    let reclaimed = Reclaimed { bytes: 3, free: 4 };
    let answers = [
        (
            Body::State(state()),
            concat!(
                r#"{"id":7,"state":{"total":1,"free":2,"available":3,"file":4,"mapped":5,"dirty":6,"#,
                r#""slab_reclaimable":7,"anonymous":8,"unreclaimable":9,"worth":10,"swap_used":11,"#,
                r#""refaults":12,"psi_some_us":13,"psi_full_us":14,"oom_kills":15,"#,
                r#""reporting_order":9,"uptime_ms":16}}"#
            ),
        ),
        (
            Body::Reclaimed(reclaimed),
            r#"{"id":7,"reclaimed":{"bytes":3,"free":4}}"#,
        ),
        (
            Body::Cached(cached()),
            concat!(
                r#"{"id":7,"cached":{"seed":5,"shift":0,"file":65536,"whole":true,"disks":"#,
                r#"[{"serial":"root","size":40960,"bytes":8192,"blocks":[2,5]}]}}"#
            ),
        ),
        (
            Body::Tenants(Tenants::new([tenant("db", 1, 0), tenant("web", 300, 4096)])),
            concat!(
                r#"{"id":7,"tenants":{"list":[{"name":"web","weight":300,"file":4096},"#,
                r#"{"name":"db","weight":1,"file":0}],"more":0}}"#
            ),
        ),
        (
            Body::Error(ErrorText::new("why")),
            r#"{"id":7,"error":"why"}"#,
        ),
    ];
    for (body, line) in answers {
        let answer = Answer { id: 7, body };
        assert_eq!(text(&encode(&answer)), format!("{line}\n"));
        assert_eq!(Answer::decode(line.as_bytes()), Ok(answer));
    }
}

#[test]
fn a_newer_side_may_say_more() {
    let request = br#" {"new":[{}],"id":7,"request":"state"} "#;
    assert_eq!(Request::decode(request), Ok(Request::State { id: 7 }));
    let answer = br#"{"id":7,"reclaimed":{"bytes":1,"free":2,"new":null},"new":"x"}"#;
    let body = Body::Reclaimed(Reclaimed { bytes: 1, free: 2 });
    assert_eq!(Answer::decode(answer), Ok(Answer { id: 7, body }));
    let without = text(&encode(&Answer {
        id: 1,
        body: Body::State(state()),
    }))
    .replace(r#""reporting_order":9,"#, "");
    let Body::State(read) = Answer::decode(without.as_bytes()).unwrap().body else {
        panic!("no state")
    };
    assert_eq!(read.reporting_order, None);
}

#[test]
fn what_is_no_request_is_refused_with_its_id() {
    let table = r#"
{"request":"shrink","id":7} | 7 | shrink
{"id":7} | 7 | request
{"request":"reclaim","id":7} | 7 | bytes
{"request":"reclaim","id":7,"bytes":-1,"within_ms":1} | 7 | -1
{"request":"reclaim","id":7,"bytes":1.5,"within_ms":1} | 7 | 1.5
{"request":"reclaim","id":7,"bytes":1,"within_ms":4294967296} | 7 | 4294967296
{"request":"state","id":7,"id":8} | - | duplicate field
{"request":"state","id":-7} | - | -7
{"request":"state","id":18446744073709551616} | - | floating point
{"request":"state"} | - | id
[7] | - | no object
["state",7] | - | no object
7 | - |
{"request":"state","id":7 | - | EOF
{"request":"state","id":7}{} | - | trailing
"#;
    for row in table.trim().lines() {
        let (line, told) = row.split_once(" | ").unwrap();
        let (id, why) = told.split_once(" |").unwrap();
        let wrong = Request::decode(line.as_bytes()).unwrap_err();
        let id = (id != "-").then(|| id.parse::<u64>().unwrap());
        assert_eq!(wrong.id, id, "{line}");
        assert!(wrong.why.as_str().contains(why.trim()), "{row}: {wrong}");
    }
    assert_eq!(Request::decode(b"\x1b[2J").unwrap_err().id, None);
}

#[test]
fn an_answer_says_one_thing() {
    for line in [
        r#"{"id":7}"#,
        r#"{"id":7,"error":"a","reclaimed":{"bytes":1,"free":1}}"#,
        r#"{"id":7,"error":"a","error":"b"}"#,
        r#"{"id":7,"error":null}"#,
        r#"{"id":7,"state":{"total":1}}"#,
        r#"{"error":"a"}"#,
        r#"[7,null,null,"a"]"#,
    ] {
        assert!(Answer::decode(line.as_bytes()).is_err(), "{line}");
    }
}

#[test]
fn blocks_are_those_of_the_sample() {
    let line = |shift, size, blocks: &str| {
        format!(
            r#"{{"id":7,"cached":{{"seed":5,"shift":{shift},"file":0,"whole":true,"disks":[{{"serial":"a","size":{size},"bytes":0,"blocks":[{blocks}]}}]}}}}"#
        )
    };
    let sampled: Vec<u64> = (1..400).filter(|block| is_sampled(*block, 5, 3)).collect();
    let [first, second] = sampled[..2] else {
        panic!("no sample")
    };
    let good = format!("{first},{}", second - first);
    let all = vec!["1"; 1200].join(",");
    for (line, is_good) in [
        (line(3, 400 * 4096, &good), true),
        (line(3, second * 4096, &good), false),
        (line(3, 400 * 4096, &format!("{first},0")), false),
        (
            line(3, 400 * 4096, &format!("{}", first + 1)),
            is_sampled(first + 1, 5, 3),
        ),
        (line(41, 400 * 4096, ""), false),
        (line(40, 400 * 4096, ""), true),
        (line(0, u64::MAX, "18446744073709551615,1"), false),
        (line(0, u64::MAX, &all), true),
        (line(0, u64::MAX, &format!("{all},{all}")), false),
    ] {
        assert_eq!(Answer::decode(line.as_bytes()).is_ok(), is_good, "{line}");
    }
    let disk = r#"{"serial":"a","size":0,"bytes":0,"blocks":[]}"#;
    let many = [disk; 9].join(",");
    let line = format!(
        r#"{{"id":7,"cached":{{"seed":5,"shift":0,"file":0,"whole":true,"disks":[{many}]}}}}"#
    );
    assert!(Answer::decode(line.as_bytes()).is_err());
}

#[test]
fn of_ten_thousand_tenants_those_that_hold_most_are_told() {
    let many = (0..10_000).map(|n| tenant(&"\"".repeat(100), u64::MAX, u64::MAX - n));
    let told = Tenants::new(many);
    assert_eq!(
        (told.list().len(), told.more()),
        (MAX_TENANTS, 10_000 - MAX_TENANTS as u64)
    );
    let first = &told.list()[0];
    assert_eq!((first.weight, first.file), (MAX_WEIGHT, u64::MAX));
    let answer = Answer {
        id: u64::MAX,
        body: Body::Tenants(told),
    };
    assert!(encode(&answer).len() <= MAX_LINE);
    assert_eq!(Answer::decode(&encode(&answer)), Ok(answer));
}

#[test]
fn a_guest_tells_no_more_tenants_and_no_other_weights_than_there_can_be() {
    let line = |count: usize, weight: &str, name: &str| {
        let one = format!(r#"{{"name":"{name}","weight":{weight},"file":18446744073709551615}}"#);
        let list = vec![one; count].join(",");
        format!(r#"{{"id":7,"tenants":{{"list":[{list}],"more":18446744073709551615}}}}"#)
    };
    for (count, weight, is_good) in [
        (0, "1", true),
        (16, "1", true),
        (17, "1", false),
        (1, "10000", true),
        (1, "10001", false),
        (1, "0", false),
        (1, "-1", false),
        (1, "18446744073709551615", false),
        (1, "18446744073709551616", false),
    ] {
        let line = line(count, weight, "a");
        assert_eq!(Answer::decode(line.as_bytes()).is_ok(), is_good, "{line}");
    }
    let wild = r#"\u001b[2J\n\u202eweb  100\t4.00G\"\\"#.repeat(20);
    let read = Answer::decode(line(1, "1", &wild).as_bytes()).unwrap();
    let Body::Tenants(tenants) = read.body else {
        panic!("no tenants")
    };
    let name = tenants.list()[0].name.as_str();
    assert!(name.starts_with("?[2J??web??100?4.00G??"), "{name}");
    assert_eq!(name.len(), TenantName::MAX);
}

#[test]
fn a_text_is_short_and_printable() {
    let answer = br#"{"id":1,"error":"\u001b[2Ja\nb \u202e\u0000"}"#;
    let Body::Error(error) = Answer::decode(answer).unwrap().body else {
        panic!("no error")
    };
    assert_eq!(error.as_str(), "?[2Ja?b ??");
    let long = "\"".repeat(100_000);
    assert_eq!(ErrorText::new(&long).as_str().len(), ErrorText::MAX);
    assert!(encode(&Answer::error(u64::MAX, &long)).len() <= MAX_LINE);
    let kind = "\\u001b".repeat(600);
    let line = format!(r#"{{"request":"{kind}","id":1}}"#);
    let why = Request::decode(line.as_bytes()).unwrap_err().to_string();
    assert!(!why.contains('\u{1b}') && why.len() < 300, "{why}");
}

#[test]
fn nesting_is_bounded() {
    let deep = format!(r#"{{"request":"state","id":7,"x":{}"#, "[".repeat(MAX_LINE));
    assert!(Request::decode(deep.as_bytes()).is_err());
}

#[test]
fn a_line_is_as_long_as_it_may_be() {
    let longest = vec![b'a'; MAX_LINE - 1];
    let mut with_newline = longest.clone();
    with_newline.push(b'\n');
    assert_eq!(Lines::new().push(&with_newline), [Ok(longest.clone())]);

    let mut lines = Lines::new();
    assert_eq!(lines.push(&longest), []);
    assert_eq!(lines.push(b"a"), [Err(LineTooLong)]);
    assert_eq!(lines.push(&[b'a'; 100_000]), []);
    assert_eq!(lines.pending(), 0);
    assert_eq!(lines.push(b"a\n\r\n\nb\nc"), [Ok(b"b".to_vec())]);
    assert_eq!(lines.push(b"d\n"), [Ok(b"cd".to_vec())]);
    let mut long_and_next = vec![b'a'; MAX_LINE];
    long_and_next.extend_from_slice(b"\nb\n");
    assert_eq!(
        lines.push(&long_and_next),
        [Err(LineTooLong), Ok(b"b".to_vec())]
    );
}

fn any_state() -> impl Strategy<Value = State> {
    (any::<[u64; 16]>(), any::<Option<u8>>()).prop_map(|(n, reporting_order)| State {
        total: n[0],
        free: n[1],
        available: n[2],
        file: n[3],
        mapped: n[4],
        dirty: n[5],
        slab_reclaimable: n[6],
        anonymous: n[7],
        unreclaimable: n[8],
        worth: n[9],
        swap_used: n[10],
        refaults: n[11],
        psi_some_us: n[12],
        psi_full_us: n[13],
        oom_kills: n[14],
        reporting_order,
        uptime_ms: n[15],
    })
}

fn any_answer() -> impl Strategy<Value = Answer> {
    let body = prop_oneof![
        any_state().prop_map(Body::State),
        any::<(u64, u64)>().prop_map(|(bytes, free)| Body::Reclaimed(Reclaimed { bytes, free })),
        any::<(u64, String, Vec<u16>)>().prop_map(|(seed, serial, blocks)| {
            let mut sampler = Sampler::new(seed, [(serial.as_str(), 1 << 28)]);
            for block in blocks {
                sampler.add(0, block.into());
            }
            Body::Cached(sampler.finish(seed, false))
        }),
        prop::collection::vec(any::<(String, u64, u64)>(), 0..20).prop_map(|all| {
            let all = all
                .iter()
                .map(|(name, weight, file)| tenant(name, *weight, *file));
            Body::Tenants(Tenants::new(all))
        }),
        any::<String>().prop_map(|text| Body::Error(ErrorText::new(&text))),
    ];
    (any::<u64>(), body).prop_map(|(id, body)| Answer { id, body })
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<u64>().prop_map(|id| Request::State { id }),
        any::<u64>().prop_map(|id| Request::Tenants { id }),
        any::<(u64, u64)>().prop_map(|(id, seed)| Request::Cached { id, seed }),
        any::<(u64, u64, u32)>().prop_map(|(id, bytes, within_ms)| Request::Reclaim {
            id,
            bytes,
            within_ms
        }),
    ]
}

/// Lines whole, begun and broken, of any length.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        Just(b"\n".to_vec()),
        any_request().prop_map(|request| encode(&request)),
        any_answer().prop_map(|answer| encode(&answer)),
        (MAX_LINE - 4..MAX_LINE + 4).prop_map(|len| vec![b'{'; len]),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn an_answer_comes_back(answer in any_answer()) {
        let line = encode(&answer);
        prop_assert!(line.len() <= MAX_LINE);
        prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let lines = Lines::new().push(&line);
        prop_assert_eq!(Answer::decode(lines[0].as_ref().unwrap()), Ok(answer));
    }

    #[test]
    fn a_request_comes_back(request in any_request()) {
        let lines = Lines::new().push(&encode(&request));
        prop_assert_eq!(Request::decode(lines[0].as_ref().unwrap()), Ok(request));
    }

    #[test]
    fn pieces_are_the_lines_of_the_whole(bytes in any_bytes(), size in 1_usize..5000) {
        let mut lines = Lines::new();
        let mut found = Vec::new();
        for piece in bytes.chunks(size) {
            found.extend(lines.push(piece));
            prop_assert!(lines.pending() < MAX_LINE);
        }
        let mut whole = Lines::new();
        prop_assert_eq!(&found, &whole.push(&bytes));
        prop_assert_eq!(lines.pending(), whole.pending());
        for line in found.into_iter().flatten() {
            prop_assert!(line.len() < MAX_LINE && !line.contains(&b'\n'));
            if let Ok(answer) = Answer::decode(&line) {
                prop_assert_eq!(Answer::decode(&encode(&answer)), Ok(answer));
            }
            if let Ok(request) = Request::decode(&line) {
                prop_assert_eq!(Request::decode(&encode(&request)), Ok(request));
            }
        }
    }
}
