//! A request: answered at once, or started.

use super::QueueWorker;
use super::answer::AnswerContext;
use crate::frontend::{IoRequest, Operation};
use crate::vhost::chain::ChainError;
use crate::vhost::memory::GuestMemory;
use crate::vhost::request::{BlkHeader, Command, DeviceView, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QueueWorker {
    /// Executes the request of the chain that was read last.
    pub(super) fn execute(&mut self, memory: &Arc<GuestMemory>) -> Result<(), ChainError> {
        let header = self.chain.header(memory)?;
        let segment = if header.has_segment() {
            self.chain.segment(memory)?
        } else {
            None
        };
        let volume = &self.setup.volume;
        let device = DeviceView {
            size: volume.size(),
            read_only: volume.is_read_only(),
        };
        let (readable, writable) = (self.chain.readable(), self.chain.writable());
        let command = header.command(device, readable, writable, segment);
        if let Some(inflight) = &mut self.setup.inflight {
            inflight.taken(self.chain.head());
        }
        let fua = self.setup.write_through.load(Ordering::Relaxed);
        match command {
            Command::Read { offset, length } => return self.read(memory, &header, offset, length),
            Command::Write { offset, length } => return self.write(memory, offset, length, fua),
            Command::Flush if device.read_only => self.answer_now(memory, &[], Status::Ok)?,
            Command::Flush => self.start(memory, Operation::Flush, 0, 0),
            Command::Discard { offset, length } => {
                self.start(memory, Operation::Discard { fua }, offset, length);
            }
            Command::WriteZeroes {
                offset,
                length,
                may_unmap,
            } => {
                let operation = Operation::WriteZeroes {
                    fua,
                    may_unmap,
                    fast: false,
                };
                self.start(memory, operation, offset, length);
            }
            Command::GetId => {
                let serial = volume.shown_serial();
                self.answer_now(memory, &serial, Status::Ok)?;
            }
            Command::Refused(status) => {
                volume.count_error();
                self.answer_now(memory, &[], status)?;
            }
        }
        Ok(())
    }

    /// Answers from the cache, or starts to read what the cache lacks.
    fn read(
        &mut self,
        memory: &Arc<GuestMemory>,
        header: &BlkHeader,
        offset: u64,
        length: u64,
    ) -> Result<(), ChainError> {
        // At most the largest request, which fits.
        let size = usize::try_from(length).map_err(|_| ChainError::Broken)?;
        let volume = &self.setup.volume;
        let pool = header.tag().and_then(|tag| volume.pool_of(tag));
        let mut buffer = self.buffers.take(size);
        let missing = volume.backend().look_up(pool.as_ref(), &mut buffer, offset);
        let Some(remainder) = missing else {
            volume.count_inline_hit(length);
            let answered = self.answer_now(memory, &buffer, Status::Ok);
            self.buffers.keep(buffer);
            return answered;
        };
        let context = self.context(memory, true);
        let mut request = IoRequest::new(Operation::Read, offset, length, context);
        (request.data, request.remainder) = (buffer, remainder);
        self.io.start(request);
        Ok(())
    }

    fn write(
        &mut self,
        memory: &Arc<GuestMemory>,
        offset: u64,
        length: u64,
        fua: bool,
    ) -> Result<(), ChainError> {
        let size = usize::try_from(length).map_err(|_| ChainError::Broken)?;
        let mut payload = self.buffers.take(size);
        self.chain.payload(memory, &mut payload)?;
        let context = self.context(memory, false);
        let mut request = IoRequest::new(Operation::Write { fua }, offset, length, context);
        request.data = payload;
        self.io.start(request);
        Ok(())
    }

    fn start(&mut self, memory: &Arc<GuestMemory>, operation: Operation, offset: u64, length: u64) {
        let context = self.context(memory, false);
        let request = IoRequest::new(operation, offset, length, context);
        self.io.start(request);
    }

    fn context(&mut self, memory: &Arc<GuestMemory>, with_data: bool) -> AnswerContext {
        AnswerContext {
            memory: Arc::clone(memory),
            buffers: self.chain.answer(with_data),
        }
    }

    fn answer_now(
        &mut self,
        memory: &GuestMemory,
        data: &[u8],
        status: Status,
    ) -> Result<(), ChainError> {
        let written = self.chain.answer_now(memory, data, status);
        let written = written.map_err(|_| ChainError::Outside)?;
        self.answer(memory, self.chain.head(), written);
        Ok(())
    }
}
