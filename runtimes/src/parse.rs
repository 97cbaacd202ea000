//! The formats of the files that runtimes and systemd keep. Bytes go in; what they say comes out, or `None` if they are not
//! what they should be. Nothing of a file is kept but what is asked for.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use justitia_share::Weight;

use crate::identity::bounded;
use crate::path::is_id;

fn json<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    serde_json::from_slice(text).ok()
}

/// A number that is a weight. 0 is how runtimes write that there is none.
fn weight(number: Option<u64>) -> Option<Weight> {
    Weight::try_from(number?).ok()
}

/// runc's `state.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuncState {
    /// `config.cgroups.blkio_weight`.
    pub weight: Option<Weight>,
    /// The path of its cgroup, below the mount.
    pub cgroup: Option<String>,
}

/// Reads runc's `state.json`.
#[must_use]
pub fn runc_state(text: &[u8]) -> Option<RuncState> {
    #[derive(Deserialize)]
    struct State {
        #[serde(default)]
        cgroup_paths: BTreeMap<String, String>,
        config: Config,
    }
    #[derive(Deserialize)]
    struct Config {
        cgroups: Option<Cgroups>,
    }
    #[derive(Deserialize)]
    struct Cgroups {
        blkio_weight: Option<u64>,
    }
    let state: State = json(text)?;
    let unified = state.cgroup_paths.get("");
    Some(RuncState {
        weight: weight(state.config.cgroups.and_then(|c| c.blkio_weight)),
        cgroup: unified.and_then(|path| below_mount(path)),
    })
}

/// A path below the usual mount of cgroup2.
fn below_mount(path: &str) -> Option<String> {
    path.strip_prefix("/sys/fs/cgroup/").map(str::to_owned)
}

/// An OCI bundle's `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// `linux.resources.blockIO.weight`.
    pub weight: Option<Weight>,
    /// The path of its cgroup, below the mount, as far as `linux.cgroupsPath` says it.
    pub cgroup: Option<String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Reads the `config.json` of an OCI bundle.
#[must_use]
pub fn bundle(text: &[u8]) -> Option<Bundle> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        annotations: Option<BTreeMap<String, String>>,
        linux: Option<Linux>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Linux {
        cgroups_path: Option<String>,
        resources: Option<Resources>,
    }
    #[derive(Deserialize)]
    struct Resources {
        #[serde(rename = "blockIO")]
        block_io: Option<BlockIo>,
    }
    #[derive(Deserialize)]
    struct BlockIo {
        weight: Option<u64>,
    }
    let spec: Spec = json(text)?;
    let linux = spec.linux.unwrap_or_default();
    let block_io = linux.resources.and_then(|resources| resources.block_io);
    let path = linux.cgroups_path.as_deref();
    Some(Bundle {
        weight: weight(block_io.and_then(|block_io| block_io.weight)),
        cgroup: path.and_then(crate::path::of_cgroups_path),
        annotations: spec.annotations.unwrap_or_default(),
    })
}

/// What crun's `status` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrunStatus {
    /// The path of the container's cgroup, below the mount.
    pub cgroup: Option<String>,
    /// The directory of its bundle.
    pub bundle: String,
}

/// Reads crun's `status`.
#[must_use]
pub fn crun_status(text: &[u8]) -> Option<CrunStatus> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Status {
        cgroup_path: Option<String>,
        bundle: String,
    }
    let status: Status = json(text)?;
    let path = status.cgroup_path.as_deref();
    Some(CrunStatus {
        cgroup: path.map(|path| path.trim_matches('/').to_owned()),
        bundle: status.bundle,
    })
}

/// Docker's `config.v2.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerConfig {
    /// The container's name.
    pub name: String,
    /// Its image, as it was named.
    pub image: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Reads Docker's `config.v2.json`.
#[must_use]
pub fn docker_config(text: &[u8]) -> Option<DockerConfig> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Container {
        name: String,
        config: Option<Config>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Config {
        image: Option<String>,
        labels: Option<BTreeMap<String, String>>,
    }
    let container: Container = json(text)?;
    let config = container.config.unwrap_or_default();
    Some(DockerConfig {
        name: container.name.trim_start_matches('/').to_owned(),
        image: config.image,
        labels: config.labels.unwrap_or_default(),
    })
}

