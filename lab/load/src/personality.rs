//! The workloads as data: which operations, on which file set, at which scale.
//!
//! The sequences are those of Filebench 1.5's personalities of the same names; `reread` is the
//! second half of the Justitia paper's re-read experiment (section IV-C); `metadata` is ours.

use clap::ValueEnum;

/// Which workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Personality {
    /// Create, write whole, append, read whole, delete, stat.
    Fileserver,
    /// Read ten whole files, append to one log.
    Webserver,
    /// Mail: delete, create, append, fsync; read, append, fsync; read.
    Varmail,
    /// Delete, create, append; read five whole files.
    Webproxy,
    /// Read active videos at a bounded rate while one writer replaces passive ones.
    Videoserver,
    /// One reader per file reads it once, from its beginning to its end.
    Reread,
    /// What makes a journal write: create, write a little, fsync; rename; delete; make and remove a
    /// directory; pause.
    Metadata,
}

/// One operation of a worker's loop (Filebench: flowop).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Create the next file that does not exist, and keep it open.
    Create,
    /// Open the next file that exists.
    Open,
    /// Write the open file up to its size, an I/O at a time.
    WriteWhole,
    /// Read the open file from its beginning to its end, an I/O at a time.
    ReadWhole,
    /// Append a uniformly drawn amount, below the append size, in one write.
    Append,
    /// Make the open file durable.
    Fsync,
    /// Close the open file.
    Close,
    /// Delete the next file that nobody has open.
    Delete,
    /// Stat the next file that exists.
    Stat,
    /// Give the next file that nobody has open the name of one that does not exist.
    Rename,
    /// Make the worker's own directory.
    Mkdir,
    /// Remove it.
    Rmdir,
    /// Append to the one log file that all workers share.
    AppendLog,
    /// Read the next I/O of this worker's own file, from the beginning again at its end.
    ReadNext,
    /// As [`Step::ReadNext`], but the worker ends at the end of its file.
    ReadOnce,
    /// Sleep for the replacement interval.
    Pause,
    /// Read what a request asks for (`block`).
    Read,
    /// Write what a request asks for (`block`).
    Write,
}

impl Step {
    /// The operation's name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Open => "open",
            Self::WriteWhole => "write_whole",
            Self::ReadWhole => "read_whole",
            Self::Append => "append",
            Self::Fsync => "fsync",
            Self::Close => "close",
            Self::Delete => "delete",
            Self::Stat => "stat",
            Self::Rename => "rename",
            Self::Mkdir => "mkdir",
            Self::Rmdir => "rmdir",
            Self::AppendLog => "append_log",
            Self::ReadNext | Self::ReadOnce | Self::Read => "read",
            Self::Write => "write",
            Self::Pause => "pause",
        }
    }
}

/// The numbers that make a personality large or small. Sizes in bytes, times in seconds, rates in
/// bytes per second; 0 is "none" for the rate and "no limit" for the duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
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

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How file sizes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Gamma-distributed, shape 1.5, around the mean.
    Gamma,
    /// All of the mean size.
    Equal,
}

impl Personality {
    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Webserver => "webserver",
            Self::Varmail => "varmail",
            Self::Webproxy => "webproxy",
            Self::Videoserver => "videoserver",
            Self::Reread => "reread",
            Self::Metadata => "metadata",
        }
    }

    /// What each of the `threads` workers repeats.
    pub fn steps(self) -> Vec<Step> {
        use Step::{
            Append, AppendLog, Close, Create, Delete, Fsync, Mkdir, Open, Pause, ReadNext,
            ReadOnce, ReadWhole, Rename, Rmdir, Stat, WriteWhole,
        };
        let read_a_file = [Open, ReadWhole, Close];
        match self {
            Self::Fileserver => vec![
                Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete,
                Stat,
            ],
            Self::Webserver => [read_a_file.repeat(10), vec![AppendLog]].concat(),
            Self::Varmail => vec![
                Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close, Open,
                ReadWhole, Close,
            ],
            Self::Webproxy => [vec![Delete, Create, Append, Close], read_a_file.repeat(5)].concat(),
            Self::Videoserver => vec![ReadNext],
            Self::Reread => vec![ReadOnce],
            Self::Metadata => vec![
                Create, Append, Fsync, Close, Rename, Delete, Mkdir, Rmdir, Pause,
            ],
        }
    }

    /// What one further worker repeats beside them; empty if there is none.
    pub fn writer_steps(self) -> Vec<Step> {
        use Step::{Close, Create, Delete, Pause, WriteWhole};
        match self {
            Self::Videoserver => vec![Delete, Create, WriteWhole, Close, Pause],
            _ => Vec::new(),
        }
    }

    /// How the sizes of its files are distributed.
    pub fn sizes(self) -> Sizes {
        match self {
            // A handful of files: one large draw would decide a run.
            Self::Videoserver | Self::Reread => Sizes::Equal,
            _ => Sizes::Gamma,
        }
    }

    /// Filebench's own numbers (`reread`: those of the Justitia paper).
    pub fn original(self) -> Scale {
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
            Self::Metadata => Scale {
                files: 400,
                preallocated: 50,
                threads: 4,
                replace_every: 0.02,
                directory_width: 20,
                ..scale
            },
        }
    }

    /// The defaults: small enough for four tenants in a guest of 1.5 GiB under emulation.
    pub fn scaled(self) -> Scale {
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
    use super::*;

    fn count(steps: &[Step], step: Step) -> usize {
        steps.iter().filter(|s| **s == step).count()
    }

    #[test]
    fn a_file_is_open_exactly_when_an_operation_needs_one() {
        for personality in Personality::value_variants() {
            for steps in [personality.steps(), personality.writer_steps()] {
                let mut open = false;
                for step in &steps {
                    match step {
                        Step::Create | Step::Open => {
                            assert!(!open, "{personality:?}");
                            open = true;
                        }
                        Step::Close => {
                            assert!(open, "{personality:?}");
                            open = false;
                        }
                        Step::WriteWhole | Step::ReadWhole | Step::Append | Step::Fsync => {
                            assert!(open, "{personality:?}");
                        }
                        _ => {}
                    }
                }
                assert!(!open, "{personality:?}");
                assert_eq!(count(&steps, Step::Create), count(&steps, Step::Delete));
            }
        }
    }

    #[test]
    fn the_mix_is_that_of_filebench() {
        let mix = |p: Personality, step| count(&p.steps(), step);
        assert_eq!(mix(Personality::Webserver, Step::ReadWhole), 10);
        assert_eq!(mix(Personality::Webserver, Step::AppendLog), 1);
        assert_eq!(mix(Personality::Varmail, Step::Fsync), 2);
        assert_eq!(mix(Personality::Varmail, Step::ReadWhole), 2);
        assert_eq!(mix(Personality::Webproxy, Step::ReadWhole), 5);
        assert_eq!(mix(Personality::Fileserver, Step::Open), 2);
        assert_eq!(Personality::Fileserver.steps().len(), 11);
        assert_eq!(Personality::Webserver.steps().len(), 31);
        assert_eq!(Personality::Varmail.steps().len(), 13);
        assert_eq!(Personality::Webproxy.steps().len(), 19);
        assert_eq!(Personality::Metadata.steps().len(), 9);
    }

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
