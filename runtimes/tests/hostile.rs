//! Files that are not what they should be: nothing of them is believed, nothing waits for them, and each is counted.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]
#![expect(clippy::expect_used, reason = "tests say what is wrong by failing")]

mod tree;

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use justitia_runtimes::{Found, MAX_FILE, Resolver};
use tree::{ID, Tree};

const SCOPE: &str = "system.slice/docker-ID.scope";

fn docker(weight: u64) -> Tree {
    let tree = Tree::new();
    tree.docker(SCOPE, "web", weight);
    tree
}

/// What is found of the container, and how many errors were counted, within 20 s.
fn found(tree: &Tree) -> (Found, u64) {
    let root = tree.root().to_owned();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut resolver = Resolver::new(&root);
        let found = resolver.resolve(Path::new(&SCOPE.replace("ID", ID)), false);
        drop(send.send((found, resolver.errors())));
    });
    let found = receive.recv_timeout(Duration::from_secs(20));
    found.expect("an answer")
}

fn config() -> String {
    format!("var/lib/docker/containers/{ID}/config.v2.json")
}

fn state() -> String {
    format!("run/docker/runtime-runc/moby/{ID}/state.json")
}

#[test]
fn a_file_in_order_is_no_error() {
    let (found, errors) = found(&docker(100));
    assert_eq!((found.identity.name.as_str(), errors), ("web", 0));
}

/// A user can make cgroups without end, and have each asked for.
#[test]
fn a_broken_list_of_containers_is_read_once() {
    let tree = Tree::new();
    let list = "var/lib/containers/storage/overlay-containers/containers.json";
    tree.podman("machine.slice/libpod-ID.scope", "db", 100);
    tree.write(list, "[{");
    let mut resolver = Resolver::new(tree.root());
    let path = format!("machine.slice/libpod-{ID}.scope");
    for _ in 0..8 {
        resolver.resolve(Path::new(&path), false);
    }
    assert_eq!(resolver.errors(), 1);
    tree.podman("machine.slice/libpod-ID.scope", "db", 100);
    let found = resolver.resolve(Path::new(&path), false);
    assert_eq!(found.identity.name, "db");
}

/// What becomes of a file, and how.
const SPOILT: [(&str, Spoil); 12] = [
    ("a link", |path| {
        std::fs::rename(path, path.with_extension("real")).unwrap();
        symlink(path.with_extension("real"), path).unwrap();
    }),
    ("a pipe", |path| {
        std::fs::remove_file(path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).unwrap();
    }),
    ("a directory", |path| {
        std::fs::remove_file(path).unwrap();
        std::fs::create_dir(path).unwrap();
    }),
    ("a gigabyte", |path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(1 << 30).unwrap();
    }),
    ("a byte too many", |path| {
        let mut text = std::fs::read(path).unwrap();
        text.resize(usize::try_from(MAX_FILE).unwrap() + 1, b' ');
        std::fs::write(path, text).unwrap();
    }),
    ("writable by others", |path| {
        set_permissions(path, Permissions::from_mode(0o646)).unwrap();
    }),
    ("writable by a group", |path| {
        set_permissions(path, Permissions::from_mode(0o664)).unwrap();
    }),
    ("deep", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let deep = format!("{{\"x\":{},", "[".repeat(300_000));
        std::fs::write(path, text.replacen('{', &deep, 1)).unwrap();
    }),
    ("half of it", |path| {
        let text = std::fs::read(path).unwrap();
        std::fs::write(path, &text[..text.len() / 2]).unwrap();
    }),
    ("nothing", |path| std::fs::write(path, "").unwrap()),
    ("no text", |path| {
        std::fs::write(path, b"\xff\xfe{").unwrap()
    }),
    ("another type", |path| {
        std::fs::write(path, r#"{"Name": ["x"], "config": 7}"#).unwrap()
    }),
];

type Spoil = fn(&Path);

#[test]
fn what_is_no_regular_file_of_root_is_passed_over() {
    let mut spoilt = SPOILT.to_vec();
    if rustix::process::geteuid().is_root() {
        spoilt.push(("another's", |path| {
            std::os::unix::fs::chown(path, Some(1000), None).unwrap();
        }));
    }
    for (what, spoil) in spoilt {
        let tree = docker(100);
        spoil(&tree.path(&config()));
        let (found, errors) = found(&tree);
        let identity = &found.identity;
        assert_eq!((identity.name.as_str(), errors), (&ID[..12], 1), "{what}");
        assert_eq!(
            (identity.image.as_ref(), found.complete),
            (None, false),
            "{what}"
        );
        let declared = identity.declared.as_ref().expect(what);
        assert_eq!(declared.weight.get(), 100, "{what}: runc's state is whole");

        let tree = docker(100);
        spoil(&tree.path(&state()));
        let (found, errors) = self::found(&tree);
        assert_eq!((found.identity.name.as_str(), errors), ("web", 1), "{what}");
        let declared = found.identity.declared.expect(what);
        assert!(
            declared.file.ends_with("hostconfig.json"),
            "{what}: {declared:?}"
        );
    }
}

