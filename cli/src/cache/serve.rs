//! `justitia cache serve`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgGroup, Args, ValueEnum};
use justitia_api::escape::{encode, plain};
use justitia_cache::serve::{
    Config, Reloaded, Service, Size, advice, default_control_path, make_directory_of,
    missing_directories, preflight,
};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use super::descriptors;
use justitia_common::command::{flat, out};

/// Every key of a configuration, with an example.
const EXAMPLE: &str = include_str!("example.toml");

const AFTER_HELP: &str = "\
A configuration with every key, to begin with:
  justitia cache serve --example-config >cache.toml

The log goes to standard error; JUSTITIA_LOG=debug makes it longer.";

/// Serve disks, until stopped.
///
/// With an image: that image on a unix socket, with 256 MiB of cache in memory; with --vhost to a virtio disk of one VM
/// beside. With a configuration: the VMs, disks, stores and sockets that it names. On SIGTERM and SIGINT requests in flight are finished and
/// disks flushed. What is cached is left to the next start, in systemd's descriptor store and on the SSD; with SIGINT it is
/// removed. On SIGUSR2 the program is executed again, if it finds no error in the configuration, with what is cached and with its clients, but for those with TLS. Sockets that systemd listens on are used in the
/// place of those of the same address. On SIGHUP the configuration is read again: VMs and disks that are new in it are
/// served, too, those that are gone from it are served no more, those that could not be served are tried again, and weights,
/// policies, pools, sizes, and mode and owner of sockets that have changed in it are changed.
#[derive(Args)]
#[command(
    after_long_help = AFTER_HELP,
    group(ArgGroup::new("what").required(true).args(["image", "config", "example_config"]))
)]
pub(super) struct Serve {
    /// Raw image or block device to serve
    #[arg(conflicts_with = "config")]
    image: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// NBD socket for the image [default: IMAGE's name and .sock, beside the control socket]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Serve the image over vhost-user-blk, too, on this socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "config")]
    vhost: Option<PathBuf>,
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory; of an image, where another server has that one: the NBD socket's name with .control]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Size of the memory store for the image; 0: nothing is cached
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "config",
        default_value = "256MiB"
    )]
    memory: Size,
    /// What the image is, whatever it looks like
    #[arg(long, conflicts_with = "config")]
    format: Option<ImageFormat>,
    /// Refuse writes to the image
    #[arg(long, conflicts_with = "config")]
    read_only: bool,
    /// Check the file of --config, and what it names: images, certificates, places of sockets and of the SSD store; print every error, and exit
    #[arg(long, requires = "config", conflicts_with = "image")]
    check_config: bool,
    /// Print a configuration with every key, and exit
    #[arg(long)]
    example_config: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ImageFormat {
    Raw,
}

/// What is said of a configuration without errors.
fn checked(config: &Config, file: &Path) -> String {
    let file = encode(file.as_os_str());
    let mut warnings = [advice(config), missing_directories(config)].concat();
    if config.vms.iter().all(|vm| vm.disks.is_empty()) {
        warnings.push(
            "expected a [[vm]] with a [[vm.disk]], found none: nothing is served until `justitia cache set` adds a disk"
                .to_owned(),
        );
    }
    let count = match warnings.len() {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        more => format!(", {more} warnings"),
    };
    let told = warnings
        .iter()
        .map(|what| format!("warning: {file}: {}\n", plain(what)));
    told.collect::<String>() + &format!("{file}: no errors{count}\n")
}

fn load(file: &Path) -> anyhow::Result<Config> {
    Config::load(file).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("the configuration has errors:\n{}", lines.join("\n"))
    })
}

/// Completes the configuration with its control socket: that of the command line, its own, or the default one.
fn set_control(config: &mut Config, given: Option<&Path>) -> PathBuf {
    if let Some(given) = given {
        config.control = Some(given.to_owned());
    }
    let control = config.control.get_or_insert_with(default_control_path);
    control.clone()
}

