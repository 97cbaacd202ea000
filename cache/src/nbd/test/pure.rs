//! Parsers and negotiation, without I/O, and what chance makes of them.

use crate::frontend::Operation;
use crate::nbd::handshake::{ExportInfo, ExportLookup, Handshake, Next, Tls};
use crate::nbd::proto::{Errno, MAX_PAYLOAD, OPTION_MAGIC, OPTION_REPLY_MAGIC, option, reply};
use crate::nbd::reply::Style;
use crate::nbd::request::Refusal;
use crate::nbd::request::{Command, Parsed, Request, parse};
use proptest::prelude::*;

struct One;

impl ExportLookup for One {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        ["", "disk"].contains(&name).then(|| ExportInfo {
            name: "disk".into(),
            description: "a disk".into(),
            size: 1 << 20,
            flags: 1,
        })
    }
    fn list(&self) -> Vec<ExportInfo> {
        self.find("").into_iter().collect()
    }
}

fn message(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut m = OPTION_MAGIC.to_be_bytes().to_vec();
    m.extend(kind.to_be_bytes());
    m.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    m.extend(data);
    m
}

fn string(s: &str) -> Vec<u8> {
    let mut m = u32::try_from(s.len()).unwrap().to_be_bytes().to_vec();
    m.extend(s.as_bytes());
    m
}

/// A negotiation that has exchanged its greetings.
fn greeted(tls: Tls) -> Handshake {
    let mut out = Vec::new();
    let mut h = Handshake::new(tls, &mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(h.step(&[0, 0, 0, 3], &One, &mut out), (4, Next::More));
    h
}

/// The types of the replies to one option, and what came next.
fn ask(h: &mut Handshake, kind: u32, data: &[u8]) -> (Vec<u32>, Next) {
    let m = message(kind, data);
    let mut out = Vec::new();
    let (used, next) = h.step(&m, &One, &mut out);
    assert_eq!(used, m.len());
    let mut types = Vec::new();
    let mut rest = crate::nbd::proto::Bytes(&out);
    while !rest.0.is_empty() {
        assert_eq!(rest.u64(), Some(OPTION_REPLY_MAGIC));
        assert_eq!(rest.u32(), Some(kind));
        types.push(rest.u32().unwrap());
        let length = rest.u32().unwrap();
        rest.take(usize::try_from(length).unwrap()).unwrap();
    }
    (types, next)
}

fn go_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut d = string(name);
    d.extend(u16::try_from(infos.len()).unwrap().to_be_bytes());
    infos.iter().for_each(|i| d.extend(i.to_be_bytes()));
    d
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut d = string(name);
    d.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    queries.iter().for_each(|q| d.extend(string(q)));
    d
}

#[test]
fn options_are_answered() {
    let context = meta_data("disk", &["base:allocation"]);
    for (kind, data, expected) in [
        (option::LIST, vec![], vec![reply::SERVER, reply::ACK]),
        (option::LIST, vec![1], vec![reply::ERR_INVALID]),
        (
            option::INFO,
            go_data("disk", &[]),
            vec![reply::INFO, reply::ACK],
        ),
        (
            option::INFO,
            go_data("", &[1, 2, 3, 3, 99]),
            vec![
                reply::INFO,
                reply::INFO,
                reply::INFO,
                reply::INFO,
                reply::ACK,
            ],
        ),
        (option::INFO, go_data("nope", &[]), vec![reply::ERR_UNKNOWN]),
        (option::INFO, vec![0, 0, 0, 200], vec![reply::ERR_INVALID]),
        (
            option::SET_META_CONTEXT,
            context.clone(),
            vec![reply::ERR_INVALID],
        ),
        (
            option::LIST_META_CONTEXT,
            meta_data("disk", &[]),
            vec![reply::META_CONTEXT, reply::ACK],
        ),
        (
            option::LIST_META_CONTEXT,
            meta_data("disk", &["qemu:"]),
            vec![reply::ACK],
        ),
        (option::STRUCTURED_REPLY, vec![], vec![reply::ACK]),
        (option::EXTENDED_HEADERS, vec![], vec![reply::ACK]),
        (option::STARTTLS, vec![], vec![reply::ERR_POLICY]),
        (77, vec![1, 2, 3], vec![reply::ERR_UNSUP]),
    ] {
        let mut h = greeted(Tls::Unavailable);
        assert_eq!(
            ask(&mut h, kind, &data),
            (expected, Next::More),
            "{kind} {data:?}"
        );
    }
}

