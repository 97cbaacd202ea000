//! The I/O priority of threads, as far as it carries a hint (`ioprio_set(2)`, linux/ioprio.h).
//!
//! From Linux 6.6 on a priority has a hint of 10 bits between its class and its level. Requests carry it to the disk; a
//! virtio disk passes it on to the host.

#![expect(unsafe_code, reason = "no crate has these two system calls")]

use rustix::io::Errno;

/// The largest hint.
pub const MAX_HINT: u16 = 1023;

const WHO_PROCESS: libc::c_int = 1;
const CLASS_SHIFT: u32 = 13;
const HINT_SHIFT: u32 = 3;
const LEVELS: u16 = 7;
const NONE: u16 = 0;
const BEST_EFFORT: u16 = 2;
/// Of a thread that has set none.
const DEFAULT_LEVEL: u16 = 4;

/// Gives a thread's I/O priority a hint of 0 (none) to 1023, and leaves its level. Returns whether it has been set: a
/// thread of another class than best effort is left alone, and one that has the hint already.
///
/// # Errors
/// [`Errno::SRCH`] when the thread is gone; [`Errno::INVAL`] when this kernel knows no hints.
pub fn set_hint(thread: u32, hint: u16) -> Result<bool, Errno> {
    // SAFETY: takes and returns numbers only.
    let found = result(unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) })?;
    let Some(wanted) = hinted(found, hint.min(MAX_HINT)) else {
        return Ok(false);
    };
    let wanted = libc::c_int::from(wanted.cast_signed());
    // SAFETY: takes and returns numbers only.
    result(unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, thread, wanted) })?;
    Ok(true)
}

/// The priority with this hint; `None` when it stays as it is.
fn hinted(found: u16, hint: u16) -> Option<u16> {
    let level = match found >> CLASS_SHIFT {
        NONE if hint == 0 => return None,
        // The kernel says none where it derives one from the CPU priority.
        NONE => DEFAULT_LEVEL,
        BEST_EFFORT => found & LEVELS,
        _ => return None,
    };
    let wanted = BEST_EFFORT << CLASS_SHIFT | hint << HINT_SHIFT | level;
    (wanted != found).then_some(wanted)
}

fn result(returned: libc::c_long) -> Result<u16, Errno> {
    if returned < 0 {
        let errno = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&errno).unwrap_or(Errno::INVAL));
    }
    u16::try_from(returned).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_leaves_class_and_level() {
        let best = |hint: u16, level: u16| 2 << 13 | hint << 3 | level;
        for (found, hint, expected) in [
            (0, 7, Some(best(7, 4))),
            (best(0, 2), 7, Some(best(7, 2))),
            (best(7, 2), 7, None),
            (best(7, 2), 0, Some(best(0, 2))),
            (0, 0, None),
            // Real time and idle.
            (1 << 13 | 3, 7, None),
            (3 << 13, 7, None),
        ] {
            assert_eq!(hinted(found, hint), expected, "{found:#x} {hint}");
        }
    }

    #[test]
    fn a_thread_of_ones_own_is_hinted() {
        // In a thread of its own, so that no other test's priority is changed.
        let done = std::thread::spawn(|| {
            let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            match set_hint(own, 9) {
                // Before Linux 6.6.
                Err(Errno::INVAL) => {}
                first => {
                    assert_eq!(first, Ok(true));
                    assert_eq!(set_hint(own, 9), Ok(false));
                    assert_eq!(set_hint(own, 0), Ok(true));
                }
            }
        });
        done.join().unwrap();
        assert_eq!(set_hint(u32::MAX >> 2, 9), Err(Errno::SRCH));
    }
}
