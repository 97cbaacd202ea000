//! Docker's and podman's own files, and the paths of cgroups.

#![no_main]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use justitia_runtimes::{Resolver, parse};

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let _ = (parse::docker_config(text), parse::docker_host_config(text), parse::docker_data_root(text));
    let _ = (parse::docker_cgroup_driver(text), parse::kubelet_cgroup_driver(text));
    let _ = (parse::podman_containers(text), parse::home_of(text, 1000));
    // No file is there: no path leads to one.
    let mut resolver = Resolver::new(Path::new("/nonexistent"));
    let path = Path::new(std::ffi::OsStr::from_bytes(text));
    assert!(resolver.resolve(path, false).identity.declared.is_none());
});
