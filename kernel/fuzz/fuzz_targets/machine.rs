//! /proc/meminfo, vmstat, zoneinfo and mountinfo.

#![no_main]

#[path = "../../tests/hostile/checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|text: &[u8]| checks::some(
    &["meminfo", "vmstat", "zoneinfo", "mountinfo"],
    text
));
