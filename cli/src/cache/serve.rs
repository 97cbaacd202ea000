//! `justitia cache serve`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgGroup, Args, ValueEnum};
use justitia_api::escape::encode;
use justitia_cache::serve::{
    Config, Reloaded, Service, Size, default_control_path, make_directory_of, preflight,
};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use super::descriptors;
use justitia_common::command::{flat, out};

const CONFIGURATION: &str = "\
A configuration. Every table but [[vm]] is optional:
  control = \"/run/justitia/cache.sock\"   # for `set` and `stats`
  metrics = \"127.0.0.1:9925\"             # OpenMetrics, at /metrics

  [memory]
  size = \"4GiB\"
  limit = \"16GiB\"                        # what it may grow to [default: the machine's memory]

  [ssd]                                    # an empty device, one that was Justitia's before, or
  path = \"/dev/nvme1n1\"                  # a file, which is made, of mode 600; SIGINT removes it
  size = \"200GiB\"
  overwrite = false                        # true: whatever lies there may be lost

  [listen]
  unix = \"/run/justitia/nbd.sock\"        # all disks of all VMs, for this user alone
  tcp = \"0.0.0.0:10809\"                  # a client sees the disks of the VMs that its certificate is for
  insecure = false                         # true: no certificates, every client has every disk
  socket_mode = \"0600\"                   # of the disks' sockets; who may connect has the disks
  # socket_owner = \"libvirt-qemu\", socket_group = \"kvm\": names or numbers

  [tls]                                    # server-cert.pem, server-key.pem, ca-cert.pem
  directory = \"/etc/pki/justitia\"
  verify_clients = true                    # false only with insecure = true

  [[vm]]
  name = \"web\"
  weight = 200                             # among the VMs, 1 to 10000 [default: 100]
  socket = \"/run/justitia/web.sock\"      # this VM's disks alone, for this user alone
  clients = [\"web\"]                      # common or DNS names in its certificates [default: its name]
  policy = \"s3-fifo\"                     # `set vm --help` lists them [default: ghost with an exclusive disk]

  [[vm.pool]]                              # \"default\" holds the blocks of no container
  name = \"default\"
  weight = 100                             # among the VM's pools in the same store
  store = \"ssd\"                          # or \"memory\", the default
  # or, in both stores, `memory_weight = 100` and `ssd_weight = 400` in their place
  tag = 7                                  # its container's I/O priority hint, 1 to 1023, over vhost-user

  [[vm.disk]]
  name = \"web-root\"                      # the NBD export
  image = \"/var/lib/images/web.img\"      # raw file or block device
  mode = \"inclusive\"                     # exclusive: the guest puts over [vm.port]; uncached
  read_only = false
  direct = true                            # past the host's page cache
  format = \"raw\"                          # also if it looks like qcow2 or the like, which is refused otherwise
  serial = \"web-root\"                    # as the guest knows it [default: its name, if it has at most 20 bytes]
  vhost = \"/run/justitia/web-root.vhost\" # also over vhost-user-blk, to one front end, for this user alone

  [vm.port]                                # the VM's guest may put what it evicts: a small disk for its messages
  name = \"web-port\"                      # the NBD export [default: VM/port]
  residency = \"16MiB\"                    # memory of what the guest holds, 16 bytes for each 4 KiB block
  ssd = false                              # true: the guest may choose the SSD store for its pools

Directories of sockets must be writable by this user and root only. A VM has at most 64 connections.

The log goes to standard error; JUSTITIA_LOG=debug makes it longer.";

/// Serve disks, until stopped.
///
/// With an image: that image on a unix socket, with 256 MiB of cache in memory; with --vhost to a virtio disk of one VM
/// beside. With a configuration: the VMs, disks, stores and sockets that it names. On SIGTERM and SIGINT requests in flight are finished and
/// disks flushed. What is cached is left to the next start, in systemd's descriptor store and on the SSD; with SIGINT it is
/// removed. On SIGUSR2 the program is executed again, if it finds no error in the configuration, with what is cached and with its clients, but for those with TLS. Sockets that systemd listens on are used in the
/// place of those of the same address. On SIGHUP the configuration is read again: VMs and disks that are new in it are
/// served, too, those that are gone from it are served no more, and those that could not be served are tried again.
#[derive(Args)]
#[command(
    after_long_help = CONFIGURATION,
    group(ArgGroup::new("what").required(true).args(["image", "config"]))
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
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Size of the memory store for the image
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
    /// Check the file of --config, and what it names: images, certificates, the SSD store's place; print every error, and exit
    #[arg(long, requires = "config", conflicts_with = "image")]
    check_config: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ImageFormat {
    Raw,
}

/// What is said of a configuration without errors.
fn checked(config: &Config, file: &Path) -> String {
    let file = encode(file.as_os_str());
    let served = config.vms.iter().any(|vm| !vm.disks.is_empty());
    if served {
        return format!("{file}: no errors\n");
    }
    format!(
        "warning: {file}: expected a [[vm]] with a [[vm.disk]], found none: nothing is served until `justitia cache set` adds \
         a disk\n{file}: no errors, 1 warning\n"
    )
}

fn load(file: &Path) -> anyhow::Result<Config> {
    Config::load(file).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("the configuration has errors:\n{}", lines.join("\n"))
    })
}

