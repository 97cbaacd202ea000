//! Descriptors of a process: as systemd passes them, and over an exec.

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Descriptors with their names, as systemd has them.
pub type Descriptors = Vec<(String, OwnedFd)>;

/// Takes descriptors that this process was started with, once: a second call returns none. Numbers that are not open are left
/// out. Call it at the very start, before the process opens any file that it keeps: such a file could have a number that was
/// announced and not passed.
pub fn adopt(numbers: impl IntoIterator<Item = (RawFd, String)>) -> Descriptors {
    static CALLED: AtomicBool = AtomicBool::new(false);
    if CALLED.swap(true, Ordering::SeqCst) {
        return Descriptors::new();
    }
    let open = |number: &RawFd| {
        // SAFETY: it is asked whether it is open; the number is not used for longer than that.
        *number > 2 && fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok()
    };
    let mut found = Descriptors::new();
    for (number, name) in numbers {
        let again = found.iter().any(|(_, other)| other.as_raw_fd() == number);
        if again || !open(&number) {
            continue;
        }
        // SAFETY: it is open, and nobody else has it: the process was started with it, and this is the only time that
        // somebody takes it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let _ = fcntl_setfd(&descriptor, FdFlags::CLOEXEC);
        found.push((name, descriptor));
    }
    found
}

/// Keeps descriptors open when this process executes a program. Returns what tells that program their numbers: they stay as
/// they are, since threads of this process may still use others.
#[must_use]
pub fn keep_over_exec(descriptors: &Descriptors) -> String {
    let mut told = std::process::id().to_string();
    for (name, descriptor) in descriptors {
        if fcntl_setfd(descriptor, FdFlags::empty()).is_ok() {
            told.push_str(&format!(",{}={name}", descriptor.as_raw_fd()));
        }
    }
    told
}

/// The numbers that [`keep_over_exec`] has told this process; none of what was told another one.
#[must_use]
pub fn kept_over_exec(told: &str) -> Vec<(RawFd, String)> {
    let mut parts = told.split(',');
    if parts.next() != Some(&std::process::id().to_string()) {
        return Vec::new();
    }
    let kept = parts.filter_map(|part| {
        let (number, name) = part.split_once('=')?;
        Some((number.parse().ok()?, name.to_owned()))
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_to_the_same_process_alone() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let number = file.as_raw_fd();
        let told = keep_over_exec(&vec![("name".into(), file)]);
        assert_eq!(kept_over_exec(&told), [(number, "name".to_owned())]);
        assert_eq!(kept_over_exec(&format!("1{told}")), []);
        assert_eq!(kept_over_exec(""), []);
    }

    #[test]
    fn numbers_that_are_not_open_are_left_out() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let number = std::os::fd::IntoRawFd::into_raw_fd(file);
        let numbers = [
            (number, "a"),
            (number, "twice"),
            (1 << 20, "closed"),
            (-1, "none"),
            (2, "error"),
        ];
        let numbers = numbers.map(|(number, name)| (number, name.to_owned()));
        let found = adopt(numbers.clone());
        assert_eq!(found.len(), 1);
        drop(found);
        assert!(adopt(numbers).is_empty());
    }
}
