//! `justitia cache …`: serve, set, stats.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use justitia_api::escape::encode;
use justitia_cache::serve::{
    self as daemon, Config, ControlRequest, Service, Size, default_control_path, make_directory_of,
    send_request, show,
};
use justitia_cache::{CacheError, Policy, StoreKind, Weight, bench};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::out;

/// The hypervisor cache: disks of VMs over NBD, cached by weight.
///
/// One daemon serves virtual disks and keeps what their VMs cannot, in memory and on an SSD. While there is
/// room everybody takes what they like; when it is full, who holds the most above its weight's part gives.
/// Writes go through: stopping or losing the daemon's cache loses speed, never data.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Cache {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Try it (it prints the URI; sockets are for this user alone):
  justitia cache serve disk.img --socket $XDG_RUNTIME_DIR/disk.sock &
  nbdinfo \"nbd+unix:///disk?socket=$XDG_RUNTIME_DIR/disk.sock\"
  qemu-system-x86_64 -drive file=\"nbd+unix:///disk?socket=$XDG_RUNTIME_DIR/disk.sock\",format=raw,if=virtio …
  justitia cache stats

Share it (`justitia cache serve --help` has a configuration):
  justitia cache set vm web --weight 400
  justitia cache set pool web database --create --weight 300 --store ssd
  justitia cache set store memory 2GiB";

