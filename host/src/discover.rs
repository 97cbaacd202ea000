//! Finds the VMs of this host by the command lines of their QEMU processes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use justitia_api::size;
use justitia_guest_protocol::memory::PORT_NAME;
use justitia_share::Weight;

use crate::held::read_at_most;
use crate::socket::Socket;

/// The longest command line that is read, bytes: with hundreds of devices it has a few hundred KiB.
const MAX_COMMAND_LINE: u64 = 1 << 20;
/// The longest name of a VM, bytes. Longer ones are cut.
const MAX_NAME: usize = 255;
/// The default memory of a VM (QEMU's), bytes.
const DEFAULT_RAM: u64 = 128 << 20;

/// Identifies a process beyond its life: a reused PID has another start.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Process {
    /// Its PID.
    pub pid: u32,
    /// When it started, clock ticks after the boot (`/proc/PID/stat`, field 22).
    pub start: u64,
}

/// A VM that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its QEMU process.
    pub process: Process,
    /// The user of the process.
    pub uid: u32,
    /// Its name from `-name`, else `qemu-PID`.
    pub name: String,
    /// The memory of its guest when it starts, bytes.
    pub ram: u64,
    /// The most memory that it can have with hotplug (`maxmem`: DIMMs, virtio-mem), bytes. `u64::MAX` if the command line
    /// names no memory.
    pub most_ram: u64,
    /// The socket of a QMP monitor.
    pub qmp: Option<Socket>,
    /// The socket of the port that the guest's agent serves.
    pub channel: Option<Socket>,
    /// Whether libvirt runs it: then libvirt holds its monitor.
    pub libvirt: bool,
    /// Weight of the cgroup.
    pub weight: Weight,
    /// The least limit of its cgroup and the ancestors (`memory.max`, `memory.high`), bytes. `u64::MAX` without a limit.
    pub limit: u64,
}

impl Found {
    /// Whether its user is a login user or a container's: they may give processes any name and any command line. The other
    /// users are root and services. Some services have numbers above the login users' (libvirt-qemu of Debian: 64055; Debian
    /// Policy 9.2.2, systemd's `UIDS-GIDS.md`).
    #[must_use]
    pub const fn is_of_a_login_user(&self) -> bool {
        !matches!(self.uid, 0..=999 | 60_000..=65_533)
    }
}

/// All VMs of the host, by PID.
#[must_use]
pub fn vms() -> Vec<Found> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<Found> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(vm)
        .collect();
    found.sort_unstable_by_key(|vm| vm.process);
    found
}

/// Sorts VMs by priority, as at most [`MAX_VMS`](crate::journal::MAX_VMS) are managed: first libvirt's, then one of each user
/// in turn, the oldest first. Any service, and root of a container, can start processes that look like VMs: they displace
/// none of libvirt's, and at most half of another user's.
pub(crate) fn put_in_turn(vms: &mut Vec<Found>) {
    vms.sort_unstable_by_key(|vm| (vm.process.start, vm.process.pid));
    let mut of_user: HashMap<u32, usize> = HashMap::new();
    let turns = vms.drain(..).map(|vm| {
        let before = of_user.entry(vm.uid).or_default();
        *before += usize::from(!vm.libvirt);
        (if vm.libvirt { 0 } else { *before }, vm)
    });
    let mut turns: Vec<(usize, Found)> = turns.collect();
    turns.sort_by_key(|(turn, _)| *turn);
    vms.extend(turns.into_iter().map(|(_, vm)| vm));
}

