//! The workloads as data: which operations, on which files.
//!
//! The sequences are those of Filebench 1.5's personalities of the same names; `reread` is the
//! second half of the Justitia paper's re-read experiment (section IV-C); `metadata` is ours.

use clap::ValueEnum;

use crate::step::Step;

/// Which workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Personality {
    /// Create, write whole, append, read whole, delete, stat.
    Fileserver,
    /// Read ten whole files, append to one log.
    Webserver,
    /// Delete, create, append; read five whole files.
    Webproxy,
    /// One reader per file reads it once, from its beginning to its end.
    Reread,
    /// What makes a journal write: create, write a little, fsync; rename; delete; make and remove a
    /// directory; pause.
    Metadata,
}

/// How file sizes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Gamma-distributed, shape 1.5, around the mean.
    Gamma,
    /// All of the mean size.
    Equal,
}

impl Personality {
    /// The name, as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Webserver => "webserver",
            Self::Webproxy => "webproxy",
            Self::Reread => "reread",
            Self::Metadata => "metadata",
        }
    }

    /// What each worker repeats.
    pub(crate) fn steps(self) -> Vec<Step> {
        use Step::{
            Append, AppendLog, Close, Create, Delete, Fsync, Mkdir, Open, Pause, ReadOnce,
            ReadWhole, Rename, Rmdir, Stat, WriteWhole,
        };
        let read_a_file = [Open, ReadWhole, Close];
        match self {
            Self::Fileserver => vec![
                Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete,
                Stat,
            ],
            Self::Webserver => [read_a_file.repeat(10), vec![AppendLog]].concat(),
            Self::Webproxy => [vec![Delete, Create, Append, Close], read_a_file.repeat(5)].concat(),
            Self::Reread => vec![ReadOnce],
            Self::Metadata => vec![
                Create, Append, Fsync, Close, Rename, Delete, Mkdir, Rmdir, Pause,
            ],
        }
    }

    /// How the sizes of its files are distributed.
    pub(crate) fn sizes(self) -> Sizes {
        match self {
            // A handful of files: one large draw would decide a run.
            Self::Reread => Sizes::Equal,
            _ => Sizes::Gamma,
        }
    }
}
