//! Lists disks and their addresses: a row for each disk.

use super::config::{Config, VmConfig};
use super::daemon::Daemon;
use super::error::ServeError;
use crate::config::Mode;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// The longest wait for another change of the configuration.
const PATIENCE: Duration = Duration::from_secs(2);

/// The mode of a disk without a cache.
const UNCACHED: &str = "uncached";

/// For a port, if no disk of its VM tells why the VM is not served.
const UNSERVED: &str = "its VM is not served: the log says why";

/// A configured disk or port, served or not.
#[derive(Clone, Debug, Serialize)]
pub struct ListedDisk {
    /// Its VM.
    pub vm: String,
    /// The export's name.
    pub name: String,
    /// A raw file or a block device; `None` for a port.
    pub image: Option<PathBuf>,
    /// Bytes; `None` where it is not served.
    pub size_bytes: Option<u64>,
    /// `inclusive`, `exclusive`, `uncached`, or `port`.
    pub mode: &'static str,
    /// Writes are refused.
    pub read_only: bool,
    /// URIs of NBD, and `vhost-user-blk:PATH`.
    pub addresses: Vec<String>,
    /// Why it is not served; `None` if it is.
    pub unserved: Option<String>,
}

impl Daemon {
    /// A row for each disk and port, in the order of the configuration.
    ///
    /// # Errors
    /// While another request changes the configuration, for longer than 2 s.
    pub(super) fn list(&self) -> Result<Vec<ListedDisk>, ServeError> {
        let served = self.served.try_lock_for(PATIENCE).ok_or_else(|| {
            let why = "another request is changing the configuration: ask again";
            ServeError::Refused(why.into())
        })?;
        let unserved_vms = self.unserved_vms(&served.config);
        let volumes = self.volumes.lock();
        let sizes = volumes.iter().map(|of| (of.name().to_owned(), of.size()));
        let sizes: BTreeMap<String, u64> = sizes.collect();
        let mut listed = rows(&served.config);
        let unserved = self.unserved.lock();
        let cached = self.cache.disks();
        for disk in &mut listed {
            disk.size_bytes = sizes.get(&disk.name).copied();
            disk.unserved = unserved.get(&disk.name).cloned();
            if disk.image.is_none() {
                disk.unserved = unserved_vms.get(&disk.vm).cloned();
            }
            // A request has uncached the disk or its VM.
            let is_cached = cached.iter().any(|(name, ..)| *name == disk.name);
            if disk.image.is_some() && disk.size_bytes.is_some() && !is_cached {
                disk.mode = UNCACHED;
            }
        }
        Ok(listed)
    }

    /// The VMs that are not served, and why, for the rows of their ports.
    fn unserved_vms(&self, config: &Config) -> BTreeMap<String, String> {
        let mut gone: Vec<&VmConfig> = config.vms.iter().collect();
        let vms = self.vms.lock();
        gone.retain(|vm| !vms.knows(&vm.name));
        drop(vms);
        let unserved = self.unserved.lock();
        let why = |vm: &VmConfig| {
            let why = vm.disks.iter().find_map(|disk| unserved.get(&disk.name));
            why.cloned().unwrap_or_else(|| UNSERVED.to_owned())
        };
        let gone = gone.into_iter();
        gone.map(|vm| (vm.name.clone(), why(vm))).collect()
    }
}

fn rows(config: &Config) -> Vec<ListedDisk> {
    let of_vm = |vm: &VmConfig| {
        let row = |name: &str| ListedDisk {
            vm: vm.name.clone(),
            name: name.to_owned(),
            image: None,
            size_bytes: None,
            mode: "port",
            read_only: false,
            addresses: addresses(config, vm, name),
            unserved: None,
        };
        let disks = vm.disks.iter().map(|disk| {
            let mut listed = row(&disk.name);
            listed.image = Some(disk.image.clone());
            listed.mode = match disk.mode {
                Some(Mode::Inclusive) => "inclusive",
                Some(Mode::Exclusive) => "exclusive",
                None => UNCACHED,
            };
            listed.read_only = disk.read_only;
            let vhost = disk.vhost.iter();
            listed
                .addresses
                .extend(vhost.map(|path| format!("vhost-user-blk:{}", path.display())));
            listed
        });
        let port = vm.port.iter().map(|port| row(&port.name));
        disks.chain(port).collect::<Vec<_>>()
    };
    config.vms.iter().flat_map(of_vm).collect()
}

/// The addresses of a disk for NBD clients.
fn addresses(config: &Config, vm: &VmConfig, name: &str) -> Vec<String> {
    let name = percent_encoded(name.as_bytes());
    let sockets = config.listen.unix.iter().chain(&vm.socket).map(|socket| {
        let socket = percent_encoded(socket.as_os_str().as_bytes());
        format!("nbd+unix:///{name}?socket={socket}")
    });
    let scheme = if config.tls.is_some() { "nbds" } else { "nbd" };
    let tcp = config.listen.tcp.iter();
    sockets
        .chain(tcp.map(|tcp| format!("{scheme}://{tcp}/{name}")))
        .collect()
}

/// Encodes a path, or a query value, of a URI (RFC 3986): bytes that are neither unreserved nor a slash become `%XX`.
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
    use std::path::Path;

    #[test]
    fn uris_are_percent_encoded() {
        let name = "My Disk (1) 100% a#b&c \u{e4}";
        let encoded = "My%20Disk%20%281%29%20100%25%20a%23b%26c%20%C3%A4";
        assert_eq!(percent_encoded(name.as_bytes()), encoded);
        assert_eq!(percent_encoded(b"/run/a-b_c.~d"), "/run/a-b_c.~d");
    }

    #[test]
    fn every_disk_and_port_is_listed_with_its_addresses() {
        let text = r#"
            [listen]
            unix = "/run/all"
            tcp = "127.0.0.1:10809"
            insecure = true
            [[vm]]
            name = "web"
            socket = "/run/web"
            [vm.port]
            [[vm.disk]]
            name = "root"
            image = "/root"
            mode = "exclusive"
            vhost = "/run/root.vhost"
            [[vm]]
            name = "none"
        "#;
        let config = Config::parse(Path::new("c"), text).unwrap();
        let listed = rows(&config);
        let found: Vec<_> = listed
            .iter()
            .map(|disk| {
                (
                    disk.vm.as_str(),
                    disk.name.as_str(),
                    disk.mode,
                    disk.addresses.len(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("web", "root", "exclusive", 4),
                ("web", "web/port", "port", 3)
            ]
        );
        let expected = [
            "nbd+unix:///root?socket=/run/all",
            "nbd+unix:///root?socket=/run/web",
            "nbd://127.0.0.1:10809/root",
            "vhost-user-blk:/run/root.vhost",
        ];
        assert_eq!(listed[0].addresses, expected);
    }
}
