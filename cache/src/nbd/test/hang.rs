//! Disks that hang, and what others have of the server meanwhile.

use super::client::Client;
use super::live::Puppet;
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec, SsdConfig, StoreKind};
use crate::disk::CachedDisk;
use crate::frontend::{Backend, IoLimits, Vm, Volume};
use crate::ids::VmId;
use crate::nbd::{Export, Limits, Server};
use justitia_share::Weight;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A server with four workers, and VMs whose blocks are on the SSD store.
struct Rig {
    cache: Arc<Cache>,
    server: Server,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(CacheConfig {
            ssd: Some(SsdConfig::new(dir.path().join("ssd"), 8 << 20)),
            ..CacheConfig::default()
        })
        .unwrap();
        let limits = Limits {
            io: IoLimits {
                workers: 4,
                ..IoLimits::default()
            },
            ..Limits::default()
        };
        let server = Server::new(limits, None).unwrap();
        let socket = dir.path().join("s");
        server.listen_unix(&socket).unwrap();
        Self {
            cache,
            server,
            socket,
            _dir: dir,
        }
    }

    fn vm(&self) -> (VmId, Arc<Vm>) {
        let weight = Weight::default();
        let vm = self.cache.add_vm("vm", weight, Policy::default()).unwrap();
        let pool = self.cache.default_pool(vm).unwrap();
        let store = StoreKind::Ssd;
        let spec = PoolSpec::of(store, weight);
        self.cache.set_pool(pool, spec).unwrap();
        (vm, Arc::default())
    }

    fn disk(&self, (vm, of): &(VmId, Arc<Vm>), name: &str) -> Arc<Puppet> {
        let puppet = Puppet::new(1 << 20);
        let id = self.cache.add_disk(*vm, name).unwrap();
        let cache = Arc::clone(&self.cache);
        let cached = CachedDisk::new(puppet.clone(), cache, id, Mode::Inclusive).unwrap();
        let volume = Volume::new(name, Backend::Cached(cached)).of_vm(of);
        self.server.add(Export::new(volume, ""));
        puppet
    }

    fn client(&self, name: &str) -> Client {
        Client::new(&self.socket, name, false)
    }

    /// Waits until the first block is on the SSD.
    fn wait_for_ssd(&self, client: &mut Client) {
        let since = Instant::now();
        while self.cache.stats().vms[0].pools[0].counts.ssd_hits == 0 {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "never on the SSD"
            );
            assert_eq!(client.read(0, 4096).error, 0);
        }
    }

    /// Disks of this name and a number that hang, and clients that wait for them.
    fn hang(&self, name: &str, vm: impl Fn() -> (VmId, Arc<Vm>)) -> Vec<(Arc<Puppet>, Client)> {
        (0..4)
            .map(|n| {
                let name = format!("{name}{n}");
                let puppet = self.disk(&vm(), &name);
                puppet.stuck.store(true, Ordering::SeqCst);
                let mut client = self.client(&name);
                for block in 0..8 {
                    client.send(0, 0, block, block * 65_536, &[], 4096);
                }
                (puppet, client)
            })
            .collect()
    }
}

/// They answer again, and so does the server.
fn release(hung: Vec<(Arc<Puppet>, Client)>) {
    // All of them first: they may have but one worker between them.
    for (puppet, _) in &hung {
        puppet.stuck.store(false, Ordering::SeqCst);
    }
    for (_, mut client) in hung {
        for _ in 0..8 {
            assert_eq!(client.reply(4096).error, 0);
        }
    }
}

#[test]
fn all_disks_of_a_vm_that_hang_leave_workers_to_the_others() {
    let rig = Rig::new();
    let vm = rig.vm();
    let hung = rig.hang("hung", || (vm.0, Arc::clone(&vm.1)));
    rig.disk(&rig.vm(), "other");
    assert_eq!(rig.client("other").read(0, 4096).error, 0);
    release(hung);
}

#[test]
fn disks_that_hang_leave_the_ssd_to_the_others() {
    let rig = Rig::new();
    rig.disk(&rig.vm(), "other");
    let mut client = rig.client("other");
    // A unit of sixteen blocks, once it has been written.
    assert_eq!(client.read(0, 65_536).error, 0);
    rig.wait_for_ssd(&mut client);
    let hung = rig.hang("hung", || rig.vm());
    for block in 0..16 {
        assert_eq!(client.read(block * 4096, 4096).error, 0);
    }
    // Blocks that the SSD lacks come from the disk, and there all workers wait.
    release(hung);
    assert_eq!(client.read(65_536, 4096).error, 0);
}

#[test]
fn a_read_is_put_together_from_the_ssd_and_the_disk() {
    let rig = Rig::new();
    rig.disk(&rig.vm(), "disk");
    let mut client = rig.client("disk");
    let content: Vec<u8> = (0..32u8).flat_map(|n| [n + 1; 4096]).collect();
    assert_eq!(client.write(0, 0, &content).error, 0);
    assert_eq!(client.read(0, 65_536).data, content[..65_536]);
    rig.wait_for_ssd(&mut client);
    for _ in 0..100 {
        let found = client.read(100, 130_000);
        assert_eq!(found.data, content[100..130_100]);
        // The second half leaves the cache again.
        assert_eq!(client.write(0, 65_536, &content[65_536..]).error, 0);
    }
    let counts = rig.cache.stats().vms[0].pools[0].counts;
    assert!(
        counts.ssd_hits > 0 && counts.gets > counts.memory_hits + counts.ssd_hits,
        "{counts:?}"
    );
}
