//! How large each workload is.

use crate::personality::Personality;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The numbers that make a personality large or small. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Files in the set.
    pub files: u32,
    /// Mean size of a file.
    pub mean_size: u64,
    /// Share of the files that exist at the start, in per cent.
    pub preallocated: u32,
    /// Workers.
    pub threads: u32,
    /// Largest read or write.
    pub io_size: u64,
    /// Files in a directory.
    pub directory_width: u32,
}

impl Personality {
    /// The defaults: small enough for four tenants in a guest of 1.5 GiB under emulation.
    pub(crate) const fn defaults(self) -> Scale {
        let scale = Scale {
            files: 1_000,
            mean_size: 16 * KIB,
            preallocated: 100,
            threads: 8,
            io_size: MIB,
            directory_width: 20,
        };
        match self {
            Self::Fileserver => Scale {
                files: 800,
                mean_size: 128 * KIB,
                preallocated: 80,
                threads: 6,
                ..scale
            },
            Self::Webserver => scale,
            Self::Webproxy => Scale {
                files: 2_000,
                preallocated: 80,
                directory_width: 1_000_000,
                ..scale
            },
            Self::Reread => Scale {
                files: 1,
                mean_size: 128 * MIB,
                threads: 1,
                io_size: 128 * KIB,
                ..scale
            },
            Self::Metadata => Scale {
                files: 400,
                preallocated: 50,
                threads: 4,
                ..scale
            },
        }
    }
}
