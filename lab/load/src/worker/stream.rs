//! Reading through the worker's own file.

use std::sync::Arc;

use super::{Next, Stream, Worker};
use crate::step::Step;
use crate::transfer::{open, read};

impl Worker {
    /// Reads on in the worker's own file, the one with its number, until its end.
    pub(super) fn read_once(&mut self) -> Next {
        let Some(mut stream) = self.stream.take().or_else(|| self.open_stream()) else {
            return Next::End;
        };
        let job = Arc::clone(&self.job);
        let mut buffer = std::mem::take(&mut self.buffer);
        let window = buffer.first_mut(u64::MAX);
        self.pace(u64::try_from(window.len()).unwrap_or(u64::MAX));
        let got = self.attempt(Step::ReadOnce, &stream.path, || {
            read(&stream.file, window, stream.offset, &job.counters.read)
        });
        self.buffer = buffer;
        let bytes = got.unwrap_or(0);
        stream.offset += bytes;
        self.stream = Some(stream);
        if bytes == 0 { Next::End } else { Next::GoOn }
    }

    fn open_stream(&mut self) -> Option<Stream> {
        let files = Arc::clone(&self.job.files);
        let direct = self.job.direct;
        let path = files.path(self.id % files.len().max(1));
        let file = self.attempt(Step::Open, &path, || open(&path, direct, false))?;
        // What is read ahead and not yet asked for when the time is up would be the disk's work
        // without being the application's.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        Some(Stream {
            file,
            path,
            offset: 0,
        })
    }
}
