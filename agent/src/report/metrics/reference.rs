//! `docs/reference/metrics.md`, made of the table.

use std::fmt::Write;

use super::family::Kind;
use super::table;

/// Its text, Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = HEAD.to_owned();
    for metric in table::metrics() {
        let kind = match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let labels: Vec<String> = metric.labels().iter().map(|l| format!("`{l}`")).collect();
        let (name, labels) = (metric.full_name(), labels.join(", "));
        let _ = writeln!(out, "| `{name}` | {kind} | {labels} | {} |", metric.help);
    }
    out
}

const HEAD: &str = "\
# Metrics

<!-- Made by `make reference` from agent/src/report/metrics/table.rs; do not edit. -->

The agent serves them at `http://127.0.0.1:9742/metrics` (`[metrics] listen`) in the OpenMetrics format. The label `tenant`
is the path of a cgroup below the cgroup mount; bytes outside printable ASCII, and `\\`, are written as `\\xNN`. `-` is the
unmanaged tenant: what is in no managed cgroup. These and the other words: [terms](../guide/operate.md#terms). A counter starts at 0 with the agent, unless its meaning says otherwise.
`alerts.yml` has alert and recording rules, `grafana.json` a dashboard: in `packaging/`, or in `/usr/share/justitia/` if the
package is installed.

| metric | type | labels | meaning |
|---|---|---|---|
";
