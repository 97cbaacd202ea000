//! `justitia cache top`.

use super::client::send;
use super::stats::{count, each, hits_and_wait};
use crate::watch::{Every, watch};
use clap::Args;
use justitia_api::units::bytes;
use justitia_cache::serve::ControlRequest;
use justitia_common::command::flat;
use justitia_share::num::{to_f64, to_u64};
use justitia_view::table::table;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Show what the running cache does, live: hits, reads and evictions a second of each VM, pool and disk.
///
/// Without a terminal it prints a page after the other.
#[derive(Args)]
pub(super) struct Top {
    #[command(flatten)]
    every: Every,
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

pub(super) fn top(args: &Top) -> anyhow::Result<()> {
    let control = args.control.clone();
    let look = move || {
        let stats = send(control.as_deref(), &ControlRequest::Stats).map_err(flat)?;
        anyhow::Ok((stats, Instant::now()))
    };
    // Rates need two looks: the first page comes after a second.
    let mut last = look()?;
    std::thread::sleep(Duration::from_secs(1));
    watch(args.every, move || {
        let now = look()?;
        let page = page(&last.0, &now.0, now.1.duration_since(last.1));
        last = now;
        Ok(page)
    })
}

fn named<'a>(of: &'a Value, key: &str, name: &Value) -> &'a Value {
    let found = each(of, key).find(|one| one["name"] == *name);
    found.unwrap_or(&Value::Null)
}

/// What has happened since the last look: one that is new, or was made anew, has nothing before.
struct Since<'a> {
    pairs: Vec<(&'a Value, &'a Value)>,
    seconds: f64,
}

impl Since<'_> {
    fn of(&self, name: &str) -> u64 {
        let moved = |(before, now): &(&Value, &Value)| {
            count(now, name)
                .checked_sub(count(before, name))
                .unwrap_or_else(|| count(now, name))
        };
        self.pairs.iter().map(moved).sum()
    }

    fn rate(&self, name: &str) -> String {
        format!("{:.0}", to_f64(self.of(name)) / self.seconds)
    }

    fn bytes(&self, name: &str) -> String {
        bytes(to_u64(to_f64(self.of(name)) / self.seconds))
    }
}

fn page(before: &Value, now: &Value, passed: Duration) -> String {
    let seconds = passed.as_secs_f64().max(0.001);
    format!(
        "{}\n{}",
        pools(before, now, seconds),
        disks(before, now, seconds)
    )
}

fn pools(before: &Value, now: &Value, seconds: f64) -> String {
    let columns = "VM/POOL|>MEMORY|>SSD|>BLOCKS/s|>HIT%|>DISK/s|>WAIT|>EVICTED/s";
    let (before, now) = (&before["cache"], &now["cache"]);
    let rows = each(now, "vms").flat_map(|vm| {
        let old = named(before, "vms", &vm["name"]);
        let pools: Vec<&Value> = each(vm, "pools").collect();
        let name = vm["name"].as_str().unwrap_or("?");
        let of_all = pool_row(name.to_owned(), old, &pools, seconds);
        let of_each = pools.iter().map(|pool| {
            let name = format!("{name}/{}", pool["name"].as_str().unwrap_or("?"));
            pool_row(name, old, &[pool], seconds)
        });
        std::iter::once(of_all).chain(of_each).collect::<Vec<_>>()
    });
    table(columns, rows)
}

/// What these pools of a VM do together.
fn pool_row(name: String, old: &Value, pools: &[&Value], seconds: f64) -> Vec<String> {
    let held = |key: &str| bytes(pools.iter().map(|pool| count(pool, key)).sum());
    let pairs = pools.iter().map(|pool| {
        let before = &named(old, "pools", &pool["name"])["counts"];
        (before, &pool["counts"])
    });
    let pairs = pairs.collect();
    let since = Since { pairs, seconds };
    let [hits, wait] = hits_and_wait(|name| since.of(name));
    vec![
        name,
        held("memory_bytes"),
        held("ssd_bytes"),
        since.rate("gets"),
        hits,
        since.rate("disk_reads"),
        wait,
        since.rate("evictions"),
    ]
}

fn disks(before: &Value, now: &Value, seconds: f64) -> String {
    let columns = "DISK|>READS/s|>READ/s|>WRITES/s|>WRITTEN/s|>ERRORS";
    let rows = each(now, "exports").map(|disk| {
        let pairs = vec![(named(before, "exports", &disk["name"]), disk)];
        let since = Since { pairs, seconds };
        vec![
            disk["name"].as_str().unwrap_or("?").to_owned(),
            since.rate("reads"),
            since.bytes("read_bytes"),
            since.rate("writes"),
            since.bytes("write_bytes"),
            count(disk, "errors").to_string(),
        ]
    });
    table(columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_of_what_has_happened_between_two_looks() {
        let look = |gets: u64, hits: u64, reads: u64| {
            json!({
                "cache": { "vms": [{ "name": "web", "pools": [
                    { "name": "a", "memory_bytes": 4096, "counts": { "gets": gets, "memory_hits": hits } },
                    { "name": "b", "memory_bytes": 8192, "counts": { "gets": 2 * gets, "ssd_hits": 2 * hits } },
                ] }] },
                "exports": [{ "name": "root", "reads": reads, "read_bytes": 4096 * reads }],
            })
        };
        let lines = |before: &Value, now: &Value| {
            let page = page(before, now, Duration::from_secs(2));
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            page.lines().map(words).collect::<Vec<_>>()
        };
        let shown = lines(&look(100, 50, 10), &look(300, 200, 30));
        // 200 and 400 blocks in 2 s; of the first 150, of the second 300 were hits.
        assert_eq!(shown[1], "web 12.0K 0 300 75.0 0 - 0");
        assert_eq!(shown[2], "web/a 4.00K 0 100 75.0 0 - 0");
        assert_eq!(shown[3], "web/b 8.00K 0 200 75.0 0 - 0");
        assert_eq!(shown[6], "root 10 40.0K 0 0 0");
        // A daemon that started anew counts from nothing.
        let again = lines(&look(1000, 500, 100), &look(20, 10, 4));
        assert_eq!(again[1], "web 12.0K 0 30 50.0 0 - 0");
    }
}
