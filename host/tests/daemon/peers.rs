//! What the daemon talks to: QEMU processes that run no guest, monitors and agents that are threads of the test.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use justitia_common::kill_on_drop::KillOnDrop;
use justitia_guest_protocol::memory::{
    Answer, BLOCK, Body, Cached, Reclaimed, Request, Sampler, State, Tenant, TenantName, Tenants,
    encode,
};
use justitia_host::duplicates::VmDuplicates;
use justitia_host::held::Held;
use justitia_host::monitor::Monitor;
use justitia_host::socket::Socket;
use justitia_host::status::{Status, VmStatus, ask, ask_duplicates, ask_with_tenants};
use serde_json::{Value, json};

pub(crate) const MIB: u64 = 1 << 20;
/// The memory of each VM.
pub(crate) const RAM: u64 = 512 * MIB;
/// More than any host has: each VM holds more than it is entitled to.
pub(crate) const SHORT: &str = "headroom = \"1000TiB\"\n";
/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !come() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The name of a VM of these tests: others may run them at the same time.
pub(crate) fn own(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// The configuration of a VM whose sockets these keys name.
pub(crate) fn vm(name: &str, directory: &Path, keys: &[&str]) -> String {
    let own = own(name);
    let keys = keys.iter().map(|key| {
        let path = directory.join(format!("{name}.{key}"));
        format!("{key} = \"{}\"\n", path.display())
    });
    let uid = rustix::process::getuid().as_raw();
    let keys = keys.collect::<String>();
    format!("[[vm]]\nname = \"{own}\"\nuid = {uid}\n{keys}")
}

/// A QEMU process with a stopped machine; killed when dropped.
pub(crate) struct Qemu(pub(crate) KillOnDrop);

impl Qemu {
    pub(crate) fn start(name: &str, qmp: Option<&Path>) -> Self {
        let Some(path) = qmp else {
            return Self::start_with(name, &[]);
        };
        let qmp = format!("unix:{},server=on,wait=off", path.display());
        let qemu = Self::start_with(name, &["-qmp", &qmp]);
        // It listens and greets, then fills its memory. Commands are answered only after that.
        let monitor = Monitor::Socket(Socket::trusted(path.to_owned()));
        wait_until("QEMU answers", || monitor.session().is_ok());
        qemu
    }

    pub(crate) fn start_with(name: &str, more: &[&str]) -> Self {
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-S", "-nodefaults", "-display", "none", "-accel", "tcg"]);
        // It holds what its guest would use.
        command.args(["-m", "512", "-mem-prealloc"]);
        command.args(["-name", &format!("guest={}", own(name))]);
        command.args([
            "-device",
            "virtio-balloon-pci,id=b,deflate-on-oom=on,free-page-reporting=on",
        ]);
        command.args(more);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(KillOnDrop(command.spawn().unwrap()))
    }
}

/// A balloon whose guest follows at once.
#[derive(Debug)]
pub(crate) struct Balloon {
    pub(crate) actual: u64,
    pub(crate) interval: u64,
    /// Commands that change something.
    pub(crate) changes: u64,
    /// What its guest has available.
    pub(crate) available: u64,
    /// How many commands that give memory back are refused from now on.
    pub(crate) refuses: u64,
    /// What it is at the next looks, the first one last: its guest boots, and fills it anew.
    pub(crate) boots: Vec<u64>,
}

/// A monitor that is a thread.
pub(crate) fn monitor(path: &Path) -> Arc<Mutex<Balloon>> {
    let balloon = Arc::new(Mutex::new(Balloon {
        actual: RAM,
        interval: 0,
        changes: 0,
        available: RAM * 3 / 4,
        refuses: 0,
        boots: Vec::new(),
    }));
    let (listener, state) = (UnixListener::bind(path).unwrap(), Arc::clone(&balloon));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let _ = serve(&client, &state);
        }
    });
    balloon
}

fn serve(mut client: &UnixStream, balloon: &Mutex<Balloon>) -> std::io::Result<()> {
    writeln!(
        client,
        "{}",
        json!({"QMP": {"version": {}, "capabilities": []}})
    )?;
    for line in BufReader::new(client).lines() {
        let request: Value = serde_json::from_str(&line?)?;
        writeln!(client, "{}", json!({"event": "SOMETHING", "data": {}}))?;
        let answer = answer(&request, &mut balloon.lock().unwrap());
        writeln!(client, "{answer}")?;
    }
    Ok(())
}