/// The weight of Docker's `hostconfig.json`, 10 to 1000, if one was given: `None` inside is none.
#[must_use]
pub fn docker_host_config(text: &[u8]) -> Option<Option<Weight>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct HostConfig {
        blkio_weight: Option<u64>,
    }
    let config: HostConfig = json(text)?;
    Some(weight(config.blkio_weight))
}

/// The directory of Docker's data that `daemon.json` names.
#[must_use]
pub fn docker_data_root(text: &[u8]) -> Option<Option<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Daemon {
        data_root: Option<String>,
    }
    let daemon: Daemon = json(text)?;
    Some(daemon.data_root)
}

/// `native.cgroupdriver` of Docker's `daemon.json`, if it says one; `None` if that is none.
#[must_use]
pub fn docker_cgroup_driver(text: &[u8]) -> Option<Option<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Daemon {
        #[serde(default)]
        exec_opts: Vec<String>,
    }
    let daemon: Daemon = json(text)?;
    let mut options = daemon.exec_opts.iter();
    let driver = options.find_map(|option| option.strip_prefix("native.cgroupdriver="));
    Some(driver.map(bounded))
}

/// `cgroupDriver` of the kubelet's `config.yaml`, if it says one at the top.
#[must_use]
pub fn kubelet_cgroup_driver(text: &[u8]) -> Option<Option<String>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines();
    let driver = lines.find_map(|line| line.strip_prefix("cgroupDriver:"));
    Some(driver.map(|driver| bounded(driver.trim().trim_matches('"'))))
}

/// A container of podman's `containers.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodmanContainer {
    /// Its name.
    pub name: Option<String>,
    /// Its image, as it was named.
    pub image: Option<String>,
}

/// The most containers of a store. A list of the longest size that is read could name four times as many.
const MAX_CONTAINERS: usize = 4096;

/// Reads podman's `containers.json`: the containers of a store, by id, at most 4096. A user's list is the user's to write:
/// what is no container's id is left out.
#[must_use]
pub fn podman_containers(text: &[u8]) -> Option<BTreeMap<String, PodmanContainer>> {
    #[derive(Deserialize)]
    struct Container {
        id: String,
        #[serde(default)]
        names: Option<Vec<String>>,
        #[serde(default)]
        metadata: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Metadata {
        image_name: Option<String>,
        name: Option<String>,
    }
    let containers: Vec<Container> = json(text)?;
    let containers = containers
        .into_iter()
        .filter(|container| is_id(&container.id));
    let containers = containers.take(MAX_CONTAINERS).map(|container| {
        let metadata = container.metadata.as_deref().unwrap_or("{}");
        let metadata: Metadata = json(metadata.as_bytes()).unwrap_or_default();
        let named = container.names.unwrap_or_default().into_iter().next();
        let podman = PodmanContainer {
            name: metadata.name.or(named),
            image: metadata.image_name.filter(|image| !image.is_empty()),
        };
        (container.id, podman)
    });
    Some(containers.collect())
}

/// A virtual machine, as libvirt describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its number while it runs.
    pub id: Option<u32>,
    /// Its name.
    pub name: String,
    /// `<blkiotune><weight>`.
    pub weight: Option<Weight>,
}

/// The most elements of a document of libvirt: a machine has some thousands.
const MAX_NODES: u32 = 100_000;
/// The deepest nesting of elements that is parsed.
const MAX_DEPTH: usize = 64;

