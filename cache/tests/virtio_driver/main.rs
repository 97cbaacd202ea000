//! A disk over vhost-user-blk with `virtio-driver`, the driver of libblkio. Its memory is memfds that cannot be sealed.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod client;
mod content;
mod fio;
#[path = "../fio_verify/mod.rs"]
mod fio_verify;

use justitia_cache::serve::{Config, Service};
use std::path::Path;

/// Bytes of the disk.
const SIZE: usize = 16 << 20;

fn serve(directory: &Path) -> Service {
    Service::start(&config(directory)).unwrap()
}

fn config(directory: &Path) -> Config {
    let image = directory.join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(SIZE.try_into().unwrap()).unwrap();
    let text = format!(
        "[memory]\nsize = \"4MiB\"\n[[vm]]\nname = \"vm\"\n[[vm.disk]]\nname = \"disk\"\nimage = {image:?}\nvhost = {:?}\n",
        directory.join("vhost"),
    );
    Config::parse(Path::new("cache.toml"), &text).unwrap()
}
