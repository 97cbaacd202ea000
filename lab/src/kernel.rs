//! The guest's kernel: Debian's stock packages, fetched and unpacked but never installed, or any
//! other kernel by path.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::host::{Places, run, tool};

/// Which kernel to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// The newest stock kernel of a series that the archive has (`6.12`, `6.1`).
    Series(String),
    /// A bootable image, with its modules at `../lib/modules/RELEASE` or `/lib/modules/RELEASE`.
    Path(PathBuf),
}

impl Default for KernelChoice {
    fn default() -> Self {
        Self::Series("6.12".to_owned())
    }
}

impl std::str::FromStr for KernelChoice {
    type Err = std::convert::Infallible;

    /// Digits and dots name a series, anything else a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let series = text.contains('.') && text.chars().all(|c| c.is_ascii_digit() || c == '.');
        Ok(if series {
            Self::Series(text.to_owned())
        } else {
            Self::Path(text.into())
        })
    }
}

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What `uname -r` will say.
    pub release: String,
    /// The bootable image.
    pub image: PathBuf,
    /// The directory of its modules, with `modules.dep`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Finds the kernel, fetching its package if it is not there yet.
    ///
    /// Without the network the newest kernel that was fetched before is taken.
    pub fn resolve(choice: &KernelChoice, places: &Places) -> Result<Self> {
        match choice {
            KernelChoice::Path(image) => Self::at(image),
            KernelChoice::Series(series) => Self::of_series(series, places),
        }
    }

    fn at(image: &Path) -> Result<Self> {
        let image = image
            .canonicalize()
            .with_context(|| format!("finding the kernel {}", image.display()))?;
        let release = release_of(&image)?;
        let beside = image
            .parent()
            .and_then(Path::parent)
            .map(|root| root.join("lib/modules").join(&release));
        let system = Path::new("/lib/modules").join(&release);
        let modules = beside
            .into_iter()
            .chain([system])
            .find(|dir| dir.join("modules.dep").is_file())
            .with_context(|| {
                format!(
                    "expected the modules of {} (with modules.dep, made by `depmod -b ROOT {release}`) at ../lib/modules/{release} beside it or in /lib/modules/{release}",
                    image.display()
                )
            })?;
        Ok(Self {
            release,
            image,
            modules,
        })
    }

    fn of_series(series: &str, places: &Places) -> Result<Self> {
        let kernels = places.dir("kernel")?;
        let package = newest_package(series);
        let release = match &package {
            Ok(package) => package.trim_start_matches("linux-image-").to_owned(),
            Err(why) => newest_fetched(&kernels, series)
                .with_context(|| format!("no kernel of series {series} was fetched before, and the archive gave none: {why:#}"))?,
        };
        let dir = kernels.join(&release);
        if let (Ok(package), false) = (&package, dir.join("complete").is_file()) {
            fetch(package, &release, &dir)
                .with_context(|| format!("fetching the kernel package {package}"))?;
        }
        Self::at(&dir.join("boot").join(format!("vmlinuz-{release}")))
    }
}

