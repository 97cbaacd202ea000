//! Reading through the worker's own file.

use std::sync::Arc;

use super::{Next, Stream, Worker};
use crate::step::Step;
use crate::transfer::{open, read};

impl Worker {
    /// Reads on in the worker's own file: the one with its number, around the set.
    pub(super) fn read_stream(&mut self, step: Step) -> Next {
        let Some(mut stream) = self.stream.take().or_else(|| self.open_stream(step)) else {
            return Next::End;
        };
        let job = Arc::clone(&self.job);
        let left = match step {
            Step::ReadOnce => job.limit.saturating_sub(stream.offset),
            _ => u64::MAX,
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let window = buffer.first_mut(left);
        self.pace(u64::try_from(window.len()).unwrap_or(u64::MAX));
        let mut offset = stream.offset;
        let got = self.attempt(step, &stream.path, || {
            let mut n = read(&stream.file, window, offset, &job.counters.read)?;
            if n == 0 && step == Step::ReadNext {
                // Around the end within one operation: finding it must not cost the rate.
                offset = 0;
                n = read(&stream.file, window, offset, &job.counters.read)?;
            }
            offset += n;
            Ok(n)
        });
        self.buffer = buffer;
        stream.offset = offset;
        let ended = got.is_none_or(|n| n == 0) || stream.offset >= job.limit;
        self.stream = Some(stream);
        if ended && step == Step::ReadOnce {
            Next::End
        } else {
            Next::GoOn
        }
    }

    fn open_stream(&mut self, step: Step) -> Option<Stream> {
        let files = Arc::clone(&self.job.files);
        let direct = self.job.direct;
        let path = files.path(self.id % files.len().max(1));
        let file = self.attempt(Step::Open, &path, || open(&path, direct, false))?;
        if step == Step::ReadOnce {
            // What is read ahead and not yet asked for when the time is up would be the disk's work
            // without being the application's.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        }
        Some(Stream {
            file,
            path,
            offset: 0,
        })
    }
}
