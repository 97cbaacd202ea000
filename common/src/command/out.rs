//! What is printed. Its reader may go at any time (`| head -1`): that is no error, and `println!` would panic.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// As of a program that ended by SIGPIPE, which the others in a pipe end by.
const PIPE: i32 = 128 + 13;

/// Prints a line; ends the program if the reader is gone. For a program that has nothing left to do but to print.
pub fn line(text: impl Display) {
    print(format_args!("{text}\n"));
}

/// What is told, as JSON in which nothing does anything to a terminal.
///
/// # Errors
/// If it cannot be JSON.
pub fn json(told: &impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(told).map(|text| justitia_api::escape::json(&text))
}

/// Prints; ends the program if the reader is gone. For a program that has nothing left to do but to print.
pub fn print(text: impl Display) {
    let mut out = io::stdout().lock();
    let done = write!(out, "{text}").and_then(|()| out.flush());
    match done {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(PIPE),
        Err(e) => {
            error(format_args!("writing to standard output: {e}"));
            std::process::exit(1);
        }
    }
}

/// Prints a line if there is a reader. For a program that goes on working.
pub fn tell(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Says on standard error what is wrong, after the name of this program.
pub fn error(text: impl Display) {
    let program = std::env::current_exe().unwrap_or_default();
    let name = justitia_api::escape::encode(program.file_name().unwrap_or_default());
    // As the kernel calls a program that was replaced meanwhile.
    let name = name.trim_end_matches(" (deleted)");
    note(format_args!("{name}: {text}"));
}

/// Says a line on standard error if there is a reader. Nothing in it does anything to a terminal.
pub fn note(text: impl Display) {
    let text = justitia_api::escape::plain_lines(&text.to_string());
    let _ = writeln!(io::stderr(), "{text}");
}
