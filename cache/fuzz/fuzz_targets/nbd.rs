//! A client's bytes, from the greeting on, through negotiation and the requests that follow.
#![no_main]

use justitia_cache::nbd::fuzz::{
    ExportLookup, Command, Handshake, Next, ExportInfo, Operation, Parsed, Style, Tls, parse,
};
use libfuzzer_sys::fuzz_target;

const SIZE: u64 = 1 << 20;

struct One;

impl ExportLookup for One {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        ["", "disk"].contains(&name).then(|| ExportInfo {
            name: "disk".into(),
            description: "a disk".into(),
            size: SIZE,
            flags: 1,
        })
    }
    fn list(&self) -> Vec<ExportInfo> {
        self.find("").into_iter().collect()
    }
}

fuzz_target!(|data: &[u8]| {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(Tls::Offered, &mut out);
    let mut rest = data;
    let style = loop {
        let (used, next) = handshake.step(rest, &One, &mut out);
        assert!(used <= rest.len());
        rest = &rest[used..];
        // Replies are in proportion to what was asked.
        assert!(out.len() <= 200 + data.len() * 20);
        match next {
            Next::More if used == 0 => return,
            Next::More => {}
            Next::StartTls => handshake.secured(),
            Next::Close(_) => return,
            Next::Transmission(agreed) => break agreed.style,
        }
    };
    while let Parsed::Request(request, used) = parse(rest, style == Style::Extended) {
        rest = &rest[used..];
        let payload = usize::try_from(request.payload).unwrap();
        assert!(payload <= 32 << 20);
        let request = request.checked(SIZE, false);
        if !matches!(
            request.command,
            Command::Refused(_) | Command::Disconnect | Command::Do(Operation::Flush)
        ) {
            assert!(request.offset.checked_add(request.length).unwrap() <= SIZE);
        }
        let Some(after) = rest.get(payload..) else {
            return;
        };
        rest = after;
    }
});
