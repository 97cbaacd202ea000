//! Containers of podman, of root and of users, and those of CRI-O, which keeps them in the same way.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use justitia_api::TenantKind;

use crate::answer::{Answer, PodOf, declared, labels, short};
use crate::files::{Base, Files, Found, Owner, State};
use crate::identity::{Identity, bounded};
use crate::parse::{self, PodmanContainer};
use crate::path::Meaning;

/// Where root's podman keeps its containers, with its usual storage driver.
const STORE: &str = "/var/lib/containers/storage/overlay-containers";
/// Where a user's podman keeps its storage, in the home.
const USER_STORAGE: &str = ".local/share/containers/storage";
/// Its storage drivers, the usual first: each has a store of its own.
const DRIVERS: [&str; 4] = ["overlay", "vfs", "btrfs", "zfs"];
/// File systems that ask no server.
const LOCAL: [&str; 14] = [
    "bcachefs", "btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs",
    "squashfs", "tmpfs", "xfs", "zfs",
];
/// Where CRI-O keeps the bundles of what runs.
const CRIO_STORE: &str = "/run/containers/storage/overlay-containers";
/// Where crun keeps its state.
const CRUN: &str = "/run/crun";
/// The lists of a store: the second has what is removed when it ends, such as all of `podman run --rm` and most of Quadlet's
/// (containers/storage, `newContainerStore`; podman 4.4 and later).
const LISTS: [&str; 2] = ["containers.json", "volatile-containers.json"];
/// The most stores whose lists of containers are kept.
const MAX_STORES: usize = 64;

/// The lists of containers that were read, by directory: a list has all containers of its store.
#[derive(Debug, Default)]
pub(crate) struct Stores(HashMap<PathBuf, (State, BTreeMap<String, PodmanContainer>)>);

impl Stores {
    /// What the lists in this directory say of a container.
    fn container(
        &mut self,
        files: &Files,
        store: &Base,
        prefix: &str,
        id: &str,
    ) -> PodmanContainer {
        let mut lists = LISTS.iter().map(|list| format!("{prefix}{list}"));
        let found = lists.find_map(|list| self.listed(files, store, &list, id));
        found.unwrap_or_default()
    }

    /// What one list says of it.
    fn listed(
        &mut self,
        files: &Files,
        store: &Base,
        name: &str,
        id: &str,
    ) -> Option<PodmanContainer> {
        let path = store.path.join(name);
        let state = files.state(store, name);
        let known = self.0.get(&path).map(|(state, _)| *state);
        if state.is_none() || state != known {
            self.0.remove(&path);
            if self.0.len() >= MAX_STORES {
                self.0.clear();
            }
            if let Some(content) = files.read(store, name) {
                let list = parse::podman_containers(&content.bytes);
                if list.is_none() {
                    files.note_error();
                }
                // One that is broken is not read again either until it changes.
                let list = list.unwrap_or_default();
                self.0.insert(path.clone(), (content.state, list));
            }
        }
        self.0.get(&path)?.1.get(id).cloned()
    }
}

/// Where a container's files are: the directory, and the path from there to its store.
struct Place {
    base: Base,
    prefix: String,
}

/// Where a user's containers may be. The user can write the files there, so they name no other place.
fn places_of_user(files: &Files, uid: u32) -> Option<Vec<Place>> {
    let etc = Base::root("/etc");
    let home = files.parse(&etc, "passwd", |passwd| parse::home_of(passwd, uid))?;
    if !answers(files, &home) {
        return None;
    }
    let home = Path::new(&home);
    let (parent, name) = (home.parent()?, home.file_name()?.to_str()?);
    let place = |driver| Place {
        base: Base {
            path: parent.to_owned(),
            owner: Owner::User(uid),
        },
        prefix: format!("{name}/{USER_STORAGE}/{driver}-containers/"),
    };
    Some(DRIVERS.map(place).into())
}

