//! The cgroup core's files and lru_gen.

#![no_main]

#[path = "../../tests/hostile/checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|text: &[u8]| checks::some(&["core", "lru_gen"], text));
