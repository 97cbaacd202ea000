//! How large each workload is: in Filebench, and here.

use crate::personality::Personality;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The numbers that make a personality large or small. Sizes in bytes, times in seconds, rates in
/// bytes per second; 0 is "none" for the rate and "no limit" for the duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// Files in the set that is written and deleted (videoserver: passive files).
    pub files: u32,
    /// Files in the set that is only read (videoserver: active files; else 0).
    pub active_files: u32,
    /// Mean size of a file.
    pub mean_size: u64,
    /// Share of the files that exist at the start, in per cent.
    pub preallocated: u32,
    /// Workers.
    pub threads: u32,
    /// Largest read or write.
    pub io_size: u64,
    /// Upper bound of an append.
    pub append_size: u64,
    /// What all workers together may transfer per second.
    pub rate: u64,
    /// Pause between two replacements by the video writer.
    pub replace_every: f64,
    /// Files in a directory.
    pub directory_width: u32,
}

/// `metadata` is ours: it has no other numbers than these.
const METADATA: Scale = Scale {
    files: 400,
    active_files: 0,
    mean_size: 16 * KIB,
    preallocated: 50,
    threads: 4,
    io_size: MIB,
    append_size: 16 * KIB,
    rate: 0,
    replace_every: 0.02,
    directory_width: 20,
};

impl Personality {
    /// Filebench's own numbers (`reread`: those of the Justitia paper).
    pub(crate) fn original(self) -> Scale {
        let scale = Scale {
            files: 10_000,
            active_files: 0,
            mean_size: 16 * KIB,
            preallocated: 80,
            threads: 100,
            io_size: MIB,
            append_size: 16 * KIB,
            rate: 0,
            replace_every: 0.0,
            directory_width: 1_000_000,
        };
        match self {
            Self::Fileserver => Scale {
                mean_size: 128 * KIB,
                threads: 50,
                directory_width: 20,
                ..scale
            },
            Self::Webserver => Scale {
                files: 1_000,
                preallocated: 100,
                directory_width: 20,
                ..scale
            },
            Self::Varmail => Scale {
                files: 1_000,
                threads: 16,
                ..scale
            },
            Self::Webproxy => scale,
            Self::Videoserver => Scale {
                files: 194,
                active_files: 32,
                mean_size: 10 * GIB,
                preallocated: 50,
                threads: 48,
                io_size: 256 * KIB,
                rate: 96 * MIB,
                replace_every: 10.0,
                directory_width: 20,
                ..scale
            },
            Self::Reread => Scale {
                files: 1,
                mean_size: 3 * GIB,
                preallocated: 100,
                threads: 1,
                io_size: 128 * KIB,
                directory_width: 20,
                ..scale
            },
            Self::Metadata => METADATA,
        }
    }

    /// The defaults: small enough for four tenants in a guest of 1.5 GiB under emulation.
    pub(crate) fn scaled(self) -> Scale {
        let original = self.original();
        match self {
            Self::Fileserver => Scale {
                files: 800,
                threads: 6,
                ..original
            },
            Self::Webserver => Scale {
                threads: 8,
                ..original
            },
            Self::Varmail => Scale {
                threads: 4,
                ..original
            },
            Self::Webproxy => Scale {
                files: 2_000,
                threads: 8,
                ..original
            },
            Self::Videoserver => Scale {
                files: 8,
                active_files: 4,
                mean_size: 32 * MIB,
                threads: 6,
                rate: 12 * MIB,
                ..original
            },
            Self::Reread => Scale {
                mean_size: 128 * MIB,
                ..original
            },
            Self::Metadata => original,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    /// The README's table is made of these rows: a change of a default must show there.
    #[test]
    fn the_readme_lists_the_scales() {
        let readme = include_str!("../README.md");
        for personality in Personality::value_variants() {
            let (here, original) = (personality.scaled(), personality.original());
            let both = |f: fn(&Scale) -> u64| {
                let (here, original) = (size(f(&here)), size(f(&original)));
                if here == original {
                    here
                } else {
                    format!("{here} ({original})")
                }
            };
            let row = format!(
                "| {} | {} | {} | {} | {} % | {} | {} | {} |",
                personality.name(),
                both(|s| u64::from(s.files)),
                both(|s| u64::from(s.active_files)),
                both(|s| s.mean_size),
                here.preallocated,
                both(|s| u64::from(s.threads)),
                both(|s| s.io_size),
                both(|s| s.rate),
            );
            assert!(
                readme.contains(&row),
                "expected in lab/load/README.md:\n{row}"
            );
        }
    }

    fn size(bytes: u64) -> String {
        match bytes {
            b if b >= GIB && b % GIB == 0 => format!("{} GiB", b / GIB),
            b if b >= MIB && b % MIB == 0 => format!("{} MiB", b / MIB),
            b if b >= KIB && b % KIB == 0 => format!("{} KiB", b / KIB),
            b => b.to_string(),
        }
    }
}
