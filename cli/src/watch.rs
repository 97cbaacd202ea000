//! Printing a page again and again: over itself on a terminal, one after the other elsewhere.

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use justitia_common::command::out;

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

/// Prints what `page` makes, until there were as many as wanted.
///
/// # Errors
/// The first of `page`.
pub(crate) fn watch(
    how: Every,
    mut page: impl FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    // Home, and clear: what the terminal has scrolled out stays.
    let before = if stdout().is_terminal() {
        "\x1b[H\x1b[2J"
    } else {
        ""
    };
    let mut printed = 0;
    loop {
        let page = page()?;
        out::print(format_args!("{before}{page}"));
        printed += 1;
        if how.count == Some(printed) {
            return Ok(());
        }
        if before.is_empty() {
            out::print("\n");
        }
        std::thread::sleep(how.period());
    }
}
