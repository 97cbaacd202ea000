//! The image has one writer, and keeps what was acknowledged.

use super::*;

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
            .args(["--exact", "image::child_that_serves", "--nocapture"])
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
        qemu_io(&uri, &[&fua, &plain, "flush"]);
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
