//! `justitia cache set`: one function a request.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use justitia_api::escape::plain;
use justitia_cache::serve::{ControlRequest, Size, Table};
use justitia_cache::{Policy, StoreKind};
use justitia_common::command::{flat, out};
use serde_json::json;

use super::client::send;

/// Change what is served, weights, stores and sizes while the cache runs.
#[derive(Args)]
pub(super) struct Set {
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory]
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Vm(Vm),
    Pool(Pool),
    Disk(Disk),
    Store(Store),
    Ssd(Ssd),
}

/// A VM's weight and eviction policy; another VM, or one less
#[derive(Args)]
#[command(group(changes(&["weight", "policy", "uncached", "create", "remove"])))]
struct Vm {
    /// The VM
    vm: String,
    /// Serve another VM, until the daemon ends; its disks: `set disk`. With pools or a port: in the configuration, then
    /// SIGHUP
    #[arg(long, conflicts_with = "uncached")]
    create: bool,
    /// A unix socket with the disks of the new VM alone
    #[arg(long, value_name = "PATH", requires = "create")]
    socket: Option<PathBuf>,
    /// End its clients once their requests are answered, flush its disks, and serve it no more. A SIGHUP serves it again
    /// as long as it is configured
    #[arg(long, conflicts_with_all = ["weight", "policy", "uncached", "create"])]
    remove: bool,
    /// Its weight among the VMs, 1 to 10000
    #[arg(long)]
    weight: Option<u64>,
    /// Which blocks are evicted first
    #[arg(long, value_parser = policy())]
    policy: Option<Policy>,
    /// Remove its pools and their blocks, and serve its disks uncached until the daemon is restarted
    #[arg(long, conflicts_with_all = ["weight", "policy"])]
    uncached: bool,
}

/// A pool's weights in the stores
#[derive(Args)]
#[command(group(changes(&["weight", "store", "memory_weight", "ssd_weight", "tag", "create", "destroy"])))]
struct Pool {
    /// The VM
    vm: String,
    /// The pool; `default` holds the blocks that belong to no container
    pool: String,
    /// Its weight among the pools of its VM in its store, 1 to 10000
    #[arg(long)]
    weight: Option<u64>,
    /// The one store of its blocks
    #[arg(long)]
    store: Option<StoreName>,
    /// Its weight among the pools of its VM in memory, 1 to 10000; 0 to use memory no more. With a weight in both stores
    /// blocks go from one to the other as they are used
    #[arg(long, value_name = "WEIGHT", conflicts_with_all = ["weight", "store"])]
    memory_weight: Option<u64>,
    /// Its weight among the pools of its VM on the SSD, 1 to 10000; 0 to use the SSD no more
    #[arg(long, value_name = "WEIGHT", conflicts_with_all = ["weight", "store"])]
    ssd_weight: Option<u64>,
    /// The tag of its container in requests over vhost-user, 1 to 1023: the hint of the I/O priority
    #[arg(long)]
    tag: Option<u16>,
    /// Make the pool
    #[arg(long)]
    create: bool,
    /// Remove the pool and its blocks
    #[arg(long, visible_alias = "remove", conflicts_with_all = ["weight", "store", "memory_weight", "ssd_weight", "tag", "create"])]
    destroy: bool,
}

/// The pool of a disk's cached blocks, whether it is cached, or its size; another disk, or one less
#[derive(Args)]
#[command(group(changes(&["pool", "uncached", "rescan", "remove", "size", "vm"])))]
struct Disk {
    /// The disk
    disk: String,
    #[command(flatten)]
    new: NewDisk,
    /// End its clients once their requests are answered, flush it, and serve it no more. A SIGHUP serves it again as long
    /// as it is configured
    #[arg(long, conflicts_with_all = ["pool", "uncached", "rescan", "size", "vm"])]
    remove: bool,
    /// Make its image so large, such as 20GiB; disks only grow. Guests over vhost-user are told; NBD clients see it when they
    /// connect again. A block device must have the size already
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["pool", "uncached", "rescan", "vm"])]
    size: Option<Size>,
    /// Move what the cache holds of the disk to this pool of its VM
    #[arg(long, conflicts_with = "vm")]
    pool: Option<String>,
    /// Move only blocks from this offset of the disk on, such as 1GiB
    #[arg(long, value_name = "SIZE", requires = "pool")]
    offset: Option<Size>,
    /// Move only blocks of a range of this length [default: to the end of the disk]
    #[arg(long, value_name = "SIZE", requires = "pool")]
    length: Option<Size>,
    /// Remove its blocks, and serve it uncached until the daemon is restarted
    #[arg(long, conflicts_with_all = ["pool", "vm"])]
    uncached: bool,
    /// Take over the size that its image has now, and tell guests over vhost-user
    #[arg(long, conflicts_with_all = ["pool", "uncached", "vm"])]
    rescan: bool,
}

