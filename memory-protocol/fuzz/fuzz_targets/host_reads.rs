//! The host's side: what a guest writes. An answer that is understood means what it says when it is written again, and its
//! texts can be logged.
#![no_main]

use justitia_memory_protocol::{Answer, Body, ErrorText, Lines, MAX_LINE, encode};
use libfuzzer_sys::fuzz_target;

fn is_printable(text: &str) -> bool {
    text.len() <= ErrorText::MAX && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fuzz_target!(|data: &[u8]| {
    // The first byte is how long the pieces are, in which the rest arrives.
    let Some((size, data)) = data.split_first() else {
        return;
    };
    let mut lines = Lines::new();
    for piece in data.chunks(1 + usize::from(*size) * 32) {
        for line in lines.push(piece).into_iter().flatten() {
            assert!(line.len() < MAX_LINE);
            match Answer::decode(&line) {
                Ok(answer) => {
                    if let Body::Error(text) = &answer.body {
                        assert!(is_printable(text.as_str()));
                    }
                    let again = encode(&answer);
                    assert!(again.len() <= MAX_LINE);
                    assert_eq!(Answer::decode(&again), Ok(answer));
                }
                Err(wrong) => assert!(is_printable(wrong.why.as_str())),
            }
        }
        assert!(lines.pending() < MAX_LINE);
    }
});
