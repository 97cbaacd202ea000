//! Clients read and write through the cache.

use super::fio_verify::verify;
use super::*;

#[test]
fn nbdinfo_sees_what_is_offered() {
    let rig = Rig::new(8 * MIB, 4 * MIB, "");
    let told = tool("nbdinfo", &[&rig.uri()]);
    for expected in [
        "export-size: 8388608",
        "base:allocation",
        "can_multi_conn: true",
        "can_fua: true",
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
    let qemu_img = |what: &str, from: &str, to: &str| {
        let args: Vec<_> = words(what).chain([from, to]).collect();
        tool("qemu-img", &args)
    };
    let (source, back, uri) = (rig.text("source"), rig.text("back"), rig.uri());
    qemu_img("convert -n -f raw -O raw", &source, &uri);
    qemu_img("convert -f raw -O raw", &uri, &back);
    assert_eq!(std::fs::read(&back).unwrap(), sparse);
    let told = qemu_img("compare -f raw -F raw", &source, &uri);
    assert!(told.contains("identical"), "{told}");
    rig.stop();
    assert_eq!(std::fs::read(rig.path("image")).unwrap(), sparse);
}

#[test]
fn qemu_io_and_nbdkit_do_what_guests_do() {
    let rig = Rig::new(8 * MIB, 4 * MIB, "");
    let done = "write -P 7 4k 8k; read -P 7 4k 8k; read -P 7 4k 8k; write -f -P 9 1000 100; read -P 9 1000 100;
        read -P 7 4k 8k; write -z 8k 4k; read -P 0 8k 4k; discard 4k 4k; read -P 0 4k 4k; flush";
    let done: Vec<_> = done.split(';').map(str::trim).collect();
    qemu_io(&rig.uri(), &done);
    // As the client of another server: nbdkit passes it on, through a filter of its own.
    let socket = format!("socket={}", rig.text("nbd"));
    let copy = "nbdcopy \"$uri\" - | head -c 1100 | tail -c 100";
    let args = ["-U", "-", "nbd", &socket, "export=disk", "--run", copy];
    let told = tool("nbdkit", &args);
    assert_eq!(told.as_bytes(), [9; 100]);
}

#[test]
fn fio_verifies_a_disk_much_larger_than_the_cache() {
    let mut rig = Rig::new(64 * MIB, 2 * MIB, "");
    verify(&rig.uri(), 64);
    rig.was_full();
    rig.stop();
}

/// fio verifies the disk through a server that is a client of ours. `args`: the socket that the server listens on, and ours.
fn verify_behind(program: &str, args: impl Fn(&Rig, &str) -> Vec<String>) {
    let rig = Rig::new(32 * MIB, 2 * MIB, "");
    let front = rig.text("front");
    let mut server = Command::new(program)
        .args(args(&rig, &front))
        .spawn()
        .unwrap_or_else(|e| panic!("expected {program} to be installed (`make deps`): {e}"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::os::unix::net::UnixStream::connect(&front).is_err() {
        assert!(Instant::now() < deadline, "{program} does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    verify(&format!("nbd+unix:///?socket={front}"), 32);
    server.kill().unwrap();
    server.wait().unwrap();
    rig.was_full();
}

#[test]
fn fio_verifies_the_disk_through_qemus_client() {
    verify_behind("qemu-nbd", |rig, front| {
        let socket = format!("--socket={front}");
        let how = ["--persistent", "--shared=8", "--format=raw", "--cache=none"];
        let mut args = how.map(str::to_owned).to_vec();
        args.extend([socket, rig.uri()]);
        args
    });
}

#[test]
fn fio_verifies_the_disk_through_libnbd_in_nbdkit() {
    verify_behind("nbdkit", |rig, front| {
        let socket = format!("socket={}", rig.text("nbd"));
        ["--foreground", "-U", front, "nbd", &socket, "export=disk"]
            .map(str::to_owned)
            .to_vec()
    });
}

#[test]
fn sizes_change_and_blocks_stay_right_while_fio_reads() {
    let rig = Rig::new(32 * MIB, 8 * MIB, "");
    let uri = format!("--uri={}", rig.uri());
    let mut fio = Command::new("fio")
        .args(["--name=v", "--ioengine=nbd", &uri, "--rw=randwrite"])
        .args(["--bs=4k", "--iodepth=16", "--size=32M", "--verify=crc32c"])
        .args(["--verify_fatal=1", "--verify_state_save=0"])
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
fn metrics_and_statistics_tell_the_same() {
    use std::io::{Read, Write};
    let rig = Rig::new(MIB, MIB, "");
    qemu_io(&rig.uri(), &["read 0 64k"]);
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
