//! What people see of the statistics. Works on JSON, so that an older daemon can be asked.

use super::size::Size;
use serde_json::Value;
use std::fmt::Write;

/// The statistics as tables.
#[must_use]
pub fn show(stats: &Value) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = stores(stats, &mut out);
    let _ = pools(stats, &mut out);
    let _ = disks(stats, &mut out);
    out
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn size(of: &Value, name: &str) -> String {
    Size(number(of, name)).to_string()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or("?")
}

fn each<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn stores(stats: &Value, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "{:<8} {:>11} {:>11} {:>11}  state",
        "store", "size", "used", "metadata"
    )?;
    for store in each(&stats["cache"], "stores") {
        writeln!(
            out,
            "{:<8} {:>11} {:>11} {:>11}  {}",
            text(store, "store"),
            size(store, "capacity_bytes"),
            size(store, "used_bytes"),
            size(store, "metadata_bytes"),
            store["failed"]
                .as_str()
                .map_or_else(|| "in use".to_owned(), |why| format!("out of use: {why}"))
        )?;
    }
    Ok(())
}

fn pools(stats: &Value, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<24} {:>6} {:<7} {:>11} {:>11} {:>11} {:>6} {:>10} {:>10}",
        "vm/pool", "weight", "store", "entitled", "memory", "ssd", "hits", "puts", "evicted"
    )?;
    for vm in each(&stats["cache"], "vms") {
        writeln!(out, "{:<24} {:>6}", text(vm, "name"), number(vm, "weight"))?;
        for pool in each(vm, "pools") {
            let counts = &pool["counts"];
            let gets = number(counts, "gets");
            let hits = number(counts, "memory_hits") + number(counts, "ssd_hits");
            let ratio = if gets == 0 {
                "-".to_owned()
            } else {
                let ratio = justitia_share::num::to_f64(hits) / justitia_share::num::to_f64(gets);
                format!("{:.1}%", 100.0 * ratio)
            };
            writeln!(
                out,
                "  {:<22} {:>6} {:<7} {:>11} {:>11} {:>11} {:>6} {:>10} {:>10}",
                text(pool, "name"),
                number(pool, "weight"),
                text(pool, "store"),
                size(pool, "entitlement_bytes"),
                size(pool, "memory_bytes"),
                size(pool, "ssd_bytes"),
                ratio,
                number(counts, "puts"),
                number(counts, "evictions"),
            )?;
        }
    }
    Ok(())
}

fn disks(stats: &Value, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<24} {:>10} {:>11} {:>10} {:>10} {:>11} {:>7}",
        "disk", "reads", "read", "at once", "writes", "written", "errors"
    )?;
    for export in each(stats, "exports") {
        writeln!(
            out,
            "{:<24} {:>10} {:>11} {:>10} {:>10} {:>11} {:>7}",
            text(export, "name"),
            number(export, "reads"),
            size(export, "read_bytes"),
            number(export, "inline_hits"),
            number(export, "writes"),
            size(export, "write_bytes"),
            number(export, "errors"),
        )?;
    }
    if let Some(why) = stats["io_uring_unsupported"].as_str() {
        writeln!(
            out,
            "\nio_uring is refused here ({why}): threads that wait serve the disks"
        )?;
    }
    writeln!(out, "\n{} clients", number(stats, "clients"))
}
