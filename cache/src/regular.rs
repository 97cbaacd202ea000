//! Small text files that people write: a device or a pipe in the place of one would be read for ever.

use std::fs::File;
use std::io::{Error, Read, Result};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The text of the regular file at `path`, or where a link leads, if it is at most `most` bytes long.
///
/// # Errors
/// If it is something else, or longer, or cannot be read.
pub fn read(path: &Path, most: u64) -> Result<String> {
    // A pipe without a writer holds up who opens it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut content = Vec::new();
    if file.metadata()?.is_file() {
        // The size that is announced need not be the one that is read.
        file.take(most.saturating_add(1))
            .read_to_end(&mut content)?;
        if u64::try_from(content.len()).is_ok_and(|length| length <= most) {
            return String::from_utf8(content).map_err(Error::other);
        }
    }
    Err(Error::other(format!(
        "it is no regular file of at most {} KiB",
        most >> 10
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_no_more_than_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let (file, pipe) = (dir.path().join("file"), dir.path().join("pipe"));
        std::fs::write(&file, "12345").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        assert_eq!(read(&file, 5).unwrap(), "12345");
        let proc = Path::new("/proc/self/maps");
        for path in [&file, &pipe, Path::new("/dev/zero"), dir.path(), proc] {
            let (tell, told) = std::sync::mpsc::channel();
            let path = path.to_owned();
            std::thread::spawn(move || tell.send(read(&path, 4).map_err(|e| e.to_string())));
            let refused = told.recv_timeout(std::time::Duration::from_secs(20));
            let error = refused.expect("an answer").unwrap_err();
            assert_eq!(error, "it is no regular file of at most 0 KiB");
        }
    }
}
