//! Names of VMs, pools and disks.

/// What a name of a VM, a pool or a disk consists of.
pub(in crate::serve) const NAME: &str = "1 to 255 bytes without slashes and control characters";

/// Is it [`NAME`]?
pub(in crate::serve) fn is_name(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.contains(|c: char| c == '/' || c.is_control())
}
