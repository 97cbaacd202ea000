//! What a cgroup's path can mean. Pure: nothing is looked up here.

use std::path::Path;

/// The suffixes of units that have cgroups.
const UNITS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// What a path can mean. The ids have the form of ids, and can be parts of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Candidate<'a> {
    /// `docker-ID.scope`.
    Docker { id: &'a str },
    /// `libpod-ID.scope`, `libpod-ID`, `libpod-payload-ID`.
    Podman { id: &'a str },
    /// `cri-containerd-ID.scope`.
    Cri { id: &'a str },
    /// `crio-ID.scope`.
    Crio { id: &'a str },
    /// `nerdctl-ID.scope`, of some namespace of containerd.
    Nerdctl { id: &'a str },
    /// An id alone, below the directory `parent`: Docker's with its cgroupfs driver, or a container of a pod with the kubelet's.
    Bare { id: &'a str, parent: &'a str },
    /// `NAMESPACE/ID`: a container of containerd that `ctr` has made.
    Task { namespace: &'a str, id: &'a str },
    /// A pod, by its uid.
    Pod { uid: String },
    /// `machine-qemu\x2dID\x2dNAME.scope`: a virtual machine of libvirt, by its number and as much of its name as libvirt keeps
    /// there.
    Domain { id: u32, name: String },
    /// Nothing of these.
    Other,
}

/// A path, as far as it tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning<'a> {
    /// What it can be.
    pub candidate: Candidate<'a>,
    /// The cgroup that the candidate is, if this is a part of it: the parent's path, and the part's name.
    pub part: Option<&'a str>,
    /// The path of the candidate.
    pub whole: &'a str,
    /// The user that has made it.
    pub user: Option<u32>,
}

impl Meaning<'_> {
    /// The path of the candidate, from where the service manager of its user, or the system's, makes cgroups.
    pub(crate) fn whole_of_manager(&self) -> &str {
        let manager = self.user.map(|uid| {
            let manager = format!("user.slice/user-{uid}.slice/user@{uid}.service/");
            self.whole.strip_prefix(manager.as_str())
        });
        manager.flatten().unwrap_or(self.whole)
    }
}

/// What the path of a cgroup, relative to the mount, can mean.
pub(crate) fn meaning(path: &str) -> Meaning<'_> {
    let user = user_of(path);
    if let Some((whole, part)) = path.rsplit_once('/') {
        let candidate = candidate(whole);
        if is_part(&candidate, part) {
            return Meaning {
                candidate,
                part: Some(part),
                whole,
                user,
            };
        }
        // libvirt's own, one level deeper: `libvirt/emulator`.
        if let Some(above) = whole.strip_suffix("/libvirt")
            && let domain @ Candidate::Domain { .. } = self::candidate(above)
            && is_part(&domain, part)
        {
            return Meaning {
                candidate: domain,
                part: Some(part),
                whole: above,
                user,
            };
        }
    }
    Meaning {
        candidate: candidate(path),
        part: None,
        whole: path,
        user,
    }
}

/// Whether a child is one that the runtime itself makes.
fn is_part(candidate: &Candidate<'_>, child: &str) -> bool {
    let numbered = |prefix: &str| {
        let number = child.strip_prefix(prefix);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    match candidate {
        Candidate::Podman { .. } | Candidate::Crio { .. } => child == "container",
        Candidate::Domain { .. } => {
            child == "libvirt" || child == "emulator" || numbered("vcpu") || numbered("iothread")
        }
        _ => false,
    }
}

fn candidate(path: &str) -> Candidate<'_> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = above.rsplit('/').next().unwrap_or(above);
    if let Some(scope) = name.strip_suffix(".scope") {
        let id = |prefix: &str| scope.strip_prefix(prefix).filter(|id| is_id(id));
        if let Some(id) = id("docker-") {
            return Candidate::Docker { id };
        } else if let Some(id) = id("libpod-") {
            return Candidate::Podman { id };
        } else if let Some(id) = id("cri-containerd-") {
            return Candidate::Cri { id };
        } else if let Some(id) = id("crio-") {
            return Candidate::Crio { id };
        } else if let Some(id) = id("nerdctl-") {
            return Candidate::Nerdctl { id };
        }
        return domain(scope, r"\x2d").unwrap_or(Candidate::Other);
    }
    if let Some(uid) = pod_uid(path, name) {
        return Candidate::Pod { uid };
    }
    if let Some(machine) = name.strip_suffix(".libvirt-qemu") {
        return domain(&format!("machine-{machine}"), "-").unwrap_or(Candidate::Other);
    }
    let podman = ["libpod-payload-", "libpod-"];
    let podman = podman.iter().find_map(|prefix| name.strip_prefix(prefix));
    if let Some(id) = podman.filter(|id| is_id(id)) {
        return Candidate::Podman { id };
    }
    if is_id(name) {
        return Candidate::Bare { id: name, parent };
    }
    let task = is_identifier(above) && is_identifier(name);
    if task && !is_unit_name(above) && !is_unit_name(name) {
        return Candidate::Task {
            namespace: above,
            id: name,
        };
    }
    Candidate::Other
}

/// A container's id: 64 hexadecimal digits in lower case, of which file names can be made.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// An identifier or namespace of containerd: letters and digits, with single `.`, `_` and `-` between them, at most 76 bytes.
fn is_identifier(text: &str) -> bool {
    let parts = || text.split(['.', '_', '-']);
    text.len() <= 76
        && parts().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// The uid of a pod, from `kubepods-burstable-podUID.slice` (with `_` for `-`) or `kubepods/burstable/podUID`.
fn pod_uid(path: &str, name: &str) -> Option<String> {
    if !path.split('/').next()?.starts_with("kubepods") && !path.contains("/kubepods") {
        return None;
    }
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let hex = |b: u8| b.is_ascii_hexdigit() || b == b'-';
    ((32..=36).contains(&uid.len()) && uid.bytes().all(hex)).then_some(uid)
}

/// A machine of QEMU: `machine-qemu`, a number and a name, with this between them.
fn domain(scope: &str, dash: &str) -> Option<Candidate<'static>> {
    let machine = scope.strip_prefix("machine-qemu")?.strip_prefix(dash)?;
    let (id, name) = machine.split_once(dash)?;
    let name = if dash == "-" {
        name.to_owned()
    } else {
        unescape(name)?
    };
    // Its file is called so; what is no name of a file is none of a domain.
    if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') || name.len() > 200 {
        return None;
    }
    let id = id.parse().ok()?;
    Some(Candidate::Domain { id, name })
}

