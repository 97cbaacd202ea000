use super::*;
use crate::config::{Mode, Policy, PoolSpec, StoreKind};
use justitia_guest_protocol::puts::Serial;
use justitia_share::Weight;
use serde_json::json;
use std::path::{Path, PathBuf};

fn errors(text: &str) -> String {
    Config::parse(Path::new("cache.toml"), text)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

const WHOLE: &str = r#"
control = "/run/c"
metrics = "127.0.0.1:9000"

[memory]
size = "1GiB"

[ssd]
path = "/dev/sdx"
size = "10 GiB"

[listen]
unix = "/run/nbd"
tcp = "0.0.0.0:10809"

[tls]
directory = "/etc/pki"

[[vm]]
name = "web"
weight = 200

[[vm.pool]]
name = "db"
weight = 7
store = "ssd"

[[vm.disk]]
name = "web-root"
image = "/img/web"
mode = "exclusive"
serial = "root"

[vm.port]
residency = "1MiB"

[[vm]]
name = "batch"
socket = "/run/batch"
clients = ["host-1", "host-2"]
[[vm.disk]]
name = "batch-root"
image = "/img/batch"
read_only = true
mode = "uncached"

[[vm.pool]]
name = "files"
memory_weight = 5
ssd_weight = 7
"#;

/// In `dir` an image of this content, whose disk of the VM `vm` is served over the socket `nbd`; and the control socket.
pub(super) fn configured(dir: &Path, content: &[u8]) -> (Config, PathBuf) {
    let image = dir.join("image");
    std::fs::write(&image, content).unwrap();
    let mut config = Config::of_image(&image, "vm", &dir.join("nbd"));
    let control = dir.join("control");
    config.control = Some(control.clone());
    (config, control)
}

/// A port with a residency table of 1 MiB.
pub(super) fn port(name: &str) -> PortConfig {
    PortConfig {
        name: name.to_owned(),
        residency_bytes: 1 << 20,
        ssd: false,
    }
}

#[test]
fn a_whole_configuration() {
    let c = Config::parse(Path::new("x"), WHOLE).unwrap();
    assert_eq!(c.cache.memory_bytes, 1 << 30);
    assert_eq!(c.cache.ssd.unwrap().bytes, 10 << 30);
    assert!(c.tls.unwrap().verify_clients);
    let [web, batch] = &c.vms[..] else {
        panic!("expected two VMs")
    };
    assert_eq!((web.weight.get(), batch.weight.get()), (200, 100));
    // A certificate is a VM's by its name, unless others are given.
    assert_eq!(web.clients, ["web"]);
    assert_eq!(batch.clients, ["host-1", "host-2"]);
    // An exclusive cache wants a policy that remembers reuse, an inclusive one what real traces use again.
    assert_eq!((web.policy, batch.policy), (Policy::Ghost, Policy::S3Fifo));
    let spec = PoolSpec::of(StoreKind::Ssd, Weight::try_from(7).unwrap());
    assert_eq!(web.pools[0].spec, spec);
    let both = PoolSpec::new(Weight::try_from(5).ok(), Weight::try_from(7).ok());
    assert_eq!(Some(batch.pools[0].spec), both);
    assert_eq!(web.disks[0].mode, Some(Mode::Exclusive));
    assert_eq!(batch.disks[0].mode, None);
    let port = web.port.as_ref().unwrap();
    assert_eq!(
        (port.name.as_str(), port.residency_bytes, port.ssd),
        ("web/port", 1 << 20, false)
    );
    assert_eq!(batch.port, None);
    let serials = [&web.disks[0], &batch.disks[0]].map(|disk| disk.serial.unwrap());
    assert_eq!(
        serials,
        ["root", "batch-root"].map(|text| Serial::new(text).unwrap())
    );
    assert!(batch.disks[0].read_only && batch.disks[0].direct);
}

#[test]
fn certificates_are_required_on_loopback_too() {
    let text = "[listen]\ntcp = \"127.0.0.1:0\"\n[[vm]]\nname = \"a\"\n";
    let found = errors(text);
    assert!(found.contains("add `insecure = true`"), "{found}");
    let wanted = text.replace("[[vm]]", "insecure = true\n[[vm]]");
    let config = Config::parse(Path::new("x"), &wanted).unwrap();
    assert!(config.listen.insecure);
}

#[test]
fn the_ssd_stores_file_is_removed_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, [0; 8192]).unwrap();
    let mut config = Config::of_image(&image, "vm", &dir.path().join("nbd"));
    let path = dir.path().join("ssd");
    config.cache.ssd = Some(crate::config::SsdConfig::new(&path, 1 << 20));
    let service = Service::start(&config).unwrap();
    assert!(path.exists());
    service
        .shut_down(std::time::Duration::from_secs(5))
        .unwrap();
    assert!(!path.exists());
}

