//! Finds the images that a QEMU process has open, and their pages in the host's page cache.
//!
//! The images are found by the process's descriptors. So their origin does not matter: the command line, libvirt, or a file
//! without a name.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use justitia_common::image_format;
use justitia_common::page_cache::{WINDOW, cached_pages, is_told};
use justitia_guest_protocol::memory::{BLOCK, is_sampled};
use rustix::fs::{Advice, SeekFrom};

/// The most descriptors that are checked.
const MAX_DESCRIPTORS: usize = 4096;
/// The most images of a VM.
const MAX_IMAGES: usize = 64;
/// Smaller files are no disks, bytes: for example a firmware's variables.
const MIN_SIZE: u64 = 8 << 20;
/// A sector of a disk, bytes.
const SECTOR: u64 = 512;

/// More formats in which blocks are not the disk's. For VDI: the text before its magic number.
const FORMATS: [(&[u8], &str); 2] = [(b"<<< ", "VDI"), (b"LUKS\xba\xbe", "LUKS")];

/// An image.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its size, bytes.
    pub(crate) size: u64,
    /// Its format, unless its blocks are those of the disk.
    pub(crate) format: Option<&'static str>,
}

/// The cached part of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCache {
    /// Bytes in the host's page cache.
    pub(crate) cached: u64,
    /// Bytes of the image that were checked before the time ran out.
    pub(crate) looked_at: u64,
    /// Sampled blocks in the host's page cache.
    pub(crate) sampled: u64,
    /// Of these, blocks that the guest caches, too.
    pub(crate) both: u64,
}

/// The images of this process, as far as /proc permits.
pub(crate) fn images(pid: u32) -> Vec<Image> {
    let directory = format!("/proc/{pid}/fd");
    let mut seen = HashSet::new();
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut images: Vec<Image> = entries
        .take(MAX_DESCRIPTORS)
        .filter_map(|entry| image(&entry.path(), &mut seen))
        .take(MAX_IMAGES)
        .collect();
    images.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    images
}

fn image(link: &Path, seen: &mut HashSet<(u64, u64)>) -> Option<Image> {
    let path = std::fs::read_link(link).ok()?;
    // This may be the guest's memory.
    if path.starts_with("/memfd:") || path.starts_with("/dev/hugepages") {
        return None;
    }
    let metadata = std::fs::metadata(link).ok()?;
    let is_device = metadata.file_type().is_block_device();
    if !metadata.is_file() && !is_device {
        return None;
    }
    let key = match is_device {
        true => (u64::MAX, metadata.rdev()),
        false => (metadata.dev(), metadata.ino()),
    };
    if !seen.insert(key) || (!is_device && metadata.len() < MIN_SIZE) {
        return None;
    }
    let mut file = File::open(link).ok()?;
    let size = rustix::fs::seek(&file, SeekFrom::End(0)).ok()?;
    rustix::fs::seek(&file, SeekFrom::Start(0)).ok()?;
    // Only the first page is read, without readahead.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
    let mut head = [0; 512];
    file.read_exact(&mut head).ok()?;
    let format = image_format::of_beginning(&head).or_else(|| image_format::named(&FORMATS, &head));
    (size >= MIN_SIZE).then_some(Image {
        file,
        path,
        size,
        format,
    })
}

impl Image {
    /// Whether it may be the image of a disk of `size` bytes. QEMU rounds a raw image up to whole sectors.
    pub(crate) fn may_be(&self, size: u64) -> bool {
        self.format.is_none() && self.size.div_ceil(SECTOR) * SECTOR == size
    }

    /// The cached part. `seed` and `shift` choose the sample, `guest` has the sampled blocks that the guest caches.
    ///
    /// # Errors
    /// A text, if the kernel does not tell the cached pages.
    pub(crate) fn cached(
        &self,
        (seed, shift): (u64, u8),
        guest: &HashSet<u64>,
        until: Instant,
    ) -> Result<HostCache, String> {
        if !is_told(&self.file) {
            return Err(
                "expected a file that this process owns or may write, found another: the kernel does not tell its cached \
                 pages. Run `justitia host run` as root"
                    .to_owned(),
            );
        }
        let mut found = HostCache::default();
        let mut first = 0;
        while first * BLOCK < self.size && Instant::now() < until {
            let looked = cached_pages(&self.file, first, self.size, |block| {
                found.cached += BLOCK;
                if is_sampled(block, seed, shift) {
                    found.sampled += 1;
                    found.both += u64::from(guest.contains(&block));
                }
            });
            looked.map_err(|error| format!("asking for its cached pages: {error}"))?;
            first += WINDOW;
            found.looked_at = self.size.min(first * BLOCK);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;
    use std::time::Duration;

    fn own(name: &str) -> Option<Image> {
        let all = images(std::process::id());
        all.into_iter().find(|image| image.path.ends_with(name))
    }

    #[test]
    fn images_are_found_among_the_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for (name, head, size) in [
            ("raw.img", &b"\xeb\x63\x90"[..], MIN_SIZE + 100),
            ("other.img", b"QFI\xfb", MIN_SIZE),
            ("small.img", b"", MIN_SIZE - 1),
        ] {
            let mut file = File::create(dir.path().join(name)).unwrap();
            file.write_all(head).unwrap();
            file.set_len(size).unwrap();
            files.push(file);
        }
        let raw = own("raw.img").unwrap();
        assert_eq!((raw.size, raw.format), (MIN_SIZE + 100, None));
        assert!(raw.may_be(MIN_SIZE + 512) && !raw.may_be(MIN_SIZE + 100));
        let other = own("other.img").unwrap();
        assert_eq!(other.format, Some("qcow2"));
        assert!(!other.may_be(MIN_SIZE));
        assert!(own("small.img").is_none());
        // One without a name that is open twice.
        std::fs::remove_file(dir.path().join("raw.img")).unwrap();
        files.push(files[0].try_clone().unwrap());
        let all = images(std::process::id());
        let deleted = all
            .iter()
            .filter(|image| image.path.ends_with("raw.img (deleted)"));
        assert_eq!(deleted.count(), 1);
    }

    #[test]
    fn what_both_cache_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("counted.img")).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(&vec![1; 400 * 4096], 512 << 20).unwrap();
        let image = own("counted.img").unwrap();
        let begin = (512 << 20) / BLOCK;
        // The guest caches every second one, and some that the host does not.
        let guest: HashSet<u64> = (begin..begin + 800).step_by(2).collect();
        let until = Instant::now() + Duration::from_secs(600);
        let all = image.cached((5, 0), &guest, until).unwrap();
        // The first page was read.
        assert_eq!((all.cached, all.sampled), (401 * BLOCK, 401));
        assert_eq!((all.both, all.looked_at), (200, 1 << 30));
        let part = image.cached((5, 2), &guest, until).unwrap();
        assert_eq!(part.cached, 401 * BLOCK);
        let is_in = |block: &u64| is_sampled(*block, 5, 2);
        let both = (begin..begin + 400).step_by(2).filter(is_in);
        assert_eq!(part.both, both.count() as u64);
        let late = image.cached((5, 0), &guest, Instant::now()).unwrap();
        assert_eq!(late, HostCache::default());
    }
}
