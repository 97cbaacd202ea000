//! The table, with the paper's figures beside ours.

use super::measure::{CONTAINERS, Container, Window};

/// Throughput in operations a second, memory and hypervisor cache in GB; in the order of [`CONTAINERS`].
type Paper = [(f64, f64, f64); 4];

/// Table 4.
const MORAI: Paper = [
    (16.9, 0.5, 1.3),
    (48.5, 1.6, 0.0),
    (13.0, 1.8, 0.0),
    (1289.0, 2.2, 0.5),
];
const DOUBLE_DECKER: Paper = [
    (25.1, 1.0, 0.4),
    (132.7, 1.9, 0.0),
    (11186.0, 2.0, 0.0),
    (988.0, 1.0, 1.6),
];

/// Prints what was measured of policies.
pub(crate) fn print(found: &[(&str, &Window)]) {
    println!(
        "| container | policy | operations/s | memory, swap, cache, MiB | paper: operations/s | memory, cache, GB |"
    );
    println!("|---|---|---|---|---|---|");
    for (n, container) in CONTAINERS.iter().enumerate() {
        for (policy, window) in found {
            let Container {
                throughput,
                memory,
                swapped,
                cache,
            } = window.containers[n];
            let paper = match *policy {
                "Morai++" => Some(MORAI[n]),
                "DoubleDecker" => Some(DOUBLE_DECKER[n]),
                _ => None,
            };
            let paper = paper.map_or("| |".to_owned(), |(throughput, memory, cache)| {
                format!("{throughput} | {memory}, {cache} |")
            });
            println!(
                "| {container} | {policy} | {throughput:.1} | {memory:.0}, {swapped:.0}, {cache:.0} | {paper}"
            );
        }
    }
    for (policy, window) in found {
        let Window {
            disk,
            processors,
            lookups,
            hits,
            ..
        } = window;
        println!(
            "{policy}: the disk was busy {:.0} %, the processors {:.0} %; {hits} of {lookups} blocks came from the cache",
            100.0 * disk,
            100.0 * processors
        );
    }
}