pub(super) fn serve(args: &Serve) -> anyhow::Result<()> {
    let mut config = match (&args.config, &args.image) {
        (Some(file), _) => load(file)?,
        (None, Some(image)) => of_image(args, image)?,
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
    if let Some(control) = &args.control {
        config.control = Some(control.clone());
    }
    let control = config
        .control
        .get_or_insert_with(default_control_path)
        .clone();
    crate::log::start();
    let given = descriptors::given();
    // Registered before anything runs: a signal from now on ends it in order.
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2]).context("cannot watch for signals")?;
    let service = Service::start_from(&config, given).map_err(flat)?;
    announce(&config, &service, &control);
    // Where systemd has started this, it waits for the word.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let end = loop {
        match signals.forever().next() {
            Some(SIGHUP) => reload(&service, args.config.as_deref(), &control),
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
fn reload(service: &Service, file: Option<&Path>, control: &Path) {
    let Some(file) = file else {
        tracing::warn!("SIGHUP: there is no configuration to read again");
        return;
    };
    let reloaded = load(file).and_then(|mut config| {
        config.control = Some(control.to_owned());
        service.reload(&config).map_err(flat)
    });
    match reloaded {
        Ok(Reloaded { added, removed }) => {
            if added.is_empty() && removed.is_empty() {
                tracing::info!("SIGHUP: no disk is new or gone; other changes need a restart");
            }
            for (disks, what) in [(removed, "served no more"), (added, "served now, too")] {
                if !disks.is_empty() {
                    tracing::info!("SIGHUP: {what}: {}", disks.join(", "));
                }
            }
        }
        Err(e) => tracing::error!("SIGHUP: nothing is changed by it: {e:#}"),
    }
}

fn of_image(args: &Serve, image: &Path) -> anyhow::Result<Config> {
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
    for socket in std::iter::once(&socket).chain(&args.vhost) {
        make_directory_of(socket)
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

/// Says where the disks are that are served, one URI a line.
fn announce(config: &Config, service: &Service, control: &Path) {
    let unserved = service.stats().unserved;
    for vm in &config.vms {
        let mut disks = vm.disks.iter();
        while let Some(disk) = disks.find(|disk| unserved.iter().all(|of| of.name != disk.name)) {
            let sockets = config.listen.unix.iter().chain(&vm.socket);
            for socket in sockets {
                out::tell(format_args!(
                    "nbd+unix:///{}?socket={}",
                    percent_encoded(disk.name.as_bytes()),
                    percent_encoded(socket.as_os_str().as_bytes())
                ));
            }
            if let Some(vhost) = &disk.vhost {
                out::tell(format_args!("vhost-user-blk:{}", vhost.display()));
            }
            if let Some(tcp) = config.listen.tcp {
                let scheme = if config.tls.is_some() { "nbds" } else { "nbd" };
                let name = percent_encoded(disk.name.as_bytes());
                out::tell(format_args!("{scheme}://{tcp}/{name}"));
            }
        }
    }
    out::note(format_args!(
        "justitia: control socket {}",
        control.display()
    ));
}

/// As a path, and in a query, of a URI (RFC 3986): what is neither unreserved nor a slash becomes `%XX`.
fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_percent_encoded() {
        let name = "My Disk (1) 100% a#b&c \u{e4}";
        let encoded = "My%20Disk%20%281%29%20100%25%20a%23b%26c%20%C3%A4";
        assert_eq!(percent_encoded(name.as_bytes()), encoded);
        assert_eq!(percent_encoded(b"/run/a-b_c.~d"), "/run/a-b_c.~d");
    }

    #[test]
    fn a_configuration_that_serves_nothing_is_warned_of() {
        let said = |text: &str| {
            let file = Path::new("cache.toml");
            checked(&Config::parse(file, text).unwrap(), file)
        };
        let none = "warning: cache.toml: expected a [[vm]] with a [[vm.disk]], found none";
        for text in ["", "[[vm]]\nname = \"a\"\nsocket = \"/run/a\"\n"] {
            assert!(said(text).starts_with(none), "{}", said(text));
        }
        let disk = "[[vm]]\nname = \"a\"\nsocket = \"/run/a\"\n[[vm.disk]]\nname = \"d\"\nimage = \"/d\"\n";
        assert_eq!(said(disk), "cache.toml: no errors\n");
    }

    #[test]
    fn the_configuration_of_the_help_is_valid() {
        let lines = CONFIGURATION.lines().filter_map(|l| l.strip_prefix("  "));
        let text = lines.collect::<Vec<_>>().join("\n");
        let config = Config::parse(Path::new("help"), &text).unwrap();
        assert_eq!(config.vms[0].disks[0].name, "web-root");
        assert_eq!(config.vms[0].clients, ["web"]);
        assert!(config.cache.ssd.is_some() && config.tls.is_some() && config.metrics.is_some());
    }
}
