//! A root directory with files of runtimes.

#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};

use justitia_runtimes::{Found, Resolver};

/// The id of a container.
pub(crate) const ID: &str = "46ec00ce0123456789abcdef0123456789abcdef0123456789abcdef01234567";
/// That of another.
pub(crate) const OTHER: &str = "0badcafe0123456789abcdef0123456789abcdef0123456789abcdef01234567";

/// The directory.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// A path in it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    /// Writes a file, with its directories.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What a new resolver says.
    pub(crate) fn resolve(&self, path: &str, in_delegation: bool) -> Found {
        Resolver::new(self.root()).resolve(Path::new(path), in_delegation)
    }

    /// runc's state of a container in this cgroup.
    pub(crate) fn runc_state(&self, file: &str, cgroup: &str, weight: u64) {
        let text = format!(
            r#"{{"id":"x","cgroup_paths":{{"":"/sys/fs/cgroup/{cgroup}"}},
            "config":{{"rootfs":"/x","cgroups":{{"path":"","devices":[],"blkio_weight":{weight},"systemd":true}}}}}}"#
        );
        self.write(file, &text);
    }

    /// A container of Docker; `ID` in `cgroup` is its id.
    pub(crate) fn docker(&self, cgroup: &str, name: &str, weight: u64) {
        let cgroup = cgroup.replace("ID", ID);
        self.runc_state(
            &format!("run/docker/runtime-runc/moby/{ID}/state.json"),
            &cgroup,
            weight,
        );
        let config = format!(
            r#"{{"ID":"{ID}","Name":"/{name}","Image":"sha256:0",
            "Config":{{"Image":"nginx:1.25","Labels":{{"app":"web","tier":"front"}}}}}}"#
        );
        let of = |file: &str| format!("var/lib/docker/containers/{ID}/{file}");
        self.write(&of("config.v2.json"), &config);
        self.write(
            &of("hostconfig.json"),
            &format!(r#"{{"BlkioWeight":{weight}}}"#),
        );
    }

    /// A container of podman, likewise.
    pub(crate) fn podman(&self, cgroup: &str, name: &str, weight: u64) {
        let path = match cgroup.strip_suffix("/libpod-ID.scope") {
            Some(slice) => format!("{slice}:libpod:{ID}"),
            None => format!("/{}", cgroup.replace("ID", ID)),
        };
        let store = "var/lib/containers/storage/overlay-containers";
        let metadata =
            format!(r#"{{\"image-name\":\"localhost/small:latest\",\"name\":\"{name}\"}}"#);
        let list = format!(r#"[{{"id":"{ID}","names":["{name}"],"metadata":"{metadata}"}}]"#);
        self.write(&format!("{store}/containers.json"), &list);
        self.write(
            &format!("{store}/{ID}/userdata/config.json"),
            &bundle(&path, r#""tier":"back""#, weight),
        );
    }

    /// A container of containerd.
    pub(crate) fn bundle(
        &self,
        namespace: &str,
        id: &str,
        path: &str,
        annotations: &str,
        weight: u64,
    ) {
        let tasks = "run/containerd/io.containerd.runtime.v2.task";
        let file = format!("{tasks}/{namespace}/{id}/config.json");
        self.write(&file, &bundle(path, annotations, weight));
    }
}

fn bundle(path: &str, annotations: &str, weight: u64) -> String {
    format!(
        r#"{{"ociVersion":"1.0.2","annotations":{{{annotations}}},
        "linux":{{"cgroupsPath":"{path}","resources":{{"blockIO":{{"weight":{weight}}}}}}}}}"#
    )
}
