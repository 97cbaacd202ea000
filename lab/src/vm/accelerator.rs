//! KVM if it works, else emulation.

use std::path::Path;

use anyhow::{Context, Result};

use crate::host::LabDir;

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor, through `/dev/kvm`.
    Kvm,
    /// QEMU's emulation.
    Tcg,
}

impl std::fmt::Display for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

impl Accelerator {
    /// The accelerator that works here. `/dev/kvm` may exist and yet not run a stock guest, so `trial` boots one;
    /// the result is cached until this machine boots again.
    ///
    /// # Errors
    /// If this machine's boot id cannot be read, or the result cannot be stored.
    pub fn choose(lab: &LabDir, trial: impl FnOnce() -> bool) -> Result<Self> {
        if !Path::new("/dev/kvm").exists() {
            return Ok(Self::Tcg);
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .context("reading this machine's boot id")?;
        let cached = lab.dir("accelerator")?.join(boot.trim());
        match std::fs::read_to_string(&cached).as_deref() {
            Ok("kvm") => return Ok(Self::Kvm),
            Ok("tcg") => return Ok(Self::Tcg),
            _ => {}
        }
        eprintln!("trying whether KVM runs a stock guest here");
        let found = if trial() { Self::Kvm } else { Self::Tcg };
        eprintln!("guests run by {found}");
        std::fs::write(&cached, found.to_string())
            .with_context(|| format!("writing {}", cached.display()))?;
        Ok(found)
    }
}