#[test]
fn no_link_is_followed_below_a_runtimes_directory() {
    for directory in [
        "var/lib/docker/containers",
        &format!("var/lib/docker/containers/{ID}"),
    ] {
        let tree = docker(100);
        // Not even to another place there.
        let directory = tree.path(directory);
        let elsewhere = directory.with_file_name("elsewhere");
        std::fs::rename(&directory, elsewhere).unwrap();
        symlink("elsewhere", &directory).unwrap();
        let (found, errors) = found(&tree);
        assert_eq!(found.identity.name, ID[..12], "{directory:?}");
        assert_eq!(errors, 2, "{directory:?}: the configuration and the host's");
    }
    // An administrator may have moved all of it.
    let tree = docker(100);
    std::fs::rename(tree.path("var/lib/docker"), tree.path("elsewhere")).unwrap();
    symlink(tree.path("elsewhere"), tree.path("var/lib/docker")).unwrap();
    assert_eq!(found(&tree).0.identity.name, "web");
    // But not to where others may write.
    set_permissions(tree.path("elsewhere"), Permissions::from_mode(0o777)).unwrap();
    let (found, errors) = found(&tree);
    assert_eq!((found.identity.name.as_str(), errors), (&ID[..12], 2));
}

#[test]
fn a_runtime_that_names_another_cgroup_is_not_believed() {
    let tree = docker(800);
    tree.runc_state(&state(), "system.slice/other.scope", 800);
    let (found, _) = found(&tree);
    assert_eq!(
        (found.identity.name.as_str(), found.identity.declared),
        (&ID[..12], None)
    );
}

/// They are kept as they are, up to a bound, and escaped where they are shown.
#[test]
fn names_of_any_kind_are_kept_within_bounds() {
    let tree = docker(100);
    let name = "x\\u001b]0;\\n\\u202e\\u0000".repeat(100);
    let label = "y".repeat(10_000);
    let labels: Vec<String> = (0..1000).map(|n| format!("\"{n}\":\"{label}\"")).collect();
    let labels = labels.get(..90).unwrap().join(",");
    let text =
        format!(r#"{{"Name":"/{name}","Config":{{"Image":"{name}","Labels":{{{labels}}}}}}}"#);
    tree.write(&config(), &text);
    let (found, errors) = found(&tree);
    let identity = found.identity;
    assert_eq!(errors, 0);
    assert!(identity.name.starts_with("x\u{1b}]0;\n\u{202e}\0x") && identity.name.len() <= 256);
    assert!(identity.image.unwrap().len() <= 256);
    assert_eq!(identity.labels.len(), 64);
    assert!(identity.labels.iter().all(|label| label.len() <= 256));
}

#[test]
fn a_name_that_leads_elsewhere_is_no_id() {
    let tree = docker(100);
    tree.write("etc/shadow", "[Service]\nIOWeight=700\n");
    let mut resolver = Resolver::new(tree.root());
    for path in [
        "system.slice/docker-../../../../etc.scope",
        "docker/..",
        "default/../../..",
        "../etc/shadow",
        r"machine.slice/machine-qemu\x2d1\x2d..\x2f..\x2fetc.scope",
        "system.slice/..service",
        "/",
        "",
    ] {
        for in_delegation in [false, true] {
            let found = resolver.resolve(Path::new(path), in_delegation);
            assert_eq!(found.identity.declared, None, "{path}");
        }
    }
    let bytes: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"a/\xff.scope");
    assert!(resolver.resolve(Path::new(bytes), false).complete);
    assert_eq!(resolver.errors(), 0);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn any_path_is_resolved(path in "(system.slice/|machine.slice/|docker/|kubepods/)?.{0,80}") {
        let tree = Tree::new();
        let mut resolver = Resolver::new(tree.root());
        for in_delegation in [false, true] {
            let found = resolver.resolve(Path::new(&path), in_delegation);
            proptest::prop_assert_eq!(found.identity.declared, None);
        }
    }
}
