//! Which runtimes a host has, and whether what they say of names and weights can be read. For `justitia doctor`.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, CWD, access};

use crate::docker;
use crate::files::{Base, Files};
use crate::parse;

/// A runtime whose program is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// As people call it.
    pub name: &'static str,
    /// Its program: with `--version` it says its version.
    pub program: PathBuf,
    /// What makes its cgroups, where that is a choice: `systemd` or `cgroupfs`.
    pub cgroup_driver: Option<String>,
    /// What is read, and from where.
    pub reads: Reads,
}

/// Whether a runtime's files can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reads {
    /// From these directories.
    From(Vec<PathBuf>),
    /// It has none yet: nothing of it has run. Then from this directory.
    Later(PathBuf),
    /// This directory is there and is not used, because of this.
    Not(PathBuf, String),
}

/// Where distributions and projects install programs.
const PROGRAMS: [&str; 5] = [
    "usr/bin",
    "usr/sbin",
    "usr/local/bin",
    "usr/local/sbin",
    "usr/libexec",
];

/// A runtime that is looked for.
struct Kind {
    name: &'static str,
    programs: &'static [&'static str],
    /// Directories of its files, the one that tells names first.
    places: &'static [&'static str],
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "Docker",
        programs: &["dockerd"],
        places: &[
            "/var/lib/docker/containers",
            "/run/docker/runtime-runc/moby",
        ],
    },
    Kind {
        name: "podman",
        programs: &["podman"],
        places: &[
            "/var/lib/containers/storage/overlay-containers",
            "/run/crun",
        ],
    },
    Kind {
        name: "containerd",
        programs: &["containerd"],
        places: &["/run/containerd/io.containerd.runtime.v2.task"],
    },
    Kind {
        name: "CRI-O",
        programs: &["crio"],
        places: &["/run/containers/storage/overlay-containers"],
    },
    Kind {
        name: "kubelet",
        programs: &["kubelet", "k3s"],
        places: &[
            "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
            "/run/containers/storage/overlay-containers",
        ],
    },
    Kind {
        name: "libvirt",
        programs: &["libvirtd", "virtqemud"],
        places: &["/run/libvirt/qemu"],
    },
];

/// The runtimes that are installed below `root`: `/`, but in tests.
#[must_use]
pub fn installed(root: &Path) -> Vec<Installed> {
    let files = Files::new(root);
    let found = KINDS.iter().filter_map(|kind| {
        let program = program(root, kind.programs)?;
        let mut places: Vec<PathBuf> = kind.places.iter().map(PathBuf::from).collect();
        if let ("Docker", Some(names)) = (kind.name, places.first_mut()) {
            *names = docker::data(&files).path.join("containers");
        }
        Some(Installed {
            name: kind.name,
            program,
            cgroup_driver: driver(&files, root, kind.name),
            reads: reads(&files, places),
        })
    });
    found.collect()
}

/// The first of these programs that is there.
fn program(root: &Path, names: &[&str]) -> Option<PathBuf> {
    let mut all = names.iter().flat_map(|name| {
        PROGRAMS
            .iter()
            .map(move |place| Path::new(place).join(name))
    });
    let found = all.find(|path| access_of(&root.join(path)))?;
    Some(Path::new("/").join(found))
}

fn access_of(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, rustix::fs::AtFlags::empty()).is_ok()
        && access(path, Access::READ_OK).is_ok()
}

/// What makes the cgroups of its containers: `systemd` or `cgroupfs`.
fn driver(files: &Files, root: &Path, name: &str) -> Option<String> {
    let of = |directory: &str, file: &str, parse: fn(&[u8]) -> Option<Option<String>>| {
        files.parse(&Base::root(directory), file, parse).flatten()
    };
    // What Docker takes itself on cgroup v2.
    let own = || match root.join("run/systemd/system").is_dir() {
        true => "systemd".to_owned(),
        false => "cgroupfs".to_owned(),
    };
    match name {
        "Docker" => {
            let said = of("/etc/docker", "daemon.json", parse::docker_cgroup_driver);
            Some(said.unwrap_or_else(own))
        }
        "kubelet" => of(
            "/var/lib/kubelet",
            "config.yaml",
            parse::kubelet_cgroup_driver,
        ),
        _ => None,
    }
}

fn reads(files: &Files, places: Vec<PathBuf>) -> Reads {
    let (mut from, mut first) = (Vec::new(), None);
    for place in places {
        match files.can_use(&Base::root(&place)) {
            Ok(true) => from.push(place),
            Ok(false) => drop(first.get_or_insert(place)),
            Err(why) => return Reads::Not(place, why),
        }
    }
    match (from.is_empty(), first) {
        (true, Some(first)) => Reads::Later(first),
        _ => Reads::From(from),
    }
}