#[test]
fn what_was_agreed_holds() {
    let mut h = greeted(Tls::Unavailable);
    ask(&mut h, option::STRUCTURED_REPLY, &[]);
    let context = meta_data("", &["x:y", "base:allocation"]);
    let (types, _) = ask(&mut h, option::SET_META_CONTEXT, &context);
    assert_eq!(types, [reply::META_CONTEXT, reply::ACK]);
    let (_, Next::Transmission(agreed)) = ask(&mut h, option::GO, &go_data("disk", &[])) else {
        panic!("expected the transmission phase");
    };
    assert_eq!(
        (agreed.export.as_str(), agreed.style),
        ("disk", Style::Structured)
    );
    assert!(agreed.allocation);

    // Extended headers cannot be taken back by asking for less.
    let mut h = greeted(Tls::Unavailable);
    ask(&mut h, option::EXTENDED_HEADERS, &[]);
    let (types, _) = ask(&mut h, option::STRUCTURED_REPLY, &[]);
    assert_eq!(types, [reply::ERR_EXT_HEADER_REQD]);
}

#[test]
fn tls_comes_first_and_voids_what_came_before() {
    let mut h = greeted(Tls::Required);
    assert_eq!(ask(&mut h, option::LIST, &[]).0, [reply::ERR_TLS_REQD]);
    assert!(matches!(
        ask(&mut h, option::EXPORT_NAME, b"disk").1,
        Next::Close(_)
    ));
    let mut h = greeted(Tls::Offered);
    ask(&mut h, option::STRUCTURED_REPLY, &[]);
    assert_eq!(ask(&mut h, option::STARTTLS, &[]).1, Next::StartTls);
    h.secured();
    let (_, Next::Transmission(agreed)) = ask(&mut h, option::GO, &go_data("", &[])) else {
        panic!("expected the transmission phase");
    };
    assert_eq!(agreed.style, Style::Simple);
    assert_eq!(ask(&mut h, option::STARTTLS, &[]).0, [reply::ERR_INVALID]);
}

#[test]
fn nonsense_ends_the_negotiation() {
    let mut out = Vec::new();
    for bytes in [
        [0; 16].to_vec(),
        [OPTION_MAGIC.to_be_bytes(), [0, 0, 0, 3, 0, 1, 0, 1]].concat(),
    ] {
        let mut h = greeted(Tls::Unavailable);
        assert!(matches!(h.step(&bytes, &One, &mut out).1, Next::Close(_)));
    }
    let mut h = Handshake::new(Tls::Unavailable, &mut out);
    assert!(matches!(
        h.step(&[9, 0, 0, 3], &One, &mut out).1,
        Next::Close(_)
    ));
    let mut h = greeted(Tls::Unavailable);
    assert!(matches!(ask(&mut h, option::ABORT, &[]).1, Next::Close(_)));
    let mut h = greeted(Tls::Unavailable);
    let last = (0..2000).map(|_| ask(&mut h, option::STRUCTURED_REPLY, &[]).1);
    assert!(last.into_iter().any(|next| matches!(next, Next::Close(_))));
}

fn header(flags: u16, kind: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut m = 0x2560_9513_u32.to_be_bytes().to_vec();
    m.extend(flags.to_be_bytes());
    m.extend(kind.to_be_bytes());
    m.extend(42u64.to_be_bytes());
    m.extend(offset.to_be_bytes());
    m.extend(length.to_be_bytes());
    m
}

fn parsed(bytes: &[u8]) -> Request {
    match parse(bytes, false) {
        Parsed::Request(request, used) => {
            assert_eq!(used, 28);
            assert_eq!(request.cookie, 42);
            request
        }
        other => panic!("expected a request, found {other:?}"),
    }
}

