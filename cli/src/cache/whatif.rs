//! `justitia cache whatif` and `justitia cache curve`: what a pool's size is worth.

use std::path::PathBuf;

use anyhow::bail;
use clap::{ArgGroup, Args};
use justitia_api::Status;
use justitia_api::escape::plain;
use justitia_api::units::{bytes, percent, rate};
use justitia_cache::StoreKind;
use justitia_cache::serve::{ControlRequest, Size};
use justitia_share::Weight;
use justitia_view::curve::Drawing;
use justitia_view::table::table;
use justitia_view::whatif::{Change, Forecast, whatif as forecast};
use serde::Serialize;

use super::client::send;
use super::pools::{BLOCK, curve_of, named, pools};
use super::set::StoreName;
use crate::curves::weight;
use justitia_common::command::{flat, out};

/// Forecast hits, misses and reads of the disk of a pool and of those that give or take, for another size.
///
/// Nothing is changed. The forecast uses the pools' miss-ratio curves of the last minutes (`justitia cache curve`).
///
/// Examples: `justitia cache whatif web/database --size 2GiB`, `justitia cache whatif database --weight 400`.
#[derive(Args)]
#[command(group(ArgGroup::new("change").required(true).args(["size", "weight"])))]
pub(super) struct Whatif {
    /// The pool, as VM/POOL, or its name alone
    pool: String,
    /// The size to assume (512M, 2GiB; 0: none at all)
    #[arg(long)]
    size: Option<Size>,
    /// The weight to assume, 1 to 10000
    #[arg(long, value_parser = weight)]
    weight: Option<Weight>,
    #[command(flatten)]
    of: Of,
}

/// Plot the miss ratio of a pool by its size.
///
/// The running daemon samples reads; the curve shows which part of them would come from the disk. Below the plot are the
/// miss ratios at half, the same and twice the size that the pool has now.
#[derive(Args)]
pub(super) struct Curve {
    /// The pool, as VM/POOL, or its name alone
    pool: String,
    #[command(flatten)]
    of: Of,
}

