//! The experiments and traces that are compiled in.

macro_rules! experiments {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),*]
    };
}

/// The shipped experiments by name, in the order in which `lab list` shows them.
pub(super) const EXPERIMENTS: [(&str, &str); 40] = experiments![
    "hot-stream",
    "hot-stream-800",
    "hot-stream-paced",
    "hot-writer",
    "hot-once",
    "hot-inner",
    "hot-after-stream",
    "hot-after-night",
    "hot-after-rest",
    "hot-x4",
    "reread-x4",
    "reread-equal",
    "writers-x4",
    "writers-equal",
    "direct-x4",
    "sizes-x4",
    "ways-x4",
    "tenants",
    "greedy",
    "fileserver-x4",
    "fileserver-direct-x4",
    "fileserver-journal",
    "fileserver-x8",
    "fileserver-equal",
    "fileserver-total",
    "fileserver-memcg",
    "mixed-x4",
    "starvation-x8",
    "fluctuating-x4",
    "step-direct",
    "step-writers",
    "step-disk",
    "trace-x4",
    "trace-timed",
    "fsync-beside-hog",
    "fsync-beside-hog-xfs",
    "webserver-x4",
    "idle-tax",
    "shared-layer",
    "scale",
];

/// The mixtures that ordinary hosts have, which `justitia-lab ordinary` runs, in the order of its table. Most build on the first.
pub(super) const ORDINARY: [(&str, &str); 18] = experiments![
    "slab",
    "burst",
    "stride",
    "min",
    "start",
    "restart",
    "pods",
    "database",
    "pool",
    "build",
    "heap",
    "logs",
    "updatedb",
    "hog",
    "service",
    "zram",
    "tmpfs",
    "short-cgroups",
];

macro_rules! traces {
    ($($name:literal),* $(,)?) => {
        [$((concat!("traces/", $name), include_str!(concat!("../../traces/", $name)))),*]
    };
}

/// What experiments may name as files without having them in their directory.
pub(super) const TRACES: [(&str, &str); 4] = traces![
    "database.spc",
    "streams.blkparse",
    "vm.cloudphysics",
    "web.msr",
];
