//! Finds the blocks of a VM's images that both guest and host cache (Singh, sections 3 and 4).
//!
//! The host asks the guest for a sample of its cached blocks ([`justitia_guest_protocol::memory::Cached`]). At once it checks
//! which blocks of the same sample it caches itself: of an image file, in the page cache; of a disk that `justitia cache
//! serve` serves, in the memory of that daemon. A guest's answer affects its own line alone.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_api::client::connect;
use justitia_api::escape::plain;
use justitia_guest_protocol::memory::{Cached, CachedDisk, is_sampled};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::images::{HostCache, Image, images};

/// The name of the socket in the directory of the journal.
pub const SOCKET: &str = "duplicates.sock";
/// The time limit for the images of a VM.
const LIMIT: Duration = Duration::from_secs(2);
/// The time limit for an answer of `justitia cache serve`.
const CACHE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer that is read, bytes.
const MAX_ANSWER: u64 = 4 << 20;

/// The VMs, as `justitia host duplicates --json` shows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Duplicates {
    /// The VMs.
    pub vms: Vec<VmDuplicates>,
}

/// A VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmDuplicates {
    /// Its name.
    pub name: String,
    /// Its QEMU process.
    pub pid: u32,
    /// Milliseconds since it was sampled.
    pub age_ms: u64,
    /// Bytes of files in the guest's page cache, on any device, as its agent says; `None` if it says nothing.
    pub guest_file: Option<u64>,
    /// Whether its agent covered everything; otherwise its time ran out, and the guest caches more than this.
    pub guest_is_whole: bool,
    /// Why the guest's cached blocks are unknown.
    pub why: Option<String>,
    /// Its disks.
    pub disks: Vec<DiskDuplicates>,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskDuplicates {
    /// The path of its image, or a text with the disk's serial.
    pub image: String,
    /// Its size, bytes.
    pub size: u64,
    /// Bytes of the image that were checked before the time ran out.
    pub looked_at: u64,
    /// Bytes that the host caches.
    pub host: Option<u64>,
    /// Bytes that the guest caches, as its agent says.
    pub guest: Option<u64>,
    /// Bytes that both cache: an estimate.
    pub both: Option<u64>,
    /// The part that both cache of all bytes that either caches, 0 to 1.
    pub share: Option<f64>,
    /// Sampled blocks that the guest caches: the more, the better the estimate.
    pub sampled: u64,
    /// Why figures are missing.
    pub why: Option<String>,
}

/// Samples the images of a QEMU process. `guest`: its guest's cached blocks. `cache`: the socket of `justitia cache serve`.
pub(crate) fn look(pid: u32, guest: Option<&Cached>, cache: &Path) -> Vec<DiskDuplicates> {
    let until = Instant::now() + LIMIT;
    let mut images = images(pid);
    let disks = guest.map(Cached::disks).unwrap_or_default();
    let mut found = Vec::new();
    for disk in disks {
        let Some(guest) = guest else { break };
        let alike = disks.iter().filter(|other| other.size == disk.size).count();
        let fits: Vec<usize> = (0..images.len())
            .filter(|at| images.get(*at).is_some_and(|image| image.may_be(disk.size)))
            .collect();
        found.push(match *fits {
            [at] if alike == 1 => of_image(&images.remove(at), Some((guest, disk)), until),
            [] => of_cache(guest, disk, cache),
            _ => DiskDuplicates {
                why: Some("expected one disk and one image of this size, found several".to_owned()),
                ..of_guest(disk)
            },
        });
    }
    found.extend(images.iter().map(|image| of_image(image, None, until)));
    found
}

/// The guest's figures of a disk, named by its serial.
fn of_guest(disk: &CachedDisk) -> DiskDuplicates {
    let serial = disk.serial.as_str();
    DiskDuplicates {
        image: match serial {
            "" => "a disk without serial".to_owned(),
            serial => format!("disk {serial}"),
        },
        size: disk.size,
        guest: Some(disk.bytes),
        ..DiskDuplicates::default()
    }
}

fn of_image(
    image: &Image,
    guest: Option<(&Cached, &CachedDisk)>,
    until: Instant,
) -> DiskDuplicates {
    let mut disk = guest.map(|(_, disk)| of_guest(disk)).unwrap_or_default();
    disk.image = plain(&image.path.to_string_lossy());
    disk.size = image.size;
    if let Some(format) = image.format {
        disk.why = Some(format!(
            "expected a raw image, found {format}: its blocks are not where the disk's are"
        ));
    }
    let sample = guest.map_or((0, 0), |(cached, _)| (cached.seed(), cached.shift()));
    let blocks: HashSet<u64> = guest.iter().flat_map(|(_, disk)| disk.blocks()).collect();
    match image.cached(sample, &blocks, until) {
        Ok(host) => count(&mut disk, host, blocks.len()),
        Err(why) => disk.why = Some(why),
    }
    disk
}

