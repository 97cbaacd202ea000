//! Debian's stock kernels: their packages in the archive, and those that were fetched.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::{LabDir, run, tool};

/// Every series of which the archive has a kernel, the newest first. Without an archive, every series of which a kernel
/// was fetched before.
///
/// # Errors
/// If neither the archive nor the lab's directory has a kernel.
pub fn every_series() -> Result<Vec<String>> {
    let names = packages("[0-9]+[.][0-9]+").or_else(|_| {
        let kernels = LabDir::find()?.dir("kernel")?;
        Ok::<_, anyhow::Error>(fetched(&kernels))
    })?;
    let series = series_of(&names);
    ensure!(
        !series.is_empty(),
        "expected a package linux-image-*-cloud-amd64 in the archive, found none: try `apt-get update`"
    );
    Ok(series)
}

/// The series of kernels by their names, the newest first.
fn series_of(names: &[String]) -> Vec<String> {
    let mut series: Vec<_> = names
        .iter()
        .filter_map(|name| version_key(name).first_chunk().copied())
        .collect();
    series.sort_unstable_by_key(|&version: &[u64; 2]| std::cmp::Reverse(version));
    series.dedup();
    series.iter().map(|[a, b]| format!("{a}.{b}")).collect()
}

/// The signed cloud kernels in the archive whose series matches a pattern.
fn packages(series: &str) -> Result<Vec<String>> {
    let pattern = format!("^linux-image-{series}[.][^ ]*-cloud-amd64$");
    let listing = run(Command::new(tool("apt-cache")?).args(["search", "--names-only", &pattern]))?;
    let names = String::from_utf8_lossy(&listing)
        .lines()
        .filter_map(|line| line.split_once(' ').map(|(name, _)| name.to_owned()))
        .collect();
    Ok(names)
}

/// The newest signed cloud kernel of a series in the archive.
pub(super) fn newest_package(series: &str) -> Result<String> {
    packages(&series.replace('.', "[.]"))?
        .into_iter()
        .max_by_key(|name| version_key(name))
        .with_context(|| {
            format!("expected a package linux-image-{series}*-cloud-amd64 in the archive, found none: try `apt-get update`")
        })
}

/// The newest kernel of a series that was fetched.
pub(super) fn newest_fetched(kernels: &Path, series: &str) -> Option<String> {
    let prefix = format!("{series}.");
    fetched(kernels)
        .into_iter()
        .filter(|name| name.starts_with(&prefix))
        .max_by_key(|name| version_key(name))
}

/// The releases that were fetched.
fn fetched(kernels: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(kernels).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| kernels.join(name).join("complete").is_file())
        .collect()
}

/// The numbers of a version, for comparing `6.12.9` with `6.12.117`.
fn version_key(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// Fetches a package and unpacks it into a directory.
pub(super) fn fetch(package: &str, release: &str, dir: &Path) -> Result<()> {
    eprintln!(
        "fetching the stock kernel {package} (unpacked into {}, not installed)",
        dir.display()
    );
    if dir.exists() {
        // An earlier fetch that was cut short.
        std::fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    run(Command::new(tool("apt-get")?)
        .args(["download", "-q", package])
        .current_dir(dir))?;
    let archive = std::fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .context("expected apt-get to leave a .deb file, found none")?;
    run(Command::new(tool("dpkg-deb")?)
        .arg("-x")
        .arg(&archive)
        .arg(dir))?;
    std::fs::remove_file(&archive)?;
    run(Command::new(tool("depmod")?)
        .arg("-b")
        .arg(dir)
        .arg(release))?;
    std::fs::write(dir.join("complete"), "")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_wins_by_number() {
        let mut names = ["6.12.9+deb12", "6.12.117+deb12", "6.12.99+deb12"];
        names.sort_by_key(|name| version_key(name));
        assert_eq!(names.last(), Some(&"6.12.117+deb12"));
    }

    #[test]
    fn every_series_is_there_once_and_the_newest_first() {
        let names = [
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-7.0.3+deb12-cloud-amd64",
            "6.1.0-50-cloud-amd64",
        ];
        let series = series_of(&names.map(str::to_owned));
        assert_eq!(series, ["7.0", "6.12", "6.1"]);
    }
}
