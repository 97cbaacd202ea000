//! Files of units, and drop-ins.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let _ = justitia_runtimes::parse::unit_weight(text, "Service");
});