pub(super) fn serve(args: &Serve) -> anyhow::Result<()> {
    if args.example_config {
        out::print(EXAMPLE.to_owned());
        return Ok(());
    }
    let mut made = MadeDirectories::default();
    let mut config = match (&args.config, &args.image) {
        (Some(file), _) => load(file)?,
        (None, Some(image)) => of_image(args, image, &mut made)?,
        (None, None) => bail!("expected an image or --config FILE, found neither"),
    };
    if let (true, Some(file)) = (args.check_config, &args.config) {
        let found = preflight(&config);
        if !found.is_empty() {
            bail!("the configuration cannot be served:\n{}", found.join("\n"));
        }
        out::print(checked(&config, file));
        return Ok(());
    }
    let control = set_control(&mut config, args.control.as_deref());
    crate::log::start();
    let given = descriptors::given();
    // Registered before anything runs: a signal from now on ends it in order.
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2]).context("cannot watch for signals")?;
    for what in advice(&config) {
        tracing::warn!("{what}");
    }
    let service = Service::start_from(&config, given).map_err(flat)?;
    announce(&service, &control)?;
    // Where systemd has started this, it waits for the word.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let end = loop {
        match signals.forever().next() {
            Some(SIGHUP) => reload(&service, args.config.as_deref(), args.control.as_deref()),
            Some(SIGUSR2) => match descriptors::can_execute_again(args.config.as_deref()) {
                Ok(()) => break Some(SIGUSR2),
                Err(e) => tracing::error!("SIGUSR2: this program goes on: {e:#}"),
            },
            end => break end,
        }
    };
    stop(service, end)
}

/// Ends by this signal: with SIGUSR2 the program is executed again, SIGINT leaves nothing.
fn stop(service: Service, signal: Option<i32>) -> anyhow::Result<()> {
    tracing::info!("stopping");
    let timeout = Duration::from_secs(10);
    if signal != Some(SIGUSR2) {
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    }
    if signal == Some(SIGINT) {
        return service.shut_down(timeout).context(NOT_FLUSHED);
    }
    // Without systemd descriptors are not kept, and a socket without a server would be in the way.
    if signal != Some(SIGUSR2) && std::env::var_os("NOTIFY_SOCKET").is_none() {
        return service.leave_ssd(timeout).context(NOT_FLUSHED);
    }
    let (left, flushed) = if signal == Some(SIGUSR2) {
        service.hand_over_with_clients(timeout)
    } else {
        service.hand_over(timeout)
    };
    if signal == Some(SIGUSR2) {
        if let Err(e) = flushed {
            tracing::error!("{NOT_FLUSHED}: {e}");
        }
        return Err(descriptors::execute_again(&left));
    }
    descriptors::store(&left);
    flushed.context(NOT_FLUSHED)
}

const NOT_FLUSHED: &str = "a disk could not be flushed when stopping";

/// On SIGHUP: serves what is new in the configuration. What is wrong with it is said, and changes nothing.
fn reload(service: &Service, file: Option<&Path>, control: Option<&Path>) {
    let Some(file) = file else {
        tracing::warn!("SIGHUP: there is no configuration to read again");
        return;
    };
    let reloaded = load(file).and_then(|mut config| {
        set_control(&mut config, control);
        service.reload(&config).map_err(flat)
    });
    match reloaded {
        Ok(Reloaded {
            added,
            removed,
            changed,
        }) => {
            let done = [
                (removed, "served no more"),
                (added, "served now, too"),
                (changed, "changed"),
            ];
            if done.iter().all(|(what, _)| what.is_empty()) {
                tracing::info!("SIGHUP: nothing is changed by it");
            }
            for (what, how) in done.iter().filter(|(what, _)| !what.is_empty()) {
                tracing::info!("SIGHUP: {how}: {}", what.join("; "));
            }
        }
        Err(e) => tracing::error!("SIGHUP: nothing is changed by it: {e:#}"),
    }
}

fn of_image(args: &Serve, image: &Path, made: &mut MadeDirectories) -> anyhow::Result<Config> {
    let name = image
        .file_stem()
        .and_then(|n| n.to_str())
        .with_context(|| format!("expected an image with a name, found {}", image.display()))?;
    let control = args.control.clone().unwrap_or_else(default_control_path);
    let socket = args
        .socket
        .clone()
        .unwrap_or_else(|| control.with_file_name(format!("{name}.sock")));
    let mut config = Config::of_image(image, name, &socket);
    config.cache.memory_bytes = args.memory.0;
    for disk in config.vms.iter_mut().flat_map(|vm| &mut vm.disks) {
        disk.read_only = args.read_only;
        disk.any_format = args.format.is_some();
        disk.vhost.clone_from(&args.vhost);
    }
    for socket in [&socket, &control].into_iter().chain(&args.vhost) {
        made.make_of(socket)
            .with_context(|| format!("cannot make the directory of {}", socket.display()))?;
    }
    // Another server may have the usual control socket: each has its own then.
    let taken = args.control.is_none() && std::os::unix::net::UnixStream::connect(&control).is_ok();
    config.control = Some(if taken {
        socket.with_extension("control")
    } else {
        control
    });
    Ok(config)
}

