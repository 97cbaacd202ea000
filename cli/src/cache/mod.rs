//! `justitia cache …`.

mod client;
mod descriptors;
mod list;
mod pools;
mod serve;
mod set;
mod stats;
mod top;
mod whatif;

use clap::{Args, Subcommand};

/// The hypervisor cache: disks of VMs over NBD, cached by weight.
///
/// One daemon serves virtual disks and caches their blocks, in memory and on an SSD. When a store is full, blocks are
/// evicted from the VM and the pool that exceed their share by weight the most. Writes go through to the image: stopping
/// or losing the cache loses speed, never data.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Cache {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Try it (it prints the URI; sockets are for this user alone):
  justitia cache serve disk.img --socket $XDG_RUNTIME_DIR/disk.sock &
  nbdinfo \"nbd+unix:///disk?socket=$XDG_RUNTIME_DIR/disk.sock\"
  qemu-system-x86_64 -drive \\
    file=\"nbd+unix:///disk?socket=$XDG_RUNTIME_DIR/disk.sock\",format=raw,if=virtio …
  justitia cache list
  justitia cache stats

Share it (`justitia cache serve --example-config` prints a configuration):
  justitia cache set vm web --weight 400
  justitia cache set pool web database --create --weight 300 --store ssd
  justitia cache set pool web files --create --memory-weight 100 --ssd-weight 400
  justitia cache set store memory 2GiB
  justitia cache set disk web-root --pool database --offset 1GiB --length 4GiB";

#[derive(Subcommand)]
enum Command {
    Serve(serve::Serve),
    Set(set::Set),
    List(list::List),
    Stats(stats::Stats),
    Top(top::Top),
    Curve(whatif::Curve),
    Whatif(whatif::Whatif),
}

pub(crate) fn cache(args: &Cache) -> anyhow::Result<()> {
    match &args.command {
        Command::Serve(args) => serve::serve(args),
        Command::Set(args) => set::set(args),
        Command::List(args) => list::list(args),
        Command::Stats(args) => stats::stats(args),
        Command::Top(args) => top::top(args),
        Command::Curve(args) => whatif::curve(args),
        Command::Whatif(args) => whatif::whatif(args),
    }
}