/// Reads libvirt's state of a running domain, `/run/libvirt/qemu/NAME.xml`.
#[must_use]
pub fn domain(text: &[u8]) -> Option<Domain> {
    let text = std::str::from_utf8(text).ok()?;
    if depth(text) > MAX_DEPTH {
        return None;
    }
    let options = roxmltree::ParsingOptions {
        nodes_limit: MAX_NODES,
        ..roxmltree::ParsingOptions::default()
    };
    let document = roxmltree::Document::parse_with_options(text, options).ok()?;
    let root = document.root_element();
    let child = |of: roxmltree::Node<'_, '_>, name: &str| {
        let mut children = of.children();
        children
            .find(|node| node.has_tag_name(name))
            .map(|n| n.id())
    };
    let domain = match root.tag_name().name() {
        "domain" => root,
        "domstatus" => document.get_node(child(root, "domain")?)?,
        _ => return None,
    };
    let text = |of, name| {
        let node = document.get_node(child(of, name)?)?;
        Some(node.text()?.trim().to_owned())
    };
    let tune = child(domain, "blkiotune").and_then(|id| document.get_node(id));
    let number = tune.and_then(|tune| text(tune, "weight"));
    Some(Domain {
        id: domain.attribute("id").and_then(|id| id.parse().ok()),
        name: text(domain, "name").filter(|name| !name.is_empty())?,
        weight: weight(number.and_then(|number| number.parse().ok())),
    })
}

/// At least how deep elements are nested, counting every `<` that could begin one.
fn depth(text: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('<') {
        match bytes.get(at + 1) {
            Some(b'/') => now = now.saturating_sub(1),
            Some(b'!' | b'?') | None => {}
            Some(_) => {
                let end = text.get(at..).and_then(|rest| rest.find('>'));
                let closed =
                    end.and_then(|end| bytes.get((at + end).checked_sub(1)?)) == Some(&b'/');
                now += usize::from(!closed);
            }
        }
        most = most.max(now);
    }
    most
}

/// What a unit's file or drop-in says of `IOWeight=`: `None` nothing; `Some(None)` that there is none; else the last of it.
///
/// `section` is the one of the unit's type: `Service`, `Scope`, `Slice`, `Mount`, `Socket`, `Swap`. What systemd does not
/// understand it passes over, and so does this.
#[must_use]
pub fn unit_weight(text: &[u8], section: &str) -> Option<Option<Weight>> {
    let text = String::from_utf8_lossy(text);
    let mut found = None;
    let mut inside = false;
    let mut joined = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        // A comment between the lines of a value is passed over (systemd.syntax(7)).
        if trimmed.starts_with(['#', ';']) || (trimmed.is_empty() && joined.is_empty()) {
            continue;
        }
        if let Some(begun) = trimmed.strip_suffix('\\') {
            joined.push_str(begun);
            joined.push(' ');
            continue;
        }
        let whole = std::mem::take(&mut joined) + trimmed;
        let whole = whole.trim();
        if let Some(name) = whole.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            inside = name == section;
        } else if let Some((key, value)) = whole.split_once('=')
            && inside
            && key.trim() == "IOWeight"
        {
            match value.trim() {
                "" => found = Some(None),
                number => {
                    let number = number.parse().ok();
                    found = weight(number).map(Some).or(found);
                }
            }
        }
    }
    found
}

/// The home directory of a user, from `/etc/passwd`.
#[must_use]
pub fn home_of(passwd: &[u8], uid: u32) -> Option<String> {
    let passwd = String::from_utf8_lossy(passwd);
    let uid = uid.to_string();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_user = fields.nth(2) == Some(uid.as_str());
        let home = fields.nth(2)?;
        (is_user && home.starts_with('/')).then(|| home.to_owned())
    })
}

/// The type of the file system on which a path lies, by `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
pub fn filesystem_of<'a>(mountinfo: &'a str, path: &str) -> Option<&'a str> {
    // As the kernel writes it there.
    let escaped = [
        ('\\', r"\134"),
        (' ', r"\040"),
        ('\t', r"\011"),
        ('\n', r"\012"),
    ];
    let path = escaped
        .iter()
        .fold(path.to_owned(), |path, (c, to)| path.replace(*c, to));
    let mounts = mountinfo.lines().filter_map(|line| {
        let point = line.split(' ').nth(4)?;
        let (_, of) = line.split_once(" - ")?;
        Path::new(&path)
            .starts_with(point)
            .then_some((point.len(), of.split(' ').next()?))
    });
    // Of several mounts on one another the last counts.
    mounts.max_by_key(|(length, _)| *length).map(|(_, of)| of)
}

#[cfg(test)]
mod tests;