fn answer(request: &Value, balloon: &mut Balloon) -> Value {
    let arguments = &request["arguments"];
    let value = match request["execute"].as_str().unwrap() {
        "query-balloon" => json!({"actual": balloon.boots.pop().unwrap_or(balloon.actual)}),
        "qom-list" => json!([{"name": "b", "type": "child<virtio-balloon-pci>"}]),
        "qom-get" => match arguments["property"].as_str().unwrap() {
            "guest-stats-polling-interval" => json!(balloon.interval),
            "guest-stats" => {
                let taken = RAM - balloon.actual;
                let available = balloon.available.saturating_sub(taken);
                let stats =
                    json!({"stat-available-memory": available, "stat-free-memory": available / 2});
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                json!({"last-update": now.unwrap().as_secs(), "stats": stats})
            }
            _ => json!(true),
        },
        "qom-set" => {
            balloon.interval = arguments["value"].as_u64().unwrap();
            balloon.changes += 1;
            json!({})
        }
        "balloon" if balloon.refuses > 0 && arguments["value"].as_u64() > Some(balloon.actual) => {
            balloon.refuses -= 1;
            return json!({"error": {"class": "GenericError", "desc": "not now"}});
        }
        "balloon" => {
            balloon.actual = arguments["value"].as_u64().unwrap();
            balloon.changes += 1;
            json!({})
        }
        _ => json!({}),
    };
    json!({"return": value})
}

/// How an agent behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Honest,
    Silent,
    /// Says what cannot be.
    Lies,
    /// As many lines as it can send.
    Floods,
    /// Lines of 64 KiB.
    LongLines,
    /// Each answer many times, and answers to what nobody asked.
    Replays,
    /// What is no JSON.
    Nonsense,
    /// It knows no tenants.
    Old,
}

/// What an agent was asked for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Bytes.
    pub(crate) bytes: u64,
    /// How often for its tenants.
    pub(crate) tenants: u64,
}

/// An agent that is a thread; what it was asked for.
pub(crate) fn agent(path: &Path, manner: Manner) -> Arc<Mutex<Asked>> {
    let asked = Arc::new(Mutex::new(Asked::default()));
    let (listener, sum) = (UnixListener::bind(path).unwrap(), Arc::clone(&asked));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let _ = speak(&client, manner, &sum);
        }
    });
    asked
}

fn state(manner: Manner) -> State {
    State {
        total: RAM,
        free: RAM / 4,
        available: if manner == Manner::Lies {
            u64::MAX
        } else {
            RAM / 2
        },
        unreclaimable: MIB,
        uptime_ms: 1,
        ..State::default()
    }
}

/// It caches these blocks of its one disk; a liar says that it caches all.
pub(crate) const CACHED: std::ops::Range<u64> = 500..1500;

/// The disk's size: no other image of these tests has it.
pub(crate) const DISK: u64 = 37 * MIB;

fn cached(seed: u64, manner: Manner) -> Cached {
    let mut sampler = Sampler::new(seed, [("", DISK)]);
    let blocks = match manner {
        Manner::Lies => 0..DISK / BLOCK,
        _ => CACHED,
    };
    blocks.for_each(|block| sampler.add(0, block));
    sampler.finish(DISK, true)
}

/// The tenants of each guest: 20, called like another VM. The first holds most.
fn tenants() -> Tenants {
    Tenants::new((0..20).map(|n| Tenant {
        name: TenantName::new(&format!("{}\n{n}", own("old"))),
        weight: 300 - n,
        file: (20 - n) * MIB,
    }))
}

fn speak(mut client: &UnixStream, manner: Manner, asked: &Mutex<Asked>) -> std::io::Result<()> {
    if manner == Manner::Floods {
        let line = encode(&Answer::error(1, "flood"));
        loop {
            client.write_all(&line)?;
        }
    }
    let mut old: VecDeque<Vec<u8>> = VecDeque::new();
    for line in BufReader::new(client).lines() {
        let request = Request::decode(line?.as_bytes()).unwrap();
        let body = match request {
            Request::State { .. } => Body::State(state(manner)),
            Request::Reclaim { bytes, .. } => {
                asked.lock().unwrap().bytes += bytes;
                Body::Reclaimed(Reclaimed { bytes, free: bytes })
            }
            Request::Cached { seed, .. } => Body::Cached(cached(seed, manner)),
            Request::Tenants { .. } => {
                asked.lock().unwrap().tenants += 1;
                match manner {
                    Manner::Old => Answer::error(0, "unknown variant `tenants`").body,
                    _ => Body::Tenants(tenants()),
                }
            }
        };
        let answer = encode(&Answer {
            id: request.id(),
            body,
        });
        match manner {
            Manner::Silent => continue,
            Manner::LongLines => client.write_all(&[&vec![b'x'; 64 << 10], &b"\n"[..]].concat())?,
            Manner::Nonsense => client.write_all(b"{\"id\":\"seven\"}\n")?,
            Manner::Replays => {
                for line in &old {
                    client.write_all(line)?;
                }
                old.push_back(answer.clone());
                old.truncate(4);
            }
            _ => {}
        }
        client.write_all(&answer)?;
    }
    Ok(())
}

