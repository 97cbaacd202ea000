//! The layouts of runtimes, as trees of files.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod tree;

use std::path::Path;

use justitia_api::{TenantKind, WeightSource};
use justitia_runtimes::{Identity, Resolver};
use tree::{ID, OTHER, Tree};

fn named(identity: &Identity) -> (TenantKind, &str) {
    (identity.kind, &identity.name)
}

#[test]
fn a_container_of_docker_has_its_name_image_labels_and_weight() {
    let tree = Tree::new();
    tree.docker("system.slice/docker-ID.scope", "web", 100);
    let found = tree.resolve(&format!("system.slice/docker-{ID}.scope"), false);
    let web = &found.identity;
    assert_eq!(named(web), (TenantKind::DockerContainer, "web"));
    assert_eq!(web.image.as_deref(), Some("nginx:1.25"));
    assert_eq!(web.labels, ["app=web", "tier=front"]);
    let declared = web.declared.as_ref().unwrap();
    assert_eq!(
        (declared.weight.get(), declared.source),
        (100, WeightSource::Runtime)
    );
    assert_eq!(
        declared.file,
        Path::new(&format!("/run/docker/runtime-runc/moby/{ID}/state.json"))
    );
    assert_eq!(declared.converted(), Some(910));
    assert!(found.complete && found.may_change);
}

/// The numbers that stand in `io.weight` of four containers, a fifth of podman, and what they declare.
#[test]
fn what_runc_and_crun_make_of_a_weight_is_known() {
    for (declared, written) in [
        (10, 1),
        (100, 910),
        (200, 1920),
        (300, 2930),
        (400, 3940),
        (800, 7980),
        (1000, 10_000),
    ] {
        let tree = Tree::new();
        tree.docker("system.slice/docker-ID.scope", "web", declared);
        let found = tree.resolve(&format!("system.slice/docker-{ID}.scope"), false);
        let found = found.identity.declared.unwrap();
        assert_eq!(found.converted(), Some(written));
        for (number, met) in [(declared, true), (written, true), (written + 1, false)] {
            let Ok(weight) = justitia_share::Weight::try_from(number) else {
                continue;
            };
            assert_eq!(found.is_met_by(weight), met, "{declared} {number}");
        }
    }
}

