//! Results of experiments, for people: one HTML page with drawings, and tables for the terminal.

pub mod schema;

mod chart;
mod finding;
mod goal;
mod html;
mod number;
pub mod ordinary;
mod read;
mod spread;
mod summary;
mod terminal;
mod write;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

pub use read::{ReportError, read};
pub use terminal::terminal;
pub(crate) use write::write;

/// Writes the report on the results at `results` (a document, or a directory of them) to `out`:
/// one self-contained HTML file.
///
/// # Errors
/// The results cannot be read (see [`read`]), or the report cannot be written.
pub fn render(results: &Path, out: &Path) -> Result<(), ReportError> {
    let page = html::page(&read(results)?);
    let failed = |operation| {
        move |source| ReportError::Io {
            operation,
            path: out.to_path_buf(),
            source,
        }
    };
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent).map_err(failed("make the directory of"))?;
    }
    fs::write(out, page).map_err(failed("write"))
}
