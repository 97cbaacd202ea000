//! Finds paths of a configuration that lead to the same file or device.

use super::config::Config;
use justitia_common::regular_file::directory_of;
use rustix::fs::{major, minor};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A path and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathUse {
    what: String,
    path: PathBuf,
    /// Several uses may read it.
    shared: bool,
}

/// The file or device behind a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// A file: its file system's device, and its inode.
    File(u64, u64),
    /// A file that does not exist yet: its directory, and its name.
    New(u64, u64, OsString),
    /// A block device: its directory in sysfs, which contains those of its partitions.
    Block(PathBuf),
}

const SSD: &str = "the SSD store";

impl PathUse {
    fn new(what: String, path: &Path) -> Self {
        Self {
            what,
            path: path.to_owned(),
            shared: false,
        }
    }

    /// The file or device of an SSD store.
    pub(super) fn ssd(path: &Path) -> Self {
        Self::new(SSD.into(), path)
    }

    pub(super) fn is_ssd(&self) -> bool {
        self.what == SSD
    }

    /// The paths of a configuration.
    pub(super) fn of(config: &Config) -> Vec<Self> {
        let mut uses: Vec<_> = config
            .cache
            .ssd
            .iter()
            .map(|s| Self::ssd(&s.path))
            .collect();
        let mut socket = |what: String, path: &Path| {
            let mut lock = path.as_os_str().to_owned();
            lock.push(".lock");
            uses.push(Self::new(format!("the lock of {what}"), Path::new(&lock)));
            uses.push(Self::new(what, path));
        };
        if let Some(path) = &config.listen.unix {
            socket("the socket of all disks".into(), path);
        }
        if let Some(path) = &config.control {
            socket("the control socket".into(), path);
        }
        for vm in &config.vms {
            if let Some(path) = &vm.socket {
                socket(format!("the socket of VM {:?}", vm.name), path);
            }
            for disk in &vm.disks {
                if let Some(path) = &disk.vhost {
                    socket(format!("the vhost socket of disk {:?}", disk.name), path);
                }
            }
        }
        let disks = config.vms.iter().flat_map(|vm| &vm.disks);
        uses.extend(disks.map(|disk| Self {
            shared: disk.read_only,
            ..Self::new(format!("the image of disk {:?}", disk.name), &disk.image)
        }));
        if let Some(tls) = &config.tls {
            let files = ["server-cert.pem", "server-key.pem", "ca-cert.pem"];
            uses.extend(files.map(|name| Self {
                shared: true,
                ..Self::new("a file of [tls]".into(), &tls.directory.join(name))
            }));
        }
        uses
    }
}

/// The collisions of `uses`, in words. Opens nothing. A path whose lookup fails is not compared.
pub(super) fn collisions(uses: &[PathUse]) -> Vec<String> {
    let identified = uses
        .iter()
        .filter_map(|of| identity(&of.path).map(|identity| (identity, of)));
    among(&identified.collect::<Vec<_>>())
}

fn among(identified: &[(Identity, &PathUse)]) -> Vec<String> {
    let mut known = BTreeMap::<&Identity, &PathUse>::new();
    let mut found = Vec::new();
    for (identity, of) in identified {
        match known.get(identity) {
            Some(other) if !(other.shared && of.shared) => found.push(both(other, of)),
            _ => _ = known.insert(identity, of),
        }
    }
    // A partition collides with its device.
    for (identity, of) in identified {
        let Identity::Block(directory) = identity else {
            continue;
        };
        let whole = directory.ancestors().skip(1);
        let whole =
            whole.filter_map(|above| known.get(&Identity::Block(above.to_owned())).copied());
        found.extend(whole.map(|whole| both(whole, of)));
    }
    found
}

fn both(one: &PathUse, other: &PathUse) -> String {
    format!(
        "expected every file and device once, found {} for {} and {} for {}, which are the same or overlap: name another one for one of them",
        one.path.display(),
        one.what,
        other.path.display(),
        other.what
    )
}

fn identity(path: &Path) -> Option<Identity> {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => {
            let (major, minor) = (major(found.rdev()), minor(found.rdev()));
            let link = format!("/sys/dev/block/{major}:{minor}");
            // Without sysfs only the device number identifies it.
            let directory = std::fs::canonicalize(&link).unwrap_or(link.into());
            Some(Identity::Block(directory))
        }
        Ok(found) => Some(Identity::File(found.dev(), found.ino())),
        Err(_) => {
            let directory = std::fs::metadata(directory_of(path)).ok()?;
            let name = path.file_name()?.to_owned();
            Some(Identity::New(directory.dev(), directory.ino(), name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(paths: &[(&str, &Path, bool)]) -> Vec<PathUse> {
        let of = |(what, path, shared): &(&str, &Path, bool)| PathUse {
            what: (*what).to_owned(),
            path: path.to_path_buf(),
            shared: *shared,
        };
        paths.iter().map(of).collect()
    }

    #[test]
    fn one_file_under_two_names_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("image"), "x").unwrap();
        std::fs::hard_link(at("image"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("image"), at("soft")).unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        let (image, around) = (at("image"), at("sub/../image"));
        for other in [&image, &around, &at("hard"), &at("soft")] {
            let found = collisions(&uses(&[
                ("an image", &image, false),
                ("the SSD store", other, false),
            ]));
            assert!(
                found.len() == 1 && found[0].contains("the SSD store"),
                "{found:?}"
            );
        }
        // One that is not there yet, too; not one of the same name elsewhere.
        let (new, again, other) = (at("new"), at("sub/../new"), at("sub/new"));
        assert_eq!(
            collisions(&uses(&[("a", &new, false), ("b", &again, false)])).len(),
            1
        );
        assert!(collisions(&uses(&[("a", &new, false), ("b", &other, false)])).is_empty());
    }

    #[test]
    fn only_those_that_read_may_share_an_image() {
        let image = Path::new("/dev/null");
        let of = |one, other| collisions(&uses(&[("a", image, one), ("b", image, other)])).len();
        assert_eq!(
            (of(true, true), of(true, false), of(false, false)),
            (0, 1, 1)
        );
    }

    #[test]
    fn a_partition_is_a_part_of_its_device() {
        let block = |path: &str| Identity::Block(path.into());
        let of = uses(&[
            ("the whole", Path::new("/dev/sda"), false),
            ("a part", Path::new("/dev/sda1"), false),
            ("another", Path::new("/dev/sdb"), false),
        ]);
        let names = ["/sys/block/sda", "/sys/block/sda/sda1", "/sys/block/sdb"];
        let identified: Vec<_> = names.map(block).into_iter().zip(&of).collect();
        let found = among(&identified);
        assert!(found.len() == 1 && found[0].contains("a part"), "{found:?}");
    }
}
