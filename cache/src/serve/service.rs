//! A running daemon, from its start to its end.

use super::api::Stats;
use super::config::Config;
use super::control::ControlServer;
use super::daemon::{Closed, Daemon};
use super::disks::Failed;
use super::error::ServeError;
use super::handover;
use super::handover::Descriptors;
use super::handover::{Taken, leave};
use super::list::ListedDisk;
use super::metrics;
use super::metrics_names::PoolNames;
use super::reload::Reloaded;
use super::served::{Served, check_paths};
use crate::cache::Cache;
use crate::config::CacheConfig;
use crate::frontend::{flush_each, flushed};
use crate::inherited::SpareSockets;
use crate::nbd::{Limits, Server, TlsFiles};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running daemon.
pub struct Service {
    daemon: Arc<Daemon>,
    control: Option<ControlServer>,
    metrics: Option<justitia_common::metrics::Server>,
    tcp: Option<SocketAddr>,
}

impl Service {
    /// Starts the stores, VMs, disks and sockets of the configuration.
    ///
    /// # Errors
    /// When a part of it cannot be started. Then nothing runs, and only our own files were changed.
    pub fn start(config: &Config) -> Result<Self, ServeError> {
        Self::start_from(config, Descriptors::default())
    }

    /// As [`start`](Self::start), with the descriptors that this process was given: listening sockets, and the state that the
    /// last daemon has [handed over](Self::hand_over). Blocks that are proven to be still right are cached again. Unused
    /// descriptors are closed and logged.
    ///
    /// # Errors
    /// As there.
    pub fn start_from(config: &Config, given: Descriptors) -> Result<Self, ServeError> {
        handover::raise_limit();
        let mut taken = Taken::of(given);
        let started = Self::start_taking(config, &mut taken);
        if let Ok(service) = &started {
            service.daemon.go_on();
        }
        // Without a daemon no descriptor can be used.
        let none = SpareSockets::default();
        let spare = started
            .as_ref()
            .map(|service| service.daemon.all.spare_sockets());
        taken.close_rest(spare.unwrap_or(&none));
        started
    }

    fn start_taking(config: &Config, taken: &mut Taken) -> Result<Self, ServeError> {
        // Check before opening anything: an SSD store overwrites the file at its path.
        check_paths(config)?;
        let served = Served::next(taken.served.take(), config);
        let config = &served.config;
        let cache = CacheConfig {
            ssd: None,
            ..config.cache.clone()
        };
        let cache = Cache::in_memory(cache, taken.memory())?;
        Self::start_with(Arc::clone(&cache), served, taken).inspect_err(|_| {
            // Removes the SSD store's file.
            let _ = cache.set_ssd(None);
        })
    }

    fn start_with(
        cache: Arc<Cache>,
        served: Served,
        taken: &mut Taken,
    ) -> Result<Self, ServeError> {
        let config = served.config.clone();
        let all = Server::new(Limits::default(), config.tls.as_ref())?;
        for fault in config.tls.iter().flat_map(TlsFiles::faults) {
            tracing::error!("{fault}");
        }
        let daemon = Arc::new(Daemon::new(cache, all));
        *daemon.served.lock() = served;
        Self::start_listening(&daemon, &config, taken).inspect_err(|_| daemon.remove_sockets())
    }

    fn start_listening(
        daemon: &Arc<Daemon>,
        config: &Config,
        taken: &mut Taken,
    ) -> Result<Self, ServeError> {
        let tcp = start_serving(daemon, config, taken)?;
        // Start it last: it removes its socket only when it is stopped.
        let metrics = config
            .metrics
            .map(|address| {
                let from = Arc::clone(daemon);
                let names = Mutex::new(PoolNames::default());
                let text = move || {
                    let mut stats = from.stats();
                    names.lock().bound(&mut stats, Instant::now());
                    metrics::text(&stats)
                };
                justitia_common::metrics::Server::start(address, text).map_err(|e| {
                    ServeError::Refused(format!("cannot serve metrics on {address}: {e}"))
                })
            })
            .transpose()?;
        let control = config
            .control
            .as_ref()
            .map(|path| ControlServer::start(path, Arc::<Daemon>::clone(daemon)))
            .transpose()?;
        Ok(Self {
            daemon: Arc::clone(daemon),
            control,
            metrics,
            tcp,
        })
    }

