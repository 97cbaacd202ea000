//! The header of a kernel image.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The release that a bzImage carries in its header (Documentation/arch/x86/boot.rst,
/// "kernel_version": an offset, less 0x200, at 0x20e).
pub(super) fn release_of(image: &Path) -> Result<String> {
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
