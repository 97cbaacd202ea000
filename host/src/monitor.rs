//! QEMU's monitor (QMP): the balloon and its statistics.
//!
//! A monitor serves one client at a time, and other programs use it, too. So each use is a session of its own: connect, a few
//! commands, close. libvirt keeps its monitors connected: there each command goes through `virsh qemu-monitor-command`.
//!
//! Answers are bounded: a guest may have taken QEMU over.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use justitia_api::escape::plain;
use rustix::io::ioctl_fionbio;
use serde_json::{Value, json};

use crate::socket::Socket;

/// The time limit of a session.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of `virsh`, which asks a daemon, which asks QEMU.
const VIRSH_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that is read in a session, bytes. A list of a thousand devices takes a tenth of it.
const MAX_SESSION: usize = 1 << 20;
/// The longest name of a device, bytes: the journal stores it. Others are ignored.
const MAX_NAME: usize = 1024;
/// The greatest age of statistics that are used, seconds.
const MAX_AGE: u64 = 5;
/// The interval of the balloon's statistics while they are needed, seconds.
pub(crate) const STATISTICS_EVERY: u64 = 1;

/// The property of a balloon with the interval of its statistics.
const INTERVAL: &str = "guest-stats-polling-interval";

/// How to reach the monitor of a VM.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Monitor {
    /// A socket.
    Socket(Socket),
    /// A domain of libvirt.
    Libvirt(String),
}

/// Why a monitor cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The socket, or `virsh`, does not work.
    #[error("the QMP monitor {monitor}: {source}")]
    Io {
        /// Which.
        monitor: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// QEMU does not answer.
    #[error(
        "the QMP monitor {0}: expected an answer within 2 s, found none. A monitor serves one client at a time: another program \
         holds it, or QEMU is starting or hangs. Give the VM a second one (`-qmp unix:PATH,server=on,wait=off`)"
    )]
    Busy(String),
    /// The answer is not QMP.
    #[error("the QMP monitor {monitor}: expected {expected}, found {found:?}")]
    Foreign {
        /// Which.
        monitor: String,
        /// What was expected.
        expected: &'static str,
        /// The beginning of the answer.
        found: String,
    },
    /// The VM has no balloon: it never had one, or it was unplugged.
    #[error(
        "the QMP monitor {0}: QEMU has no balloon: without one (`-device virtio-balloon,deflate-on-oom=on`) the VM gives only what \
         its guest's agent does"
    )]
    NoBalloon(String),
    /// QEMU refuses.
    #[error("the QMP monitor {monitor}: QEMU refuses {command}: {why}")]
    Refused {
        /// Which.
        monitor: String,
        /// The command.
        command: String,
        /// QEMU's reason.
        why: String,
    },
}

/// The state of a balloon, as QEMU tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalloonState {
    /// The memory that it leaves to the guest, bytes.
    pub actual: u64,
    /// Its device in QEMU's object tree, if found.
    pub device: Option<String>,
    /// `deflate-on-oom`.
    pub deflates_on_oom: bool,
    /// The interval of its statistics, seconds; 0: none are made.
    pub interval: u64,
    /// `stat-available-memory` and `stat-free-memory` of recent statistics, bytes.
    pub statistics: Option<(u64, u64)>,
}

impl BalloonState {
    /// Whether statistics are made often enough to be used.
    #[must_use]
    pub(crate) fn makes_statistics(&self) -> bool {
        (1..=MAX_AGE).contains(&self.interval)
    }
}

/// A session.
#[derive(Debug)]
pub struct Session {
    name: String,
    link: Link,
}

#[derive(Debug)]
enum Link {
    Socket {
        stream: UnixStream,
        /// Read bytes that are not parsed yet.
        buffer: Vec<u8>,
        /// Bytes read so far.
        read: usize,
        until: Instant,
    },
    Libvirt(String),
}

impl Monitor {
    /// Connects.
    ///
    /// # Errors
    /// If nothing listens, or another client is connected; if `virsh` would take the domain's name for an ID or UUID.
    pub fn session(&self) -> Result<Session, MonitorError> {
        let domain = match self {
            Self::Libvirt(domain) => domain,
            Self::Socket(socket) => return Session::connect(socket),
        };
        let session = Session {
            name: format!("of libvirt's domain {}", plain(domain)),
            link: Link::Libvirt(domain.clone()),
        };
        match is_only_a_name(domain) {
            true => Ok(session),
            false => Err(session.io(std::io::Error::other(
                "expected a name that virsh takes neither for an ID nor for a UUID: rename the domain (`virsh domrename`)",
            ))),
        }
    }