const CONFIGURATION: &str = "\
A configuration, every table but [[vm]] optional:
  control = \"/run/justitia/cache.sock\"   # for `set` and `stats`
  metrics = \"127.0.0.1:9925\"             # OpenMetrics, at /metrics

  [memory]
  size = \"4GiB\"
  limit = \"16GiB\"                        # what it may grow to [default: the machine's memory]

  [ssd]                                    # its content is lost
  path = \"/dev/nvme1n1\"                  # or a file, of mode 600, which is removed at the end
  size = \"200GiB\"

  [listen]
  unix = \"/run/justitia/nbd.sock\"        # all disks of all VMs, for this user alone
  tcp = \"0.0.0.0:10809\"                  # a client sees the disks of the VMs that its certificate is for
  insecure = false                         # true: no certificates, whoever reaches the port has every disk

  [tls]                                    # server-cert.pem, server-key.pem, ca-cert.pem
  directory = \"/etc/pki/justitia\"
  verify_clients = true                    # false only with insecure = true

  [[vm]]
  name = \"web\"
  weight = 200                             # among the VMs, 1 to 10000 [default: 100]
  socket = \"/run/justitia/web.sock\"      # this VM's disks alone, for this user alone
  clients = [\"web\"]                      # common or DNS names in its certificates [default: its name]
  policy = \"sieve\"                       # fifo, ghost, sieve, s3-fifo

  [[vm.pool]]                              # \"default\" takes what belongs to no container
  name = \"default\"
  weight = 100                             # among the VM's pools in the same store
  store = \"ssd\"                          # or \"memory\", the default

  [[vm.disk]]
  name = \"web-root\"                      # the NBD export
  image = \"/var/lib/images/web.img\"      # raw file or block device
  mode = \"inclusive\"                     # exclusive: the client puts; uncached
  read_only = false
  direct = true                            # past the host's page cache

Directories of sockets are writable by nobody but this user and root. A VM has 64 connections at most.

The log goes to standard error; JUSTITIA_LOG=debug says more.";

#[derive(Subcommand)]
enum Command {
    Serve(Serve),
    Set(Set),
    Stats(Stats),
    Bench(Bench),
}

/// Serve disks, until stopped.
///
/// With an image: that image on a unix socket, with 256 MiB of cache in memory. With a configuration: the
/// VMs, disks, stores and sockets that it names. On SIGTERM and SIGINT requests in flight are finished and
/// disks flushed.
#[derive(Args)]
#[command(after_long_help = CONFIGURATION)]
struct Serve {
    /// Raw image or block device to serve
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    image: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// NBD socket for the image [default: IMAGE's name and .sock, beside the control socket]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Control socket [default: /run/justitia/cache.sock, or in $XDG_RUNTIME_DIR]
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
    /// Refuse writes to the image
    #[arg(long, conflicts_with = "config")]
    read_only: bool,
    /// Check the file of --config, say every error with file and line, and exit
    #[arg(long, requires = "config", conflicts_with = "image")]
    check_config: bool,
}

/// Change weights, stores and sizes while the cache runs.
#[derive(Args)]
struct Set {
    /// Control socket [default: /run/justitia/cache.sock, or in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A VM's weight and eviction policy
    Vm {
        /// The VM
        vm: String,
        /// Its weight among the VMs, 1 to 10000
        #[arg(long, required_unless_present = "policy")]
        weight: Option<u64>,
        /// What is evicted first
        #[arg(long)]
        policy: Option<PolicyName>,
    },
    /// A pool's weight and store
    Pool {
        /// The VM
        vm: String,
        /// The pool; `default` takes the blocks that belong to no container
        pool: String,
        /// Its weight among the pools of its VM in the same store, 1 to 10000
        #[arg(long, required_unless_present_any = ["store", "create", "destroy"])]
        weight: Option<u64>,
        /// Where its blocks live
        #[arg(long)]
        store: Option<StoreName>,
        /// Make the pool
        #[arg(long)]
        create: bool,
        /// Remove the pool and its blocks
        #[arg(long, conflicts_with_all = ["weight", "store", "create"])]
        destroy: bool,
    },
    /// The size of a store; when it shrinks, what is too much is evicted
    Store {
        /// Which
        store: StoreName,
        /// Its new size, such as 4GiB
        size: Size,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum StoreName {
    Memory,
    Ssd,
}

impl From<StoreName> for StoreKind {
    fn from(name: StoreName) -> Self {
        match name {
            StoreName::Memory => Self::Memory,
            StoreName::Ssd => Self::Ssd,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum PolicyName {
    Fifo,
    Ghost,
    Sieve,
    S3Fifo,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Fifo => Self::Fifo,
            PolicyName::Ghost => Self::Ghost,
            PolicyName::Sieve => Self::Sieve,
            PolicyName::S3Fifo => Self::S3Fifo,
        }
    }
}

/// Show what the running cache holds and does.
#[derive(Args)]
struct Stats {
    /// As JSON, with everything that the cache tells
    #[arg(long)]
    json: bool,
    /// Control socket [default: /run/justitia/cache.sock, or in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// Measure the cache on this machine: in this process, and over NBD beside nbdkit and qemu-nbd.
///
/// Over NBD it needs fio with its nbd engine; nbdkit and qemu-nbd are compared with if they are installed.
/// Nothing else should run meanwhile.
#[derive(Args)]
struct Bench {
    /// Only what is measured in this process, or only what is measured over NBD
    #[arg(long)]
    only: Option<Where>,
    /// Directory for the image; its file system is measured, too
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// Size of the image
    #[arg(long, default_value = "256MiB")]
    size: Size,
    /// Runs of which the median is taken
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds of a run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Where {
    Process,
    Nbd,
}

pub fn cache(args: &Cache) -> anyhow::Result<()> {
    match &args.command {
        Command::Serve(args) => serve(args),
        Command::Set(args) => set(args),
        Command::Stats(args) => stats(args),
        Command::Bench(args) => measure(args),
    }
}

fn serve(args: &Serve) -> anyhow::Result<()> {
    let mut config = match (&args.config, &args.image) {
        (Some(file), _) => Config::load(file).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("the configuration has errors:\n{}", lines.join("\n"))
        })?,
        (None, Some(image)) => of_image(args, image)?,
        (None, None) => bail!("expected an image or --config FILE, found neither"),
    };
    if let (true, Some(file)) = (args.check_config, &args.config) {
        out::line(format_args!("{}: no errors", encode(file.as_os_str())));
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
    // Registered before anything runs: a signal from now on ends it in order.
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot watch for signals")?;
    let service = Service::start(&config).map_err(told)?;
    announce(&config, &control);
    signals.forever().next();
    tracing::info!("stopping");
    service
        .shut_down(Duration::from_secs(10))
        .context("a disk could not be flushed when stopping")
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
    }
    make_directory_of(&socket)
        .with_context(|| format!("cannot make the directory of {}", socket.display()))?;
    // Another server may have the usual control socket: each has its own then.
    let taken = args.control.is_none() && std::os::unix::net::UnixStream::connect(&control).is_ok();
    config.control = Some(if taken {
        socket.with_extension("control")
    } else {
        control
    });
    Ok(config)
}

/// Says where the disks are, one URI a line.
fn announce(config: &Config, control: &Path) {
    for vm in &config.vms {
        for disk in &vm.disks {
            let sockets = config.listen.unix.iter().chain(&vm.socket);
            for socket in sockets {
                out::tell(format_args!(
                    "nbd+unix:///{}?socket={}",
                    disk.name,
                    socket.display()
                ));
            }
            if let Some(tcp) = config.listen.tcp {
                let scheme = if config.tls.is_some() { "nbds" } else { "nbd" };
                out::tell(format_args!("{scheme}://{tcp}/{}", disk.name));
            }
        }
    }
    out::note(format_args!(
        "justitia: control socket {}",
        control.display()
    ));
}

fn set(args: &Set) -> anyhow::Result<()> {
    let question = match &args.what {
        What::Vm { vm, weight, policy } => ControlRequest::SetVm {
            vm: vm.clone(),
            weight: *weight,
            policy: policy.map(Policy::from),
        },
        What::Pool {
            vm,
            pool,
            destroy: true,
            ..
        } => ControlRequest::DestroyPool {
            vm: vm.clone(),
            pool: pool.clone(),
        },
        What::Pool {
            vm,
            pool,
            weight,
            store,
            create,
            ..
        } => ControlRequest::SetPool {
            vm: vm.clone(),
            pool: pool.clone(),
            weight: *weight,
            store: store.map(StoreKind::from),
            create: *create,
        },
        What::Store { store, size } => ControlRequest::SetStore {
            store: (*store).into(),
            size: *size,
        },
    };
    send_request(&control(args.control.as_deref()), &question).map_err(told)?;
    Ok(())
}

fn stats(args: &Stats) -> anyhow::Result<()> {
    let stats =
        send_request(&control(args.control.as_deref()), &ControlRequest::Stats).map_err(told)?;
    if args.json {
        out::line(out::json(&stats)?);
    } else {
        out::print(show(&stats));
    }
    Ok(())
}

/// The cache's errors tell their causes themselves; as a chain they would be told twice.
fn told(error: impl std::error::Error) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

fn control(given: Option<&Path>) -> PathBuf {
    given.map_or_else(default_control_path, Path::to_owned)
}

fn measure(args: &Bench) -> anyhow::Result<()> {
    if args.only != Some(Where::Nbd) {
        in_process(args).map_err(told)?;
    }
    if args.only != Some(Where::Process) {
        let report = daemon::bench::run(&daemon::bench::Options {
            directory: args.directory.clone(),
            size: args.size,
            runs: args.runs,
            seconds: args.seconds,
        })
        .map_err(told)?;
        out::print(report);
    }
    Ok(())
}

fn in_process(args: &Bench) -> Result<(), CacheError> {
    out::line("hits of 4 KiB in this process, one thread");
    out::line(bench::hits(1 << 16, 2_000_000, args.runs)?);
    out::line("\nthreads with a pool each: the cache's own locks against one lock, operations/s");
    let time = Duration::from_millis(300);
    for found in bench::contention(&[1, 2, 4, 8, 16], time, args.runs)? {
        out::line(format_args!(
            "{:>2} threads  {:>10.0}/s  one lock {:>10.0}/s  ratio {}",
            found.threads, found.own_locks.median, found.one_lock.median, found.ratio
        ));
    }
    out::line("\noccupancy of four saturating pools");
    let weights = [100, 200, 400, 800].map(|w| Weight::try_from(w).unwrap_or_default());
    for pool in bench::occupancy(&weights, 256 << 20)?.pools {
        out::line(format_args!(
            "weight {:>4}  entitled {:>10}  held {:>10}  farthest from it {:>10}",
            pool.weight,
            Size(pool.entitled).to_string(),
            Size(pool.held).to_string(),
            Size(pool.farthest).to_string()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_the_help_is_good() {
        let lines = CONFIGURATION.lines().filter_map(|l| l.strip_prefix("  "));
        let text = lines.collect::<Vec<_>>().join("\n");
        let config = Config::parse(Path::new("help"), &text).unwrap();
        assert_eq!(config.vms[0].disks[0].name, "web-root");
        assert_eq!(config.vms[0].clients, ["web"]);
        assert!(config.cache.ssd.is_some() && config.tls.is_some() && config.metrics.is_some());
    }
}
