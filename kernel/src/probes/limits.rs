//! Limits of the memory that the probes take in the kernel, and their errors.

/// Bounds of everything that is kept in the kernel. Memory follows from them: 256 bytes per cgroup and possible processor,
/// 26.1 KiB per curve, about 100 bytes per asynchronous request, about 300 per shared file and user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cgroups that have counters of their own at one time, 16 to 65,535. Where there are more, those that do least lose
    /// theirs. Cgroups without any are counted together in [`ProbeSample::overflow`](super::ProbeSample::overflow).
    pub max_cgroups: u32,
    /// Requests of Linux-native asynchronous I/O in flight, and bios throttled by `io.max`, at one time, 64 to 1,048,576.
    pub max_inflight: u32,
    /// Pairs of a file and a user that [`IoProbes::shared_inodes`](super::IoProbes::shared_inodes) keeps, 64 to 1,048,576;
    /// the least recently used are replaced.
    pub max_shared_files: u32,
    /// Curves for which accesses can be sampled at one time ([`IoProbes::sample_reuse`](super::IoProbes::sample_reuse)), 1
    /// to 65,536.
    pub max_curves: u32,
}

impl Default for Limits {
    /// 2,048 cgroups, 16,384 requests, 4,096 shared files, 1,024 curves.
    fn default() -> Self {
        Self {
            max_cgroups: 2048,
            max_inflight: 16_384,
            max_shared_files: 4096,
            max_curves: 1024,
        }
    }
}

impl Limits {
    /// Whether every limit is within its range.
    ///
    /// # Errors
    /// [`ProbeError::Limit`] about the first that is not.
    pub fn check(&self) -> Result<(), ProbeError> {
        let ranges = [
            ("max_cgroups", self.max_cgroups, 16, 65_535),
            ("max_inflight", self.max_inflight, 64, 1 << 20),
            ("max_shared_files", self.max_shared_files, 64, 1 << 20),
            ("max_curves", self.max_curves, 1, 1 << 16),
        ];
        for (limit, found, minimum, maximum) in ranges {
            if !(minimum..=maximum).contains(&found) {
                return Err(ProbeError::Limit {
                    limit,
                    minimum,
                    maximum,
                    found,
                });
            }
        }
        Ok(())
    }
}

/// Why probes cannot be attached or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A limit is outside its range.
    #[error("expected {limit} within {minimum} and {maximum}, found {found}")]
    Limit {
        /// Which field of [`Limits`](Limits).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_allowed() {
        assert!(Limits::default().check().is_ok());
    }

    #[test]
    fn a_limit_out_of_range_is_named() {
        let limits = Limits {
            max_inflight: 0,
            ..Limits::default()
        };
        let text = limits.check().unwrap_err().to_string();
        assert_eq!(text, "expected max_inflight within 64 and 1048576, found 0");
    }
}