    /// Sets the balloon, in a session of its own.
    pub(crate) fn set_balloon(&self, bytes: u64) -> Result<(), MonitorError> {
        self.session()?.set_balloon(bytes)
    }
}

impl Session {
    fn connect(socket: &Socket) -> Result<Self, MonitorError> {
        let name = socket.path.display().to_string();
        let stream = socket.connect().map_err(|source| match source.kind() {
            ErrorKind::WouldBlock => MonitorError::Busy(name.clone()),
            _ => MonitorError::Io {
                monitor: name.clone(),
                source,
            },
        })?;
        let mut session = Self {
            name,
            link: Link::Socket {
                stream,
                buffer: Vec::new(),
                read: 0,
                until: Instant::now() + TIMEOUT,
            },
        };
        let greeting = session.message()?;
        if greeting.get("QMP").is_none() {
            return Err(session.foreign("QMP's greeting", &greeting));
        }
        session.execute("qmp_capabilities", json!({}))?;
        Ok(session)
    }

    /// Sends a command, and waits for its result.
    ///
    /// # Errors
    /// If QEMU refuses it, or does not answer.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, MonitorError> {
        let mut request = json!({ "execute": command });
        if arguments
            .as_object()
            .is_none_or(|fields| !fields.is_empty())
        {
            request["arguments"] = arguments;
        }
        let mut answer = match &mut self.link {
            Link::Libvirt(domain) => {
                let domain = domain.clone();
                self.virsh(&domain, &request)?
            }
            Link::Socket { stream, until, .. } => {
                let left = left(*until);
                let sent = stream
                    .set_write_timeout(Some(left))
                    .and_then(|()| stream.write_all(format!("{request}\n").as_bytes()));
                sent.map_err(|source| self.io(source))?;
                loop {
                    let message = self.message()?;
                    // Events may come at any time.
                    if message.get("event").is_none() {
                        break message;
                    }
                }
            }
        };
        if let Some(error) = answer.get("error") {
            return Err(self.refused(command, error));
        }
        match answer.get_mut("return") {
            Some(value) => Ok(value.take()),
            None => Err(self.foreign("an answer", &answer)),
        }
    }

    /// The state of the balloon. `device`: its device, if known; otherwise it is looked for.
    ///
    /// # Errors
    /// If there is no balloon, or the monitor does not answer.
    pub fn balloon(&mut self, device: Option<&str>) -> Result<BalloonState, MonitorError> {
        let actual = self.actual()?;
        let device = match device {
            Some(device) => Some(device.to_owned()),
            None => self.find_balloon()?,
        };
        let mut state = BalloonState {
            actual,
            device,
            deflates_on_oom: false,
            interval: 0,
            statistics: None,
        };
        if let Some(device) = state.device.clone() {
            let deflates = self.property(&device, "deflate-on-oom")?;
            state.deflates_on_oom = deflates.and_then(|value| value.as_bool()).unwrap_or(false);
            state.interval = self.interval(&device)?;
            let statistics = self.property(&device, "guest-stats")?;
            state.statistics = statistics.as_ref().and_then(young_statistics);
        }
        Ok(state)
    }

    /// The memory that the balloon leaves to the guest, bytes.
    ///
    /// # Errors
    /// If there is no balloon, or the monitor does not answer.
    pub(crate) fn actual(&mut self) -> Result<u64, MonitorError> {
        let answer = self.execute("query-balloon", json!({}))?;
        let actual = answer.get("actual").and_then(Value::as_u64);
        actual.ok_or_else(|| self.foreign("the balloon's size", &answer))
    }

    /// Sets the balloon to leave `bytes` to the guest.
    ///
    /// # Errors
    /// If QEMU refuses, or does not answer.
    pub fn set_balloon(&mut self, bytes: u64) -> Result<(), MonitorError> {
        self.execute("balloon", json!({ "value": bytes })).map(drop)
    }

    /// The interval of the balloon's statistics, seconds; 0: none are made.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub(crate) fn interval(&mut self, device: &str) -> Result<u64, MonitorError> {
        let interval = self.property(device, INTERVAL)?;
        Ok(interval.and_then(|value| value.as_u64()).unwrap_or(0))
    }

    /// Sets the interval of the balloon's statistics, seconds; 0: none are made.
    ///
    /// # Errors
    /// If QEMU refuses, or does not answer.
    pub fn set_interval(&mut self, device: &str, seconds: u64) -> Result<(), MonitorError> {
        let arguments = json!({ "path": device, "property": INTERVAL, "value": seconds });
        self.execute("qom-set", arguments).map(drop)
    }

    fn find_balloon(&mut self) -> Result<Option<String>, MonitorError> {
        for container in ["/machine/peripheral", "/machine/peripheral-anon"] {
            let list = self.execute("qom-list", json!({ "path": container }))?;
            let balloon = list.as_array().into_iter().flatten().find_map(|child| {
                let kind = child.get("type")?.as_str()?;
                let name = child.get("name")?.as_str()?;
                let is_one = kind.starts_with("child<virtio-balloon") && name.len() <= MAX_NAME;
                is_one.then_some(name)
            });
            if let Some(name) = balloon {
                return Ok(Some(format!("{container}/{name}")));
            }
        }
        Ok(None)
    }

    /// A property, if the device has it.
    fn property(&mut self, device: &str, name: &str) -> Result<Option<Value>, MonitorError> {
        match self.execute("qom-get", json!({ "path": device, "property": name })) {
            Ok(value) => Ok(Some(value)),
            Err(MonitorError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next line.
    fn message(&mut self) -> Result<Value, MonitorError> {
        let line = self.line()?;
        serde_json::from_slice(&line).map_err(|_| MonitorError::Foreign {
            monitor: self.name.clone(),
            expected: "a line of JSON",
            found: short(&String::from_utf8_lossy(&line)),
        })
    }

    fn line(&mut self) -> Result<Vec<u8>, MonitorError> {
        let Link::Socket {
            stream,
            buffer,
            read,
            until,
        } = &mut self.link
        else {
            return Ok(Vec::new());
        };
        let mut part = [0; 16 << 10];
        let source = loop {
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let rest = buffer.split_off(end + 1);
                return Ok(std::mem::replace(buffer, rest));
            }
            if *read > MAX_SESSION {
                break std::io::Error::other("expected at most 1 MiB of answers, found more");
            }
            if until.saturating_duration_since(Instant::now()).is_zero() {
                return Err(MonitorError::Busy(self.name.clone()));
            }
            match stream
                .set_read_timeout(Some(left(*until)))
                .and_then(|()| stream.read(&mut part))
            {
                Ok(0) => break ErrorKind::UnexpectedEof.into(),
                Ok(count) => {
                    *read += count;
                    buffer.extend_from_slice(part.get(..count).unwrap_or_default());
                }
                Err(e)
                    if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {}
                Err(e) => break e,
            }
        };
        Err(self.io(source))
    }

    fn virsh(&self, domain: &str, request: &Value) -> Result<Value, MonitorError> {
        let text = run_virsh(domain, &request.to_string()).map_err(|source| self.io(source))?;
        serde_json::from_slice(&text).map_err(|_| MonitorError::Foreign {
            monitor: self.name.clone(),
            expected: "a line of JSON of virsh",
            found: short(&String::from_utf8_lossy(&text)),
        })
    }

    fn refused(&self, command: &str, error: &Value) -> MonitorError {
        let text = |field| error.get(field).and_then(Value::as_str);
        // Of the commands used here, only those about balloons fail with this class.
        if text("class") == Some("DeviceNotActive") {
            return MonitorError::NoBalloon(self.name.clone());
        }
        MonitorError::Refused {
            monitor: self.name.clone(),
            command: command.to_owned(),
            why: short(text("desc").unwrap_or("no reason")),
        }
    }

    fn io(&self, source: std::io::Error) -> MonitorError {
        MonitorError::Io {
            monitor: self.name.clone(),
            source,
        }
    }

    fn foreign(&self, expected: &'static str, found: &Value) -> MonitorError {
        MonitorError::Foreign {
            monitor: self.name.clone(),
            expected,
            found: short(&found.to_string()),
        }
    }
}

/// The remaining time of a session. A timeout of 0 would mean none.
fn left(until: Instant) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    left.max(Duration::from_millis(1))
}

