//! The table.

use comfy_table::{Cell as TableCell, CellAlignment};

use super::super::number::{digits, percent, times};
use super::super::terminal::ruled;
use super::{DISK_READS, KEPT, Mixture, OrdinaryTenant};

const HEADER: [&str; 13] = [
    "mixture",
    "LRU",
    "tenant",
    "weight",
    "hits: kernel",
    "ours",
    "MiB or /s: kernel",
    "ours",
    "ratio",
    "pages: kernel",
    "ours",
    "disk reads",
    "",
];

/// One table of all mixtures, and a line that says how many reached the goals.
#[must_use]
pub fn table(mixtures: &[Mixture]) -> String {
    let mut table = ruled();
    table.set_header(HEADER);
    for mixture in mixtures {
        for (index, tenant) in mixture.tenants.iter().enumerate() {
            let named = if index == 0 {
                let disk = times(mixture.disk_reads.ratio());
                [mixture.name.clone(), mixture.lru().to_owned(), disk]
            } else {
                Default::default()
            };
            table.add_row(row(named, tenant));
        }
    }
    format!("{table}\n\n{}", verdict(mixtures))
}

/// A tenant; the first of a mixture with the mixture's name, the kernel's lists and what the disk read.
fn row([mixture, lru, disk]: [String; 3], tenant: &OrdinaryTenant) -> Vec<TableCell> {
    let throughput = tenant.throughput();
    let mib = |value: Option<f64>| value.map_or("–".into(), |v| digits(v / 1_048_576.0));
    let amount = |value: Option<f64>| match value {
        Some(operations) if throughput != tenant.reads => digits(operations),
        bytes => mib(bytes),
    };
    let verdict = match tenant.good {
        Some(true) => "kept",
        Some(false) => "LOST",
        None if tenant.above_share => "above its share",
        None => "",
    };
    let numbers = [
        tenant.weight.to_string(),
        percent(tenant.hits.kernel),
        percent(tenant.hits.ours),
        amount(throughput.kernel),
        amount(throughput.ours),
        times(throughput.ratio()),
        mib(tenant.pages.kernel),
        mib(tenant.pages.ours),
        disk,
    ];
    let mut row = vec![
        TableCell::new(mixture),
        TableCell::new(lru),
        TableCell::new(&tenant.name),
    ];
    row.extend(numbers.map(|n| TableCell::new(n).set_alignment(CellAlignment::Right)));
    row.push(TableCell::new(verdict));
    row
}

/// What was reached and what was not.
fn verdict(mixtures: &[Mixture]) -> String {
    let mut text = String::new();
    for mixture in mixtures {
        let name = format!("{}, {}", mixture.name, mixture.lru());
        if mixture.processor_bound {
            text.push_str(&format!(
                "{name}: the processors were busy {} of the time: hits say something, throughput does not\n",
                percent(mixture.processor.larger())
            ));
        }
        match mixture.good {
            None => text.push_str(&format!("{name}: not measured\n")),
            Some(true) => {}
            Some(false) => text.push_str(&format!("{name}: {}\n", mixture.losses().join("; "))),
        }
    }
    let good = mixtures.iter().filter(|m| m.good == Some(true)).count();
    text.push_str(&format!(
        "{good} of {} mixtures reach the goals: hits and throughput of every tenant not above its share at least {KEPT} \
         of the kernel's, disk reads at most {DISK_READS}",
        mixtures.len()
    ));
    text
}
