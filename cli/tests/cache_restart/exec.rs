//! The daemon is executed again while clients write: they do not notice.

use super::manager::{BLOCKS, Client, Daemon, Manager, content};
use super::worker::Worker;
use justitia_cache::lab::front_end::{FrontEnd, FrontEndOptions, Workload};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often the daemon is executed again.
const TIMES: usize = 20;

/// Bytes of the disk that is served over vhost-user.
const GUEST: u64 = 8 << 20;

/// A daemon with a disk, on a unix socket of its VM, one of all VMs, and TCP; and one over vhost-user, too.
fn served() -> (Manager, u16) {
    // Free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port.local_addr().unwrap().port();
    let manager = Manager::with(|dir| {
        let at = |name: &str| dir.join(name);
        std::fs::write(at("guest"), vec![0; usize::try_from(GUEST).unwrap()]).unwrap();
        format!(
            "control = {:?}\n[memory]\nsize = \"16MiB\"\n[listen]\nunix = {:?}\ntcp = \"127.0.0.1:{port}\"\ninsecure = true\n[[vm]]\nname = \"vm\"\nsocket = {:?}\n[[vm.disk]]\nname = \"disk\"\nimage = {:?}\n[[vm.disk]]\nname = \"guest\"\nimage = {:?}\nvhost = {:?}\n",
            at("control"),
            at("nbd"),
            at("vm"),
            at("image"),
            at("guest"),
            at("vhost"),
        )
    });
    (manager, port)
}

fn execute_again(manager: &mut Manager, daemon: &Daemon) {
    daemon.signal("USR2");
    manager.wait_until_ready();
}

#[test]
fn clients_keep_their_connections_while_the_daemon_is_executed_again() {
    let (mut manager, port) = served();
    let daemon = manager.start();
    let unix = |name: &str| UnixStream::connect(manager.path(name)).unwrap();
    let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let part = BLOCKS / 4;
    let workers = [
        Worker::start(unix("nbd"), 0..part, false),
        Worker::start(unix("vm"), part..2 * part, true),
        Worker::start(tcp, 2 * part..3 * part, true),
    ];
    // One that asks nothing for long, and one whose write arrives in pieces.
    let mut idle = Client::connect(&manager.path("nbd"));
    let mut slow = Client::connect(&manager.path("vm"));
    let written: Vec<u8> = (BLOCKS - 64..BLOCKS)
        .flat_map(|at| content(at, 9))
        .collect();
    let mut write = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1];
    write.extend([0; 8]);
    write.extend(((BLOCKS - 64) * 4096).to_be_bytes());
    write.extend((64 * 4096_u32).to_be_bytes());
    write.extend(&written);
    let mut pieces = write.chunks(write.len().div_ceil(TIMES));
    for _ in 0..TIMES {
        slow.0.write_all(pieces.next().unwrap_or_default()).unwrap();
        workers.iter().for_each(|worker| worker.wait_for(50));
        execute_again(&mut manager, &daemon);
    }
    let replies: u64 = workers.into_iter().map(Worker::join).sum();
    println!("{replies} replies over {TIMES} times");
    let mut reply = [0; 16];
    std::io::Read::read_exact(&mut slow.0, &mut reply).unwrap();
    assert_eq!(reply[4..], [0; 12]);
    assert!(slow.read(BLOCKS - 64) == content(BLOCKS - 64, 9));
    assert!(idle.read(BLOCKS - 1) == content(BLOCKS - 1, 9));
}

fn wait_until(is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "no client has begun");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes and reads with verification from when one file is gone until another is there. Without `reconnect` libnbd's first error ends it.
const NBDSH: &str = r#"
import os, random
content, done = {}, 0
os.remove("start")
while not os.path.exists("stop") or done < 100:
    block = random.randrange(2048)
    if random.random() < 0.5:
        content[block] = os.urandom(4096)
        h.pwrite(content[block], block * 4096, nbd.CMD_FLAG_FUA)
    elif block in content:
        assert h.pread(4096, block * 4096) == content[block], block
    done += 1
