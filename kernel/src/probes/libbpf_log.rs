//! What libbpf prints, captured: the verifier's reasons are nowhere else.

use std::sync::{Mutex, PoisonError};

use libbpf_rs::PrintLevel;

/// The end of what libbpf has printed.
static TEXT: Mutex<String> = Mutex::new(String::new());
/// One capture at a time: libbpf has one print callback.
static CAPTURING: Mutex<()> = Mutex::new(());

/// How many bytes are kept, from the end.
const MAX_LEN: usize = 300;

/// Separates an error from what libbpf printed about it.
const SEPARATOR: &str = ": … ";

/// Runs `body` and returns what libbpf printed meanwhile.
pub(super) fn capture<T>(body: impl FnOnce() -> T) -> (T, String) {
    let _one = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, append)));
    let result = body();
    libbpf_rs::set_print(before);
    let text = std::mem::take(&mut *TEXT.lock().unwrap_or_else(PoisonError::into_inner));
    (result, text)
}

fn append(_: PrintLevel, printed: String) {
    let mut text = TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    text.push_str(&printed);
    let mut cut = text.len().saturating_sub(MAX_LEN);
    while !text.is_char_boundary(cut) {
        cut += 1;
    }
    text.drain(..cut);
}

/// The error, and after it what libbpf printed.
pub(super) fn reason(error: &libbpf_rs::Error, printed: &str) -> String {
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    if printed.is_empty() {
        error.to_string()
    } else {
        format!("{error}{SEPARATOR}{printed}")
    }
}

/// A [`reason`] divided into the error and what libbpf printed.
pub(super) fn split(reason: &str) -> (&str, &str) {
    reason.split_once(SEPARATOR).unwrap_or((reason, ""))
}