/// Another disk
#[derive(Args)]
struct NewDisk {
    /// Serve another disk of this VM, until the daemon ends
    #[arg(long, requires = "image")]
    vm: Option<String>,
    /// The raw file or block device of the new disk
    #[arg(long, value_name = "PATH", requires = "vm")]
    image: Option<PathBuf>,
    /// A unix socket on which the new disk is served over vhost-user-blk, too
    #[arg(long, value_name = "PATH", requires = "vm")]
    vhost: Option<PathBuf>,
    /// How the new disk is cached [default: inclusive]
    #[arg(long, requires = "vm")]
    mode: Option<ModeName>,
    /// The serial of the new disk, as its guest sees it [default: its name]
    #[arg(long, requires = "vm")]
    serial: Option<String>,
    /// Refuse writes to the new disk
    #[arg(long, requires = "vm")]
    read_only: bool,
    /// What the new disk's image is, whatever it looks like
    #[arg(long, requires = "vm")]
    format: Option<ImageFormat>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Inclusive,
    Exclusive,
    Uncached,
}

#[derive(Clone, Copy, ValueEnum)]
enum ImageFormat {
    Raw,
}

/// The size of a store; when it shrinks, the excess is evicted
#[derive(Args)]
struct Store {
    /// Which
    store: StoreName,
    /// Its new size, such as 4GiB; 0 for memory alone: nothing is held there
    size: Size,
}

/// Another SSD store in the place of the present one, whose blocks are dropped
#[derive(Args)]
struct Ssd {
    /// A file or a block device, whose content is lost
    #[arg(required_unless_present = "remove", requires = "size")]
    path: Option<PathBuf>,
    /// How much of it to use, such as 200GiB
    size: Option<Size>,
    /// What is there may be lost. Otherwise only what is empty, or an SSD store of Justitia's, is taken
    #[arg(long, requires = "path")]
    overwrite: bool,
    /// Remove the SSD store; its pools use memory
    #[arg(long, conflicts_with_all = ["path", "size"])]
    remove: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum StoreName {
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

/// Some of these options must be given: what is to change.
fn changes(options: &'static [&'static str]) -> ArgGroup {
    ArgGroup::new("change")
        .args(options)
        .required(true)
        .multiple(true)
}

/// The names of the eviction policies.
fn policy() -> impl TypedValueParser<Value = Policy> {
    let names = Policy::ALL.iter().map(|policy| policy.name());
    PossibleValuesParser::new(names).try_map(|name| {
        let mut all = Policy::ALL.into_iter();
        let found = all.find(|policy| policy.name() == name);
        found.ok_or("expected the name of a policy")
    })
}

pub(super) fn set(args: &Set) -> anyhow::Result<()> {
    let request = requested(&args.what)?;
    let answer = send(args.control.as_deref(), &request).map_err(flat)?;
    if let (Some(blocks), ControlRequest::MigrateDisk { pool, .. }) =
        (answer["blocks"].as_u64(), &request)
    {
        out::line(plain(&format!(
            "{blocks} blocks of 4 KiB were moved to pool {pool}"
        )));
    }
    out::note(format_args!("justitia: {}", lasts(&request)));
    Ok(())
}

fn requested(what: &What) -> anyhow::Result<ControlRequest> {
    Ok(match what {
        What::Vm(vm) => set_vm(vm)?,
        What::Pool(pool) => set_pool(pool),
        What::Disk(disk) => set_disk(disk)?,
        What::Store(store) => ControlRequest::SetStore {
            store: store.store.into(),
            size: store.size,
        },
        What::Ssd(ssd) => set_ssd(ssd)?,
    })
}

/// How long the change lasts.
const fn lasts(request: &ControlRequest) -> &'static str {
    match request {
        ControlRequest::RescanDisk { .. } | ControlRequest::GrowDisk { .. } => {
            "this is the image's size, and lasts"
        }
        ControlRequest::MigrateDisk { .. } => {
            "this is done once: blocks that are cached from now on go to the pool of who reads them"
        }
        ControlRequest::RemoveVm { .. } | ControlRequest::RemoveDisk { .. } => {
            "this lasts until the next reload or restart, if the configuration names it: remove it there, too"
        }
        ControlRequest::DestroyPool { .. } | ControlRequest::RemoveSsd => {
            "this lasts until the daemon is restarted, if the configuration names it: remove it there, too"
        }
        _ => {
            "this lasts until the daemon is restarted: to keep it, write it into the configuration, too"
        }
    }
}

fn set_vm(args: &Vm) -> anyhow::Result<ControlRequest> {
    let vm = args.vm.clone();
    if args.create {
        return Ok(ControlRequest::AddVm {
            vm: table([
                ("name", Some(json!(vm))),
                ("weight", args.weight.map(|weight| json!(weight))),
                ("policy", args.policy.map(|policy| json!(policy))),
                ("socket", path(args.socket.as_deref())?),
            ]),
        });
    }
    if args.remove {
        return Ok(ControlRequest::RemoveVm { vm });
    }
    if args.uncached {
        return Ok(ControlRequest::UncacheVm { vm });
    }
    Ok(ControlRequest::SetVm {
        vm,
        weight: args.weight,
        policy: args.policy,
    })
}

