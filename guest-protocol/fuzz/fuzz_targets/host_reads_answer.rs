//! The host's side: what a guest writes. An answer that is understood means what it says when it is written again, and its
//! texts can be logged.
#![no_main]

use justitia_guest_protocol::memory::{
    Answer, BLOCK, Body, ErrorText, Lines, MAX_DISKS, MAX_LINE, MAX_TENANTS, MAX_WEIGHT, TenantName,
    encode, is_sampled,
};
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
                    if let Body::Cached(cached) = &answer.body {
                        assert!(cached.disks().len() <= MAX_DISKS);
                        for disk in cached.disks() {
                            let blocks: Vec<u64> = disk.blocks().collect();
                            assert!(blocks.is_sorted_by(|a, b| a < b));
                            assert!(blocks.iter().all(|at| {
                                *at < disk.size / BLOCK && is_sampled(*at, cached.seed(), cached.shift())
                            }));
                        }
                    }
                    if let Body::Tenants(tenants) = &answer.body {
                        assert!(tenants.list().len() <= MAX_TENANTS);
                        for tenant in tenants.list() {
                            let name = tenant.name.as_str();
                            assert!(is_printable(name) && !name.contains(' '));
                            assert!(name.len() <= TenantName::MAX);
                            assert!((1..=MAX_WEIGHT).contains(&tenant.weight));
                        }
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
