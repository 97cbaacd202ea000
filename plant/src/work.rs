//! What tenants do.

/// How a tenant's threads use the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Past the page cache; a part of the requests are writes, 0 to 1.
    Direct {
        /// The part that is written.
        writes: f64,
    },
    /// Overwrites its own file at random places, through the page cache.
    Buffered {
        /// The file's size, bytes.
        file: f64,
    },
    /// Filebench's fileserver: writes a file, reads one, deletes one, of a population of files.
    FileServer {
        /// All its files, bytes.
        files: f64,
    },
    /// Appends and waits for `fsync`.
    Fsync,
}

/// What a tenant does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// What.
    pub kind: Kind,
    /// Threads; of asynchronous I/O the queue depth.
    pub threads: usize,
    /// Bytes of a request, or of a file of a file server.
    pub size: f64,
    /// Seconds between the end of a request and the next.
    pub think: f64,
    /// With direct I/O bytes per second that it wants, and makes up for when it had to wait; 0 is all that it can get.
    pub pace: f64,
    /// It is active for this many seconds and then idle for as many; 0 is always active.
    pub burst: f64,
}

impl Work {
    /// Direct I/O, half of it written.
    #[must_use]
    pub const fn direct(threads: usize, size: f64) -> Self {
        Self {
            kind: Kind::Direct { writes: 0.5 },
            threads,
            size,
            think: 0.0,
            pace: 0.0,
            burst: 0.0,
        }
    }

    /// A buffered random writer, as of the experiment `writers-x4`.
    #[must_use]
    pub const fn buffered() -> Self {
        Self {
            kind: Kind::Buffered { file: 192e6 },
            ..Self::direct(1, 65536.0)
        }
    }

    /// A file server, as of the experiment `fileserver-x4` where `files` is 200 MB.
    #[must_use]
    pub const fn file_server(files: f64) -> Self {
        Self {
            kind: Kind::FileServer { files },
            ..Self::direct(6, 131_072.0)
        }
    }

    /// A loop of appends and `fsync`.
    #[must_use]
    pub const fn fsync() -> Self {
        Self {
            kind: Kind::Fsync,
            ..Self::direct(1, 16384.0)
        }
    }
}
