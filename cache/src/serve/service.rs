//! The running daemon.

use super::config::{Config, DiskConfig, NAME, VmConfig, is_name};
use super::control::{Answers, Ask, answer, make_directory_of};
use super::metrics;
use crate::backing::{OpenError, OpenOptions, RawDisk};
use crate::nbd::{
    Export, ExportStats, Limits, ListenError, Served, Server, Tenant, TlsError, unix_listener,
};
use crate::{
    Cache, CacheError, CacheStats, CachedDisk, PoolId, PoolSpec, VmId, Weight, WeightError,
};
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Clients of the control socket at a time.
const CONTROL_CLIENTS: usize = 32;

/// Why the daemon cannot start, or refused a change.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An image.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// No VM of that name.
    #[error("expected the name of a VM that is served, found {found:?}; there are: {known}")]
    NoVm {
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// No pool of that name.
    #[error("expected the name of a pool of VM {vm:?}, found {found:?}; there are: {known}")]
    NoPool {
        /// The VM.
        vm: String,
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// A pool of that name.
    #[error("expected a new name for a pool of VM {vm:?}, found {found:?}, which exists")]
    PoolExists {
        /// The VM.
        vm: String,
        /// What was asked for.
        found: String,
    },
    /// A name that cannot be given.
    #[error("expected a name of {NAME}, found {found:?}")]
    Name {
        /// What was asked for.
        found: String,
    },
    /// Metrics cannot be served.
    #[error("cannot serve metrics on {address}: {source}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A thread cannot be started, or a directory made.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// What the daemon tells about itself.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// The cache.
    pub cache: CacheStats,
    /// The disks that are served.
    pub exports: Vec<ExportStats>,
    /// NBD clients at this moment.
    pub clients: usize,
    /// Why this host refuses io_uring, if it does: worker threads read and write disks then.
    pub io_uring_refused: Option<&'static str>,
}

/// A running daemon.
pub struct Service {
    inner: Arc<Inner>,
    control: Option<Control>,
    metrics: Option<justitia_metrics_http::Server>,
    tcp: Option<SocketAddr>,
}

struct Inner {
    cache: Arc<Cache>,
    servers: Vec<Server>,
    exports: Vec<Arc<Export>>,
    vms: Mutex<BTreeMap<String, Vm>>,
}

struct Vm {
    id: VmId,
    tenant: Arc<Tenant>,
    pools: BTreeMap<String, (PoolId, PoolSpec)>,
    exports: Vec<Arc<Export>>,
}

struct Control {
    socket: OwnedFd,
    path: PathBuf,
    closing: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Service {
    /// Starts what the configuration says: stores, VMs, disks, sockets.
    ///
    /// # Errors
    /// When something of it cannot be had; nothing runs then.
    pub fn start(config: &Config) -> Result<Self, ServeError> {
        let cache = Cache::new(config.cache.clone())?;
        Self::start_with(Arc::clone(&cache), config).inspect_err(|_| {
            // Removes its file.
            let _ = cache.set_ssd(None);
        })
    }

    fn start_with(cache: Arc<Cache>, config: &Config) -> Result<Self, ServeError> {
        let limits = Limits::default();
        let all = Server::new(limits, config.tls.as_ref())?;
        let mut inner = Inner {
            cache,
            servers: Vec::new(),
            exports: Vec::new(),
            vms: Mutex::default(),
        };
        for vm in &config.vms {
            let entry = inner.add_vm(vm)?;
            for export in &entry.exports {
                all.add(Arc::clone(export));
            }
            if let Some(socket) = &vm.socket {
                let own = all.sibling();
                for export in &entry.exports {
                    own.add(Arc::clone(export));
                }
                own.listen_unix(socket)?;
                inner.servers.push(own);
            }
            inner.exports.extend(entry.exports.iter().cloned());
            inner.vms.get_mut().insert(vm.name.clone(), entry);
        }
        if let Some(path) = &config.listen.unix {
            all.listen_unix(path)?;
        }
        let tcp = config
            .listen
            .tcp
            .map(|address| all.listen_tcp(address, config.listen.insecure))
            .transpose()?;
        if let (Some(address), true) = (tcp, config.listen.insecure) {
            tracing::warn!("insecure: whoever reaches {address} can read and write every disk");
        }
        // Last of the servers: it is the one whose end flushes all disks.
        inner.servers.push(all);
        let inner = Arc::new(inner);
        let control = config
            .control
            .as_ref()
            .map(|path| Control::start(path, Arc::clone(&inner)))
            .transpose()?;
        let metrics = config
            .metrics
            .map(|address| {
                let from = Arc::clone(&inner);
                justitia_metrics_http::Server::start(address, move || metrics::text(&from.stats()))
                    .map_err(|source| ServeError::Metrics { address, source })
            })
            .transpose()?;
        Ok(Self {
            inner,
            control,
            metrics,
            tcp,
        })
    }

    /// The TCP address of the NBD server, with the port that was chosen if it was 0.
    #[must_use]
    pub const fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// The cache behind it.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.inner.cache
    }

    /// Everything there is to tell.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// The address on which metrics are served, with the port that was chosen if it was 0.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
            .as_ref()
            .map(justitia_metrics_http::Server::address)
    }

    /// Changes something.
    ///
    /// # Errors
    /// When it is refused.
    pub fn change(&self, ask: &Ask) -> Result<(), ServeError> {
        self.inner.change(ask)
    }

    /// Ends: requests in flight are finished, disks flushed, sockets and the SSD store's file removed.
    ///
    /// # Errors
    /// When a disk could not be flushed.
    pub fn shut_down(self, patience: Duration) -> io::Result<()> {
        if let Some(control) = self.control {
            control.closing.store(true, Ordering::SeqCst);
            let _ = shutdown(&control.socket, Shutdown::Both);
            let _ = control.thread.join();
            let _ = std::fs::remove_file(control.path);
        }
        drop(self.metrics);
        let mut done = Ok(());
        for server in &self.inner.servers {
            done = server.shut_down(patience).and(done);
        }
        // Removes what the SSD store holds.
        if let Err(e) = self.inner.cache.set_ssd(None) {
            tracing::error!("cannot close the SSD store: {e}");
        }
        done
    }
}

