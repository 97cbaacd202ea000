//! memory.stat, memory.events, limits and pressure.

#![no_main]

#[path = "../../tests/hostile/checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|text: &[u8]| checks::some(
    &["memory_stat", "memory_events", "limit", "psi"],
    text
));