/// The figures of a disk without an image in the QEMU process: the hypervisor cache may serve it, named by its serial.
fn of_cache(cached: &Cached, guest: &CachedDisk, cache: &Path) -> DiskDuplicates {
    let mut disk = of_guest(guest);
    let serial = guest.serial.as_str();
    match ask_cache(cache, serial, cached.seed(), cached.shift()) {
        Ok(held) => {
            disk.image = format!("disk {serial} of justitia cache");
            let is_in = |block: &u64| is_sampled(*block, cached.seed(), held.shift);
            let blocks: HashSet<u64> = guest.blocks().filter(is_in).collect();
            let both = held.blocks.iter().filter(|block| blocks.contains(block));
            let host = HostCache {
                cached: held.bytes,
                looked_at: disk.size,
                sampled: held.blocks.len() as u64,
                both: both.count() as u64,
            };
            count(&mut disk, host, blocks.len());
        }
        Err(why) => {
            disk.why = Some(format!(
                "expected an image of this size in the QEMU process, found none; nor does justitia cache serve it: {why}"
            ));
        }
    }
    disk
}

/// `sampled`: sampled blocks that the guest caches.
fn count(disk: &mut DiskDuplicates, host: HostCache, sampled: usize) {
    disk.host = Some(host.cached);
    disk.looked_at = host.looked_at;
    disk.sampled = sampled as u64;
    let Some(guest) = disk.guest else { return };
    let part = ratio(host.both, disk.sampled);
    let both = (u128::from(guest) * u128::from(host.both)).checked_div(u128::from(disk.sampled));
    let both = u64::try_from(both.unwrap_or(0)).unwrap_or(u64::MAX);
    let both = both.min(host.cached).min(guest);
    let either = host.cached.saturating_add(guest).saturating_sub(both);
    // Without sampled blocks nothing is shared.
    disk.share = part.map_or(Some(0.0), |_| ratio(both, either));
    disk.both = Some(both);
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The blocks of a disk that the hypervisor cache holds in memory.
#[derive(Debug, Deserialize)]
struct Held {
    bytes: u64,
    shift: u8,
    blocks: Vec<u64>,
}

fn ask_cache(socket: &Path, disk: &str, seed: u64, shift: u8) -> Result<Held, String> {
    let asked = || -> std::io::Result<Vec<u8>> {
        let mut stream = connect(socket)?;
        stream.set_read_timeout(Some(CACHE_TIMEOUT))?;
        stream.set_write_timeout(Some(CACHE_TIMEOUT))?;
        let request =
            json!({ "command": "sample-disk", "disk": disk, "seed": seed, "shift": shift });
        stream.write_all(format!("{request}\n").as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = asked().map_err(|error| format!("{}: {error}", socket.display()))?;
    let mut answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
    match answer.get_mut("ok").map(Value::take) {
        Some(held) => serde_json::from_value(held).map_err(|error| error.to_string()),
        None => Err(plain(answer["error"].as_str().unwrap_or("no answer"))),
    }
}

/// The default control socket of root's `justitia cache serve`.
pub(crate) fn default_cache() -> PathBuf {
    PathBuf::from("/run/justitia/cache.sock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_guest_protocol::memory::{BLOCK, Sampler};
    use std::fs::File;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::fs::FileExt as _;
    use std::os::unix::net::UnixListener;

    /// A guest that caches these blocks of disks with these serials and sizes.
    fn guest(disks: &[(&str, u64)], blocks: &[(usize, std::ops::Range<u64>)]) -> Cached {
        let mut sampler = Sampler::new(9, disks.iter().copied());
        for (disk, range) in blocks {
            range.clone().for_each(|block| sampler.add(*disk, block));
        }
        sampler.finish(1 << 30, true)
    }

    /// An image of `mib` MiB of which the host caches the first `blocks` blocks. It is open as long as the file.
    fn image(path: &Path, mib: u64, blocks: u64) -> File {
        let file = File::create(path).unwrap();
        file.set_len(mib << 20).unwrap();
        let content = vec![1; usize::try_from(blocks * BLOCK).unwrap()];
        file.write_all_at(&content, 0).unwrap();
        file
    }

    fn of<'a>(found: &'a [DiskDuplicates], name: &str) -> &'a DiskDuplicates {
        found
            .iter()
            .find(|disk| disk.image.ends_with(name))
            .unwrap()
    }

    #[test]
    fn what_both_cache_is_told_of_the_image_of_the_disks_size() {
        let dir = tempfile::tempdir().unwrap();
        let _open = [
            image(&dir.path().join("a.img"), 211, 2000),
            image(&dir.path().join("b.img"), 212, 100),
            image(&dir.path().join("c.img"), 213, 100),
            image(&dir.path().join("d.img"), 213, 100),
        ];
        let told = guest(
            &[("one", 211 << 20), ("two", 213 << 20), ("three", 99 << 20)],
            &[(0, 1000..3000), (1, 0..10), (2, 0..10)],
        );
        let nowhere = dir.path().join("nowhere");
        let found = look(std::process::id(), Some(&told), &nowhere);
        let a = of(&found, "a.img");
        assert_eq!((a.host, a.guest), (Some(2000 * BLOCK), Some(2000 * BLOCK)));
        let both = a.both.unwrap() / BLOCK;
        assert!(both.abs_diff(1000) < 150, "{a:?}");
        assert!((a.share.unwrap() - 1.0 / 3.0).abs() < 0.07, "{a:?}");
        assert!(a.sampled > 100 && a.looked_at == a.size && a.why.is_none());
        // The guest says nothing of the others.
        let b = of(&found, "b.img");
        assert_eq!((b.host, b.guest, b.both), (Some(100 * BLOCK), None, None));
        let two = of(&found, "disk two");
        assert!(two.why.as_ref().unwrap().contains("several"), "{two:?}");
        let three = of(&found, "disk three");
        assert!(three.why.as_ref().unwrap().contains("nowhere"), "{three:?}");
    }

    #[test]
    fn without_an_agent_what_the_host_caches_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let _open = image(&dir.path().join("alone.img"), 17, 30);
        let other = image(&dir.path().join("other.img"), 17, 1);
        other.write_all_at(b"QFI\xfb", 0).unwrap();
        let found = look(std::process::id(), None, dir.path());
        let alone = of(&found, "alone.img");
        assert_eq!((alone.host, alone.share), (Some(30 * BLOCK), None));
        let other = of(&found, "other.img");
        let why = other.why.as_ref().unwrap();
        assert!(why.contains("expected a raw image, found qcow2"), "{why}");
    }

    #[test]
    fn a_guest_that_lies_is_not_in_both_more_than_the_host_caches() {
        let mut disk = DiskDuplicates {
            guest: Some(u64::MAX),
            ..DiskDuplicates::default()
        };
        let host = HostCache {
            cached: 8192,
            looked_at: 1,
            sampled: 2,
            both: 2,
        };
        count(&mut disk, host, 2);
        assert_eq!(disk.both, Some(8192));
        assert!(disk.share.unwrap() <= 1.0);
        disk.guest = Some(0);
        count(&mut disk, HostCache::default(), 0);
        assert_eq!((disk.both, disk.share), (Some(0), Some(0.0)));
    }

    #[test]
    fn the_hypervisor_cache_is_asked_for_a_disk_without_image() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cache.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for answer in ["{\"error\":\"no disk \\u001b\"}", "nonsense", ""] {
                let (mut client, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&client).read_line(&mut line).unwrap();
                assert!(line.contains("\"disk\":\"web\""), "{line}");
                let request: Value = serde_json::from_str(&line).unwrap();
                let seed = request["seed"].as_u64().unwrap();
                let blocks: Vec<u64> = (0..100).filter(|at| is_sampled(*at, seed, 1)).collect();
                let held = json!({ "ok": { "bytes": 100 * BLOCK, "shift": 1, "blocks": blocks } });
                let answer = match answer {
                    "" => held.to_string(),
                    answer => answer.to_owned(),
                };
                client.write_all(answer.as_bytes()).unwrap();
            }
        });
        let told = guest(&[("web", 99 << 20)], &[(0, 50..150)]);
        let why = |of: &DiskDuplicates| of.why.clone().unwrap();
        let refused = look(std::process::id(), Some(&told), &socket);
        let refused = why(of(&refused, "disk web"));
        assert!(
            refused.contains("no disk") && !refused.contains('\u{1b}'),
            "{refused}"
        );
        let nonsense = look(std::process::id(), Some(&told), &socket);
        assert!(why(of(&nonsense, "disk web")).contains("expected"));
        let found = look(std::process::id(), Some(&told), &socket);
        let web = of(&found, "disk web of justitia cache");
        assert_eq!(
            (web.host, web.guest),
            (Some(100 * BLOCK), Some(100 * BLOCK))
        );
        assert!((web.share.unwrap() - 1.0 / 3.0).abs() < 0.15, "{web:?}");
    }
}