/// Directories that this process has made for sockets. At the end they go, if nothing else is in them. An exec keeps them.
#[derive(Default)]
struct MadeDirectories(Vec<PathBuf>);

impl MadeDirectories {
    fn make_of(&mut self, socket: &Path) -> std::io::Result<()> {
        let above = socket.ancestors().skip(1);
        let missing: Vec<_> = above.take_while(|dir| !dir.exists()).collect();
        make_directory_of(socket)?;
        self.0.extend(missing.into_iter().rev().map(Path::to_owned));
        Ok(())
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for directory in self.0.iter().rev() {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Says where the disks are that are served, one address a line.
fn announce(service: &Service, control: &Path) -> anyhow::Result<()> {
    let listed = service.list().map_err(flat)?;
    if listed.is_empty() {
        tracing::warn!(
            "no disk is served: name one in the configuration and reload it, or add one: `justitia cache set disk --help`"
        );
    }
    let served = listed
        .into_iter()
        .filter(|disk| disk.unserved.is_none() && disk.image.is_some());
    for address in served.flat_map(|disk| disk.addresses) {
        out::tell(address);
    }
    out::note(format_args!(
        "justitia: control socket {}",
        control.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_serves_nothing_is_warned_of() {
        let said = |text: &str| {
            let file = Path::new("cache.toml");
            checked(&Config::parse(file, text).unwrap(), file)
        };
        let none = "warning: cache.toml: expected a [[vm]] with a [[vm.disk]], found none";
        for text in ["", "[[vm]]\nname = \"a\"\nsocket = \"/run/a\"\n"] {
            let said = said(text);
            let counted = said.ends_with("cache.toml: no errors, 1 warning\n");
            assert!(said.starts_with(none) && counted, "{said}");
        }
        let disk = "[[vm]]\nname = \"a\"\nsocket = \"/run/a\"\n[[vm.disk]]\nname = \"d\"\nimage = \"/d\"\n";
        assert_eq!(said(disk), "cache.toml: no errors\n");
    }

    /// A reload completes the file as the start did: so it sees that `control` has changed in it.
    #[test]
    fn the_control_socket_is_that_of_the_command_line_or_of_the_file_or_the_default_one() {
        let of = |text: &str, given: Option<&str>| {
            let mut config = Config::parse(Path::new("c"), text).unwrap();
            let control = set_control(&mut config, given.map(Path::new));
            assert_eq!(config.control.as_ref(), Some(&control));
            control
        };
        let file = "control = \"/run/file\"\n";
        assert_eq!(of(file, None), Path::new("/run/file"));
        assert_eq!(of(file, Some("/run/given")), Path::new("/run/given"));
        assert_eq!(of("", None), default_control_path());
    }

    #[test]
    fn directories_that_were_made_go_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let of = |path: &str| dir.path().join(path);
        std::fs::create_dir(of("theirs")).unwrap();
        let mut made = MadeDirectories::default();
        for socket in ["a/b/s", "a/c/s", "theirs/s", "used/s"] {
            made.make_of(&of(socket)).unwrap();
            assert!(of(socket).parent().is_some_and(Path::is_dir));
        }
        std::fs::write(of("used/s"), "").unwrap();
        drop(made);
        let mut left: Vec<_> = dir
            .path()
            .read_dir()
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["theirs", "used"]);
    }

    #[test]
    fn the_example_is_valid() {
        let config = Config::parse(Path::new("example"), EXAMPLE).unwrap();
        assert_eq!(config.vms[0].disks[0].name, "web-root");
        assert_eq!(config.vms[0].clients, ["web"]);
        assert!(config.cache.ssd.is_some() && config.tls.is_some() && config.metrics.is_some());
    }

    #[test]
    fn the_packaged_configuration_serves_nothing_until_its_disk_is_switched_on() {
        let packaged = include_str!("../../../packaging/cache.toml");
        let file = Path::new("cache.toml");
        assert!(Config::parse(file, packaged).unwrap().vms.is_empty());
        // Its keys are commented out like `# socket = …`; sentences are not keys.
        let is_key = |line: &str| line.starts_with('[') || line.contains(" = ");
        let switched_on: Vec<&str> = packaged
            .lines()
            .map(|line| {
                line.strip_prefix("# ")
                    .filter(|rest| is_key(rest))
                    .unwrap_or(line)
            })
            .collect();
        let config =
            Config::parse(file, &switched_on.join("\n").replace("libvirt-qemu", "0")).unwrap();
        assert_eq!(config.vms[0].disks[0].name, "web-root");
    }
}