/// Undoes systemd's escapes, `\xNN`; `None` for others, and for what is no UTF-8.
pub(crate) fn unescape(text: &str) -> Option<String> {
    justitia_api::escape::decode(text)?.into_string().ok()
}

/// The user that has made a cgroup: only cgroups below a user's own manager are made by that user. What root puts into
/// the user's slice is root's.
fn user_of(path: &str) -> Option<u32> {
    let slice = path.strip_prefix("user.slice/user-")?;
    let (uid, below) = slice.split_once(".slice/")?;
    let manager = below.strip_prefix("user@")?.strip_prefix(uid)?;
    manager.strip_prefix(".service/")?;
    uid.parse().ok()
}

/// Whether a cgroup's name is one of a unit that has a cgroup.
#[must_use]
pub fn is_unit_name(name: &str) -> bool {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    UNITS.iter().any(|suffix| {
        name.strip_suffix(suffix)
            .is_some_and(|stem| !stem.is_empty() && !stem.starts_with('.'))
    }) && name.len() < 256
        && name.bytes().all(valid)
}

/// The name of the unit of systemd's system manager that a cgroup is, by its path: it is in slices alone.
#[must_use]
pub fn system_unit(path: &Path) -> Option<&str> {
    let mut names = path.to_str()?.split('/');
    let name = names.next_back().filter(|name| is_unit_name(name))?;
    names.all(|slice| slice.ends_with(".slice")).then_some(name)
}

/// The cgroup that a runtime makes for `linux.cgroupsPath` of an OCI configuration: a path, or `SLICE:PREFIX:NAME` for a scope of
/// systemd. `None` for what is neither.
pub(crate) fn of_cgroups_path(text: &str) -> Option<String> {
    if let Some(path) = text.strip_prefix('/') {
        return Some(path.to_owned());
    }
    let mut parts = text.split(':');
    let (slice, prefix, name) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let slice = if slice.is_empty() {
        "system.slice"
    } else {
        slice
    };
    let scope = if prefix.is_empty() {
        format!("{name}.scope")
    } else {
        format!("{prefix}-{name}.scope")
    };
    Some(format!("{}/{scope}", expanded(slice)?))
}

