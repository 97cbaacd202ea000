//! The guest's side: what a host writes. A request that is understood means what it says when it is written again.
#![no_main]

use justitia_guest_protocol::memory::{Answer, Lines, MAX_LINE, Request, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first byte is how long the pieces are, in which the rest arrives.
    let Some((size, data)) = data.split_first() else {
        return;
    };
    let mut lines = Lines::new();
    for piece in data.chunks(1 + usize::from(*size) * 32) {
        for line in lines.push(piece).into_iter().flatten() {
            assert!(line.len() < MAX_LINE);
            match Request::decode(&line) {
                Ok(request) => {
                    let again = encode(&request);
                    assert!(again.len() <= MAX_LINE);
                    assert_eq!(Request::decode(&again), Ok(request));
                }
                Err(wrong) => {
                    let answer = Answer::error(wrong.id.unwrap_or(0), wrong.why.as_str());
                    assert_eq!(Answer::decode(&encode(&answer)), Ok(answer));
                }
            }
        }
        assert!(lines.pending() < MAX_LINE);
    }
});
