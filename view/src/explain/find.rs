//! Which tenant is meant by a name.

use justitia_api::Status;

/// Which tenant is meant: by its whole path, by the end of it, or by any part that only one has. The unmanaged tenant is
/// `unmanaged`, `(unmanaged)` or `-`.
///
/// # Errors
/// The paths that could be meant: none, or several.
pub fn find(status: &Status, name: &str) -> Result<usize, Vec<String>> {
    let name = name.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    let name = match name {
        // As tables show it. `outside` is what earlier releases called it.
        "unmanaged" | "(unmanaged)" | "outside" => "-",
        other => other,
    };
    let paths = || status.tenants.iter().map(|t| t.path.as_str()).enumerate();
    if let Some((i, _)) = paths().find(|(_, path)| *path == name) {
        return Ok(i);
    }
    let matching = |fits: &dyn Fn(&str) -> bool| -> Vec<(usize, &str)> {
        paths().filter(|(_, path)| fits(path)).collect()
    };
    let ends = matching(&|path| path.rsplit('/').next() == Some(name));
    let parts = matching(&|path| path.contains(name));
    match (ends.as_slice(), parts.as_slice()) {
        ([(only, _)], _) | ([], [(only, _)]) => Ok(*only),
        ([], several) | (several, _) => {
            Err(several.iter().map(|(_, path)| (*path).to_owned()).collect())
        }
    }
}

/// How many names are offered for one that nobody has.
const NEAREST: usize = 5;

/// The tenants that are called most like `name`, the likeliest first: for whoever has mistyped it.
#[must_use]
pub fn nearest(status: &Status, name: &str) -> Vec<String> {
    let name = name.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    let alike = |path: &str| {
        let last = path.rsplit('/').next().unwrap_or(path);
        let [last, whole] = [last, path].map(|of| strsim::jaro_winkler(name, of));
        last.max(whole)
    };
    let paths = status.tenants.iter().map(|t| t.path.as_str());
    let mut names: Vec<(f64, &str)> = paths
        .map(|path| if path == "-" { "unmanaged" } else { path })
        .map(|path| (alike(path), path))
        .collect();
    names.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let names = names.into_iter().take(NEAREST);
    names.map(|(_, path)| path.to_owned()).collect()
}
