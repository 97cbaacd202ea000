//! A running daemon, from its start to its end.

use super::api::{ControlHandler, Stats};
use super::config::Config;
use super::control::ControlServer;
use super::daemon::Daemon;
use super::descriptors;
use super::error::ServeError;
use super::metrics;
use super::paths::{PathUse, collisions};
use super::planning::PlanningThread;
use crate::cache::Cache;
use crate::config::CacheConfig;
use crate::frontend::flush_all;
use crate::nbd::{Limits, Server, TlsFiles};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running daemon.
pub struct Service {
    daemon: Arc<Daemon>,
    control: Option<ControlServer>,
    metrics: Option<justitia_metrics_http::Server>,
    planning: PlanningThread,
    tcp: Option<SocketAddr>,
}

impl Service {
    /// Starts what the configuration says: stores, VMs, disks, sockets.
    ///
    /// # Errors
    /// When something of it cannot be had; nothing runs then, and nothing was changed but what is ours.
    pub fn start(config: &Config) -> Result<Self, ServeError> {
        descriptors::raise_limit();
        // Before anything is opened: an SSD store writes over what lies at its path.
        let found = collisions(&PathUse::of(config));
        if !found.is_empty() {
            return Err(ServeError::Paths(found));
        }
        let cache = Cache::new(CacheConfig {
            ssd: None,
            ..config.cache.clone()
        })?;
        Self::start_with(Arc::clone(&cache), config).inspect_err(|_| {
            // Removes its file.
            let _ = cache.set_ssd(None);
        })
    }

    fn start_with(cache: Arc<Cache>, config: &Config) -> Result<Self, ServeError> {
        let all = Server::new(Limits::default(), config.tls.as_ref())?;
        for fault in config.tls.iter().flat_map(TlsFiles::faults) {
            tracing::error!("{fault}");
        }
        let daemon = Daemon::new(cache, all);
        daemon.use_paths(config);
        let tcp = start_serving(&daemon, config)?;
        let daemon = Arc::new(daemon);
        let control = config
            .control
            .as_ref()
            .map(|path| ControlServer::start(path, Arc::<Daemon>::clone(&daemon)))
            .transpose()?;
        let metrics = config
            .metrics
            .map(|address| {
                let from = Arc::clone(&daemon);
                justitia_metrics_http::Server::start(address, move || metrics::text(&from.stats()))
                    .map_err(|source| ServeError::Metrics { address, source })
            })
            .transpose()?;
        let planned = Arc::clone(&daemon);
        let planning =
            PlanningThread::start(move || planned.plan()).map_err(|source| ServeError::Io {
                what: "cannot start the thread that plans weights",
                source,
            })?;
        Ok(Self {
            daemon,
            control,
            metrics,
            planning,
            tcp,
        })
    }

    /// Adds the VMs and disks of a configuration that are not served yet, and serves them; returns the names of the disks.
    /// Nothing else changes: VMs and disks that are gone from it are served until a restart.
    ///
    /// # Errors
    /// When two of its paths are the same, or a socket cannot be had. Disks whose images cannot be opened are none: they
    /// are in the log and in the [statistics](Self::stats), and the next reload tries them again.
    pub fn reload(&self, config: &Config) -> Result<Vec<String>, ServeError> {
        self.daemon.reload(config)
    }

    /// The TCP address of the NBD server, with the port that was chosen if it was 0.
    #[must_use]
    pub const fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.daemon.stats()
    }

    /// As if a period had passed.
    #[cfg(test)]
    pub(super) fn plan(&self) {
        self.daemon.plan();
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
            .map(justitia_metrics_http::Server::address)
    }

    /// Ends, within `timeout`: requests in flight are finished, disks flushed, sockets and the SSD store's file removed.
    /// Clients that do not take their replies are disconnected; disks that do not answer are left behind.
    ///
    /// # Errors
    /// When a disk could not be flushed. The error names it.
    pub fn shut_down(self, timeout: Duration) -> io::Result<()> {
        if let Some(control) = self.control {
            control.stop();
        }
        drop(self.metrics);
        self.planning.stop();
        let end = Instant::now() + timeout;
        // Requests have three quarters of the time, clients that are cut off an eighth, flushes the rest.
        self.daemon
            .close_servers(end - timeout / 4, end - timeout / 8);
        let flushed = flush_all(&self.daemon.volumes.lock(), end);
        // Removes what the SSD store holds.
        if let Err(e) = self.daemon.cache.set_ssd(None) {
            tracing::error!("cannot close the SSD store: {e}");
        }
        flushed
    }
}

/// Adds the VMs and the SSD store, and listens. Returns the TCP address of the server of all disks.
fn start_serving(daemon: &Daemon, config: &Config) -> Result<Option<SocketAddr>, ServeError> {
    let mut added = config
        .vms
        .iter()
        .map(|vm| daemon.add_vm(vm))
        .collect::<Result<Vec<_>, _>>()?;
    // Of several disks those that can be served are; of one, or where none can, this is an error.
    if daemon.volumes.lock().is_empty()
        && let Some(failed) = added.iter_mut().find_map(|added| added.failed.take())
    {
        return Err(failed.into());
    }
    // Once the images are locked, so that none of them can be taken for it.
    if let Some(ssd) = &config.cache.ssd
        && let Err(e) = daemon.replace_ssd(ssd.clone())
    {
        daemon.cache.refuse_ssd(ssd.clone(), e.to_string());
        tracing::error!("{e}: the disks are served without it, and its pools use memory");
    }
    let access = config.listen.access;
    for added in added {
        daemon.listen(added, access)?;
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