/// Whether `virsh` can only take this for a domain's name: it tries an ID first, then a UUID (`virshLookupDomainInternal` in
/// libvirt's tools/virsh-util.c).
fn is_only_a_name(domain: &str) -> bool {
    let is_id = domain.trim().parse::<i64>().is_ok();
    let is_uuid = || {
        let may_be = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b' ');
        domain.len() == 36 && domain.bytes().all(may_be)
    };
    !is_id && !is_uuid()
}

/// The beginning of the other side's text, safe for a log.
fn short(text: &str) -> String {
    plain(&text.chars().take(200).collect::<String>())
}

/// Available and free memory from recent, complete statistics. A missing value is -1 as an unsigned number. Statistics from
/// the future are old: the host's clock was set back.
fn young_statistics(statistics: &Value) -> Option<(u64, u64)> {
    let updated = statistics.get("last-update")?.as_u64()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    if updated.abs_diff(now.as_secs()) > MAX_AGE {
        return None;
    }
    let statistic = |name| {
        statistics
            .get("stats")?
            .get(name)?
            .as_u64()
            .filter(|value| *value != u64::MAX)
    };
    Some((
        statistic("stat-available-memory")?,
        statistic("stat-free-memory")?,
    ))
}

fn run_virsh(domain: &str, request: &str) -> std::io::Result<Vec<u8>> {
    let mut child = Command::new("virsh")
        .args([
            "--quiet",
            "--connect",
            "qemu:///system",
            "qemu-monitor-command",
            "--",
            domain,
            request,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let until = Instant::now() + VIRSH_TIMEOUT;
    let mut out = Output::of(child.stdout.take())?;
    let mut error = Output::of(child.stderr.take())?;
    let status = loop {
        let ended = child.try_wait()?;
        // A process cannot end while its pipe is full.
        out.read()?;
        error.read()?;
        if let Some(status) = ended {
            break status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(std::io::Error::new(
                ErrorKind::TimedOut,
                "virsh has not answered within 5 s",
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if status.success() {
        return Ok(out.text);
    }
    let error = short(&String::from_utf8_lossy(&error.text));
    Err(std::io::Error::other(format!("virsh: {error}")))
}

/// The output of a process.
struct Output<P> {
    pipe: Option<P>,
    text: Vec<u8>,
}

impl<P: Read + AsFd> Output<P> {
    fn of(pipe: Option<P>) -> std::io::Result<Self> {
        if let Some(pipe) = &pipe {
            ioctl_fionbio(pipe, true)?;
        }
        Ok(Self {
            pipe,
            text: Vec::new(),
        })
    }

    /// Reads the output so far. Output beyond the bound of a session stays in the pipe.
    fn read(&mut self) -> std::io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let left = MAX_SESSION.saturating_sub(self.text.len()) as u64;
        match pipe.take(left).read_to_end(&mut self.text) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_domain_is_taken_for_another_one() {
        for (name, expected) in [
            ("web-7", true),
            ("7a", true),
            ("7", false),
            (" 7", false),
            ("+7", false),
            ("6695eb01-f6a4-8304-79aa-97f2502e193f", false),
        ] {
            let session = Monitor::Libvirt(name.to_owned()).session();
            assert_eq!(session.is_ok(), expected, "{name}");
        }
    }

    #[test]
    fn statistics_are_young_and_whole() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = now.as_secs();
        let stats = |updated: u64, free: u64| {
            let stats = json!({ "stat-available-memory": 7, "stat-free-memory": free });
            young_statistics(&json!({ "last-update": updated, "stats": stats }))
        };
        assert_eq!(stats(now, 3), Some((7, 3)));
        assert_eq!(stats(now - 3, 3), Some((7, 3)));
        for updated in [0, now - MAX_AGE - 60, now + MAX_AGE + 60, u64::MAX] {
            assert_eq!(stats(updated, 3), None, "{updated}");
        }
        assert_eq!(stats(now, u64::MAX), None);
    }
}
