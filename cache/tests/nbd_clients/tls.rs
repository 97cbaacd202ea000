//! Certificates, and the disks that they are for.

use super::*;

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

/// The daemon has no keys: nbdkit before it has, and passes on the names of exports.
#[test]
fn pre_shared_keys_by_nbdkit_before_the_socket_of_a_vm() {
    let rig = Rig::new(MIB, MIB, "");
    let keys = tempfile::tempdir().unwrap();
    let file = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    // As psktool makes it, and where QEMU looks for it.
    let key = |byte: &str| format!("web:{}\n", byte.repeat(32));
    std::fs::write(file("keys.psk"), key("5a")).unwrap();
    std::fs::write(file("others.psk"), key("5b")).unwrap();
    let (socket, before) = (rig.text("nbd"), file("secure"));
    let mut nbdkit = Command::new("nbdkit")
        .args(["--foreground", "--exit-with-parent", "--tls=require"])
        .args(["--unix", &before])
        .arg(format!("--tls-psk={}", file("keys.psk")))
        .args(["nbd", &format!("socket={socket}"), "dynamic-export=true"])
        .spawn()
        .unwrap();
    while !Path::new(&before).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let uri = |keys: &str| {
        let keys = file(keys);
        format!("nbds+unix://web@/disk?socket={before}&tls-psk-file={keys}")
    };
    let told = tool("nbdinfo", &[&uri("keys.psk")]);
    assert!(
        told.contains("with TLS") && told.contains("export-size: 1048576"),
        "{told}"
    );
    assert!(!output("nbdinfo", &[&uri("others.psk")]).status.success());
    let clear = format!("nbd+unix:///disk?socket={before}");
    assert!(!output("nbdinfo", &[&clear]).status.success());
    let credentials = format!(
        "tls-creds-psk,id=tls,dir={},username=web,endpoint=client",
        keys.path().display()
    );
    let image =
        format!("driver=nbd,server.type=unix,server.path={before},export=disk,tls-creds=tls");
    let (write, read) = ("write -P 7 0 1M", "read -P 7 0 1M");
    let mut args = vec!["--object", &credentials, "--image-opts"];
    args.extend(["-c", write, "-c", read, "-c", "flush", &image]);
    let done = tool("qemu-io", &args);
    assert!(!done.contains("failed"), "{done}");
    nbdkit.kill().unwrap();
    nbdkit.wait().unwrap();
    assert_eq!(std::fs::read(rig.path("image")).unwrap(), [7; 1 << 20]);
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