    /// Serves a new configuration: adds its new VMs and disks, removes those that it no longer names. Removed clients get the
    /// replies to their requests in flight and are disconnected; their disks are flushed. Weights, policies, pools and store
    /// sizes follow the file where it has changed, and requests elsewhere. Other changes are logged and need a restart.
    ///
    /// # Errors
    /// When two of its paths are the same, it has no VM, or a store cannot have its size; nothing is changed then. A VM or disk
    /// that fails is no error: it is in the log and in the [statistics](Self::stats), and the next reload tries it again.
    pub fn reload(&self, config: &Config) -> Result<Reloaded, ServeError> {
        self.daemon.reload(config)
    }

    /// The TCP address of the NBD server, with the port that was chosen if it was 0.
    #[must_use]
    pub const fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// A row for each port and each configured disk, served or not.
    ///
    /// # Errors
    /// While another request changes the configuration, for longer than 2 s.
    pub fn list(&self) -> Result<Vec<ListedDisk>, ServeError> {
        self.daemon.list()
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.daemon.stats()
    }

    #[cfg(test)]
    pub(super) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    #[cfg(test)]
    pub(super) fn volumes(&self) -> Vec<Arc<crate::frontend::Volume>> {
        self.daemon.volumes.lock().clone()
    }

    #[cfg(test)]
    pub(super) fn cache(&self) -> &Cache {
        &self.daemon.cache
    }

    /// The address on which metrics are served, with the port that was chosen if it was 0.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
            .as_ref()
            .map(justitia_common::metrics::Server::address)
    }

    /// Ends, within `timeout`: requests in flight are finished, disks flushed, sockets and the SSD store's file removed.
    /// Clients that do not take their replies are disconnected; disks that do not answer are left behind.
    ///
    /// # Errors
    /// When a disk could not be flushed. The error names it.
    pub fn shut_down(self, timeout: Duration) -> io::Result<()> {
        let mut ended = self.end(false, timeout);
        ended.remove_sockets();
        // Deletes the SSD store's contents.
        if let Err(e) = ended.daemon.cache.set_ssd(None) {
            tracing::error!("cannot close the SSD store: {e}");
        }
        flushed(&ended.failed)
    }

    /// Ends as [`shut_down`](Self::shut_down) does, and leaves the cached blocks to the next daemon. They are in the returned
    /// descriptors, among them the listening sockets, and in the SSD store's file or device. If the descriptors are not kept,
    /// the caller closes them; the next daemon then uses the blocks of the SSD store that can be proven without them.
    ///
    /// Disks that have not answered within `timeout` are left out. Saving the SSD store may take `timeout` again.
    ///
    /// # Errors
    /// When a disk could not be flushed. The error names it.
    pub fn hand_over(self, timeout: Duration) -> (Descriptors, io::Result<()>) {
        self.end(false, timeout).leave(timeout)
    }

    /// As [`hand_over`](Self::hand_over), and also leaves client connections to the program that this process is about to
    /// execute. The descriptors must keep their numbers. A connection is left only if its requests were answered in time. NBD
    /// clients with TLS are disconnected.
    ///
    /// # Errors
    /// As there.
    pub fn hand_over_with_clients(self, timeout: Duration) -> (Descriptors, io::Result<()>) {
        self.end(true, timeout).leave(timeout)
    }

    /// Ends as [`shut_down`](Self::shut_down) does where descriptors are not kept, and leaves the SSD store's blocks to the
    /// next daemon. Saving them may take `timeout` again.
    ///
    /// # Errors
    /// When a disk could not be flushed. The error names it.
    pub fn leave_ssd(self, timeout: Duration) -> io::Result<()> {
        let mut ended = self.end(false, timeout);
        ended.remove_sockets();
        ended.leave(timeout).1
    }

    /// Stops serving, and flushes all disks. `leaving` keeps clients for the next daemon.
    fn end(self, leaving: bool, timeout: Duration) -> Ended {
        let control = self.control.map(ControlServer::stop_keeping);
        drop(self.metrics);
        let end = Instant::now() + timeout;
        // Let a running addition or removal end first, and allow none after it. One that hangs is not waited for.
        let daemon = self.daemon;
        let served = daemon.served.try_lock_until(end - timeout / 2);
        // Requests have three quarters of the time, clients that are cut off an eighth, flushes the rest.
        let (answered, left) = (end - timeout / 4, end - timeout / 8);
        let mut closed = daemon.close_servers(leaving, answered, left);
        closed
            .sockets
            .extend(control.map(|(socket, path)| (Arc::new(socket), path)));
        let failed = flush_each(&daemon.volumes.lock(), end);
        drop(served);
        Ended {
            daemon,
            closed,
            failed,
        }
    }
}

