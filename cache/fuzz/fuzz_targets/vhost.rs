//! A guest's memory with rings and descriptors, and the region that a front end keeps of requests in flight.
#![no_main]

use justitia_cache::vhost::{fuzz::read_a_chain, recover_from};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match data {
        [0..64, low, high, rest @ ..] => recover_from(rest, u16::from_le_bytes([*low, *high])),
        [_, rest @ ..] => {
            let _ = read_a_chain(rest);
        }
        [] => {}
    }
});
