//! `justitia cache stats`.

use super::client::send;
use crate::watch::{Every, watch};
use clap::Args;
use justitia_api::escape::plain;
use justitia_api::units::{bytes, latency, percent};
use justitia_cache::Verdict;
use justitia_cache::serve::ControlRequest;
use justitia_common::command::{flat, out};
use justitia_share::num::to_f64;
use justitia_view::table::table;
use serde_json::Value;
use std::path::PathBuf;

/// Show what the running cache holds and does.
#[derive(Args)]
pub(super) struct Stats {
    /// As JSON, with everything that the cache reports
    #[arg(long)]
    json: bool,
    /// Again every so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "json", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

pub(super) fn stats(args: &Stats) -> anyhow::Result<()> {
    let control = args.control.clone();
    let ask = move || send(control.as_deref(), &ControlRequest::Stats).map_err(flat);
    if let Some(seconds) = args.watch {
        return watch(Every::seconds(seconds), move || Ok(tables(&ask()?)));
    }
    if args.json {
        out::line(out::json(&ask()?)?);
    } else {
        out::print(tables(&ask()?));
    }
    Ok(())
}

// The statistics as tables. Reads JSON, so that it can show those of an older daemon.

/// The statistics as tables.
fn tables(stats: &Value) -> String {
    let mut shown = [stores(stats), pools(stats), disks(stats)].join("\n");
    if each(stats, "ports").next().is_some() {
        shown += &format!("\n{}", ports(stats));
    }
    if let Some(why) = stats["io_uring_unsupported"].as_str() {
        shown += &format!(
            "\nio_uring is not supported here ({}): worker threads serve the disks\n",
            plain(why)
        );
    }
    shown += &format!("\n{} clients\n", count(stats, "clients"));
    let front_ends = count(stats, "vhost_front_ends");
    if front_ends > 0 {
        shown += &format!("{front_ends} front ends over vhost-user\n");
    }
    shown
}

pub(super) fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn number(of: &Value, name: &str) -> String {
    count(of, name).to_string()
}

fn size(of: &Value, name: &str) -> String {
    bytes(count(of, name))
}

fn text(of: &Value, name: &str) -> String {
    of[name].as_str().unwrap_or("?").to_owned()
}

pub(super) fn each<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn stores(stats: &Value) -> String {
    let columns = "STORE|>SIZE|>USED|>METADATA|STATE";
    let rows = each(&stats["cache"], "stores").map(|store| {
        let failed = store["failed"].as_str();
        let state = match store["stalled_ms"].as_u64() {
            None => "in use".to_owned(),
            Some(ms) => format!(
                "has not answered for {} s: disks are read",
                ms.div_ceil(1000)
            ),
        };
        vec![
            text(store, "store"),
            size(store, "capacity_bytes"),
            size(store, "used_bytes"),
            size(store, "metadata_bytes"),
            failed.map_or(state, |why| format!("failed: {why}")),
        ]
    });
    table(columns, rows)
}

fn pools(stats: &Value) -> String {
    let columns = "VM/POOL|>WEIGHT|>MEMORY|>ENTITLED|>SSD|>ENTITLED|>HIT%|>DISK READ|>INSERTED|>DROPPED|>EVICTED|POLICY|SSD ADMITS";
    let rows = each(&stats["cache"], "vms").flat_map(|vm| {
        let pools = each(vm, "pools").map(|pool| pool_row(vm, pool));
        std::iter::once(vm_row(vm)).chain(pools)
    });
    table(columns, rows)
}

/// What its pools hold together, and what it is entitled to.
fn vm_row(vm: &Value) -> Vec<String> {
    let of_pools = |name: &str| bytes(each(vm, "pools").map(|pool| count(pool, name)).sum());
    let mut row = vec![
        text(vm, "name"),
        number(vm, "weight"),
        of_pools("memory_bytes"),
        of_memory(vm, each(vm, "pools")),
        of_pools("ssd_bytes"),
        of_ssd(
            vm,
            each(vm, "pools")
                .map(|pool| count(pool, "ssd_weight"))
                .sum(),
        ),
    ];
    row.extend(counted(|name| {
        let counts = each(vm, "pools").map(|pool| count(&pool["counts"], name));
        counts.sum()
    }));
    row.push(text(vm, "policy"));
    row
}

/// What weights give it of the SSD, where it has a weight there.
fn of_ssd(of: &Value, weight: u64) -> String {
    match weight {
        0 => "-".to_owned(),
        _ => size(of, "ssd_entitlement_bytes"),
    }
}

/// The same of memory. A pool that only uses the SSD uses memory while there is no SSD store: it is entitled to some then.
fn of_memory<'a>(of: &Value, mut pools: impl Iterator<Item = &'a Value>) -> String {
    let has_part = |pool: &Value| {
        let figures = ["memory_weight", "memory_entitlement_bytes"];
        figures.iter().any(|name| count(pool, name) > 0)
    };
    match pools.any(has_part) {
        true => size(of, "memory_entitlement_bytes"),
        false => "-".to_owned(),
    }
}

