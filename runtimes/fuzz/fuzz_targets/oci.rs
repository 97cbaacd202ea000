//! runc's state, crun's status and OCI bundles.

#![no_main]

use justitia_runtimes::parse;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let _ = (parse::runc_state(text), parse::crun_status(text), parse::bundle(text));
});
