//! Why probes cannot be attached or read.

/// Why probes cannot be attached or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A limit is outside its range.
    #[error("expected {limit} within {minimum} and {maximum}, found {found}")]
    Limit {
        /// Which field of [`Limits`](super::Limits).
        limit: &'static str,
        /// The smallest allowed value.
        minimum: u32,
        /// The largest allowed value.
        maximum: u32,
        /// The value that was given.
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
        /// The kernel's or the loader's answer, with the end of the verifier's messages.
        reason: String,
    },
    /// This kernel does not support the probe.
    #[error("attach the probe for {probe}: {reason}")]
    Unsupported {
        /// The probe's title.
        probe: &'static str,
        /// Why.
        reason: String,
    },
    /// The kernel refused an operation on a map.
    #[error("read eBPF map {map}: {reason}")]
    Map {
        /// The map's name.
        map: &'static str,
        /// The kernel's answer.
        reason: String,
    },
}