impl Inner {
    fn add_vm(&self, config: &VmConfig) -> Result<Vm, ServeError> {
        let id = self
            .cache
            .add_vm(&config.name, config.weight, config.policy)?;
        let first = self.cache.default_pool(id)?;
        let mut pools = BTreeMap::from([("default".to_owned(), (first, PoolSpec::default()))]);
        for pool in &config.pools {
            let entry = if let Some((id, _)) = pools.get(&pool.name) {
                self.cache.set_pool(*id, pool.spec)?;
                (*id, pool.spec)
            } else {
                let id = self.cache.create_pool(id, &pool.name, pool.spec)?;
                (id, pool.spec)
            };
            pools.insert(pool.name.clone(), entry);
        }
        let tenant = Arc::new(Tenant::new(config.clients.clone()));
        tenant.set_weight(config.weight);
        let exports = config
            .disks
            .iter()
            .map(|disk| self.add_disk(id, &tenant, config, disk))
            .collect::<Result<_, _>>()?;
        Ok(Vm {
            id,
            tenant,
            pools,
            exports,
        })
    }

    fn add_disk(
        &self,
        vm: VmId,
        tenant: &Arc<Tenant>,
        config: &VmConfig,
        disk: &DiskConfig,
    ) -> Result<Arc<Export>, ServeError> {
        let options = OpenOptions {
            read_only: disk.read_only,
            direct: disk.direct,
        };
        let raw = Arc::new(RawDisk::open(&disk.image, options)?);
        if disk.direct && !raw.is_direct() {
            tracing::warn!(
                "{}: the file system has no O_DIRECT: the host's page cache will hold the image, too",
                disk.image.display()
            );
        }
        let served = match disk.mode {
            Some(mode) => {
                let id = self.cache.add_disk(vm, &disk.name)?;
                Served::Cached(CachedDisk::new(
                    raw.clone(),
                    Arc::clone(&self.cache),
                    id,
                    mode,
                )?)
            }
            None => Served::Plain(raw.clone()),
        };
        let export = Export::new(&disk.name, served)
            .description(&format!("disk {} of VM {}", disk.name, config.name))
            .read_only(disk.read_only)
            .tenant(tenant)
            .allocation(raw);
        Ok(Arc::new(export))
    }
}

impl Answers for Inner {
    fn stats(&self) -> Stats {
        Stats {
            cache: self.cache.stats(),
            exports: self.exports.iter().map(|e| e.stats()).collect(),
            clients: self.servers.iter().map(Server::clients).sum(),
            io_uring_refused: crate::ring::refusal(),
        }
    }