/// The keys that have a value.
fn table<const N: usize>(keys: [(&str, Option<serde_json::Value>); N]) -> Table {
    let keys = keys.into_iter();
    keys.filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

/// The daemon has another working directory.
fn absolute(of: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(of).with_context(|| format!("cannot find out where {} is", of.display()))
}

fn path(of: Option<&Path>) -> anyhow::Result<Option<serde_json::Value>> {
    let Some(of) = of else { return Ok(None) };
    let absolute = absolute(of)?;
    let text = absolute.to_str().with_context(|| {
        format!(
            "expected a path in UTF-8, as requests are, found {}",
            absolute.display()
        )
    })?;
    Ok(Some(json!(text)))
}

fn set_pool(args: &Pool) -> ControlRequest {
    let (vm, pool) = (args.vm.clone(), args.pool.clone());
    if args.destroy {
        return ControlRequest::DestroyPool { vm, pool };
    }
    ControlRequest::SetPool {
        vm,
        pool,
        weight: args.weight,
        store: args.store.map(StoreKind::from),
        memory_weight: args.memory_weight,
        ssd_weight: args.ssd_weight,
        tag: args.tag,
        create: args.create,
    }
}

fn set_disk(args: &Disk) -> anyhow::Result<ControlRequest> {
    let disk = args.disk.clone();
    if let Some(vm) = &args.new.vm {
        return add_disk(disk, vm, &args.new);
    }
    if args.remove {
        return Ok(ControlRequest::RemoveDisk { disk });
    }
    if let Some(size) = args.size {
        return Ok(ControlRequest::GrowDisk { disk, size });
    }
    Ok(match &args.pool {
        None if args.rescan => ControlRequest::RescanDisk { disk },
        Some(pool) => ControlRequest::MigrateDisk {
            disk,
            pool: pool.clone(),
            offset: args.offset.unwrap_or_default(),
            length: args.length,
        },
        None => ControlRequest::UncacheDisk { disk },
    })
}

fn add_disk(name: String, vm: &str, new: &NewDisk) -> anyhow::Result<ControlRequest> {
    let mode = new.mode.map(|mode| match mode {
        ModeName::Inclusive => "inclusive",
        ModeName::Exclusive => "exclusive",
        ModeName::Uncached => "uncached",
    });
    let format = new.format.map(|ImageFormat::Raw| "raw");
    Ok(ControlRequest::AddDisk {
        vm: vm.to_owned(),
        disk: table([
            ("name", Some(json!(name))),
            ("image", path(new.image.as_deref())?),
            ("vhost", path(new.vhost.as_deref())?),
            ("mode", mode.map(|mode| json!(mode))),
            ("serial", new.serial.as_ref().map(|serial| json!(serial))),
            ("read_only", new.read_only.then_some(json!(true))),
            ("format", format.map(|format| json!(format))),
        ]),
    })
}

fn set_ssd(args: &Ssd) -> anyhow::Result<ControlRequest> {
    Ok(match (&args.path, args.size) {
        (Some(path), Some(size)) => ControlRequest::ReplaceSsd {
            path: absolute(path)?,
            size,
            overwrite: args.overwrite,
        },
        _ => ControlRequest::RemoveSsd,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        set: Set,
    }

    fn parsed(words: &str) -> Result<What, String> {
        let words = std::iter::once("set").chain(words.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(cli.set.what)
    }

    #[test]
    fn a_store_lies_where_the_caller_is_and_not_where_the_daemon_is() {
        let Ok(What::Ssd(ssd)) = parsed("ssd a.store 1GiB") else {
            panic!("it is an SSD store");
        };
        let Ok(ControlRequest::ReplaceSsd { path, .. }) = set_ssd(&ssd) else {
            panic!("one that replaces");
        };
        assert_eq!(path, std::env::current_dir().unwrap().join("a.store"));
    }

    #[test]
    fn how_long_a_change_lasts_is_told() {
        for (words, expected) in [
            ("vm web --remove", "until the next reload or restart"),
            ("disk root --remove", "until the next reload or restart"),
            ("pool web db --remove", "restarted, if"),
            ("ssd --remove", "restarted, if"),
            ("disk root --rescan", "the image's size"),
            ("disk root --size 1GiB", "the image's size"),
            ("vm web --uncached", "restarted: to keep it"),
        ] {
            let told = lasts(&requested(&parsed(words).unwrap()).unwrap());
            assert!(told.contains(expected), "{words}: {told}");
        }
    }

    #[test]
    fn what_can_be_changed_is_told_when_nothing_is() {
        for (words, options) in [
            (
                "vm web",
                &["--weight", "--policy", "--uncached", "--remove"][..],
            ),
            ("disk root", &["--pool", "--size", "--uncached", "--vm"]),
            ("pool web db", &["--weight", "--store", "--tag", "--create"]),
        ] {
            let error = parsed(words).err().unwrap();
            for option in options {
                assert!(error.contains(option), "{option}: {error}");
            }
        }
        assert!(matches!(parsed("pool web db --remove"), Ok(What::Pool(pool)) if pool.destroy));
        assert!(parsed("vm web --weight 3 --policy fifo").is_ok());
    }
}
