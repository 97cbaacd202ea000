//! Which runtimes a host has.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod tree;

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use justitia_runtimes::{Reads, installed};
use tree::Tree;

fn program(tree: &Tree, path: &str) {
    tree.write(path, "");
    set_permissions(tree.path(path), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn runtimes_are_found_with_their_driver_and_their_files() {
    let tree = Tree::new();
    assert_eq!(installed(tree.root()), []);
    program(&tree, "usr/sbin/dockerd");
    program(&tree, "usr/bin/podman");
    program(&tree, "usr/local/bin/k3s");
    tree.write("usr/bin/crio", "no program");
    tree.write("data/containers/x/config.v2.json", "{}");
    tree.write("etc/docker/daemon.json", r#"{"data-root":"/data"}"#);
    tree.write(
        "var/lib/kubelet/config.yaml",
        "kind: K\ncgroupDriver: \"systemd\"\n",
    );
    let found = installed(tree.root());
    let names: Vec<&str> = found.iter().map(|one| one.name).collect();
    assert_eq!(names, ["Docker", "podman", "kubelet"]);
    assert_eq!(found[0].program.to_str(), Some("/usr/sbin/dockerd"));
    assert_eq!(found[0].reads, Reads::From(vec!["/data/containers".into()]));
    assert_eq!(found[0].cgroup_driver.as_deref(), Some("cgroupfs"));
    assert_eq!(found[1].cgroup_driver, None);
    assert!(
        matches!(&found[1].reads, Reads::Later(place) if place.ends_with("overlay-containers"))
    );
    assert_eq!(found[2].cgroup_driver.as_deref(), Some("systemd"));

    // With systemd it is that one's, and the configuration comes first.
    std::fs::create_dir_all(tree.path("run/systemd/system")).unwrap();
    let driver = || installed(tree.root())[0].cgroup_driver.clone().unwrap();
    assert_eq!(driver(), "systemd");
    tree.write(
        "etc/docker/daemon.json",
        r#"{"data-root":"/data","exec-opts":["native.cgroupdriver=cgroupfs"]}"#,
    );
    assert_eq!(driver(), "cgroupfs");

    // What others may write is not believed, and that is said.
    set_permissions(tree.path("data/containers"), Permissions::from_mode(0o777)).unwrap();
    let Reads::Not(place, why) = &installed(tree.root())[0].reads else {
        panic!("{:?}", installed(tree.root()));
    };
    assert_eq!(place.to_str(), Some("/data/containers"));
    assert!(why.contains("others than root"), "{why}");
}