    fn change(&self, ask: &Ask) -> Result<(), ServeError> {
        let weight_of = |w: &Option<u64>| w.map(Weight::try_from).transpose();
        let mut vms = self.vms.lock();
        match ask {
            Ask::Stats => {}
            Ask::SetVm { vm, weight, policy } => {
                let weight = weight_of(weight)?;
                let vm = find(&mut vms, vm)?;
                if let Some(weight) = weight {
                    self.cache.set_vm_weight(vm.id, weight)?;
                    vm.tenant.set_weight(weight);
                }
                if let Some(policy) = policy {
                    self.cache.set_vm_policy(vm.id, *policy)?;
                }
            }
            Ask::SetPool {
                vm: name,
                pool,
                weight,
                store,
                create,
            } => {
                let weight = weight_of(weight)?;
                let vm = find(&mut vms, name)?;
                let with = |old: PoolSpec| PoolSpec {
                    weight: weight.unwrap_or(old.weight),
                    store: store.unwrap_or(old.store),
                };
                let entry = match vm.pools.get(pool) {
                    Some(_) if *create => {
                        return Err(ServeError::PoolExists {
                            vm: name.clone(),
                            found: pool.clone(),
                        });
                    }
                    Some((id, old)) => {
                        self.cache.set_pool(*id, with(*old))?;
                        (*id, with(*old))
                    }
                    None if *create && !is_name(pool) => {
                        return Err(ServeError::Name {
                            found: pool.clone(),
                        });
                    }
                    None if *create => {
                        let spec = with(PoolSpec::default());
                        (self.cache.create_pool(vm.id, pool, spec)?, spec)
                    }
                    None => return Err(no_pool(name, pool, vm)),
                };
                vm.pools.insert(pool.clone(), entry);
            }
            Ask::DestroyPool { vm: name, pool } => {
                let vm = find(&mut vms, name)?;
                let Some((id, _)) = vm.pools.get(pool) else {
                    return Err(no_pool(name, pool, vm));
                };
                self.cache.destroy_pool(*id)?;
                vm.pools.remove(pool);
            }
            Ask::SetStore { store, size } => {
                // Shrinking evicts, which may take a while; names do not change by it.
                drop(vms);
                self.cache.resize(*store, size.0)?;
            }
        }
        Ok(())
    }
}

fn find<'a>(vms: &'a mut BTreeMap<String, Vm>, name: &str) -> Result<&'a mut Vm, ServeError> {
    let known = list(vms.keys());
    vms.get_mut(name).ok_or_else(|| ServeError::NoVm {
        found: name.to_owned(),
        known,
    })
}

fn no_pool(name: &str, pool: &str, vm: &Vm) -> ServeError {
    ServeError::NoPool {
        vm: name.to_owned(),
        found: pool.to_owned(),
        known: list(vm.pools.keys()),
    }
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

impl Control {
    fn start(path: &Path, inner: Arc<Inner>) -> Result<Self, ServeError> {
        let io = |what| move |source| ServeError::Io { what, source };
        make_directory_of(path).map_err(io("cannot make the control socket's directory"))?;
        let socket = unix_listener(path)?;
        let listener: UnixListener = socket
            .as_fd()
            .try_clone_to_owned()
            .map_err(io("cannot listen on the control socket"))?
            .into();
        let closing = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&closing);
        let thread = std::thread::Builder::new()
            .name("justitia-ctl".into())
            .spawn(move || accept(&listener, &inner, &flag))
            .map_err(io("cannot start the control thread"))?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            closing,
            thread,
        })
    }
}

fn accept(listener: &UnixListener, inner: &Arc<Inner>, closing: &AtomicBool) {
    let busy = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if busy.fetch_add(1, Ordering::SeqCst) >= CONTROL_CLIENTS {
            busy.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!("turned a control client away: there are {CONTROL_CLIENTS}");
            continue;
        }
        let (inner, leaving) = (Arc::clone(inner), Arc::clone(&busy));
        let started = std::thread::Builder::new()
            .name("justitia-ctl".into())
            .spawn(move || {
                if let Err(e) = answer(stream, &*inner) {
                    tracing::info!("a control client's connection broke: {e}");
                }
                leaving.fetch_sub(1, Ordering::SeqCst);
            });
        if let Err(e) = started {
            busy.fetch_sub(1, Ordering::SeqCst);
            tracing::error!("cannot start a thread for a control client: {e}");
        }
    }
}
