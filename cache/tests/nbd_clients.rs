//! The NBD server with the clients that people use: qemu-img, qemu-io, nbdinfo, nbdcopy, nbdkit and fio.
//!
//! A tool that is missing is a failure: `make deps` installs them.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use justitia_cache::serve::{Config, ControlRequest, Service};

const MIB: u64 = 1 << 20;

/// Runs a tool; its standard output.
fn tool(program: &str, args: &[&str]) -> String {
    let done = output(program, args);
    assert!(
        done.status.success(),
        "{program} {args:?} failed: {}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("expected {program} to be installed (`make deps`): {e}"))
}

struct Rig {
    dir: tempfile::TempDir,
    service: Option<Service>,
}

impl Rig {
    /// Serves an image of this size with this much cache.
    fn new(size: u64, cache: u64, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("image"))
            .unwrap()
            .set_len(size)
            .unwrap();
        let rig = Self { dir, service: None };
        let config = format!(
            "control = {:?}\nmetrics = \"127.0.0.1:0\"\n{more}\n[memory]\nsize = {cache}\n[[vm]]\nname = \"vm\"\nsocket = {:?}\n[[vm.disk]]\nname = \"disk\"\nimage = {:?}\n",
            rig.path("control"),
            rig.path("nbd"),
            rig.path("image"),
        );
        let config = Config::parse(Path::new("cache.toml"), &config).unwrap();
        Self {
            service: Some(Service::start(&config).unwrap()),
            ..rig
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.text("nbd"))
    }

    fn service(&self) -> &Service {
        self.service.as_ref().unwrap()
    }

    fn stop(&mut self) {
        let service = self.service.take().unwrap();
        service.shut_down(Duration::from_secs(10)).unwrap();
    }
}

/// Bytes that no two places share.
fn pattern(size: u64) -> Vec<u8> {
    let mut x = 88_172_645_463_325_252u64;
    (0..size / 8)
        .flat_map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x.to_le_bytes()
        })
        .collect()
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let rig = Rig::new(8 * MIB, 4 * MIB, "");
    let told = tool("nbdinfo", &[&rig.uri()]);
    for expected in [
        "export-size: 8388608",
        "base:allocation",
        "can_multi_conn: true",
        "can_fua: true",
        "can_cache: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "block_size_preferred: 4096",
    ] {
        assert!(told.contains(expected), "expected {expected:?} in:\n{told}");
    }
    assert!(tool("nbdinfo", &["--list", &rig.uri()]).contains("export=\"disk\""));
    assert!(tool("nbdinfo", &["--map", &rig.uri()]).contains("hole,zero"));
}

#[test]
fn nbdcopy_and_qemu_img_bring_back_what_they_took_there() {
    let mut rig = Rig::new(16 * MIB, 4 * MIB, "");
    let content = pattern(16 * MIB);
    std::fs::write(rig.path("source"), &content).unwrap();
    tool("nbdcopy", &[&rig.text("source"), &rig.uri()]);
    for _ in 0..2 {
        tool("nbdcopy", &[&rig.uri(), &rig.text("back")]);
        assert_eq!(std::fs::read(rig.path("back")).unwrap(), content);
    }
    // Sparse: half of it zero.
    let mut sparse = content;
    sparse[4 << 20..12 << 20].fill(0);
    std::fs::write(rig.path("source"), &sparse).unwrap();
    tool(
        "qemu-img",
        &[
            "convert",
            "-n",
            "-f",
            "raw",
            "-O",
            "raw",
            &rig.text("source"),
            &rig.uri(),
        ],
    );
    tool(
        "qemu-img",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "raw",
            &rig.uri(),
            &rig.text("back"),
        ],
    );
    assert_eq!(std::fs::read(rig.path("back")).unwrap(), sparse);
    let told = tool(
        "qemu-img",
        &[
            "compare",
            "-f",
            "raw",
            "-F",
            "raw",
            &rig.text("source"),
            &rig.uri(),
        ],
    );
    assert!(told.contains("identical"), "{told}");
    rig.stop();
    assert_eq!(std::fs::read(rig.path("image")).unwrap(), sparse);
}

