//! What each format says, and what is none of it.

use super::*;

fn weight_of(number: u64) -> Option<Weight> {
    Weight::try_from(number).ok()
}

#[test]
fn runcs_state_has_the_weight_and_the_cgroup() {
    let text = r#"{"id":"x","cgroup_paths":{"":"/sys/fs/cgroup/system.slice/docker-x.scope"},
        "config":{"cgroups":{"path":"","blkio_weight":400,"unknown":[1,{"a":null}]},"labels":["bundle=/x"]}}"#;
    let state = runc_state(text.as_bytes()).unwrap();
    assert_eq!(state.weight, weight_of(400));
    assert_eq!(state.cgroup.as_deref(), Some("system.slice/docker-x.scope"));
    let none = runc_state(br#"{"config":{"cgroups":{"blkio_weight":0}}}"#).unwrap();
    assert_eq!((none.weight, none.cgroup), (None, None));
    assert!(runc_state(b"{}").is_none());
    // Not a weight: nothing is clamped.
    let large = runc_state(br#"{"config":{"cgroups":{"blkio_weight":10001}}}"#).unwrap();
    assert_eq!(large.weight, None);
}

#[test]
fn dockers_configuration_has_name_image_labels_and_weight() {
    let text = r#"{"ID":"x","Name":"/web","Config":{"Image":"nginx:1.25","Labels":{"app":"web"}},"Image":"sha256:0"}"#;
    let config = docker_config(text.as_bytes()).unwrap();
    assert_eq!(
        (config.name.as_str(), config.image.as_deref()),
        ("web", Some("nginx:1.25"))
    );
    assert_eq!(config.labels["app"], "web");
    assert_eq!(
        docker_host_config(br#"{"BlkioWeight":800}"#),
        Some(weight_of(800))
    );
    assert_eq!(docker_host_config(br#"{"BlkioWeight":0}"#), Some(None));
    assert_eq!(docker_host_config(b"x"), None);
    assert_eq!(
        docker_data_root(br#"{"data-root":"/data"}"#),
        Some(Some("/data".to_owned()))
    );
}

#[test]
fn of_podmans_list_only_ids_are_kept_and_not_ever_so_many() {
    let listed = |ids: &[String]| {
        let ids = ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}"));
        let text = format!("[{}]", ids.collect::<Vec<_>>().join(","));
        let list = podman_containers(text.as_bytes()).unwrap();
        list.into_keys().collect::<Vec<_>>()
    };
    let id = "0".repeat(64);
    let others = ["x", "", "../x", &"A".repeat(64), &"0".repeat(65)].map(str::to_owned);
    assert_eq!(
        listed(&[&others[..], std::slice::from_ref(&id)].concat()),
        [id]
    );
    let many: Vec<String> = (0..5000).map(|number| format!("{number:064x}")).collect();
    assert_eq!(listed(&many).len(), MAX_CONTAINERS);
}

#[test]
fn a_domain_has_number_name_and_weight() {
    let text = "<!-- x --><domstatus state='running' pid='7'><vcpus/><domain type='kvm' id='3'>\n<name>web &amp; co</name>\
        <blkiotune><weight>500</weight></blkiotune></domain></domstatus>";
    let domain = domain(text.as_bytes()).unwrap();
    assert_eq!((domain.id, domain.name.as_str()), (Some(3), "web & co"));
    assert_eq!(domain.weight, weight_of(500));
    let alone = super::domain(b"<domain id='1'><name>a</name></domain>").unwrap();
    assert_eq!((alone.id, alone.weight), (Some(1), None));
    for wrong in ["<domain id='1'/>", "<x><name>a</name></x>", "<domain>", ""] {
        assert_eq!(super::domain(wrong.as_bytes()), None, "{wrong}");
    }
    // Entities do not expand, and depth is bounded.
    let entities = "<!DOCTYPE d [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><domain id='1'><name>&b;</name></domain>";
    assert_eq!(super::domain(entities.as_bytes()), None);
    let deep = "<a>".repeat(300_000);
    assert_eq!(super::domain(deep.as_bytes()), None);
}

#[test]
fn json_that_is_nested_deeply_is_refused() {
    let deep = "[".repeat(500_000);
    let inside = format!("{{\"config\":{{\"cgroups\":{{\"x\":{deep}");
    assert!(runc_state(inside.as_bytes()).is_none());
    assert!(podman_containers(deep.as_bytes()).is_none());
    assert!(bundle(format!("{{\"x\":{deep}").as_bytes()).is_none());
}

#[test]
fn the_last_weight_of_a_units_section_counts() {
    for (text, expected) in [
        ("[Service]\nIOWeight=700\n", Some(weight_of(700))),
        ("[Service]\n  IOWeight = 700 \n", Some(weight_of(700))),
        (
            "[Unit]\nIOWeight=1\n[Service]\nIOWeight=2\nIOWeight=3\n",
            Some(weight_of(3)),
        ),
        (
            "[Service]\nIOWeight=2\n[Install]\nIOWeight=3\n",
            Some(weight_of(2)),
        ),
        ("[Service]\nIOWeight=2\nIOWeight=\n", Some(None)),
        (
            "[Service]\nIOWeight=2\nIOWeight=many\nIOWeight=0\n",
            Some(weight_of(2)),
        ),
        (
            "[Service]\nIOWeight=\\\n# a comment\n 700\n",
            Some(weight_of(700)),
        ),
        (
            "[Service]\n#IOWeight=2\n;IOWeight=3\nExecStart=a \\\nIOWeight=4\n",
            None,
        ),
        ("[Scope]\nIOWeight=2\n", None),
        ("[Service]\nStartupIOWeight=2\nBlockIOWeight=3\n", None),
        ("", None),
    ] {
        assert_eq!(unit_weight(text.as_bytes(), "Service"), expected, "{text}");
    }
}

#[test]
fn a_users_home_is_its_own() {
    let passwd = b"root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000:,,,:/home/web:/bin/sh\nbad:x:1001:1001::relative:/bin/sh\n";
    assert_eq!(home_of(passwd, 1000).as_deref(), Some("/home/web"));
    assert_eq!(home_of(passwd, 1001), None);
    assert_eq!(home_of(passwd, 100), None);
}

proptest::proptest! {
    #[test]
    fn any_text_is_taken(text in ".{0,200}") {
        let text = text.as_bytes();
        let _ = (runc_state(text), bundle(text), crun_status(text), docker_config(text), domain(text));
        let _ = (podman_containers(text), unit_weight(text, "Service"), home_of(text, 0));
    }
}