/// The VM of this process, if it is a QEMU process.
#[must_use]
pub fn vm(pid: u32) -> Option<Found> {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    if !comm.starts_with(b"qemu-system")
        && !comm.starts_with(b"kvm")
        && !comm.starts_with(b"qemu-kvm")
    {
        return None;
    }
    let arguments = read_at_most(&format!("/proc/{pid}/cmdline"), MAX_COMMAND_LINE)?;
    let arguments: Vec<String> = arguments
        .split(|byte| *byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect();
    let start = started(pid)?;
    let directory = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let mut found = parse(Process { pid, start }, &arguments, &directory)?;
    found.uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let groups = cgroups(pid);
    (found.weight, found.limit) = (weight_of(&groups), limit_of(&groups));
    if found.libvirt {
        // Another process may use the name of a domain.
        let directory = Path::new("/run/libvirt/qemu");
        if !is_domain(directory, &found.name, pid) {
            return None;
        }
        if found.channel.is_none() {
            found.channel = libvirt_channel(directory, &found.name).map(Socket::trusted);
        }
    }
    Some(found)
}

/// Whether this process is the domain's, by the PID file that libvirt keeps in `directory`.
fn is_domain(directory: &Path, name: &str, pid: u32) -> bool {
    let file = directory.join(format!("{name}.pid"));
    let is_there = file.parent() == Some(directory);
    let noted = std::fs::read_to_string(file).ok().filter(|_| is_there);
    noted.is_some_and(|noted| noted.trim().parse() == Ok(pid))
}

/// When a process started, in clock ticks after the boot.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    let stat = read_at_most(&format!("/proc/{pid}/stat"), 4096)?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    // The name may contain blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Whether this very process still runs.
#[must_use]
pub fn runs(process: Process) -> bool {
    started(process.pid) == Some(process.start)
}

/// Parses a command line. `directory`: the base of its relative paths.
fn parse(process: Process, arguments: &[String], directory: &Path) -> Option<Found> {
    let program = Path::new(arguments.first()?).file_name()?.to_str()?;
    if !program.starts_with("qemu-system") && program != "kvm" && program != "qemu-kvm" {
        return None;
    }
    let of = |option: &str| -> Vec<&str> {
        let pairs = arguments.iter().zip(arguments.iter().skip(1));
        let named = pairs.filter(|(name, _)| name.trim_start_matches('-') == option);
        named.map(|(_, value)| value.as_str()).collect()
    };
    let name = of("name").last().and_then(|name| named(name));
    let chardevs = of("chardev");
    let path_of = |id: &str| {
        let of_id = chardevs.iter().find(|chardev| {
            chardev.starts_with("socket,") && field(chardev, "id") == Some(id) && listens(chardev)
        });
        of_id
            .and_then(|chardev| field(chardev, "path"))
            .map(|path| directory.join(path))
    };
    let control = |monitor: &&str| field(monitor, "mode") == Some("control");
    let monitors = of("mon");
    let by_mon = monitors.iter().filter(|m| control(m)).find_map(|monitor| {
        let first = monitor
            .split(',')
            .next()
            .filter(|first| !first.contains('='));
        path_of(field(monitor, "chardev").or(first)?)
    });
    let by_qmp = of("qmp").iter().find_map(|qmp| {
        let path = qmp
            .strip_prefix("unix:")
            .filter(|qmp| listens(qmp))?
            .split(',')
            .next()?;
        Some(directory.join(path.strip_prefix("path=").unwrap_or(path)))
    });
    let ports = of("device");
    let channel = ports.iter().find_map(|device| {
        let port =
            device.starts_with("virtserialport,") && field(device, "name") == Some(PORT_NAME);
        path_of(port.then(|| field(device, "chardev"))??)
    });
    // libvirt passes its monitor's socket as a descriptor; the path is in a directory of the domain.
    let libvirt = chardevs
        .iter()
        .any(|chardev| field(chardev, "id") == Some("charmonitor"));
    let socket = |path| Socket::of(path, process.pid);
    let ram = of("m").last().and_then(|m| ram(m));
    // The memory may be set in a file (`-readconfig`): then only the monitor knows it.
    let (ram, most_ram) = ram.unwrap_or((DEFAULT_RAM, u64::MAX));
    Some(Found {
        process,
        uid: 0,
        name: name.map_or_else(|| format!("qemu-{}", process.pid), short),
        ram,
        most_ram,
        qmp: by_qmp.or(by_mon).filter(|_| !libvirt).map(socket),
        channel: channel.map(socket),
        libvirt,
        weight: Weight::default(),
        limit: u64::MAX,
    })
}

/// The value of `-name`.
fn named(option: &str) -> Option<&str> {
    let first = || option.split(',').next().unwrap_or_default();
    let name = field(option, "guest").unwrap_or_else(first);
    (!name.is_empty()).then_some(name)
}

fn short(name: &str) -> String {
    let end = (0..=MAX_NAME.min(name.len()))
        .rev()
        .find(|end| name.is_char_boundary(*end));
    name.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

/// The socket of a domain's channel, from the XML that libvirt keeps in `directory` for each running domain. The socket's own
/// directory has at most 20 characters of the domain's name, and a stale one may remain after a crash.
fn libvirt_channel(directory: &Path, domain: &str) -> Option<PathBuf> {
    let noted = std::fs::read_to_string(directory.join(format!("{domain}.xml"))).ok()?;
    let mut values = noted.split(['\'', '"']).map(Path::new);
    let path = values.find(|value| value.is_absolute() && value.ends_with(PORT_NAME))?;
    Some(path.to_owned())
}

/// The value of a field of an option such as `socket,id=a,path=b`. QEMU doubles a comma in a value.
fn field<'a>(option: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = option.split(',');
    fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Whether QEMU listens on this socket rather than connects to it.
fn listens(socket: &str) -> bool {
    let is_server = |field| matches!(field, "server" | "server=on" | "server=yes" | "server=true");
    socket.split(',').any(is_server)
}

/// The value of `-m`: the guest's memory at its start, and the most that it can have.
fn ram(option: &str) -> Option<(u64, u64)> {
    let first = || option.split(',').next().unwrap_or_default();
    let ram = amount(field(option, "size").unwrap_or_else(first), 1 << 20)?;
    let most = field(option, "maxmem").and_then(|most| amount(most, 1));
    Some((ram, most.map_or(ram, |most| most.max(ram))))
}

/// A size with its unit, or a number of units of `each` bytes: QEMU takes MiB for `size` and bytes for `maxmem`.
fn amount(text: &str, each: u64) -> Option<u64> {
    if let Ok(number) = text.parse::<u64>() {
        return number.checked_mul(each);
    }
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = unit.to_ascii_uppercase();
    size::parse(&format!("{number}{unit}iB"))
}

/// The cgroups of a process, its own first, without the root.
fn cgroups(pid: u32) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let root = Path::new("/sys/fs/cgroup");
    let group = root.join(OsStr::from_bytes(path.as_bytes()));
    let up = group.ancestors().take_while(|group| *group != root);
    up.map(Path::to_owned).collect()
}

/// The first weight other than the default among the `io.weight` of these cgroups. libvirt and systemd create groups without
/// a weight below the one that has it.
fn weight_of(groups: &[PathBuf]) -> Weight {
    let weight = groups.iter().take(4).find_map(|group| {
        let text = std::fs::read_to_string(group.join("io.weight")).ok()?;
        let number = text.lines().next()?.strip_prefix("default ")?;
        let weight = Weight::try_from(number.trim().parse::<u64>().ok()?).ok()?;
        (weight != Weight::default()).then_some(weight)
    });
    weight.unwrap_or_default()
}

/// The least limit of these cgroups, bytes.
fn limit_of(groups: &[PathBuf]) -> u64 {
    let of = |group: &PathBuf| ["memory.max", "memory.high"].map(|file| group.join(file));
    let limits = groups.iter().flat_map(of).filter_map(|file| {
        // "max" does not parse: it is no limit.
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().parse::<u64>().ok()
    });
    limits.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<Found> {
        let arguments: Vec<String> = line.split(' ').map(ToOwned::to_owned).collect();
        parse(Process { pid: 7, start: 1 }, &arguments, Path::new("/vm"))
    }

    #[test]
    fn a_process_is_a_domain_where_libvirt_says_so() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("web.pid"), "7").unwrap();
        let is_domain = |name, pid| is_domain(directory.path(), name, pid);
        assert!(is_domain("web", 7));
        let up = format!("../{}/web", directory.path().file_name().unwrap().display());
        for (name, pid) in [("web", 8), ("other", 7), ("", 7), (up.as_str(), 7)] {
            assert!(!is_domain(name, pid), "{name} {pid}");
        }
    }

    #[test]
    fn the_channel_of_a_domain_is_where_libvirt_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = "/run/libvirt/qemu/channel/3-production-webserver/org.justitia.memory.0";
        let xml = format!(
            "<domstatus state='running' pid='7'>\n<channel type='unix'>\n\
             <source mode='bind' path='/run/libvirt/qemu/channel/3-production-webserver/org.qemu.guest_agent.0'/>\n\
             <target type='virtio' name='org.qemu.guest_agent.0'/>\n</channel>\n<channel type='unix'>\n\
             <target type='virtio' name='org.justitia.memory.0' state='connected'/>\n\
             <source mode='bind' path='{path}'/>\n</channel>\n"
        );
        std::fs::write(directory.path().join("production-webserver-01.xml"), xml).unwrap();
        let channel = |name| libvirt_channel(directory.path(), name);
        assert_eq!(
            channel("production-webserver-01"),
            Some(PathBuf::from(path))
        );
        assert_eq!(channel("production-webserver-02"), None);
    }

    #[test]
    fn processes_of_one_user_do_not_take_the_place_of_anothers() {
        let vm = |pid, uid, libvirt| Found {
            process: Process {
                pid,
                start: pid.into(),
            },
            uid,
            libvirt,
            ..found("kvm").unwrap()
        };
        // Those of user 33 are older.
        let mut vms: Vec<Found> = (1..=600).map(|pid| vm(pid, 33, false)).collect();
        vms.extend((601..=700).map(|pid| vm(pid, 64_055, false)));
        vms.extend([vm(701, 64_055, true), vm(702, 0, false)]);
        vms.reverse();
        put_in_turn(&mut vms);
        vms.truncate(crate::journal::MAX_VMS);
        let of = |uid| vms.iter().filter(|vm| vm.uid == uid).count();
        assert_eq!((of(0), of(64_055), of(33)), (1, 101, 410));
        let first: Vec<u32> = vms.iter().take(6).map(|vm| vm.process.pid).collect();
        assert_eq!(first, [701, 1, 601, 702, 2, 602]);
    }

    #[test]
    fn a_name_has_a_bound() {
        let name = "ä".repeat(70_000);
        let line = format!("/usr/bin/qemu-system-x86_64 -name {name}");
        assert_eq!(found(&line).unwrap().name, "ä".repeat(127));
    }

    #[test]
    fn sockets_are_found_however_they_are_written() {
        let port = "-chardev socket,id=m,path=mem.sock,server=on -device virtserialport,chardev=m,name=org.justitia.memory.0";
        for monitor in [
            "-qmp unix:/run/q,server=on,wait=off",
            "--qmp unix:/run/q,server",
            "-chardev socket,id=x,path=/run/q,server=on -mon chardev=x,mode=control",
            "-chardev socket,id=x,path=/run/q,server=on,wait=off -mon x,mode=control",
        ] {
            let line = format!(
                "/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -m 2G {monitor} {port}"
            );
            let vm = found(&line).unwrap();
            assert_eq!(vm.qmp, Some(Socket::of("/run/q".into(), 7)), "{monitor}");
            assert_eq!(vm.channel, Some(Socket::of("/vm/mem.sock".into(), 7)));
            assert_eq!((vm.name.as_str(), vm.ram), ("web", 2 << 30));
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let vm =
            found("qemu-system-x86_64 -m size=512M,slots=2 -mon chardev=x,mode=readline").unwrap();
        assert_eq!((vm.qmp, vm.channel), (None, None));
        assert_eq!((vm.name.as_str(), vm.ram), ("qemu-7", 512 << 20));
        let other =
            found("kvm -m 1 -qmp unix:/theirs -chardev socket,id=x,path=/too -mon x,mode=control")
                .unwrap();
        assert_eq!(other.qmp, None, "QEMU connects there");
        // Memory can be plugged in up to a bound.
        let of = |option: &str| ram(option).unwrap();
        assert_eq!(
            of("size=4194304k,slots=16,maxmem=16777216k"),
            (4 << 30, 16 << 30)
        );
        assert_eq!(of("2G,slots=2,maxmem=1G"), (2 << 30, 2 << 30));
        assert_eq!(of("2G,maxmem=4294967296"), (2 << 30, 4 << 30));
        assert_eq!(of("512"), (512 << 20, 512 << 20));
        let elsewhere = found("kvm -readconfig vm.cfg").unwrap();
        assert_eq!((elsewhere.ram, elsewhere.most_ram), (128 << 20, u64::MAX));
        assert!(found("vim qemu-system-x86_64").is_none());
        assert!(found("").is_none());
        // A port of another name, and a monitor that libvirt has.
        let other = "kvm -m 256 -chardev socket,id=charmonitor,fd=20 -mon chardev=charmonitor,mode=control \
                     -chardev socket,id=c,path=/c -device virtserialport,chardev=c,name=org.qemu.guest_agent.0";
        let vm = found(other).unwrap();
        assert!(vm.libvirt && vm.qmp.is_none() && vm.channel.is_none() && vm.ram == 256 << 20);
    }

    #[test]
    fn the_least_limit_of_a_cgroup_and_those_above_counts() {
        let directory = tempfile::tempdir().unwrap();
        let slice = directory.path().join("slice");
        let scope = slice.join("scope");
        std::fs::create_dir_all(&scope).unwrap();
        for (group, max, high) in [(&slice, "max", "5000"), (&scope, "7000", "max")] {
            std::fs::write(group.join("memory.max"), format!("{max}\n")).unwrap();
            std::fs::write(group.join("memory.high"), format!("{high}\n")).unwrap();
        }
        assert_eq!(limit_of(&[scope.clone(), slice]), 5000);
        assert_eq!(limit_of(&[scope]), 7000);
        assert_eq!(limit_of(&[directory.path().to_owned()]), u64::MAX);
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = std::process::id();
        let start = started(own).unwrap();
        assert!(runs(Process { pid: own, start }));
        assert!(!runs(Process {
            pid: own,
            start: start + 1
        }));
    }
}