#[test]
fn qemu_io_and_nbdkit_do_what_guests_do() {
    let rig = Rig::new(8 * MIB, 4 * MIB, "");
    let done = tool(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "write -P 7 4k 8k",
            "-c",
            "read -P 7 4k 8k",
            "-c",
            "read -P 7 4k 8k",
            "-c",
            "write -f -P 9 1000 100",
            "-c",
            "read -P 9 1000 100",
            "-c",
            "read -P 7 4k 8k",
            "-c",
            "write -z 8k 4k",
            "-c",
            "read -P 0 8k 4k",
            "-c",
            "discard 4k 4k",
            "-c",
            "read -P 0 4k 4k",
            "-c",
            "flush",
            &rig.uri(),
        ],
    );
    assert!(!done.contains("verification failed"), "{done}");
    // As the client of another server: nbdkit passes it on, through a filter of its own.
    let told = tool(
        "nbdkit",
        &[
            "-U",
            "-",
            "nbd",
            &format!("socket={}", rig.text("nbd")),
            "export=disk",
            "--run",
            "nbdcopy \"$uri\" - | head -c 1100 | tail -c 100",
        ],
    );
    assert_eq!(told.as_bytes(), [9; 100]);
}

#[test]
fn fio_verifies_a_disk_much_larger_than_the_cache() {
    let mut rig = Rig::new(64 * MIB, 2 * MIB, "");
    let args = [
        "--name=verify",
        "--ioengine=nbd",
        &format!("--uri={}", rig.uri()),
        "--rw=randrw",
        "--bsrange=512-64k",
        "--bs_unaligned=0",
        "--blockalign=512",
        "--iodepth=16",
        "--size=64M",
        "--io_size=96M",
        "--verify=crc32c",
        "--verify_backlog=256",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=7",
    ];
    tool("fio", &args);
    let stats = rig.service().stats();
    let pool = &stats.cache.vms[0].pools[0];
    assert!(
        pool.counts.evictions > 0,
        "the cache was never full: {pool:?}"
    );
    assert!(
        pool.counts.memory_hits > 0 && pool.counts.invalidations > 0,
        "{pool:?}"
    );
    rig.stop();
}

