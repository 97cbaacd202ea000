//! A server of one disk, and front ends of it.

use crate::backing::{OpenOptions, RawImage};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec};
use crate::disk::CachedDisk;
use crate::frontend::{Backend, ContainerTag, Executor, IoLimits, Vm, Volume};
use crate::testing::front_end::{FrontEnd, FrontEndOptions};
use crate::vhost::VhostServer;
use justitia_share::Weight;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of the disk.
pub(super) const SIZE: u64 = 8 << 20;

pub(super) struct Rig {
    pub(super) dir: tempfile::TempDir,
    pub(super) cache: Arc<Cache>,
    pub(super) volume: Arc<Volume>,
    pub(super) server: VhostServer,
}

impl Rig {
    /// An image of this size, cached or not.
    pub(super) fn new(mode: Option<Mode>) -> Self {
        Self::with(mode, IoLimits::default(), false)
    }

    pub(super) fn with(mode: Option<Mode>, limits: IoLimits, read_only: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(SIZE)
            .unwrap();
        let options = OpenOptions {
            read_only,
            ..OpenOptions::default()
        };
        let raw = Arc::new(RawImage::open(&image, options).unwrap());
        let cache = Cache::new(CacheConfig::of_memory(SIZE / 4)).unwrap();
        let vm = cache
            .add_vm("vm", Weight::default(), Policy::default())
            .unwrap();
        let pool = cache
            .create_pool(vm, "container", PoolSpec::default())
            .unwrap();
        let tagged = Arc::new(Vm::default());
        tagged.tags.set(ContainerTag::new(7).unwrap(), pool);
        let backend = match mode {
            Some(mode) => {
                let id = cache.add_disk(vm, "disk").unwrap();
                Backend::Cached(CachedDisk::new(raw, cache.clone(), id, mode).unwrap())
            }
            None => Backend::Plain(raw),
        };
        let volume = Volume::new("the disk", backend)
            .read_only(read_only)
            .of_vm(&tagged);
        Self::of_volume(dir, cache, volume, limits)
    }

    pub(super) fn of_volume(
        dir: tempfile::TempDir,
        cache: Arc<Cache>,
        volume: Volume,
        limits: IoLimits,
    ) -> Self {
        let volume = Arc::new(volume);
        let executor = Executor::new(&limits);
        let socket = dir.path().join("vhost");
        let served = Arc::clone(&volume);
        let server =
            VhostServer::listen(&socket, served, executor, limits, Default::default()).unwrap();
        Self {
            dir,
            cache,
            volume,
            server,
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("vhost")
    }

    pub(super) fn image(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("image")).unwrap()
    }

    pub(super) fn front_end(&self, options: FrontEndOptions) -> FrontEnd {
        FrontEnd::connect(&self.socket(), options).unwrap()
    }
}