#[test]
fn every_value_that_cannot_be_read_is_reported() {
    let text = "metrics = 3\nnonsense = 1\n[memory]\nsize = \"much\"\n[ssd]\npath = 3\nsize = \"1GiB\"\nx = 1\n\
                [[vm]]\nname = 4\nweight = 0\nsocket = \"/run/a\"\n[[vm.disk]]\nname = \"a\"\nmode = \"x\"\n[[vm]]\n\
                name = \"b\"\npolicy = \"lru\"\n[[vm.pool]]\nname = \"p\"\nstore = \"tape\"\nweight = 1\n";
    let found = errors(text);
    let lines: Vec<&str> = found.lines().collect();
    let expected = [
        (
            1,
            "metrics: expected an address and a port such as \"127.0.0.1:9742\", found 3",
        ),
        (2, "found the unknown key `nonsense`"),
        (4, "expected a size"),
        (6, "ssd.path: expected a path, found 3"),
        (8, "found the unknown key `x`"),
        (10, "vm.name: expected a string, found 4"),
        (11, "vm.weight: expected a weight from 1 to 10000, found 0"),
        (13, "expected the key `image`, found none: add it"),
        (15, "found `x`"),
        (18, "found `lru`"),
        (21, "found `tape`"),
    ];
    for (line, words) in expected {
        let begins = format!("cache.toml:{line}: ");
        let reported = lines
            .iter()
            .any(|l| l.starts_with(&begins) && l.contains(words));
        assert!(reported, "{line}: {words}\nnot in\n{found}");
    }
    assert_eq!(lines.len(), expected.len(), "{found}");
}

#[test]
fn a_vm_without_any_socket_is_refused_with_the_keys_that_give_one() {
    for listen in ["", "[listen]\nsocket_mode = \"0660\"\n"] {
        let found = errors(&format!("{listen}[[vm]]\nname = \"a\"\n"));
        let expected = "expected `socket` for VM \"a\", `vhost` for each of its disks, or `unix` or `tcp` in [listen], found none";
        assert!(found.contains(expected), "{found}");
    }
}

/// What is replaced in [`WHOLE`], by what, and the line and the beginning of the error. `\n` is the end of a line.
const WRONG: &str = r#"
weight = 200 | weight = 0 | 21: vm.weight: expected a weight from 1 to 10000, found 0
weight = 200 | weigth = 200 | 21: expected one of `name`, `weight`
"1GiB" | "1 potato" | 6: expected a size
"1GiB" | true | 6: expected a size
"exclusive" | "maybe" | 31: expected one of `inclusive`, `exclusive`, `uncached`, found `maybe`
"batch-root" | "web-root" | 42: expected every disk once, found "web-root"
"batch" | "web" | 38: expected every VM once
"batch" | "a/b" | 38: expected a VM name
[tls]\ndirectory = "/etc/pki" |  | 14: expected a [tls] table with certificates of clients, found 0.0.0.0:10809 without
"/etc/pki" | "/etc/pki"\nverify_clients = false | 14: expected a [tls] table with certificates of clients
"0.0.0.0:10809" | "0.0.0.0:10809"\ninsecure = true | 15: expected either `insecure = true` or certificates of clients, found both
weight = 200 | clients = [""] | 21: expected names in certificates, found an empty one
127.0.0.1 | 10.0.0.1 | 3: expected a loopback address for metrics
serial = "root" | serial = "a b" | 32: expected a serial of 1 to 20 printable ASCII characters, found
name = "web-root" | name = "a"\nimage = "/a"\nserial = "root"\n[[vm.disk]]\nname = "b" | 36: expected every serial once among the disks of a VM, found
name = "web-root"\nimage = "/img/web"\nmode = "exclusive"\nserial = "root" | name = "the web's root file system"\nimage = "/img/web" | 29: expected a serial for disk
residency = "1MiB" | residency = "1TiB" | 35: expected a residency table of 64 bytes to 16 GiB, found
residency = "1MiB" | name = "web-root" | 35: expected every disk or port once, found
residency = "1MiB" | pools = 3 | 35: expected one of `name`, `residency`, `ssd`, found the unknown key `pools`
size = "1GiB" | size =  | 6:
"#;