fn pool_row(vm: &Value, pool: &Value) -> Vec<String> {
    let mut row = vec![
        format!("{}/{}", text(vm, "name"), text(pool, "name")),
        weights(pool),
        size(pool, "memory_bytes"),
        of_memory(pool, std::iter::once(pool)),
        size(pool, "ssd_bytes"),
        of_ssd(pool, count(pool, "ssd_weight")),
    ];
    row.extend(counted(|name| count(&pool["counts"], name)));
    row.push(String::new());
    row.push(match count(pool, "ssd_weight") {
        0 => String::new(),
        _ => text(pool, "ssd_admits"),
    });
    row
}

/// The columns of what has happened, from the counts by name.
fn counted(of: impl Fn(&str) -> u64) -> [String; 5] {
    let [hits, wait] = hits_and_wait(&of);
    [
        hits,
        wait,
        of("insertions").to_string(),
        of("insertions_dropped").to_string(),
        of("evictions").to_string(),
    ]
}

/// The share of hits, and how long a read of the disk took, from the counts by name.
pub(super) fn hits_and_wait(of: impl Fn(&str) -> u64) -> [String; 2] {
    let reads = of("disk_reads");
    let wait = (reads > 0).then(|| to_f64(of("disk_wait_us")) / to_f64(reads) / 1e6);
    [
        hit_percent(of("gets"), of("memory_hits") + of("ssd_hits")),
        latency(wait),
    ]
}

/// The weight in memory, and after a colon that on the SSD, when the pool uses it.
fn weights(pool: &Value) -> String {
    let [memory, ssd] = ["memory_weight", "ssd_weight"].map(|name| count(pool, name));
    match ssd {
        0 => memory.to_string(),
        _ => format!("{memory}:{ssd}"),
    }
}

fn hit_percent(gets: u64, hits: u64) -> String {
    match gets {
        0 => "-".to_owned(),
        _ => format!("{:.1}", 100.0 * to_f64(hits) / to_f64(gets)),
    }
}

fn disks(stats: &Value) -> String {
    let columns = "DISK|>READS|>READ|>INLINE|>WRITES|>WRITTEN|>ERRORS|STATE";
    let rows = each(stats, "exports").map(|disk| {
        vec![
            text(disk, "name"),
            number(disk, "reads"),
            size(disk, "read_bytes"),
            number(disk, "inline_hits"),
            number(disk, "writes"),
            size(disk, "write_bytes"),
            number(disk, "errors"),
            disk["sync_failed"].as_str().map_or_else(
                || "in use".to_owned(),
                |why| format!("a flush failed: {why}"),
            ),
        ]
    });
    let unserved = each(stats, "unserved").map(|disk| {
        let mut row = vec![text(disk, "name")];
        row.extend(["-"; 6].map(str::to_owned));
        row.push(format!("not served: {}", text(disk, "why")));
        row
    });
    table(columns, rows.chain(unserved))
}

