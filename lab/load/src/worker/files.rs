//! Operations on files of the set, and on the log.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::sync::Arc;

use super::Worker;
use crate::step::Step;
use crate::transfer::{open, read, write_all};

impl Worker {
    pub(super) fn create(&mut self) {
        if self.unpaired {
            return;
        }
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_absent(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        let file = self.attempt(Step::Create, &path, || open(&path, job.direct, true));
        job.files.created(index, file.is_some());
        self.unpaired = file.is_none();
        self.open = file.map(|file| (index, file, path));
    }

    pub(super) fn open(&mut self) {
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_present(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        let file = self.attempt(Step::Open, &path, || open(&path, job.direct, false));
        match file {
            Some(file) => self.open = Some((index, file, path)),
            None => job.files.closed(index),
        }
    }

    pub(super) fn write_whole(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        let job = Arc::clone(&self.job);
        let size = job.files.size(index);
        self.pace(size);
        self.attempt(Step::WriteWhole, &path, || {
            let mut offset = 0;
            while offset < size && !job.counters.stopped() {
                let chunk = job.content.first((size - offset).min(job.io_size));
                offset += write_all(&file, chunk, offset, &job.counters.written)?;
            }
            Ok(())
        });
        self.open = Some((index, file, path));
    }

    pub(super) fn read_whole(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        let job = Arc::clone(&self.job);
        self.pace(job.files.size(index));
        let mut buffer = std::mem::take(&mut self.buffer);
        self.attempt(Step::ReadWhole, &path, || {
            let mut offset = 0;
            while !job.counters.stopped() {
                match read(
                    &file,
                    buffer.first_mut(u64::MAX),
                    offset,
                    &job.counters.read,
                )? {
                    0 => break,
                    n => offset += n,
                }
            }
            Ok(())
        });
        self.buffer = buffer;
        self.open = Some((index, file, path));
    }

    pub(super) fn append(&mut self) {
        let Some((index, mut file, path)) = self.open.take() else {
            return;
        };
        let job = Arc::clone(&self.job);
        let amount = self.append_amount();
        self.pace(amount);
        self.attempt(Step::Append, &path, || {
            let end = file.seek(SeekFrom::End(0))?;
            write_all(&file, job.content.first(amount), end, &job.counters.written)
        });
        self.open = Some((index, file, path));
    }

    pub(super) fn append_log(&mut self) {
        let job = Arc::clone(&self.job);
        let amount = self.append_amount();
        self.pace(amount);
        let log = self.log.take();
        self.log = self.attempt(Step::AppendLog, &job.log, || {
            let log = match log {
                Some(log) => log,
                None => OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(&job.log)?,
            };
            // The offset is ignored for a file opened for appending.
            write_all(&log, job.content.first(amount), 0, &job.counters.written)?;
            Ok(log)
        });
    }

    pub(super) fn fsync(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        self.attempt(Step::Fsync, &path, || file.sync_all());
        self.open = Some((index, file, path));
    }

    pub(super) fn close(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        self.attempt(Step::Close, &path, || {
            drop(file);
            Ok(())
        });
        self.job.files.closed(index);
    }

    pub(super) fn delete(&mut self) {
        if self.unpaired {
            return;
        }
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_idle(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        let done = self.attempt(Step::Delete, &path, || fs::remove_file(&path));
        self.unpaired = done.is_none();
        job.files.deleted(index, done.is_some());
    }

    pub(super) fn stat(&mut self) {
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_present(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        self.attempt(Step::Stat, &path, || fs::metadata(&path));
        job.files.closed(index);
    }

    pub(super) fn rename(&mut self) {
        let job = Arc::clone(&self.job);
        let stop = || job.counters.stopped();
        let Some(from) = job.files.take_idle(&stop) else {
            return;
        };
        let Some(to) = job.files.take_absent(&stop) else {
            job.files.deleted(from, false);
            return;
        };
        let (old, new) = (job.files.path(from), job.files.path(to));
        let done = self.attempt(Step::Rename, &old, || fs::rename(&old, &new));
        job.files.deleted(from, done.is_some());
        job.files.created(to, done.is_some());
        if done.is_some() {
            job.files.closed(to);
        }
    }
}