#[test]
fn an_error_names_file_line_and_what_was_expected() {
    for case in WRONG.trim().lines() {
        let case = case.replace(r"\n", "\n");
        let cells: Vec<&str> = case.split(" | ").collect();
        let [from, to, expected] = cells[..] else {
            panic!("{case}")
        };
        assert!(WHOLE.contains(from), "{from}");
        let found = errors(&WHOLE.replace(from, to));
        let (line, what) = expected.split_once(':').unwrap();
        let begins = found.starts_with(&format!("cache.toml:{line}: "));
        assert!(begins && found.contains(what.trim()), "{case:?}: {found:?}");
    }
    let found = errors("[[vm]]\nname = \"a\"\n[[vm]]\nname = \"a\"\n");
    assert_eq!(
        found.lines().count(),
        3,
        "all of them are reported: {found}"
    );
    let missing = Config::load(Path::new("/nonexistent.toml")).unwrap_err();
    assert!(
        missing[0]
            .to_string()
            .starts_with("/nonexistent.toml: expected")
    );
}

#[test]
fn sizes_are_shown_with_their_unit() {
    assert_eq!("64K".parse(), Ok(Size(64 << 10)));
    assert!("1 PiB".parse::<Size>().is_err());
    assert_eq!(Size(256 << 20).to_string(), "256.0 MiB");
}

/// Requests, and the reason why each is refused.
fn requests() -> Vec<(ControlRequest, Option<&'static str>)> {
    let pool = |pool: &str, weight: Option<u64>, create: bool| {
        let request = json!({ "command": "set-pool", "vm": "vm", "pool": pool, "weight": weight, "create": create });
        serde_json::from_value(request).unwrap()
    };
    vec![
        (pool("web", Some(300), true), None),
        (pool("web", None, true), Some("expected a new name")),
        (pool("nope", None, false), Some("there are: default, web")),
        (
            pool("a\u{1b}[31m", None, true),
            Some("without slashes and control characters"),
        ),
        (
            pool("web", Some(0), false),
            Some("expected a weight from 1 to 10000"),
        ),
        (
            ControlRequest::DestroyPool {
                vm: "vm".into(),
                pool: "default".into(),
            },
            Some("set vm vm --uncached"),
        ),
        (
            ControlRequest::DestroyPool {
                vm: "x".into(),
                pool: "web".into(),
            },
            Some("there are: vm"),
        ),
        (
            ControlRequest::SetStore {
                store: StoreKind::Memory,
                size: Size(4 << 20),
            },
            None,
        ),
        (
            ControlRequest::SetVm {
                vm: "vm".into(),
                weight: Some(7),
                policy: Some(Policy::Fifo),
            },
            None,
        ),
    ]
}

#[test]
fn requests_are_executed_or_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = configured(dir.path(), &[0; 8192]);
    let service = Service::start(&config).unwrap();
    for (request, refused) in requests() {
        let error = send_request(&control, &request)
            .err()
            .map(|e| e.to_string());
        match (error, refused) {
            (None, None) => {}
            (Some(error), Some(refused)) => assert!(error.contains(refused), "{error}"),
            (error, _) => panic!("{request:?}: {error:?}"),
        }
    }
    let stats = send_request(&control, &ControlRequest::Stats).unwrap();
    assert_eq!(stats["cache"]["vms"][0]["weight"], 7);
    let pools = &stats["cache"]["vms"][0]["pools"];
    assert_eq!(pools[1]["memory_weight"], 300);
    assert_eq!(stats["cache"]["stores"][0]["capacity_bytes"], 4 << 20);
    service
        .shut_down(std::time::Duration::from_secs(5))
        .unwrap();
    assert!(!control.exists());
    assert!(matches!(
        send_request(&control, &ControlRequest::Stats),
        Err(ControlError::Connect { .. })
    ));
}

#[test]
fn a_daemon_that_takes_no_control_client_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control");
    let listener = std::os::unix::net::UnixListener::bind(&control).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    // As many as it lets wait.
    let waiting: Vec<_> = (0..8)
        .map_while(|_| justitia_api::client::connect(&control).ok())
        .collect();
    assert!((1..8).contains(&waiting.len()), "{}", waiting.len());
    let refused = send_request(&control, &ControlRequest::Stats).unwrap_err();
    assert!(refused.to_string().contains("takes no client"), "{refused}");
}