#[test]
fn dockers_own_configuration_counts_where_runc_says_nothing() {
    let tree = Tree::new();
    tree.docker("docker/ID", "web", 200);
    std::fs::remove_dir_all(tree.path("run/docker")).unwrap();
    let found = tree.resolve(&format!("docker/{ID}"), false);
    let declared = found.identity.declared.unwrap();
    assert_eq!(declared.weight.get(), 200);
    assert!(declared.file.ends_with("hostconfig.json"));
    assert!(!found.complete, "runc's state may come yet");

    let moved = Tree::new();
    moved.write("etc/docker/daemon.json", r#"{"data-root": "/data/docker"}"#);
    moved.docker("docker/ID", "web", 200);
    std::fs::create_dir_all(moved.path("data")).unwrap();
    std::fs::rename(moved.path("var/lib/docker"), moved.path("data/docker")).unwrap();
    let found = moved.resolve(&format!("docker/{ID}"), false);
    assert_eq!(found.identity.name, "web");
}

#[test]
fn a_container_of_podman_is_known_in_both_layouts_with_its_inner_cgroup() {
    for path in ["machine.slice/libpod-ID.scope", "libpod_parent/libpod-ID"] {
        let tree = Tree::new();
        tree.podman(path, "db", 300);
        let path = path.replace("ID", ID);
        let scope = tree.resolve(&path, false).identity;
        assert_eq!(named(&scope), (TenantKind::PodmanContainer, "db"));
        assert_eq!(scope.image.as_deref(), Some("localhost/small:latest"));
        assert_eq!(scope.labels, ["tier=back"], "its annotations");
        assert_eq!(scope.declared.as_ref().unwrap().weight.get(), 300);
        // crun's cgroup is in the container's delegation.
        let inner = tree.resolve(&format!("{path}/container"), true).identity;
        assert_eq!(inner.part.as_deref(), Some("container"));
        assert_eq!((inner.name, inner.declared), (scope.name, scope.declared));
        // What the container makes inside is its own.
        let deeper = tree.resolve(&format!("{path}/container/x"), true).identity;
        assert_eq!((deeper.kind, deeper.declared), (TenantKind::Cgroup, None));
    }
}

/// podman has what `--rm` made in a list of its own.
#[test]
fn a_container_that_is_removed_when_it_ends_has_its_name_and_image() {
    let tree = Tree::new();
    tree.podman("machine.slice/libpod-ID.scope", "db", 300);
    let list = |name| {
        let store = "var/lib/containers/storage/overlay-containers";
        tree.path(&format!("{store}/{name}"))
    };
    std::fs::rename(list("containers.json"), list("volatile-containers.json")).unwrap();
    let path = format!("machine.slice/libpod-{ID}.scope");
    let found = tree.resolve(&path, false);
    assert_eq!(found.identity.name, "db");
    assert_eq!(
        found.identity.image.as_deref(),
        Some("localhost/small:latest")
    );
    assert!(found.complete);
}

/// Its files are root's, as is its cgroup: users make theirs below a manager of their own.
#[test]
fn a_container_that_root_put_into_a_users_slice_is_roots() {
    let tree = Tree::new();
    let path = "user.slice/user-1000.slice/docker-ID.scope";
    tree.docker(path, "web", 800);
    let found = tree.resolve(&path.replace("ID", ID), false).identity;
    assert_eq!(found.name, "web");
    assert_eq!(found.declared.unwrap().weight.get(), 800);
}

/// systemd follows links, which are not followed here. What lies below them is not what it goes by either.
#[test]
fn beside_a_file_of_a_unit_that_may_not_be_used_no_other_counts() {
    let tree = Tree::new();
    let service = |weight: u64| format!("[Service]\nIOWeight={weight}\n");
    let declared = || {
        tree.resolve("system.slice/db.service", false)
            .identity
            .declared
    };
    tree.write("usr/lib/systemd/system/db.service", &service(100));
    tree.write("srv/db.service", &service(700));
    assert_eq!(declared().unwrap().weight.get(), 100);
    let link = |to: &str, at: &str| {
        let at = tree.path(at);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, &at).unwrap();
        at
    };
    let file = link("/srv/db.service", "etc/systemd/system/db.service");
    assert_eq!(declared(), None);
    std::fs::remove_file(file).unwrap();
    let drop_in = "etc/systemd/system/db.service.d/50-weight.conf";
    let at = link("/srv/db.service", drop_in);
    assert_eq!(declared(), None);
    std::fs::remove_file(at).unwrap();
    // One of this name counts no more.
    link("/dev/null", drop_in);
    let lower = "usr/lib/systemd/system/db.service.d/50-weight.conf";
    tree.write(lower, &service(300));
    assert_eq!(declared().unwrap().weight.get(), 100);
}