/// A daemon that has stopped serving.
struct Ended {
    daemon: Arc<Daemon>,
    /// Its listening sockets and its clients.
    closed: Closed,
    /// The disks that could not be flushed, and why.
    failed: BTreeMap<String, String>,
}

impl Ended {
    /// Closes the sockets, and removes those that this daemon has made.
    fn remove_sockets(&mut self) {
        for path in self.closed.made() {
            let _ = std::fs::remove_file(path);
        }
    }

    fn leave(self, timeout: Duration) -> (Descriptors, io::Result<()>) {
        let left = leave(&self.daemon, &self.failed, self.closed, timeout);
        (left, flushed(&self.failed))
    }
}

/// Adds the VMs and the SSD store, and listens. Returns the TCP address of the server of all disks.
fn start_serving(
    daemon: &Daemon,
    config: &Config,
    taken: &mut Taken,
) -> Result<Option<SocketAddr>, ServeError> {
    let mut added = config
        .vms
        .iter()
        .map(|vm| daemon.add_vm(vm))
        .collect::<Result<Vec<_>, _>>()?;
    // Of several disks, those whose images open are served. If none opens, this is an error.
    let none = daemon.volumes.lock().is_empty();
    for (vm, added) in config.vms.iter().zip(&mut added) {
        for Failed { disk, why } in std::mem::take(&mut added.failed) {
            if none || !matches!(why, ServeError::Open(_)) {
                return Err(why);
            }
            daemon.cannot_serve(&vm.name, &disk, &why);
        }
    }
    taken.restore_memory(daemon);
    // Only once the images are locked, so that the SSD store cannot overwrite one of them.
    if let Some(ssd) = &config.cache.ssd
        && let Err(e) = daemon.replace_ssd(ssd.clone())
    {
        daemon.cache.refuse_ssd(ssd.clone(), e.to_string());
        tracing::error!("{e}: the disks are served without it, and its pools use memory");
    }
    taken.restore_ssd(daemon);
    let access = config.listen.access;
    let mut refused = None;
    for (vm, added) in config.vms.iter().zip(added) {
        refused = refused.or(daemon.listen_or_leave_out(vm, added, access));
    }
    if let Some(why) = refused.filter(|_| daemon.volumes.lock().is_empty()) {
        return Err(why);
    }
    if let Some(path) = &config.listen.unix {
        daemon.all.listen_unix_as(path, access)?;
    }
    let insecure = config.listen.insecure;
    let tcp = config
        .listen
        .tcp
        .map(|address| daemon.all.listen_tcp(address, insecure))
        .transpose()?;
    if let (Some(address), true) = (tcp, insecure) {
        tracing::warn!(
            "insecure: every client that reaches {address} can read and write every disk"
        );
    }
    Ok(tcp)
}

#[cfg(test)]
mod tests;
