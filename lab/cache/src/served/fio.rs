//! fio, the client of everything that is compared.

use super::options::{BenchError, Options};
use justitia_share::num::to_f64;
use std::process::Command;

/// Runs fio against `target`; returns its requests a second.
pub(super) fn run(
    target: &[&str],
    how: &str,
    block: &str,
    options: &Options,
    timed: bool,
) -> Result<f64, BenchError> {
    let error = |why: String| BenchError::Program {
        program: "fio".into(),
        why,
    };
    let mut command = Command::new("fio");
    command
        .args(["--name=bench", "--randrepeat=0", "--norandommap"])
        .arg("--output-format=json")
        .args(target)
        .arg(format!("--rw={how}"))
        .arg(format!("--bs={block}"))
        .arg(format!("--size={}", options.size.0));
    if timed {
        command.args(["--time_based", &format!("--runtime={}", options.seconds)]);
    }
    let done = command.output().map_err(|e| error(e.to_string()))?;
    if !done.status.success() {
        return Err(error(String::from_utf8_lossy(&done.stderr).into_owned()));
    }
    // Its NBD engine says something before the report.
    let text = String::from_utf8_lossy(&done.stdout);
    let report = &text[text.find('{').unwrap_or(0)..];
    let json: serde_json::Value = serde_json::from_str(report).map_err(|e| error(e.to_string()))?;
    let side = if how.ends_with("read") {
        "read"
    } else {
        "write"
    };
    let job = &json["jobs"][0][side];
    let milliseconds = job["runtime"].as_u64().unwrap_or(0);
    let requests = job["total_ios"].as_u64().unwrap_or(0);
    if timed && (requests == 0 || milliseconds == 0) {
        return Err(error("no requests in its report".into()));
    }
    Ok(to_f64(requests) * 1000.0 / to_f64(milliseconds.max(1)))
}
