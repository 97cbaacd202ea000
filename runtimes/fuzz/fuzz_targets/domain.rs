//! libvirt's states of machines.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let _ = justitia_runtimes::parse::domain(text);
});