#[test]
fn podmans_list_is_read_again_when_it_changes() {
    let tree = Tree::new();
    tree.podman("machine.slice/libpod-ID.scope", "db", 300);
    let path = format!("machine.slice/libpod-{ID}.scope");
    let mut resolver = Resolver::new(tree.root());
    let mut name = || resolver.resolve(Path::new(&path), false).identity.name;
    assert_eq!(name(), "db");
    let list = format!(r#"[{{"id":"{ID}","names":["renamed"]}}]"#);
    // As podman does it.
    tree.write("new", &list);
    let store = "var/lib/containers/storage/overlay-containers/containers.json";
    std::fs::rename(tree.path("new"), tree.path(store)).unwrap();
    assert_eq!(name(), "renamed");
    std::fs::remove_file(tree.path(store)).unwrap();
    assert_eq!(name(), ID[..12], "its beginning, as podman shows it");
}

#[test]
fn a_pod_and_its_containers_are_known() {
    let tree = Tree::new();
    let uid = "b5a3b1de-3a8d-4f0c-9d7e-2f1f2a3b4c5d";
    let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
    let pod = format!("kubepods.slice/kubepods-burstable.slice/{slice}");
    let annotations = |kind: &str, name: &str| {
        format!(
            r#""io.kubernetes.cri.container-type":"{kind}","io.kubernetes.cri.container-name":"{name}",
            "io.kubernetes.cri.sandbox-name":"web-0","io.kubernetes.cri.sandbox-namespace":"prod",
            "io.kubernetes.cri.sandbox-uid":"{uid}","io.kubernetes.cri.image-name":"docker.io/library/nginx:1.25""#
        )
    };
    tree.bundle(
        "k8s.io",
        ID,
        &format!("{slice}:cri-containerd:{ID}"),
        &annotations("container", "nginx"),
        0,
    );
    let sandbox =
        annotations("sandbox", "").replace(r#""io.kubernetes.cri.container-name":"","#, "");
    tree.bundle(
        "k8s.io",
        OTHER,
        &format!("{slice}:cri-containerd:{OTHER}"),
        &sandbox,
        0,
    );
    let mut resolver = Resolver::new(tree.root());
    let mut resolve = |path: &str| resolver.resolve(Path::new(path), false);
    let before = resolve(&pod);
    assert_eq!(
        (before.identity.kind, before.complete),
        (TenantKind::Pod, false)
    );
    let container = resolve(&format!("{pod}/cri-containerd-{ID}.scope")).identity;
    assert_eq!(
        named(&container),
        (TenantKind::PodContainer, "prod/web-0/nginx")
    );
    assert_eq!(
        container.image.as_deref(),
        Some("docker.io/library/nginx:1.25")
    );
    let pause = resolve(&format!("{pod}/cri-containerd-{OTHER}.scope")).identity;
    assert_eq!(pause.name, "prod/web-0/pause");
    let after = resolve(&pod);
    assert_eq!(
        (after.identity.name.as_str(), after.complete),
        ("prod/web-0", true)
    );
    // A scope of another pod with this id is another's.
    let elsewhere = resolve(&format!("kubepods.slice/cri-containerd-{ID}.scope")).identity;
    assert_eq!(elsewhere.name, ID[..12]);
}

#[test]
fn containers_of_ctr_and_nerdctl_are_known() {
    let tree = Tree::new();
    tree.bundle("default", "web", "/default/web", r#""a":"b""#, 400);
    tree.bundle(
        "default",
        ID,
        &format!("system.slice:nerdctl:{ID}"),
        r#""nerdctl/name":"shop""#,
        500,
    );
    let web = tree.resolve("default/web", false).identity;
    let scope = format!("system.slice/nerdctl-{ID}.scope");
    assert_eq!(named(&web), (TenantKind::ContainerdContainer, "web"));
    assert_eq!(web.declared.unwrap().weight.get(), 400);
    let shop = tree.resolve(&scope, false).identity;
    assert_eq!(named(&shop), (TenantKind::ContainerdContainer, "shop"));
    // What runc was told later counts.
    tree.runc_state(
        &format!("run/containerd/runc/default/{ID}/state.json"),
        &scope,
        600,
    );
    let shop = tree.resolve(&scope, false).identity;
    assert_eq!(shop.declared.unwrap().weight.get(), 600);
    // An ordinary cgroup of the same form.
    let other = tree.resolve("batch/job", false);
    assert_eq!(
        (other.identity.kind, other.complete),
        (TenantKind::Cgroup, true)
    );
}

#[test]
fn a_machine_of_libvirt_is_known_with_its_parts() {
    let tree = Tree::new();
    let state = |id: u32, name: &str, weight: u64| {
        format!(
            "<domstatus state='running'><domain type='kvm' id='{id}'><name>{name}</name>\
             <blkiotune><weight>{weight}</weight></blkiotune></domain></domstatus>"
        )
    };
    tree.write("run/libvirt/qemu/web.xml", &state(1, "web", 500));
    tree.write("run/libvirt/qemu/größe.xml", &state(2, "größe", 600));
    let scope = r"machine.slice/machine-qemu\x2d1\x2dweb.scope";
    let web = tree.resolve(scope, false).identity;
    assert_eq!(named(&web), (TenantKind::Domain, "web"));
    let declared = web.declared.unwrap();
    assert_eq!((declared.weight.get(), declared.converted()), (500, None));
    for part in ["libvirt", "libvirt/emulator", "libvirt/vcpu0", "emulator"] {
        let found = tree.resolve(&format!("{scope}/{part}"), true).identity;
        let name = part.rsplit('/').next();
        assert_eq!((found.name.as_str(), found.part.as_deref()), ("web", name));
        assert_eq!(found.declared, None, "parts divide what the machine has");
    }
    // The cgroup's name has not all of the domain's.
    let other = tree.resolve(r"machine.slice/machine-qemu\x2d2\x2dgra.scope", false);
    assert_eq!(other.identity.name, "gra", "no such beginning");
    let other = tree.resolve(r"machine.slice/machine-qemu\x2d2\x2dgre.scope", false);
    assert_eq!(other.identity.name, "größe");
    // Another machine had this name before.
    let old = tree.resolve(r"machine.slice/machine-qemu\x2d7\x2dweb.scope", false);
    assert_eq!((old.identity.declared, old.complete), (None, false));
}

/// libvirt names its cgroups itself then; a machine may be in a partition, as `/machine/production`.
#[test]
fn a_machine_of_libvirt_is_known_without_systemd() {
    let tree = Tree::new();
    tree.write(
        "run/libvirt/qemu/web.xml",
        "<domain id='1'><name>web</name><blkiotune><weight>500</weight></blkiotune></domain>",
    );
    for above in ["machine", "machine/production.partition"] {
        let path = format!("{above}/qemu-1-web.libvirt-qemu");
        for in_delegation in [false, true] {
            let web = tree.resolve(&path, in_delegation).identity;
            assert_eq!((web.kind, web.name.as_str()), (TenantKind::Domain, "web"));
            let declared = web.declared.map(|declared| declared.weight.get());
            assert_eq!(declared, Some(500), "{path}");
        }
        let vcpu = tree.resolve(&format!("{path}/vcpu0"), false).identity;
        assert_eq!((vcpu.name.as_str(), vcpu.declared), ("web", None));
    }
    let made = "docker/x/machine/qemu-1-web.libvirt-qemu";
    assert_eq!(tree.resolve(made, true).identity.name, "");
}

/// libvirt 9 with BFQ loaded: after `virsh blkiotune --weight 700` its state says 154.
#[test]
fn what_libvirt_takes_from_bfqs_file_is_the_number_that_was_asked_for() {
    let tree = Tree::new();
    let scope = r"machine-qemu\x2d1\x2dweb.scope";
    let weight = |noted: u64, unit: &str| {
        let state = format!(
            "<domain type='kvm' id='1'><name>web</name><blkiotune><weight>{noted}</weight></blkiotune></domain>"
        );
        tree.write("run/libvirt/qemu/web.xml", &state);
        let drop_in = format!("run/systemd/system.control/{scope}.d/50-IOWeight.conf");
        tree.write(&drop_in, &format!("[Scope]\nIOWeight={unit}\n"));
        let found = tree.resolve(&format!("machine.slice/{scope}"), false);
        let declared = found.identity.declared.unwrap();
        (declared.weight.get(), declared.source)
    };
    assert_eq!(weight(154, "700"), (700, WeightSource::Runtime));
    assert_eq!(weight(1000, "10000").0, 10000);
    assert_eq!(weight(50, "50").0, 50);
    // Any other is what libvirt was told.
    assert_eq!(weight(400, "700").0, 400);
    assert_eq!(weight(154, "").0, 154);
}

#[test]
fn a_units_weight_is_that_of_its_file_and_drop_ins_in_systemds_order() {
    let tree = Tree::new();
    let weight = |tree: &Tree, path: &str| {
        let found = tree.resolve(path, false).identity;
        found
            .declared
            .map(|d| (d.weight.get(), d.file.to_str().unwrap().to_owned()))
    };
    let service = |weight: u64| format!("[Service]\nIOWeight={weight}\n");
    tree.write("usr/lib/systemd/system/a-b@.service", &service(1));
    let path = "system.slice/system-a.slice/a-b@x.service";
    assert_eq!(weight(&tree, path).unwrap().0, 1);
    tree.write("etc/systemd/system/a-b@.service", &service(2));
    assert_eq!(weight(&tree, path).unwrap().0, 2);
    tree.write("usr/lib/systemd/system/service.d/10-a.conf", &service(3));
    assert_eq!(weight(&tree, path).unwrap().0, 3);
    tree.write(
        "run/systemd/system/a-.service.d/20.conf",
        "[Service]\nIOAccounting=yes\n",
    );
    tree.write("run/systemd/system/a-@x.service.d/20.conf", &service(4));
    assert_eq!(weight(&tree, path).unwrap().0, 4);
    // The same name in a directory that comes first hides it.
    tree.write("etc/systemd/system/a-b@x.service.d/20.conf", "[Service]\n");
    assert_eq!(weight(&tree, path).unwrap().0, 3);
    tree.write(
        "run/systemd/system.control/a-b@x.service.d/50-IOWeight.conf",
        &service(700),
    );
    let file = "/run/systemd/system.control/a-b@x.service.d/50-IOWeight.conf".to_owned();
    assert_eq!(weight(&tree, path), Some((700, file)));
    // Not of a unit of the system's manager.
    assert_eq!(
        weight(
            &tree,
            "user.slice/user-1.slice/user@1.service/a-b@x.service"
        ),
        None
    );
    let delegated = tree.resolve(path, true).identity;
    assert_eq!(
        (delegated.kind, delegated.declared),
        (TenantKind::Unit, None)
    );
    tree.write("run/systemd/transient/a.slice", "[Slice]\nIOWeight=50\n");
    let slice = tree.resolve("a.slice", false).identity;
    assert_eq!(
        (slice.kind, slice.declared.unwrap().weight.get()),
        (TenantKind::Slice, 50)
    );
}

#[test]
fn a_container_without_a_weight_of_its_own_has_that_of_its_scope() {
    let tree = Tree::new();
    tree.docker("system.slice/docker-ID.scope", "web", 0);
    let path = format!("system.slice/docker-{ID}.scope");
    assert_eq!(tree.resolve(&path, false).identity.declared, None);
    let control = format!("run/systemd/system.control/docker-{ID}.scope.d/50-IOWeight.conf");
    tree.write(&control, "[Scope]\nIOWeight=70\n");
    let declared = tree.resolve(&path, false).identity.declared.unwrap();
    assert_eq!(
        (declared.weight.get(), declared.source),
        (70, WeightSource::Unit)
    );
}

const USER: &str = "user.slice/user-1000.slice/user@1000.service";

/// A container that may make cgroups gives one the name of another container.
#[test]
fn nobody_takes_the_name_or_the_weight_of_another() {
    let tree = Tree::new();
    tree.docker("system.slice/docker-ID.scope", "web", 800);
    tree.podman("machine.slice/libpod-ID.scope", "db", 800);
    tree.bundle("default", OTHER, &format!("/default/{OTHER}"), "", 800);
    tree.write(
        "run/libvirt/qemu/web.xml",
        "<domain id='1'><name>web</name></domain>",
    );
    for path in [
        format!("system.slice/docker-{OTHER}.scope/docker-{ID}.scope"),
        format!("system.slice/docker-{OTHER}.scope/docker/{ID}"),
        format!("system.slice/docker-{OTHER}.scope/{ID}"),
        format!("system.slice/docker-{OTHER}.scope/libpod-{ID}.scope"),
        format!("system.slice/docker-{OTHER}.scope/libpod-{ID}.scope/container"),
        format!("system.slice/docker-{OTHER}.scope/default/{OTHER}"),
        format!(r"system.slice/docker-{OTHER}.scope/machine-qemu\x2d1\x2dweb.scope"),
        format!(r"system.slice/docker-{OTHER}.scope/machine-qemu\x2d1\x2dweb.scope/emulator"),
        // A user's manager makes cgroups of the same names as the system's.
        format!("{USER}/system.slice/docker-{ID}.scope"),
        format!("{USER}/default/{OTHER}"),
    ] {
        let found = tree.resolve(&path, true).identity;
        assert!(
            ["web", "db"].iter().all(|name| found.name != *name),
            "{path}: {found:?}"
        );
        assert_eq!(found.declared, None, "{path}");
    }
}

#[test]
fn a_rootless_container_has_the_name_that_its_users_files_say() {
    let uid = rustix::process::geteuid().as_raw() + 1000;
    let tree = Tree::new();
    tree.write("etc/passwd", &format!("u:x:{uid}:{uid}::/home/u:/bin/sh\n"));
    tree.podman("user.slice/libpod-ID.scope", "mine", 9000);
    std::fs::create_dir_all(tree.path("home/u/.local/share/containers")).unwrap();
    std::fs::rename(
        tree.path("var/lib/containers/storage"),
        tree.path("home/u/.local/share/containers/storage"),
    )
    .unwrap();
    let slice = format!("user.slice/user-{uid}.slice");
    let path = format!("{slice}/user@{uid}.service/user.slice/libpod-{ID}.scope");
    let found = tree.resolve(&path, true).identity;
    let mine = format!("user-{uid}/mine");
    assert_eq!(named(&found), (TenantKind::PodmanContainer, &*mine));
    assert_eq!(
        found.declared.unwrap().weight.get(),
        9000,
        "among its siblings in there"
    );
    // So with another storage driver, as where users may mount no overlay.
    let storage = tree.path("home/u/.local/share/containers/storage");
    let stores = ["overlay", "vfs"].map(|driver| storage.join(format!("{driver}-containers")));
    std::fs::rename(&stores[0], &stores[1]).unwrap();
    let name = tree.resolve(&path, true).identity.name;
    assert_eq!(name, format!("user-{uid}/mine"));
    std::fs::rename(&stores[1], &stores[0]).unwrap();
    // Not from a server, which may be gone; the last mount on a path counts.
    let root = "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n";
    let home = |kind: &str| format!("40 21 0:44 / /home rw,relatime - {kind} server:/home rw\n");
    for (mounts, known) in [
        (root.to_owned(), true),
        (format!("{root}{}", home("xfs")), true),
        (format!("{root}{}", home("nfs4")), false),
        (format!("{root}{}", home("autofs")), false),
        (format!("{root}{}{}", home("autofs"), home("ext4")), true),
    ] {
        tree.write("proc/self/mountinfo", &mounts);
        let name = tree.resolve(&path, true).identity.name;
        assert_eq!(name == format!("user-{uid}/mine"), known, "{mounts}");
    }
    std::fs::remove_file(tree.path("proc/self/mountinfo")).unwrap();
    // Not where the container itself may make cgroups.
    let inner = format!("{path}/container/user.slice/libpod-{ID}.scope");
    let name = tree.resolve(&inner, true).identity.name;
    assert!(!name.contains("mine"), "{name}");
    // Nor with a home whose files belong to a third user; only root can make one.
    if rustix::process::geteuid().is_root() {
        let list =
            tree.path("home/u/.local/share/containers/storage/overlay-containers/containers.json");
        std::os::unix::fs::chown(list, Some(uid + 1), None).unwrap();
        let name = tree.resolve(&path, true).identity.name;
        assert_eq!(name, format!("user-{uid}/{}", &ID[..12]));
    }
}
