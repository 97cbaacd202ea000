//! Where statuses come from: a running agent, an agent in this process, or a recording.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use justitia_api::Status;
use justitia_api::client::ask;

use super::view::{Command, View};
use crate::record::{RecordError, Recording};

/// A status, or why there is none.
type Answer = Result<Status, String>;

/// A source of statuses.
#[derive(Debug)]
pub enum Source {
    /// A thread that asks an agent, or the host's controller, at its socket.
    Live {
        /// The socket.
        title: String,
        /// What it says.
        told: Receiver<Answer>,
    },
    /// A recording.
    Recorded {
        /// The recording.
        recording: Recording,
        /// Its file.
        title: String,
        /// The position that is shown.
        position: usize,
        /// When it was last moved.
        moved: Option<Instant>,
    },
}

/// Between two statuses of a recording that plays.
const STEP: Duration = Duration::from_secs(1);

impl Source {
    /// Asks the agent at `socket`, once every `period`.
    #[must_use]
    pub fn agent(socket: &Path, period: Duration) -> Self {
        let path: PathBuf = socket.to_owned();
        let title = path.display().to_string();
        let told = Self::thread(period, move || {
            ask(&path).map_err(|e| format!("no answer from the agent at {}: {e}", path.display()))
        });
        Self::Live { title, told }
    }

    /// Asks `next`, once every `period`, on a thread of its own.
    #[must_use]
    pub fn own(
        title: &str,
        period: Duration,
        next: impl FnMut() -> Result<Status, String> + Send + 'static,
    ) -> Self {
        Self::Live {
            title: title.to_owned(),
            told: Self::thread(period, next),
        }
    }

    fn thread(
        period: Duration,
        mut next: impl FnMut() -> Answer + Send + 'static,
    ) -> Receiver<Answer> {
        let (tell, told) = sync_channel(1);
        let body = move || {
            loop {
                let begun = Instant::now();
                if tell.send(next()).is_err() {
                    return;
                }
                std::thread::sleep(period.saturating_sub(begun.elapsed()));
            }
        };
        // Without a thread nothing comes, and the view says that it waits.
        let _ = std::thread::Builder::new()
            .name("source".into())
            .spawn(body);
        told
    }

    /// Plays a recording.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn recording(path: &Path) -> Result<Self, RecordError> {
        Ok(Self::Recorded {
            recording: Recording::open(path)?,
            title: path.display().to_string(),
            position: 0,
            moved: None,
        })
    }

    /// How it is called.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Live { title, .. } | Self::Recorded { title, .. } => title.clone(),
        }
    }

    /// Gives the view what is new; says whether anything was.
    pub fn refresh(&mut self, view: &mut View, now: Instant) -> bool {
        match self {
            Self::Live { told, .. } => match told.try_recv() {
                Ok(Ok(status)) => view.take(Arc::new(status)),
                Ok(Err(trouble)) => view.trouble = Some(trouble),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => {
                    let trouble = Some("nobody tells anything any more".to_owned());
                    return std::mem::replace(&mut view.trouble, trouble.clone()) != trouble;
                }
            },
            Self::Recorded {
                recording,
                position,
                moved,
                ..
            } => {
                let first = moved.is_none();
                let due = moved.is_none_or(|at| now - at >= STEP && !view.paused);
                if !due || (!first && *position + 1 >= recording.len()) {
                    return false;
                }
                if !first {
                    *position += 1;
                }
                *moved = Some(now);
                show(recording, *position, view);
            }
        }
        true
    }

    /// Moves in a recording.
    pub fn seek(&mut self, view: &mut View, command: Command) {
        let Self::Recorded {
            recording,
            position,
            moved,
            ..
        } = self
        else {
            return;
        };
        let last = recording.len().saturating_sub(1);
        *position = match command {
            Command::Seek(by) => {
                let distance = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX);
                if by < 0 {
                    position.saturating_sub(distance)
                } else {
                    position.saturating_add(distance).min(last)
                }
            }
            Command::SeekTo(end) => last * usize::from(end),
            Command::Quit => return,
        };
        *moved = Some(Instant::now());
        view.jump();
        show(recording, *position, view);
    }
}

fn show(recording: &mut Recording, position: usize, view: &mut View) {
    view.replay = Some((position, recording.len()));
    match recording.status(position) {
        Ok(status) => view.take(status),
        Err(error) => view.trouble = Some(error.to_string()),
    }
}
