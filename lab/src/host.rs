//! The machine that the lab runs on: its directories and its tools.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The directory of kernels, images, disks and results. Everything in it can be deleted at any time.
#[derive(Clone, Debug)]
pub struct LabDir {
    root: PathBuf,
}

impl LabDir {
    /// `target/lab` beside the running program's build, or `$JUSTITIA_LAB_DIR`, or, for a program
    /// that was not built here, `lab` under the user's cache directory.
    ///
    /// # Errors
    /// If none of these variables says where, or the directory cannot be made.
    pub fn find() -> Result<Self> {
        let root = match std::env::var_os("JUSTITIA_LAB_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => match target_dir()? {
                Some(target) => target.join("lab"),
                None => cache_dir().context(
                    "expected $JUSTITIA_LAB_DIR, $XDG_CACHE_HOME or $HOME to say where to keep the lab's files, found none",
                )?,
            },
        };
        std::fs::create_dir_all(&root)
            .with_context(|| format!("creating the lab's directory {}", root.display()))?;
        Ok(Self {
            root: root
                .canonicalize()
                .with_context(|| format!("resolving {}", root.display()))?,
        })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A directory in it, created when absent.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(dir)
    }
}

/// The processor, as the kernel names it.
pub(crate) fn processor() -> Result<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    Ok(text
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()))
        .unwrap_or("unknown")
        .to_owned())
}

fn cache_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .map(|cache| cache.join("justitia/lab"))
}

/// Cargo's target directory, if the running program lies in one.
fn target_dir() -> Result<Option<PathBuf>> {
    let program = std::env::current_exe().context("finding the running program")?;
    Ok(program
        .ancestors()
        .find(|dir| dir.join("CACHEDIR.TAG").exists())
        .map(Path::to_path_buf))
}

/// A program of the project, built beside the running one (`target/release/NAME`).
pub(crate) fn sibling(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding the running program")?;
    // Tests and examples lie one directory below.
    program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "expected the program {name} beside {}: build it with `cargo build --workspace --bins` (add --release if that one is a release build)",
                program.display()
            )
        })
}

/// Where a host tool lies; the error names the package that brings it.
pub(crate) fn tool(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        // Root's directories, which an ordinary user's PATH leaves out on Debian.
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("expected the tool {name} on this machine, found none: `make deps` installs what the lab needs"))
}

/// Runs a host tool to its end and returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let line = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {line}"))?;
    if !output.status.success() {
        bail!(
            "{line}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(output.stdout)
}