/// What guests put: a row a VM, with the blocks by what became of them.
fn ports(stats: &Value) -> String {
    let verdicts = Verdict::ALL.map(|verdict| format!("|>{}", verdict.name().replace('_', " ")));
    let columns =
        "VM'S PORT|>MESSAGES|>MALFORMED|>REMEMBERED".to_owned() + &verdicts.concat().to_uppercase();
    let rows = each(stats, "ports").map(|port| {
        let first = [
            text(port, "vm"),
            number(port, "messages"),
            number(port, "malformed"),
            remembered(stats, &port["vm"]),
        ];
        let blocks = Verdict::ALL.map(|verdict| number(&port["verdicts"], verdict.name()));
        first.into_iter().chain(blocks).collect()
    });
    table(&columns, rows)
}

/// How full the table of what the VM's guest holds is.
fn remembered(stats: &Value, name: &Value) -> String {
    let vm = each(&stats["cache"], "vms").find(|vm| vm["name"] == *name);
    let table = vm.map_or(&Value::Null, |vm| &vm["residency"]);
    match count(table, "capacity_blocks") {
        0 => "-".to_owned(),
        all => percent(to_f64(count(table, "blocks")) / to_f64(all)) + "%",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_stands_below_its_heading() {
        let shown = tables(&serde_json::json!({
            "cache": {
                "stores": [{ "store": "memory", "capacity_bytes": 4096, "used_bytes": 2048, "metadata_bytes": 1024 }],
                "vms": [{
                    "name": "web", "weight": 200, "policy": "sieve", "memory_entitlement_bytes": 8192,
                    "residency": { "blocks": 1, "capacity_blocks": 4 },
                    "pools": [{
                        "name": "default", "memory_weight": 100, "ssd_weight": 30, "ssd_admits": "sample",
                        "memory_bytes": 4096, "ssd_entitlement_bytes": 8192, "counts": {
                            "gets": 4, "memory_hits": 2, "ssd_hits": 1, "insertions": 9, "insertions_dropped": 6,
                            "evictions": 5, "disk_reads": 2, "disk_wait_us": 6000,
                        },
                    }, { "name": "db", "memory_bytes": 4096, "ssd_entitlement_bytes": 8192, "counts": { "gets": 4, "insertions": 2 } },
                    { "name": "cold", "memory_weight": 0, "ssd_weight": 30, "memory_entitlement_bytes": 4096 }],
                }],
            },
            "exports": [{ "name": "root", "reads": 7, "inline_hits": 3 }],
            "ports": [{ "vm": "web", "messages": 6, "verdicts": { "accepted": 41, "replayed": 8 } }],
            "clients": 2,
        }));
        let below = |heading: &str, value: &str, row: &str| {
            let mut lines = shown.lines();
            let headings = lines.find(|l| l.contains(heading)).unwrap();
            let end = headings.find(heading).unwrap() + heading.len();
            let line = lines.find(|l| l.trim_start().starts_with(row)).unwrap();
            assert!(line[..end].ends_with(value), "{heading}: {shown}");
        };
        below("SIZE", "4.00K", "memory");
        below("ENTITLED", "8.00K", "web ");
        below("ENTITLED", " -", "web/db");
        below("ENTITLED", "4.00K", "web/cold");
        below("SSD ENTITLED", "8.00K", "web/default");
        below("SSD ENTITLED", " -", "web/db");
        below("WEIGHT", "100:30", "web/default");
        below("HIT%", "75.0", "web/default");
        below("EVICTED", "5", "web/default");
        below("DISK READ", "3ms", "web/default");
        below("DROPPED", "6", "web/default");
        // A VM has what its pools have together.
        for (heading, value) in [("MEMORY", "8.00K"), ("HIT%", "37.5"), ("INSERTED", "11")] {
            below(heading, value, "web ");
        }
        below("REMEMBERED", "25.0%", "web ");
        assert!(
            shown.contains("sieve") && shown.contains("sample"),
            "{shown}"
        );
        below("INLINE", "3", "root");
        below("ACCEPTED", "41", "web ");
        below("OUT OF RANGE", "0", "web ");
        below("REPLAYED", "8", "web ");
        assert!(shown.ends_with("\n2 clients\n"), "{shown}");
    }
}