/// A service manager that reads when it is asked what it was told.
pub(crate) struct ServiceManager(UnixDatagram);

impl ServiceManager {
    /// It, and its socket.
    pub(crate) fn start(directory: &Path) -> (Self, PathBuf) {
        let path = directory.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        (Self(socket), path)
    }

    /// Leaves no room for a message.
    pub(crate) fn fill(path: &Path) {
        let send = || {
            // A socket itself takes no more than so much.
            let other = UnixDatagram::unbound().unwrap();
            other.set_nonblocking(true).unwrap();
            other.send_to(b"STATUS=full", path)
        };
        while send().is_ok() {}
    }

    /// Reads what there is; whether this is among it.
    pub(crate) fn is_told(&self, what: &str) -> bool {
        let mut message = [0; 64];
        while let Ok(length) = self.0.recv(&mut message) {
            if &message[..length] == what.as_bytes() {
                return true;
            }
        }
        false
    }
}

/// A daemon in a process of its own, killed when dropped.
pub(crate) struct Daemon {
    pub(crate) child: KillOnDrop,
    pub(crate) directory: PathBuf,
}

impl Daemon {
    /// This test program again, as the test `daemon_itself`.
    pub(crate) fn start(directory: &Path, config: &str, observe: bool) -> Self {
        Self::start_with(directory, config, observe, &[])
    }

    /// The same, with more variables of its environment.
    pub(crate) fn start_with(
        directory: &Path,
        config: &str,
        observe: bool,
        more: &[(&str, &Path)],
    ) -> Self {
        let file = directory.join("host.toml");
        write_config(&file, config);
        let state = directory.join("state");
        // A program in the directory is found before the machine's.
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "daemon_itself", "--ignored"])
            .env("JUSTITIA_HOST_CONFIG", &file)
            .env("PATH", path)
            .env("JUSTITIA_HOST_DIRECTORY", &state)
            .env("JUSTITIA_HOST_OBSERVE", if observe { "1" } else { "0" })
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Self {
            child: KillOnDrop(child),
            directory: state,
        };
        wait_until("the daemon answers", || ask(&daemon.directory).is_ok());
        daemon
    }

    pub(crate) fn status(&self) -> Status {
        ask(&self.directory).unwrap()
    }

    pub(crate) fn vm(&self, name: &str) -> Option<VmStatus> {
        self.status()
            .vms
            .into_iter()
            .find(|vm| vm.name == own(name))
    }

    /// Waits until this VM is so.
    pub(crate) fn comes(&self, what: &str, name: &str, is_so: impl Fn(&VmStatus) -> bool) {
        wait_until(what, || self.vm(name).is_some_and(|vm| is_so(&vm)));
    }

    /// A VM with what its guest says of its tenants, when it is asked now.
    pub(crate) fn with_tenants(&self, name: &str) -> VmStatus {
        let status = ask_with_tenants(&self.directory).unwrap();
        let mut vms = status.vms.into_iter();
        vms.find(|vm| vm.name == own(name)).unwrap()
    }

    /// What this VM and its guest cache both, when it is looked at now.
    pub(crate) fn duplicates(&self, name: &str) -> Option<VmDuplicates> {
        let found = ask_duplicates(&self.directory).unwrap();
        found.vms.into_iter().find(|vm| vm.name == own(name))
    }

    /// What it holds, bytes.
    pub(crate) fn resident(&self) -> u64 {
        Held::by(self.child.id()).unwrap().resident
    }

    /// Has it read this configuration.
    pub(crate) fn reload(&self, config: &str) {
        write_config(&self.directory.with_file_name("host.toml"), config);
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits for that.
    pub(crate) fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// The machine may have other VMs: they are left alone.
fn write_config(file: &Path, config: &str) {
    std::fs::write(file, format!("discover = false\n{config}")).unwrap();
}
