//! Output and errors of the command lines of `justitia` and `justitia-lab`.

pub mod out;

use std::process::ExitCode;

/// Says a program's error, if it has one, on standard error.
pub fn end(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        out::error(error_text(&error));
        ExitCode::FAILURE
    })
}

/// An error whose text has its causes in it, as the cache's do: as a chain they would be told twice.
pub fn flat(error: impl std::error::Error) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

/// The error with its causes, each once: some say theirs themselves. Whatever they quote does nothing to a terminal.
#[must_use]
pub fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{cause}");
        }
    }
    justitia_api::escape::plain_lines(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        let refused = || anyhow::anyhow!("permission denied");
        let error = refused().context("the directory /x: permission denied");
        assert_eq!(error_text(&error), "the directory /x: permission denied");
        assert_eq!(
            error_text(&refused().context("reading y")),
            "reading y: permission denied"
        );
    }

    #[test]
    fn what_an_error_quotes_does_nothing_to_a_terminal() {
        let error = anyhow::anyhow!("no agent at /\x1b[2J\u{9b}x").context("two\nlines\u{202e}");
        assert_eq!(
            error_text(&error),
            "two\nlines\\u{202e}: no agent at /\\u{1b}[2J\\u{9b}x"
        );
    }
}