#[test]
fn sizes_change_and_blocks_stay_right_while_fio_reads() {
    let rig = Rig::new(32 * MIB, 8 * MIB, "");
    let uri = format!("--uri={}", rig.uri());
    let mut fio = Command::new("fio")
        .args([
            "--name=v",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
        ])
        .args([
            "--size=32M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ])
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("expected fio to be installed (`make deps`): {e}"));
    let control = rig.path("control");
    let ask = |question| justitia_cache::serve::send_request(&control, &question);
    for round in 0.. {
        if let Some(status) = fio.try_wait().unwrap() {
            assert!(status.success(), "fio found wrong bytes");
            break;
        }
        let size = if round % 2 == 0 { MIB } else { 8 * MIB };
        ask(ControlRequest::SetStore {
            store: justitia_cache::StoreKind::Memory,
            size: justitia_cache::serve::Size(size),
        })
        .unwrap();
        ask(ControlRequest::SetVm {
            vm: "vm".into(),
            weight: Some(1 + round % 100),
            policy: None,
        })
        .unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_second_writer_is_refused_either_way() {
    let mut rig = Rig::new(MIB, MIB, "");
    let image = rig.text("image");
    let done = output("qemu-io", &["-f", "raw", "-c", "write 0 4k", &image]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("lock"), "{said}");
    let again = Config::of_image(&rig.path("image"), "again", &rig.path("other"));
    let refused = Service::start(&again).err().unwrap().to_string();
    assert!(refused.contains("nobody else uses"), "{refused}");
    rig.stop();
    // Now QEMU first.
    let mut qemu = Command::new("qemu-nbd")
        .args(["-f", "raw", "-t", "-k", &rig.text("qemu"), &image])
        .spawn()
        .unwrap_or_else(|e| panic!("expected qemu-nbd to be installed (`make deps`): {e}"));
    wait_for(&rig.path("qemu"));
    let refused = Service::start(&again).err().map(|e| e.to_string());
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    assert!(
        refused
            .as_ref()
            .is_some_and(|r| r.contains("nobody else uses")),
        "{refused:?}"
    );
    Service::start(&again)
        .unwrap()
        .shut_down(Duration::from_secs(5))
        .unwrap();
}

/// Waits for the greeting: qemu-nbd listens before it has opened its image and locked it.
fn wait_for(socket: &Path) {
    let until = Instant::now() + Duration::from_secs(10);
    let greets = || {
        let mut greeting = [0; 8];
        let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.read_exact(&mut greeting)?;
        std::io::Result::Ok(greeting == *b"NBDMAGIC")
    };
    while !greets().unwrap_or(false) {
        assert!(
            Instant::now() < until,
            "nobody speaks NBD on {}",
            socket.display()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn tls_with_certificates_as_clients_expect_it() {
    let dir = tempfile::tempdir().unwrap();
    Ca::new(dir.path()).certify(dir.path(), "client", "vm");
    let more = format!(
        "[listen]\ntcp = \"127.0.0.1:0\"\n[tls]\ndirectory = {:?}",
        dir.path()
    );
    let rig = Rig::new(MIB, MIB, &more);
    let port = rig.service().tcp_address().unwrap().port();
    let directory = dir.path().to_str().unwrap();
    let secure = format!("nbds://localhost:{port}/disk?tls-certificates={directory}");
    let told = tool("nbdinfo", &[&secure]);
    assert!(told.contains("protocol: newstyle-fixed with TLS"), "{told}");
    let content = pattern(MIB);
    std::fs::write(rig.path("source"), &content).unwrap();
    tool("nbdcopy", &[&rig.text("source"), &secure]);
    tool("nbdcopy", &[&secure, &rig.text("back")]);
    assert_eq!(std::fs::read(rig.path("back")).unwrap(), content);
    let credentials = format!("tls-creds-x509,id=tls,dir={directory},endpoint=client");
    let image = format!(
        "driver=nbd,server.type=inet,server.host=localhost,server.port={port},export=disk,tls-creds=tls"
    );
    let told = tool(
        "qemu-img",
        &["info", "--object", &credentials, "--image-opts", &image],
    );
    assert!(told.contains("1 MiB"), "{told}");
    // In the clear there is nothing to be had, nor without a certificate of the CA.
    let clear = output("nbdinfo", &[&format!("nbd://localhost:{port}/disk")]);
    assert!(!clear.status.success());
    std::fs::remove_file(dir.path().join("client-cert.pem")).unwrap();
    assert!(!output("nbdinfo", &[&secure]).status.success());
}

/// A CA, whose certificates lie in the files that QEMU and libnbd look for.
struct Ca(rcgen::Issuer<'static, rcgen::KeyPair>);

impl Ca {
    /// With its own certificate and that of a server in `dir`.
    fn new(dir: &Path) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "test CA");
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(dir.join("ca-cert.pem"), certificate.pem()).unwrap();
        let ca = Self(rcgen::Issuer::new(params, key));
        ca.certify(dir, "server", "localhost");
        ca
    }

    /// A certificate for a server or a client; clients are known by their common names, servers by DNS names.
    fn certify(&self, dir: &Path, role: &str, name: &str) {
        let dns = if role == "server" {
            vec![name.to_owned()]
        } else {
            Vec::new()
        };
        self.certify_as(dir, role, name, dns);
    }

    fn certify_as(&self, dir: &Path, role: &str, common: &str, dns: Vec<String>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(dns).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, common);
        params.extended_key_usages = vec![if role == "server" {
            rcgen::ExtendedKeyUsagePurpose::ServerAuth
        } else {
            rcgen::ExtendedKeyUsagePurpose::ClientAuth
        }];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(dir.join(format!("{role}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{role}-key.pem")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn a_client_sees_the_disks_of_the_vm_that_its_certificate_or_its_socket_is_for() {
    let server = tempfile::tempdir().unwrap();
    let ca = Ca::new(server.path());
    let dir = tempfile::tempdir().unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut config = format!(
        "[listen]\ntcp = \"127.0.0.1:0\"\n[tls]\ndirectory = {:?}\n",
        server.path()
    );
    for (vm, clients) in [("a", ""), ("b", "clients = [\"host-b\"]\n"), ("c", "")] {
        let image = dir.path().join(vm);
        File::create(&image).unwrap().set_len(MIB).unwrap();
        let socket = dir.path().join(format!("{vm}.sock"));
        config += &format!(
            "[[vm]]\nname = {vm:?}\nsocket = {socket:?}\n{clients}[[vm.disk]]\nname = \"disk-{vm}\"\nimage = {image:?}\n"
        );
    }
    let config = Config::parse(Path::new("cache.toml"), &config).unwrap();
    let service = Service::start(&config).unwrap();
    let port = service.tcp_address().unwrap().port();
    // By common name; by DNS name; of two VMs; of the CA, and of no VM.
    for (common, dns, seen) in [
        ("a", vec![], "a"),
        ("someone", vec!["host-b".to_owned()], "b"),
        ("c", vec!["a".to_owned()], "ac"),
        ("b", vec!["*".to_owned(), "A".to_owned()], ""),
    ] {
        let client = tempfile::tempdir().unwrap();
        std::fs::copy(
            server.path().join("ca-cert.pem"),
            client.path().join("ca-cert.pem"),
        )
        .unwrap();
        ca.certify_as(client.path(), "client", common, dns);
        let uri = |disk: &str| {
            let directory = text(client.path());
            format!("nbds://localhost:{port}/{disk}?tls-certificates={directory}")
        };
        let listed = output("nbdinfo", &["--list", &uri("")]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        for vm in ["a", "b", "c"] {
            let allowed = seen.contains(vm);
            let disk = format!("disk-{vm}");
            let found = format!("{common} and {disk}: {listed}");
            assert_eq!(listed.contains(&disk), allowed, "{found}");
            assert_eq!(
                output("nbdinfo", &[&uri(&disk)]).status.success(),
                allowed,
                "{found}"
            );
        }
        // The disk without a name is the only one that is seen.
        let default = output("nbdinfo", &[&uri("")]).status.success();
        assert_eq!(default, seen.len() == 1, "{common}");
    }
    let socket = |disk: &str| {
        let socket = text(&dir.path().join("a.sock"));
        output("nbdinfo", &[&format!("nbd+unix:///{disk}?socket={socket}")])
    };
    assert!(socket("disk-a").status.success());
    assert!(!socket("disk-b").status.success());
}

#[test]
fn metrics_and_statistics_tell_the_same() {
    use std::io::{Read, Write};
    let rig = Rig::new(MIB, MIB, "");
    tool("qemu-io", &["-f", "raw", "-c", "read 0 64k", &rig.uri()]);
    let address = rig.service().metrics_address().unwrap();
    let mut http = std::net::TcpStream::connect(address).unwrap();
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    http.read_to_string(&mut text).unwrap();
    let stats =
        justitia_cache::serve::send_request(&rig.path("control"), &ControlRequest::Stats).unwrap();
    let reads = &stats["exports"][0]["reads"];
    assert!(reads.as_u64().unwrap() > 0);
    for line in [
        format!("justitia_cache_disk_reads_total{{disk=\"disk\"}} {reads}"),
        "justitia_cache_store_capacity_bytes{store=\"memory\"} 1048576".into(),
        "# EOF".into(),
    ] {
        assert!(text.contains(&line), "expected {line:?} in:\n{text}");
    }
}

/// What the next test starts as a process of its own, to kill it.
#[test]
fn child_that_serves() {
    let Some(dir) = std::env::var_os("JUSTITIA_TEST_SERVE").map(PathBuf::from) else {
        return;
    };
    let config = Config::of_image(&dir.join("image"), "disk", &dir.join("nbd"));
    let _service = Service::start(&config).unwrap();
    std::thread::sleep(Duration::from_secs(60));
    panic!("nobody killed it");
}

#[test]
fn a_killed_server_has_lost_nothing_that_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let image = File::create_new(dir.path().join("image")).unwrap();
    image.set_len(4 * MIB).unwrap();
    for round in 1..=3u8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_serves", "--nocapture"])
            .env("JUSTITIA_TEST_SERVE", dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The socket of the server that was killed is still there, and is taken over.
        wait_for(&dir.path().join("nbd"));
        let uri = format!(
            "nbd+unix:///disk?socket={}",
            dir.path().join("nbd").display()
        );
        let fua = format!("write -f -P {round} 0 1M");
        let plain = format!("write -P {round} 1M 1M");
        tool(
            "qemu-io",
            &["-f", "raw", "-c", &fua, "-c", &plain, "-c", "flush", &uri],
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let mut found = vec![0; 2 << 20];
        File::open(dir.path().join("image"))
            .unwrap()
            .read_exact_at(&mut found, 0)
            .unwrap();
        assert!(found.iter().all(|b| *b == round), "round {round}");
    }
}