/// Whether a home lies where the kernel answers by itself: a server that is gone, or an automounter, would hold this process up. Where the
/// mounts are not known, it does.
fn answers(files: &Files, home: &str) -> bool {
    let process = Base::root("/proc/self");
    let mounts = match files.find(&process, "mountinfo") {
        Found::Content(mounts) => mounts,
        found => return matches!(found, Found::Nothing),
    };
    let mounts = String::from_utf8_lossy(&mounts.bytes);
    let kind = parse::filesystem_of(&mounts, home);
    kind.is_none_or(|kind| LOCAL.contains(&kind))
}

/// Where root's container is, and its cgroup where crun says it.
fn place_of_root(files: &Files, id: &str) -> (Place, Option<String>) {
    let root = |path: PathBuf| Place {
        base: Base::root(path),
        prefix: String::new(),
    };
    // crun says where its bundle is, wherever the store may be.
    let status = files.parse(
        &Base::root(CRUN),
        &format!("{id}/status"),
        parse::crun_status,
    );
    let Some(status) = status else {
        return (root(STORE.into()), None);
    };
    let store = store_of(Path::new(&status.bundle), id);
    let store = store.unwrap_or_else(|| STORE.into());
    (root(store), status.cgroup)
}

/// The store of a bundle: `STORE/ID/userdata`.
fn store_of(bundle: &Path, id: &str) -> Option<PathBuf> {
    let container = bundle.parent()?;
    let is_its = bundle.is_absolute() && container.file_name()?.to_str() == Some(id);
    let store = container.parent().filter(|_| is_its)?;
    Some(store.to_owned())
}

/// What is known of podman's container with this id; `None` if there is none, or its cgroup is another.
pub(crate) fn resolve(
    files: &Files,
    stores: &mut Stores,
    id: &str,
    meaning: &Meaning<'_>,
) -> Option<Answer> {
    if let Some(uid) = meaning.user {
        let mut places = places_of_user(files, uid)?.into_iter();
        let whole = meaning.whole_of_manager();
        return places.find_map(|place| resolve_in(files, stores, id, whole, place, None));
    }
    let (place, cgroup) = place_of_root(files, id);
    resolve_in(files, stores, id, meaning.whole, place, cgroup)
}

/// The same of the containers at a place.
fn resolve_in(
    files: &Files,
    stores: &mut Stores,
    id: &str,
    whole: &str,
    Place { base, prefix }: Place,
    cgroup: Option<String>,
) -> Option<Answer> {
    let listed = stores.container(files, &base, &prefix, id);
    let file = format!("{prefix}{id}/userdata/config.json");
    let bundle = files.parse(&base, &file, parse::bundle);
    if bundle.is_none() && listed.name.is_none() {
        return None;
    }
    let complete = bundle.is_some() && listed.name.is_some();
    let bundle = bundle.unwrap_or_default();
    let identity = Identity {
        kind: TenantKind::PodmanContainer,
        name: listed.name.as_deref().map_or_else(|| short(id), bounded),
        image: listed.image.as_deref().map(bounded),
        labels: labels(&bundle),
        declared: declared(&bundle, base.path.join(&file)),
        ..Identity::default()
    };
    // crun's own word, without the cgroup `container` that it makes inside.
    let cgroup = cgroup.map(|path| path.strip_suffix("/container").unwrap_or(&path).to_owned());
    let cgroup = cgroup.or(bundle.cgroup);
    Some(Answer::new(identity, complete, cgroup.as_deref(), whole))
}

/// What is known of CRI-O's container with this id.
pub(crate) fn resolve_crio(files: &Files, id: &str, meaning: &Meaning<'_>) -> Option<Answer> {
    let store = Base::root(CRIO_STORE);
    let file = format!("{id}/userdata/config.json");
    let bundle = files.parse(&store, &file, parse::bundle)?;
    let of = |key: &str| bundle.annotations.get(key).map(String::as_str);
    let pod = PodOf {
        uid: of("io.kubernetes.pod.uid"),
        namespace: of("io.kubernetes.pod.namespace"),
        name: of("io.kubernetes.pod.name"),
        container: of("io.kubernetes.container.name").filter(|name| *name != "POD"),
    };
    let image = of("io.kubernetes.cri-o.ImageName");
    let declared = declared(&bundle, store.path.join(&file));
    Some(pod.answer(id, image, declared, &bundle, meaning))
}
