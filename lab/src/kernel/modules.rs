//! The modules of a kernel.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::resolve::Kernel;
use crate::host::{run, tool};

/// The modules of a kernel, by name, with what they need.
pub struct Modules {
    dir: PathBuf,
    /// Path relative to the directory, and the paths it depends on.
    by_name: HashMap<String, (String, Vec<String>)>,
    builtin: Vec<String>,
}

impl Modules {
    /// Reads `modules.dep` and `modules.builtin`.
    ///
    /// # Errors
    /// If one of them cannot be read, or a line of `modules.dep` is not `PATH: NEEDS`.
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

    /// The files of a module and of those that it needs, in the order of loading. Empty when the kernel has it
    /// built in.
    ///
    /// # Errors
    /// If the kernel has no such module.
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
    ///
    /// # Errors
    /// If the file cannot be read, or the tool that decompresses it is missing or fails.
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
    fn module_names_are_normalised() {
        assert_eq!(
            module_name("kernel/drivers/block/virtio-blk.ko.xz"),
            "virtio_blk"
        );
        assert_eq!(module_name("bfq"), "bfq");
    }
}
