//! A conversation over a port, from one start of the host's daemon to the next.

use std::collections::VecDeque;
use std::io;

use justitia_link::{
    AlignedBuf, Answer, AreaHeader, Command, MAX_ANSWERS, PAGE, PoolRow, sequence,
};

use super::device::Port;
use crate::batch::{Batch, Origin};

/// Messages whose answers are read together: the area keeps more.
const MAX_SENT: usize = 32;
const _: () = assert!(MAX_SENT <= MAX_ANSWERS);

/// Why a conversation is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The port does not answer.
    #[error("the port does not answer: {0}")]
    Io(#[from] io::Error),
    /// The host's daemon was started anew: it knows nothing of pools and of blocks.
    #[error("the host's daemon was started anew")]
    Restarted,
}

/// A put that was written.
#[derive(Clone, Copy, Debug)]
struct Sent {
    sequence: u64,
    origin: Origin,
}

/// What became of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutAnswer {
    pub(crate) origin: Origin,
    pub(crate) answer: Answer,
}

/// A conversation.
#[derive(Debug)]
pub(crate) struct Session {
    port: Port,
    start: u64,
    sequence: u64,
    page: AlignedBuf,
    sent: VecDeque<Sent>,
    /// Puts without an answer since this was last taken: the host did not see a message, or a newer one was faster.
    pub(crate) unanswered: u64,
}

impl Session {
    /// Begins with what the port says.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn begin(mut port: Port) -> Result<Self, Ended> {
        let header = port.answers()?.header();
        Ok(Self {
            port,
            start: header.daemon_start_id,
            sequence: header.sequence,
            page: AlignedBuf::new(PAGE),
            sent: VecDeque::new(),
            unanswered: 0,
        })
    }

    /// Begins anew with the same port.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn again(self) -> Result<Self, Ended> {
        Self::begin(self.port)
    }

    /// Writes a put.
    ///
    /// # Errors
    /// When the conversation is over.
    pub(crate) fn put(&mut self, batch: &mut Batch) -> Result<(), Ended> {
        let sequence = self.next();
        self.port.write(batch.message(sequence))?;
        let origin = batch.origin;
        self.sent.push_back(Sent { sequence, origin });
        Ok(())
    }

    /// Whether answers should be read before more is written.
    pub(crate) fn is_full(&self) -> bool {
        self.sent.len() >= MAX_SENT
    }

    /// Reads what became of the puts.
    ///
    /// # Errors
    /// When the conversation is over.
    pub(crate) fn answers(&mut self) -> Result<Vec<PutAnswer>, Ended> {
        if self.sent.is_empty() {
            return Ok(Vec::new());
        }
        let area = self.port.answers()?;
        let header = area.header();
        let answered = |sent: &Sent| {
            let answer = area.answer(sent.sequence)?;
            Some(PutAnswer {
                origin: sent.origin,
                answer,
            })
        };
        let found: Vec<PutAnswer> = self.sent.iter().filter_map(answered).collect();
        let missing = self.sent.len().saturating_sub(found.len());
        self.unanswered += u64::try_from(missing).unwrap_or(0);
        self.sent.clear();
        self.follow(&header)?;
        Ok(found)
    }

    /// Has a command executed.
    ///
    /// # Errors
    /// When the conversation is over; `None` when the host did not see the command.
    pub(crate) fn command(&mut self, command: &Command) -> Result<Option<Answer>, Ended> {
        let sequence = self.next();
        if let Some(page) = self.page.first_chunk_mut::<PAGE>() {
            command.encode(sequence, page);
        }
        self.port.write(&self.page)?;
        let area = self.port.answers()?;
        let (header, answer) = (area.header(), area.answer(sequence));
        self.follow(&header)?;
        Ok(answer)
    }

    /// What the host says of the VM, and the pools with their figures, as of now.
    ///
    /// # Errors
    /// When the conversation is over.
    pub(crate) fn stats(&mut self) -> Result<(AreaHeader, Vec<PoolRow>), Ended> {
        self.command(&Command::GetStats)?;
        let area = self.port.tables()?;
        let (header, rows) = (area.header(), area.pools().collect());
        self.follow(&header)?;
        Ok((header, rows))
    }

    fn next(&mut self) -> u64 {
        self.sequence = sequence::next(self.sequence);
        self.sequence
    }

    /// Another program may have used the port meanwhile, with any numbers.
    fn follow(&mut self, header: &AreaHeader) -> Result<(), Ended> {
        if header.daemon_start_id != self.start {
            return Err(Ended::Restarted);
        }
        if sequence::is_later(header.sequence, self.sequence) {
            self.sequence = header.sequence;
        }
        Ok(())
    }
}