/// Every series of which the archive has a kernel, the newest first. Without an archive, of which one was fetched before.
pub fn every_series() -> Result<Vec<String>> {
    let names = packages("[0-9]+[.][0-9]+").or_else(|_| {
        let kernels = Places::find()?.dir("kernel")?;
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
fn newest_package(series: &str) -> Result<String> {
    packages(&series.replace('.', "[.]"))?
        .into_iter()
        .max_by_key(|name| version_key(name))
        .with_context(|| {
            format!("expected a package linux-image-{series}*-cloud-amd64 in the archive, found none: try `apt-get update`")
        })
}

fn newest_fetched(kernels: &Path, series: &str) -> Option<String> {
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

fn fetch(package: &str, release: &str, dir: &Path) -> Result<()> {
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

/// The release that a bzImage carries in its header (Documentation/arch/x86/boot.rst,
/// "kernel_version": an offset, less 0x200, at 0x20e).
fn release_of(image: &Path) -> Result<String> {
    let bytes = std::fs::read(image).with_context(|| format!("reading {}", image.display()))?;
    ensure!(
        bytes.get(0x202..0x206) == Some(b"HdrS".as_slice()),
        "expected an x86 kernel image (bzImage) at {}, found something else",
        image.display()
    );
    let offset = bytes
        .get(0x20e..0x210)
        .and_then(|field| Some(usize::from(u16::from_le_bytes(field.try_into().ok()?)) + 0x200))
        .unwrap_or(usize::MAX);
    let text = bytes.get(offset..).unwrap_or_default();
    let release: Vec<u8> = text
        .iter()
        .copied()
        .take_while(|byte| byte.is_ascii_graphic())
        .take(128)
        .collect();
    ensure!(
        !release.is_empty(),
        "expected a version string in the header of {}, found none",
        image.display()
    );
    Ok(String::from_utf8_lossy(&release).into_owned())
}

/// The modules of a kernel, by name, with what they need.
pub struct Modules {
    dir: PathBuf,
    /// Path relative to the directory, and the paths it depends on.
    by_name: HashMap<String, (String, Vec<String>)>,
    builtin: Vec<String>,
}

impl Modules {
    /// Reads `modules.dep` and `modules.builtin`.
    pub fn read(kernel: &Kernel) -> Result<Self> {
        let read = |file: &str| {
            let path = kernel.modules.join(file);
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let mut by_name = HashMap::new();
        for line in read("modules.dep")?.lines() {
            let (path, needs) = line.split_once(':').with_context(|| {
                format!("expected `PATH: NEEDS` in modules.dep, found {line:?}")
            })?;
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            by_name.insert(module_name(path), (path.to_owned(), needs));
        }
        let builtin = read("modules.builtin")?.lines().map(module_name).collect();
        Ok(Self {
            dir: kernel.modules.clone(),
            by_name,
            builtin,
        })
    }

    /// A module's file and those it needs, in the order of loading: `(relative path without
    /// compression's ending, content)`. Empty when the kernel has it built in.
    pub fn load_order(&self, name: &str) -> Result<Vec<String>> {
        let name = module_name(name);
        let Some((path, needs)) = self.by_name.get(&name) else {
            if self.builtin.contains(&name) {
                return Ok(Vec::new());
            }
            bail!(
                "expected the module {name} in {} or built into that kernel, found neither",
                self.dir.display()
            );
        };
        // depmod lists what is needed last first.
        Ok(needs.iter().rev().chain([path]).cloned().collect())
    }

    /// A module's content, decompressed.
    pub fn content(&self, relative: &str) -> Result<Vec<u8>> {
        let path = self.dir.join(relative);
        match path.extension().and_then(|ext| ext.to_str()) {
            Some("xz") => run(Command::new(tool("xz")?).arg("-dc").arg(&path)),
            Some("zst") => run(Command::new(tool("zstd")?).arg("-dcq").arg(&path)),
            Some("gz") => run(Command::new(tool("gzip")?).arg("-dc").arg(&path)),
            _ => std::fs::read(&path).with_context(|| format!("reading {}", path.display())),
        }
    }
}

/// `kernel/drivers/block/virtio_blk.ko.xz` and `virtio-blk` are both `virtio_blk`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
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

    #[test]
    fn a_choice_is_a_series_or_a_path() {
        let parse = |text: &str| text.parse::<KernelChoice>().unwrap();
        assert_eq!(parse("6.1"), KernelChoice::Series("6.1".into()));
        assert_eq!(
            parse("./vmlinuz-6.9"),
            KernelChoice::Path("./vmlinuz-6.9".into())
        );
    }

    #[test]
    fn module_names_are_normalised() {
        assert_eq!(
            module_name("kernel/drivers/block/virtio-blk.ko.xz"),
            "virtio_blk"
        );
        assert_eq!(module_name("bfq"), "bfq");
    }

    #[test]
    fn a_text_file_is_no_kernel() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![b'x'; 4096]).unwrap();
        let error = Kernel::at(file.path()).unwrap_err().to_string();
        assert!(error.contains("bzImage"), "{error}");
    }
}
