//! Finding a kernel that can be booted.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::choice::KernelChoice;
use super::{archive, bzimage};
use crate::host::LabDir;

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
    ///
    /// # Errors
    /// If the image is not there, is no bzImage or its modules are missing; if no kernel of the series was fetched before and
    /// the archive gives none.
    pub fn resolve(choice: &KernelChoice, lab: &LabDir) -> Result<Self> {
        match choice {
            KernelChoice::Path(image) => Self::at(image),
            KernelChoice::Series(series) => Self::of_series(series, lab),
        }
    }

    fn at(image: &Path) -> Result<Self> {
        let image = image
            .canonicalize()
            .with_context(|| format!("finding the kernel {}", image.display()))?;
        let release = bzimage::release_of(&image)?;
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

    fn of_series(series: &str, lab: &LabDir) -> Result<Self> {
        let kernels = lab.dir("kernel")?;
        let package = archive::newest_package(series);
        let release = match &package {
            Ok(package) => package.trim_start_matches("linux-image-").to_owned(),
            Err(why) => archive::newest_fetched(&kernels, series)
                .with_context(|| format!("no kernel of series {series} was fetched before, and the archive gave none: {why:#}"))?,
        };
        let dir = kernels.join(&release);
        if let (Ok(package), false) = (&package, dir.join("complete").is_file()) {
            archive::fetch(package, &release, &dir)
                .with_context(|| format!("fetching the kernel package {package}"))?;
        }
        Self::at(&dir.join("boot").join(format!("vmlinuz-{release}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_file_is_no_kernel() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![b'x'; 4096]).unwrap();
        let error = Kernel::at(file.path()).unwrap_err().to_string();
        assert!(error.contains("bzImage"), "{error}");
    }
}
