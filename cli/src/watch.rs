//! Printing a page again and again: over itself on a terminal, until a key ends it; one after the other elsewhere.

use std::io::{IsTerminal, stdin, stdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use justitia_common::command::out;
use justitia_common::signals::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Keys and signals are looked at so often while a page is made.
const LOOK: Duration = Duration::from_millis(20);

/// How a page is repeated.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Every {
    /// Seconds between two pages
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// End after so many pages
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Every {
    /// Between two pages.
    pub(crate) const fn period(self) -> Duration {
        Duration::from_secs(self.every)
    }

    /// Whether it ends by itself.
    pub(crate) const fn ends(self) -> bool {
        self.count.is_some()
    }

    /// Without an end.
    pub(crate) const fn seconds(every: u64) -> Self {
        Self { every, count: None }
    }
}

/// Prints what `page` makes, until there were as many as wanted; on a terminal what fits, until q, Ctrl-C or a signal.
///
/// # Errors
/// The first of `page`.
pub(crate) fn watch(
    how: Every,
    page: impl FnMut() -> anyhow::Result<String> + Send + 'static,
) -> anyhow::Result<()> {
    let is_terminal = stdout().is_terminal();
    let pages = Pages::start(page)?;
    let keys = (is_terminal && !how.ends()).then(Keys::new).flatten();
    let mut printed = 0;
    loop {
        let Some(page) = pages.next(keys.as_ref()) else {
            return Ok(());
        };
        let page = page?;
        if is_terminal {
            // Home, and clear: what the terminal has scrolled out stays.
            out::print(format_args!("\x1b[H\x1b[2J{}", top(&page, rows())));
        } else {
            out::print(&page);
        }
        printed += 1;
        if how.count == Some(printed) {
            return Ok(());
        }
        if !is_terminal {
            out::print("\n");
        }
        match &keys {
            Some(keys) if keys.end_within(how.period()) => return Ok(()),
            Some(_) => {}
            None => std::thread::sleep(how.period()),
        }
    }
}

/// Pages that a thread makes: keys and signals are looked at while a page waits for a daemon that hangs.
struct Pages {
    wanted: Sender<()>,
    made: Receiver<anyhow::Result<String>>,
}

impl Pages {
    fn start(
        mut page: impl FnMut() -> anyhow::Result<String> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (wanted, asked) = channel();
        let (sender, made) = channel();
        let make = move || {
            for () in asked {
                if sender.send(page()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("pages".into());
        thread.spawn(make).context("starting a thread")?;
        Ok(Self { wanted, made })
    }

    /// The next one; `None` if a key or a signal ends it before.
    fn next(&self, keys: Option<&Keys>) -> Option<anyhow::Result<String>> {
        let _ = self.wanted.send(());
        loop {
            match self.made.recv_timeout(LOOK) {
                Ok(page) => return Some(page),
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err(anyhow::anyhow!("making the page has failed")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if keys.is_some_and(|keys| keys.end_within(Duration::from_millis(1))) {
                return None;
            }
        }
    }
}

/// The rows of the terminal.
fn rows() -> usize {
    let size = tcgetwinsize(stdout()).map_or(0, |size| size.ws_row);
    Some(usize::from(size))
        .filter(|rows| *rows > 0)
        .unwrap_or(usize::MAX)
}

/// The lines of a page that fit into `rows` rows, the last of which is the cursor's.
fn top(page: &str, rows: usize) -> String {
    page.split_inclusive('\n').take(rows - 1).collect()
}

/// Single keys of the terminal, which are not shown. It is as it was when this is dropped, and so when a signal ends it.
struct Keys {
    before: Termios,
    signals: Signals,
}

impl Keys {
    /// Nothing where standard input is no terminal.
    fn new() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut single = before.clone();
        // Ctrl-C is a key, too: else the terminal would not be as it was after it.
        single.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(stdin(), OptionalActions::Now, &single).ok()?;
        // Only then: a signal that is caught and not looked for would end nothing.
        let Ok(signals) = Signals::handle() else {
            let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
            return None;
        };
        Some(Self { before, signals })
    }

    /// Waits so long, or until a key is pressed or a signal comes that ends it: says whether one did.
    fn end_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let (stdin, signals) = (stdin(), &self.signals);
            let mut fds = [
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::new(&signals.stop, PollFlags::IN),
                PollFd::new(&signals.hang_up, PollFlags::IN),
            ];
            if !matches!(
                poll(&mut fds, Timespec::try_from(left).ok().as_ref()),
                Ok(1..)
            ) {
                continue;
            }
            if signals.has_come() {
                return true;
            }
            let mut keys = [0; 64];
            match rustix::io::read(&stdin, &mut keys) {
                Ok(read) if read > 0 && !ends(&keys[..read]) => {}
                // Or the terminal is gone.
                _ => return true,
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// Whether one of these keys ends it.
fn ends(keys: &[u8]) -> bool {
    /// Ctrl-C.
    const INTERRUPT: u8 = 3;
    keys.iter().any(|key| matches!(key, b'q' | &INTERRUPT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_and_ctrl_c_end_it() {
        assert!(ends(b"q") && ends(b"\x03") && ends(b"\x1b[Aq"));
        assert!(!ends(b"") && !ends(b"\x1b[A Q"));
    }

    #[test]
    fn what_fits_of_a_page_is_its_beginning() {
        assert_eq!(top("a\nb\nc\n", 3), "a\nb\n");
        assert_eq!(top("a\nb", usize::MAX), "a\nb");
        assert_eq!(top("a\n", 1), "");
    }
}