#[derive(Args)]
struct Of {
    /// The store whose size is meant [default: memory, or SSD for a pool that uses only that]; what the pool holds in the
    /// other one stays
    #[arg(long)]
    store: Option<StoreName>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// What is to be expected of a pool: now, and after the change.
#[derive(Debug, PartialEq, Serialize)]
struct Expected {
    pool: String,
    size_bytes: [u64; 2],
    /// The part of its gets that hit, 0 to 1; `null`, as are the others, while it has no curve.
    hit_ratio: Option<[f64; 2]>,
    hits_per_second: Option<[f64; 2]>,
    misses_per_second: Option<[f64; 2]>,
    /// Bytes that misses read from the disk, in whole blocks of 4 KiB.
    disk_read_bytes_per_second: Option<[f64; 2]>,
}

impl From<Forecast> for Expected {
    fn from(of: Forecast) -> Self {
        let each = of.accesses.unwrap_or_default();
        let misses = |misses: [f64; 2]| misses.map(|part| part * each);
        let hits = of.misses.map(|misses| misses.map(|part| 1.0 - part));
        Self {
            pool: of.path,
            size_bytes: of.cache,
            hit_ratio: hits,
            hits_per_second: hits.map(|hits| hits.map(|part| part * each)),
            misses_per_second: of.misses.map(misses),
            disk_read_bytes_per_second: of.reads,
        }
    }
}

pub(super) fn whatif(args: &Whatif) -> anyhow::Result<()> {
    let change = match (args.weight, args.size) {
        (Some(weight), _) => Change::Weight(weight),
        (None, Some(size)) => Change::Size(size.0),
        (None, None) => bail!("expected --weight or --size"),
    };
    let (status, index, store) = asked(&args.of, &args.pool)?;
    let Some(pool) = status.tenants.get(index) else {
        bail!("no pool")
    };
    curve_of(pool)?;
    let found = forecast(&status, index, change, BLOCK).into_iter();
    let found: Vec<Expected> = found.map(Expected::from).collect();
    if args.of.json {
        out::line(out::json(&found)?);
    } else {
        out::print(text(&status, index, change, store, &found));
    }
    Ok(())
}

pub(super) fn curve(args: &Curve) -> anyhow::Result<()> {
    let (status, index, store) = asked(&args.of, &args.pool)?;
    let Some(pool) = status.tenants.get(index) else {
        bail!("no pool")
    };
    let curve = curve_of(pool)?;
    if args.of.json {
        out::line(out::json(curve)?);
        return Ok(());
    }
    let drawing = Drawing {
        curve,
        usage: pool.usage,
        working_set: None,
        block: BLOCK,
    };
    let heading = format!(
        "{}: how much of what it reads would come from the disk, by its size in {store}\n\n",
        plain(&pool.path)
    );
    let gets = format!(
        "\ngets         {:.0} blocks of 4 KiB a second\nentitled to  {}\n\n",
        curve.accesses,
        bytes(pool.entitlement)
    );
    out::print(heading + &drawing.plot() + &gets + &drawing.table());
    Ok(())
}

/// The pools of the daemon by their sizes in a store, which of them is meant, and the store.
fn asked(of: &Of, name: &str) -> anyhow::Result<(Status, usize, StoreKind)> {
    let stats = send(of.control.as_deref(), &ControlRequest::Stats).map_err(flat)?;
    let memory = pools(&stats, StoreKind::Memory);
    let index = named(&memory, name)?;
    let uses_memory = memory
        .tenants
        .get(index)
        .is_some_and(|pool| pool.weight > 0);
    let store = match of.store {
        Some(store) => store.into(),
        None if uses_memory => StoreKind::Memory,
        None => StoreKind::Ssd,
    };
    let status = match store {
        StoreKind::Memory => memory,
        StoreKind::Ssd => pools(&stats, StoreKind::Ssd),
    };
    match status.tenants.get(index) {
        Some(pool) if pool.weight == 0 => {
            let name = plain(&pool.path);
            bail!("expected a store that {name} uses, found {store}")
        }
        _ => Ok((status, index, store)),
    }
}

/// The forecasts as a table. `index` is the pool that is changed.
fn text(
    status: &Status,
    index: usize,
    change: Change,
    store: StoreKind,
    found: &[Expected],
) -> String {
    let Some(pool) = status.tenants.get(index) else {
        return String::new();
    };
    let name = plain(&pool.path);
    let changed = match change {
        Change::Weight(weight) => format!(
            "{name} with weight {} instead of {} in {store}:\n\n",
            weight.get(),
            pool.weight
        ),
        Change::Size(size) => format!("{name} with {} of {store}:\n\n", bytes(size)),
    };
    let columns = "VM/POOL|>SIZE|>THEN|>HITS|>THEN|>MISSES|>THEN|>DISK READS|>THEN";
    let mut out = changed + &table(columns, found.iter().map(row));
    out += "\nSIZE is what each is entitled to and takes up, HITS the part of its gets, as it reads lately.\n";
    if found.iter().any(|pool| pool.hit_ratio.is_none()) {
        out += "- : it has no curve: it has read little so far.\n";
    }
    out
}

/// A row of the table.
fn row(of: &Expected) -> Vec<String> {
    let shown = |values: Option<[f64; 2]>, show: fn(f64) -> String| {
        values.map_or_else(|| ["-", "-"].map(str::to_owned), |two| two.map(show))
    };
    let pairs = [
        of.size_bytes.map(bytes),
        shown(of.hit_ratio, |part| format!("{} %", percent(part))),
        shown(of.misses_per_second, |misses| format!("{misses:.0}/s")),
        shown(of.disk_read_bytes_per_second, |bytes| {
            format!("{}/s", rate(bytes))
        }),
    ];
    let pairs = pairs.into_iter().flatten();
    std::iter::once(of.pool.clone()).chain(pairs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MIB: u64 = 1 << 20;

    /// A VM with half of 800 MiB, for two pools that use 300 MiB each alike.
    fn status() -> Status {
        let curve = json!({ "accesses": 1000.0, "points": [[0, 1.0], [300 * MIB, 0.0]] });
        let pool = |name: &str, weight: u64| json!({ "name": name, "memory_weight": weight, "memory_bytes": 200 * MIB, "curve": curve });
        let stats = json!({ "cache": {
            "stores": [{ "store": "memory", "capacity_bytes": 800 * MIB }],
            "vms": [
                { "name": "web", "weight": 100, "pools": [pool("a", 100), pool("b", 100)] },
                { "name": "db", "weight": 100, "pools": [pool("c", 100), pool("d", 100)] },
            ],
        }});
        pools(&stats, StoreKind::Memory)
    }

    fn expected(change: Change) -> Vec<Expected> {
        let status = status();
        let index = named(&status, "a").unwrap();
        let found = forecast(&status, index, change, BLOCK).into_iter();
        found.map(Expected::from).collect()
    }

    #[test]
    fn what_a_pool_takes_its_siblings_give() {
        let found = expected(Change::Size(300 * MIB));
        let names: Vec<_> = found.iter().map(|pool| pool.pool.as_str()).collect();
        assert_eq!(names, ["web/a", "web/b"], "the other VM's keep theirs");
        assert_eq!(found[0].size_bytes, [200 * MIB, 300 * MIB]);
        assert_eq!(found[1].size_bytes, [200 * MIB, 100 * MIB]);
        let near = |found: Option<[f64; 2]>, expected: [f64; 2]| {
            let found = found.unwrap();
            assert!((found[0] - expected[0]).abs() + (found[1] - expected[1]).abs() < 1e-6);
        };
        near(found[0].hit_ratio, [2.0 / 3.0, 1.0]);
        near(found[1].hits_per_second, [2000.0 / 3.0, 1000.0 / 3.0]);
        near(found[1].misses_per_second, [1000.0 / 3.0, 2000.0 / 3.0]);
        near(
            found[1].disk_read_bytes_per_second,
            [4096e3 / 3.0, 8192e3 / 3.0],
        );
    }

    #[test]
    fn the_table_says_what_the_json_says() {
        let (status, change) = (status(), Change::Weight(Weight::try_from(300).unwrap()));
        let text = text(&status, 1, change, StoreKind::Memory, &expected(change));
        for line in [
            "web/a with weight 300 instead of 100 in memory:\n",
            "VM/POOL SIZE THEN   HITS   THEN MISSES  THEN DISK READS    THEN\n",
            "web/a   200M 300M 66.7 %  100 %  333/s   0/s    1.30M/s     0/s\n",
            "web/b   200M 100M 66.7 % 33.3 %  333/s 667/s    1.30M/s 2.60M/s\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }
}