for block, expected in content.items():
    assert h.pread(4096, block * 4096) == expected, block
told = []
h.block_status(1 << 20, 0, lambda context, offset, entries, error: told.append(context))
assert told == [nbd.CONTEXT_BASE_ALLOCATION], told
print(done, "requests")
"#;

#[test]
fn libnbd_and_qemu_keep_their_connections() {
    let (mut manager, port) = served();
    let daemon = manager.start();
    let mut qemu = Command::new("qemu-io")
        .args(["-f", "raw", &format!("nbd://127.0.0.1:{port}/disk")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut commands = qemu.stdin.take().unwrap();
    // What is still negotiated at an exec is broken off: both have negotiated before the first.
    commands.write_all(b"write 31M 4k\n").unwrap();
    wait_until(|| manager.stats()["exports"][0]["writes"] == 1);
    std::fs::write(manager.path("start"), "").unwrap();
    let uri = format!("nbd+unix:///disk?socket={}", manager.path("nbd").display());
    // Its Python is the distribution's.
    let mut nbdsh = Command::new("nbdsh")
        .env("PATH", "/usr/bin:/bin")
        .args(["--base-allocation", "-u", &uri, "-c", NBDSH])
        .current_dir(manager.path(""))
        .spawn()
        .unwrap();
    wait_until(|| !manager.path("start").exists());
    for n in 1..=TIMES {
        // Beyond what nbdsh writes; some of it on either side of an exec.
        let at = 16 + n % 4;
        write!(commands, "write -P {n} {at}M 1M\nread -P {n} {at}M 1M\n").unwrap();
        write!(commands, "aio_write -P {n} {at}M 512k\naio_flush\nflush\n").unwrap();
        execute_again(&mut manager, &daemon);
        writeln!(commands, "read -P {n} {at}M 1M").unwrap();
    }
    commands.write_all(b"quit\n").unwrap();
    drop(commands);
    let said = qemu.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
    let (reads, writes) = (text.matches("read 1048576/1048576"), text.matches("wrote"));
    assert_eq!(
        (reads.count(), writes.count()),
        (2 * TIMES, 2 * TIMES + 1),
        "{text}"
    );
    assert!(said.status.success() && !text.contains("ailed"), "{text}");
    std::fs::write(manager.path("stop"), "").unwrap();
    assert!(nbdsh.wait().unwrap().success());
}

#[test]
fn a_guest_keeps_its_disk_and_its_requests_in_flight() {
    let (mut manager, _) = served();
    let daemon = manager.start();
    let options = FrontEndOptions {
        queues: 4,
        queue_size: 16,
        ..FrontEndOptions::default()
    };
    let mut front_end = FrontEnd::connect(&manager.path("vhost"), options).unwrap();
    let mut workload = Workload::new(GUEST, 7);
    let files = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.0.id()));
        open.unwrap().count()
    };
    let before = files();
    let mut in_flight = 0;
    for n in 0..TIMES {
        workload.advance(&mut front_end, 100 + n).unwrap();
        in_flight += workload.in_flight();
        execute_again(&mut manager, &daemon);
    }
    // Fewer than one is left behind each time.
    workload.advance(&mut front_end, 1).unwrap();
    assert!(files() < before + TIMES, "{} after {before}", files());
    assert!(in_flight > TIMES, "requests were in flight: {in_flight}");
    workload.advance(&mut front_end, 500).unwrap();
    workload.finish(&mut front_end).unwrap();
    // The daemon answers messages on the same connection, too.
    let sectors = (GUEST / 512).to_le_bytes();
    assert_eq!(front_end.config(0, 8).unwrap(), sectors);
    assert!(std::fs::read(manager.path("guest")).unwrap() == workload.content());
}
