//! Checks a page of metrics with promtool, the tool of Prometheus. For tests.

#![deny(unsafe_code)]

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs `promtool check metrics` on OpenMetrics text; returns its table of the metrics and their series.
///
/// # Errors
/// What promtool criticises, or that it cannot be run (Debian has it in the package `prometheus`).
pub fn check(text: &str) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("run promtool: {error}");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics", "--extended"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    if let Some(mut stdin) = promtool.stdin.take() {
        stdin.write_all(older(text).as_bytes()).map_err(cannot)?;
    }
    let output = promtool.wait_with_output().map_err(cannot)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !stderr.is_empty() {
        return Err(format!("promtool: {stderr}\n{text}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same in the older text format of Prometheus, which promtool checks: there a counter's family has the name of its
/// samples, and there are no units and no end mark.
fn older(text: &str) -> String {
    let counters: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut older = String::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) => {
                let total = if counters.contains(&name) {
                    "_total"
                } else {
                    ""
                };
                older.push_str(&format!("# {what} {name}{total} {rest}\n"));
            }
            (Some("#"), ..) => {}
            _ => older.push_str(&format!("{line}\n")),
        }
    }
    older
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn mistakes_are_reported() {
        let good = "# HELP a_bytes What there is\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes 1\n\
                    # HELP b What came\n# TYPE b counter\nb_total 2\n# EOF\n";
        let table = check(good).unwrap();
        assert!(
            table.contains("a_bytes") && table.contains("b_total"),
            "{table}"
        );
        for bad in [
            good.replace("# HELP a_bytes What there is\n", ""),
            good.replace("a_bytes 1", "a_bytes{x=\"\"\"} 1"),
        ] {
            assert!(check(&bad).is_err(), "{bad}");
        }
    }
}