#[test]
fn requests_are_understood_or_refused() {
    const SIZE: u64 = 1 << 20;
    let refused = |why, errno| {
        assert_eq!(Refusal::errno(why), errno);
        Command::Refused(why)
    };
    let form = |kind, flags| refused(Refusal::Form { kind, flags }, Errno::Inval);
    let beyond = |writes, errno| refused(Refusal::BeyondEnd { size: SIZE, writes }, errno);
    let does = Command::Do;
    let too_long = refused(Refusal::TooLong, Errno::Overflow);
    for (flags, kind, offset, length, command) in [
        (0, 0, 0, 4096, does(Operation::Read)),
        (0, 0, 0, 0, form(0, 0)),
        (0, 0, 0, MAX_PAYLOAD + 1, too_long),
        (0, 0, SIZE, 1, beyond(false, Errno::Inval)),
        (0, 0, u64::MAX, 4096, beyond(false, Errno::Inval)),
        (1, 1, 0, 4096, does(Operation::Write { fua: true })),
        (0, 1, SIZE - 1, 2, beyond(true, Errno::NoSpc)),
        (0, 2, 0, 0, Command::Disconnect),
        (0, 3, 0, 0, does(Operation::Flush)),
        (0, 4, 0, 1, does(Operation::Discard { fua: false })),
        (0, 5, 0, 1, form(5, 0)),
        (
            2,
            6,
            0,
            1,
            does(Operation::WriteZeroes {
                fua: false,
                may_unmap: false,
                fast: false,
            }),
        ),
        (
            16,
            6,
            0,
            1,
            does(Operation::WriteZeroes {
                fua: false,
                may_unmap: true,
                fast: true,
            }),
        ),
        // Only extended headers say that a payload follows.
        (32, 1, 0, 1, form(1, 32)),
        (32, 0, 0, 1, form(0, 32)),
        (8, 7, 0, 1, does(Operation::Extents { limit: 1 })),
        (0, 99, 0, 1, form(99, 0)),
    ] {
        let request = parsed(&header(flags, kind, offset, length)).checked(SIZE, false);
        assert_eq!(request.command, command, "{flags} {kind} {offset} {length}");
        assert_eq!(request.chunked, [0, 7].contains(&kind));
    }
    for kind in [1, 4, 6] {
        let request = parsed(&header(0, kind, 0, 1)).checked(SIZE, true);
        let read_only = refused(Refusal::ReadOnly, Errno::Perm);
        assert_eq!(request.command, read_only);
    }
}

#[test]
fn what_is_no_request_is_garbage() {
    assert!(matches!(
        parse(&header(0, 1, 0, MAX_PAYLOAD + 1), false),
        Parsed::Garbage(_)
    ));
    assert!(matches!(parse(&[0; 28], false), Parsed::Garbage(_)));
    assert_eq!(parse(&header(0, 0, 0, 1)[..27], false), Parsed::Incomplete);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Any bytes: no panic, nothing consumed that was not there, and nothing executable beyond the limits.
    #[test]
    fn any_request_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 0..64),
        extended: bool,
        magic: bool,
        read_only: bool,
    ) {
        let magics = if extended { [0x21, 0xe4, 0x1c, 0x71] } else { [0x25, 0x60, 0x95, 0x13] };
        if magic && bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&magics);
            bytes[4] = 0;
            bytes[6] = 0;
            bytes[7] &= 15;
        }
        if let Parsed::Request(request, used) = parse(&bytes, extended) {
            prop_assert_eq!(used, if extended { 32 } else { 28 });
            prop_assert!(request.payload <= MAX_PAYLOAD);
            let request = request.checked(1 << 20, read_only);
            match request.command {
                Command::Refused(_) | Command::Disconnect | Command::Do(Operation::Flush) => {}
                Command::Do(operation) => {
                    prop_assert!(!(read_only && operation.is_write()));
                    prop_assert!(request.offset + request.length <= 1 << 20);
                }
            }
        }
    }

    /// Any options, whole or cut into pieces: the same replies, and never much more than was asked.
    #[test]
    fn any_option_bytes(
        options in prop::collection::vec(
            (0u32..14, prop::collection::vec(any::<u8>(), 0..48), any::<bool>()), 0..12),
        cut in 1usize..40,
    ) {
        let mut stream = vec![0, 0, 0, 3];
        for (kind, mut data, tidy) in options {
            if tidy && data.len() >= 6 {
                data[..6].copy_from_slice(&[0, 0, 0, 0, 0, 1]);
            }
            stream.extend(message(kind, &data));
        }
        let whole = drive(&stream, stream.len());
        prop_assert_eq!(&whole, &drive(&stream, cut));
        prop_assert!(whole.0.len() <= 18 + stream.len() * 20);
    }
}

/// Feeds a negotiation, `cut` bytes at a time, as a connection would.
fn drive(stream: &[u8], cut: usize) -> (Vec<u8>, Option<Next>) {
    let mut out = Vec::new();
    let mut h = Handshake::new(Tls::Offered, &mut out);
    let mut pending = Vec::new();
    for piece in stream.chunks(cut.max(1)) {
        pending.extend(piece);
        loop {
            let (used, next) = h.step(&pending, &One, &mut out);
            pending.drain(..used);
            match next {
                Next::More if used > 0 => {}
                Next::More => break,
                other => return (out, Some(other)),
            }
        }
    }
    (out, None)
}
