//! Reading results, and refusing those that would make a wrong report.

use std::fs;
use std::path::{Path, PathBuf};

use justitia_common::regular_file;
use justitia_common::toml_file::{known, unique};
use justitia_share::Weight;

use super::schema::{Results, VERSION};

/// The largest document, bytes.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Results that cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Could not {operation} {path}: {source}
    #[error("could not {operation} {path}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// {path} holds no results: expected a JSON file, or a directory with at least one
    #[error("{path} holds no results: expected a JSON file, or a directory with at least one")]
    Empty {
        /// Where they were looked for.
        path: PathBuf,
    },
    /// {path}: {source}
    #[error("{path}: expected results of an experiment: {source}")]
    Json {
        /// The document.
        path: PathBuf,
        /// Where in it, and what was expected.
        source: serde_json::Error,
    },
    /// {path}: {problem}
    #[error("{path}: {problem}")]
    Content {
        /// The document.
        path: PathBuf,
        /// What was expected and what was found.
        problem: String,
    },
}

/// Reads the results at `path`: one document, or every `*.json` of a directory in the order of
/// their names.
///
/// # Errors
/// Nothing is there, a document is not of this schema, or it refers to what it does not define.
pub fn read(path: &Path) -> Result<Vec<Results>, ReportError> {
    let files = if path.is_dir() {
        documents(path)?
    } else {
        vec![path.to_path_buf()]
    };
    if files.is_empty() {
        return Err(ReportError::Empty {
            path: path.to_path_buf(),
        });
    }
    files.iter().map(|file| document(file)).collect()
}

fn documents(directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let failed = |source| ReportError::Io {
        operation: "list",
        path: directory.to_path_buf(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn document(path: &Path) -> Result<Results, ReportError> {
    let text = regular_file::read(path, MAX_DOCUMENT_BYTES).map_err(|source| ReportError::Io {
        operation: "read",
        path: path.to_path_buf(),
        source,
    })?;
    let results: Results = serde_json::from_slice(&text).map_err(|source| ReportError::Json {
        path: path.to_path_buf(),
        source,
    })?;
    check(&results).map_err(|problem| ReportError::Content {
        path: path.to_path_buf(),
        problem,
    })?;
    Ok(results)
}

/// Every name that is used is defined once; every weight is one.
fn check(results: &Results) -> Result<(), String> {
    if results.schema != VERSION {
        return Err(format!(
            "expected schema {VERSION}, found {}",
            results.schema
        ));
    }
    let configurations = unique(
        "configuration",
        results.configurations.iter().map(|c| &*c.id),
    )?;
    let metrics = unique("metric", results.metrics.iter().map(|m| &*m.key))?;
    let tenants = unique("tenant", results.tenants.iter().map(|t| &*t.name))?;
    for tenant in &results.tenants {
        Weight::try_from(tenant.weight).map_err(|e| format!("tenant {:?}: {e}", tenant.name))?;
    }
    for run in &results.runs {
        known("configuration", &configurations, &run.configuration)?;
        unique("tenant in a run", run.tenants.iter().map(|t| &*t.name))?;
        for tenant in &run.tenants {
            known("tenant", &tenants, &tenant.name)?;
        }
    }
    if let Some(metric) = results.paper.as_ref().and_then(|p| p.metric.as_ref()) {
        known("metric", &metrics, metric)?;
    }
    for goal in &results.goals {
        known("configuration", &configurations, &goal.configuration)?;
        known("metric", &metrics, &goal.metric)?;
        if let Some(other) = goal.measure.other() {
            known("configuration", &configurations, other)?;
        }
    }
    Ok(())
}