/// The path of a slice: `a-b.slice` is in `a.slice`.
fn expanded(slice: &str) -> Option<String> {
    let stem = slice.strip_suffix(".slice")?;
    let mut path = String::new();
    for (at, _) in stem.match_indices('-') {
        path.push_str(stem.get(..at)?);
        path.push_str(".slice/");
    }
    path.push_str(slice);
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "46ec00ce0123456789abcdef0123456789abcdef0123456789abcdef01234567";

    fn of(path: &str) -> (Candidate<'_>, Option<&str>) {
        let meaning = meaning(path);
        (meaning.candidate, meaning.part)
    }

    #[test]
    fn the_layouts_of_runtimes_are_known() {
        let id = ID;
        let domain = |id, name: &str| Candidate::Domain {
            id,
            name: name.to_owned(),
        };
        let uid = "b5a3b1de-3a8d-4f0c-9d7e-2f1f2a3b4c5d".to_owned();
        let cases = [
            (format!("system.slice/docker-{ID}.scope"), Candidate::Docker { id }, None),
            (format!("a.slice/a-b.slice/docker-{ID}.scope"), Candidate::Docker { id }, None),
            (format!("docker/{ID}"), Candidate::Bare { id, parent: "docker" }, None),
            (format!("machine.slice/libpod-{ID}.scope"), Candidate::Podman { id }, None),
            (format!("machine.slice/libpod-{ID}.scope/container"), Candidate::Podman { id }, Some("container")),
            (format!("libpod_parent/libpod-{ID}"), Candidate::Podman { id }, None),
            (format!("x.service/libpod-payload-{ID}"), Candidate::Podman { id }, None),
            (
                format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb5a3b1de_3a8d_4f0c_9d7e_2f1f2a3b4c5d.slice/cri-containerd-{ID}.scope"),
                Candidate::Cri { id },
                None,
            ),
            (
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb5a3b1de_3a8d_4f0c_9d7e_2f1f2a3b4c5d.slice".to_owned(),
                Candidate::Pod { uid: uid.clone() },
                None,
            ),
            ("kubepods/besteffort/podb5a3b1de-3a8d-4f0c-9d7e-2f1f2a3b4c5d".to_owned(), Candidate::Pod { uid }, None),
            (format!("default/{ID}"), Candidate::Bare { id, parent: "default" }, None),
            ("default/web".to_owned(), Candidate::Task { namespace: "default", id: "web" }, None),
            (r"machine.slice/machine-qemu\x2d1\x2dweb.scope".to_owned(), domain(1, "web"), None),
            (r"machine.slice/machine-qemu\x2d12\x2dweb\x2d2.scope/libvirt".to_owned(), domain(12, "web-2"), Some("libvirt")),
            (r"machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/emulator".to_owned(), domain(1, "web"), Some("emulator")),
            (r"machine.slice/machine-qemu\x2d1\x2dweb.scope/vcpu0".to_owned(), domain(1, "web"), Some("vcpu0")),
            ("machine/qemu-1-web.libvirt-qemu".to_owned(), domain(1, "web"), None),
        ];
        for (path, candidate, part) in cases {
            assert_eq!(of(&path), (candidate, part), "{path}");
        }
        let rootless =
            format!("user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope");
        assert_eq!(meaning(&rootless).user, Some(1000));
    }

    #[test]
    fn what_has_not_the_form_of_an_id_is_none() {
        let upper = ID.to_uppercase();
        let short = &ID[1..];
        for path in [
            format!("system.slice/docker-{upper}.scope"),
            format!("system.slice/docker-{short}.scope"),
            format!("system.slice/docker-{ID}0.scope"),
            format!("docker/{ID}.scope"),
            "docker/..".to_owned(),
            "../../etc".to_owned(),
            "default/a..b".to_owned(),
            "default/-a".to_owned(),
            format!("default/{}", "a".repeat(77)),
            "default/a\nb".to_owned(),
            "a/b/c".to_owned(),
            "system.slice/a".to_owned(),
            r"machine.slice/machine-qemu\x2d1\x2d.scope".to_owned(),
            r"machine.slice/machine-qemu\x2d1\x2d\x2e\x2e\x2fx.scope".to_owned(),
            r"machine.slice/machine-qemu\x2d-1\x2dx.scope".to_owned(),
            r"machine.slice/machine-qemu\x2d1\x2da\xff.scope".to_owned(),
            "a/kubepods/podzz".to_owned(),
            String::new(),
        ] {
            let found = of(&path);
            assert_eq!(found, (Candidate::Other, None), "{path}");
        }
    }

    #[test]
    fn units_are_in_slices_alone() {
        let unit = |path: &'static str| system_unit(Path::new(path));
        assert_eq!(unit("system.slice/a.service"), Some("a.service"));
        assert_eq!(
            unit("system.slice/system-a.slice/a@b.service"),
            Some("a@b.service")
        );
        assert_eq!(unit("init.scope"), Some("init.scope"));
        assert_eq!(unit("a.service/b.service"), None);
        assert_eq!(unit("docker/a.service"), None);
        assert_eq!(unit("system.slice/a"), None);
        assert_eq!(unit("system.slice/.service"), None);
        assert_eq!(unit("system.slice/a b.service"), None);
    }

    #[test]
    fn the_path_that_a_runtime_was_told_is_the_cgroups() {
        let path = |text| of_cgroups_path(text);
        assert_eq!(path("/docker/x").unwrap(), "docker/x");
        assert_eq!(
            path("system.slice:docker:x").unwrap(),
            "system.slice/docker-x.scope"
        );
        assert_eq!(path(":docker:x").unwrap(), "system.slice/docker-x.scope");
        assert_eq!(
            path("a-b-c.slice:cri-containerd:x").unwrap(),
            "a.slice/a-b.slice/a-b-c.slice/cri-containerd-x.scope"
        );
        assert_eq!(path("a:b"), None);
        assert_eq!(path("a:b:c:d"), None);
        assert_eq!(path("a:b:c"), None);
    }
}
