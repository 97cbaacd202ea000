//! io.stat, io.weight and the knobs.

#![no_main]

#[path = "../../tests/hostile/checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|text: &[u8]| checks::some(&["io_stat", "io_weight", "knob"], text));
