//! What can keep the eyes shut.

/// Why there are no eyes, or why one could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A limit is outside its range.
    #[error("expected {limit} within {minimum} and {maximum}, found {found}")]
    Limit {
        /// Which field of [`Limits`](super::Limits).
        limit: &'static str,
        /// The least that works.
        minimum: u32,
        /// The most that is allowed.
        maximum: u32,
        /// What was asked for.
        found: u32,
    },
    /// The kernel does not describe its types.
    #[error(
        "expected the kernel's type information in /sys/kernel/btf/vmlinux: {reason}; \
         eBPF probes need a kernel with CONFIG_DEBUG_INFO_BTF"
    )]
    NoTypes {
        /// What was found instead.
        reason: String,
    },
    /// The kernel refused the programs or their maps.
    #[error("load eBPF programs: {reason}; needs root (CAP_BPF, CAP_PERFMON) outside a container")]
    Refused {
        /// The kernel's or the loader's answer, with the verifier's last words if it had any.
        reason: String,
    },
    /// This kernel has no place for the probe.
    #[error("attach the probe for {probe}: {reason}")]
    Absent {
        /// The probe's title.
        probe: &'static str,
        /// Why.
        reason: String,
    },
    /// What the programs left in a map could not be read.
    #[error("read eBPF map {map}: {reason}")]
    Map {
        /// The map's name.
        map: &'static str,
        /// The kernel's answer.
        reason: String,
    },
}
