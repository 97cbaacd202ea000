//! The operations that workers repeat.

/// One operation of a worker's loop (Filebench: flowop).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
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
    /// Delete the next file that is not open.
    Delete,
    /// Stat the next file that exists.
    Stat,
    /// Give the next file that is not open the name of one that does not exist.
    Rename,
    /// Make the worker's own directory.
    Mkdir,
    /// Remove it.
    Rmdir,
    /// Append to the one log file that all workers share.
    AppendLog,
    /// Read the next I/O of this worker's own file; the worker ends at its end.
    ReadOnce,
    /// Sleep for a moment.
    Pause,
    /// Read what a request asks for (`block`).
    Read,
    /// Write what a request asks for (`block`).
    Write,
    /// Touch pages of anonymous memory (`memory`).
    Touch,
    /// Look up names that do not exist (`names`).
    Lookup,
}

impl Step {
    /// The operation's name in the output.
    pub(crate) fn name(self) -> &'static str {
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
            Self::ReadOnce | Self::Read => "read",
            Self::Write => "write",
            Self::Touch => "touch",
            Self::Lookup => "lookup",
            Self::Pause => "pause",
        }
    }
}
