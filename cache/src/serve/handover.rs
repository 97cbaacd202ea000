//! State that a daemon hands over to the next one, and how the next one uses it.
//!
//! Descriptors go through systemd's file-descriptor store, or over an exec: the memory of the memory store, a memfd that lists
//! its blocks, the locked images, the sockets. The next daemon uses blocks only if their images are unchanged
//! ([`crate::warm`]).

use super::daemon::{Closed, Daemon};
use super::served::Served;
use crate::cache::random;
use crate::connections::{self, LeftConnection};
use crate::frontend::{Backend, Volume};
use crate::ids::DiskId;
use crate::inherited::{self, SpareSockets};
use crate::store::check_arena;
use crate::warm::{Head, ImageState, Memfd, PAGE_BYTES, Preamble, Restored, wait_for_clock};
use rustix::fs::{MemfdFlags, fcntl_get_seals, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MEMORY: &str = "justitia-cache-memory";
const INDEX: &str = "justitia-cache-index";
const IMAGE: &str = "justitia-cache-image";
const SOCKET: &str = "justitia-cache-socket";
/// A memfd that lists the connections. It and the connections' descriptors only go over an exec. There may be thousands of
/// connections, and their names share one environment variable: so [`CONNECTION`] is short.
const CONNECTIONS: &str = "justitia-cache-connections";
const CONNECTION: &str = "jfd";

/// The names of descriptors that a daemon hands over. The next daemon takes them, then removes them from systemd's store.
pub const STORED: [&str; 4] = [MEMORY, INDEX, IMAGE, SOCKET];

/// Collects the descriptors for the next daemon. Requests have ended; clients and the control socket are closed.
pub(super) fn leave(
    daemon: &Daemon,
    failed: &BTreeMap<String, String>,
    closed: Closed,
    timeout: Duration,
) -> Descriptors {
    let mut left = Descriptors::new();
    for (socket, path) in closed.sockets {
        // systemd hands over its own listening sockets again. Over an exec they are matched by address.
        let name = if path.is_some() { SOCKET } else { "listen" };
        if let Ok(socket) = socket.try_clone() {
            left.push((name.to_owned(), socket));
        }
    }
    let spare = daemon.all.spare_sockets().take_all().into_iter();
    left.extend(spare.map(|socket| ("listen".to_owned(), socket)));
    daemon.cache.freeze();
    let images = settled_images(daemon, failed);
    if let Some(connections) = closed.connections {
        left.extend(leave_connections(daemon, failed, connections));
    }
    daemon.let_go();
    match leave_blocks(daemon, &images, Instant::now() + timeout) {
        Ok(memory) => left.extend(memory),
        Err(e) => tracing::error!("the next start begins with an empty memory store: {e}"),
    }
    daemon.cache.close_ssd();
    let images = images.into_values();
    left.extend(
        images.filter_map(|image| Some((IMAGE.to_owned(), image.try_clone().ok()?.into()))),
    );
    left
}

/// The connections to disks that are idle and flushed. A client whose disk has lost a write must be disconnected.
fn leave_connections(
    daemon: &Daemon,
    failed: &BTreeMap<String, String>,
    connections: Vec<LeftConnection>,
) -> Descriptors {
    let settled: BTreeSet<_> = daemon
        .all
        .volumes()
        .iter()
        .filter(|volume| is_settled(volume, failed))
        .map(|volume| volume.name().to_owned())
        .collect();
    let kept = connections.into_iter();
    let kept: Vec<_> = kept
        .filter(|connection| settled.contains(&connection.state.export))
        .collect();
    let served = daemon.served.try_lock();
    let served = served.map(|served| serde_json::to_value(daemon.running(&served)));
    let saved = served
        .transpose()
        .map_err(io::Error::from)
        .and_then(|served| connections::save(served.unwrap_or_default(), kept));
    match saved {
        Ok((file, descriptors)) => {
            let descriptors = descriptors.into_iter();
            let descriptors = descriptors.map(|of| (CONNECTION.to_owned(), of));
            std::iter::once((CONNECTIONS.to_owned(), file.into()))
                .chain(descriptors)
                .collect()
        }
        Err(e) => {
            tracing::error!("the clients are disconnected, and changes by requests are lost: {e}");
            Descriptors::new()
        }
    }
}

/// Is the volume idle and flushed?
fn is_settled(volume: &Volume, failed: &BTreeMap<String, String>) -> bool {
    let disk = volume.backend().disk();
    !failed.contains_key(volume.name()) && volume.is_idle() && disk.sync_failure().is_none()
}

/// The locked images of disks that are idle and flushed.
fn settled_images(
    daemon: &Daemon,
    failed: &BTreeMap<String, String>,
) -> BTreeMap<DiskId, Arc<File>> {
    let images = daemon.images.lock();
    let volumes = daemon.volumes.lock();
    let settled = volumes.iter().filter_map(|volume| {
        let Backend::Cached(disk) = volume.backend() else {
            return None;
        };
        let name = volume.name();
        if !is_settled(volume, failed) {
            tracing::warn!(
                disk = name,
                "the next start begins without its blocks: not all writes have ended well"
            );
            return None;
        }
        let id = disk.id();
        let image = images.get(&id)?.upgrade()?;
        Some((id, Arc::clone(image.locked_file())))
    });
    settled.collect()
}

/// Saves the lists of cached blocks: the SSD store's on its device, the memory store's in the returned descriptors.
fn leave_blocks(
    daemon: &Daemon,
    images: &BTreeMap<DiskId, Arc<File>>,
    deadline: Instant,
) -> io::Result<Descriptors> {
    let states = states(images)?;
    let end = [random()?, random()?];
    let head = daemon.cache.head(end, &states);
    if let Err(e) = daemon.cache.leave_ssd(&head, deadline) {
        tracing::error!("the next start begins with an empty SSD store: {e}");
    }
    let index = File::from(memfd_create("justitia-index", MemfdFlags::CLOEXEC)?);
    let preamble = match daemon.cache.memory_file() {
        Some(_) => daemon
            .cache
            .save_memory(&Memfd(&index), PAGE_BYTES, random()?, &head)?,
        // The SSD store still needs the hand-over's number.
        None => daemon
            .cache
            .save_nothing(&Memfd(&index), PAGE_BYTES, &head)?,
    };
    index.write_all_at(&preamble.encode(), 0)?;
    let memory = daemon
        .cache
        .memory_file()
        .map(File::try_clone)
        .transpose()?;
    let memory = memory.map(|memory| (MEMORY.to_owned(), memory.into()));
    Ok(memory
        .into_iter()
        .chain([(INDEX.to_owned(), index.into())])
        .collect())
}

fn states(images: &BTreeMap<DiskId, Arc<File>>) -> io::Result<BTreeMap<DiskId, ImageState>> {
    let states = images
        .iter()
        .map(|(id, image)| Ok((*id, ImageState::of(image)?)));
    let mut states: BTreeMap<_, _> = states.collect::<io::Result<_>>()?;
    wait_for_clock(states.values())?;
    for (id, state) in &mut states {
        if let Some(image) = images.get(id) {
            state.prove_alone(image);
        }
    }
    Ok(states)
}

/// State that the last daemon has handed over.
#[derive(Default)]
pub(super) struct Taken {
    memory: Option<File>,
    index: Option<(File, Preamble)>,
    /// The number of the hand-over that the images belong to.
    end: Option<[u64; 2]>,
    /// The last daemon's configuration, with the changes by requests.
    pub(super) served: Option<Served>,
}

impl Taken {
    /// Sorts descriptors by name. Voids the list of blocks, so that no other process can use it.
    pub(super) fn of(given: Descriptors) -> Self {
        let mut taken = Self::default();
        let (mut head, mut connections) = (None, Vec::new());
        for (name, descriptor) in given {
            let refused = match name.as_str() {
                CONNECTIONS => {
                    head = Some(File::from(descriptor));
                    None
                }
                CONNECTION => {
                    connections.push(descriptor);
                    None
                }
                MEMORY => taken.take_memory(descriptor.into()).err(),
                INDEX => taken.take_index(descriptor.into()).err(),
                IMAGE => {
                    inherited::offer_image(descriptor.into());
                    None
                }
                _ => inherited::offer_socket(descriptor, name == SOCKET)
                    .err()
                    .map(io::Error::other),
            };
            if let Some(why) = refused {
                tracing::warn!(name, "a descriptor that was handed over is not used: {why}");
            }
        }
        if let Some(head) = head {
            match connections::load(&head, connections) {
                Ok((served, found)) => {
                    found.into_iter().for_each(inherited::offer_connection);
                    taken.served = serde_json::from_value(served)
                        .inspect_err(|e| {
                            tracing::error!("changes by requests are lost: cannot read the last configuration: {e}");
                        })
                        .ok();
                }
                Err(e) => tracing::warn!(
                    "the clients are disconnected, and changes by requests are lost: {e}"
                ),
            }
        }
        taken
    }

    fn take_memory(&mut self, memory: File) -> io::Result<()> {
        check_arena(&memory)?;
        self.memory = Some(memory);
        Ok(())
    }

    fn take_index(&mut self, index: File) -> io::Result<()> {
        fcntl_get_seals(&index)
            .map_err(|_| io::Error::other("expected a memfd, found something else"))?;
        let mut bytes = [0; 64];
        let read = index.read_exact_at(&mut bytes, 0);
        // Void it before any use, even if it is invalid.
        index.write_all_at(&[0; 64], 0)?;
        read?;
        let preamble = Preamble::decode(&bytes).ok_or_else(|| {
            io::Error::other("another version has made it, or it was taken before")
        })?;
        let mut end = None;
        let saw = |head: &Head| end = Some(head.end);
        crate::warm::load(
            &Memfd(&index),
            &preamble,
            index.metadata()?.len(),
            saw,
            |_, _| (),
        )?;
        self.end = end;
        self.index = Some((index, preamble));
        Ok(())
    }

    /// The memory of the memory store, if its list of blocks was handed over, too.
    pub(super) fn memory(&mut self) -> Option<File> {
        self.memory.take().filter(|_| self.index.is_some())
    }

    /// Restores the blocks of the memory store, before disks are served.
    pub(super) fn restore_memory(&mut self, daemon: &Daemon) {
        let Some((index, preamble)) = self.index.take() else {
            return;
        };
        let restored = index.metadata().and_then(|found| {
            let proof = |end, saved: &_, disk: &_| self.proof(daemon, end, saved, disk);
            daemon
                .cache
                .restore_memory(&Memfd(&index), &preamble, found.len(), &proof)
        });
        said(restored, "the memory store");
        daemon.cache.give_up_memory();
    }

    /// Restores the blocks of the SSD store, before disks are served.
    pub(super) fn restore_ssd(&self, daemon: &Daemon) {
        let proof = |end, saved: &_, disk: &_| self.proof(daemon, end, saved, disk);
        said(daemon.cache.restore_ssd(&proof), "the SSD store");
    }

    fn proof(
        &self,
        daemon: &Daemon,
        end: [u64; 2],
        saved: &crate::warm::SavedDisk,
        disk: &crate::cache::DiskHandle,
    ) -> Result<(), String> {
        let image = daemon
            .images
            .lock()
            .get(&disk.id)
            .and_then(std::sync::Weak::upgrade);
        let image = image.ok_or("its image is not open")?;
        let now = ImageState::of(image.locked_file()).map_err(|e| e.to_string())?;
        // An image's descriptor proves blocks of its own hand-over only.
        let held = image.was_held() && self.end == Some(end);
        Ok(saved.image.check(&now, held)?)
    }

    /// Closes unused descriptors, except sockets that systemd listens on.
    pub(super) fn close_rest(self, spare: &SpareSockets) {
        let rest = inherited::close_rest(spare);
        if rest > 0 {
            tracing::warn!(
                "{rest} sockets, images or clients that were handed over are not used: the configuration does not name them"
            );
        }
    }
}

fn said(restored: io::Result<Restored>, store: &str) {
    match restored {
        Ok(restored) => restored.log(store),
        Err(e) => tracing::warn!("no block of {store} is used again: {e}"),
    }
}

// Descriptors that a process inherits from systemd or over an exec.

/// Descriptors with their names, as systemd passes them.
pub type Descriptors = Vec<(String, OwnedFd)>;

/// Takes the descriptors that this process was started with. A second call returns none. Numbers that are not open are left
/// out. Call it before the process opens any file that it keeps: such a file could get a number that was announced and not
/// passed.
pub fn adopt(numbers: impl IntoIterator<Item = (RawFd, String)>) -> Descriptors {
    static CALLED: AtomicBool = AtomicBool::new(false);
    if CALLED.swap(true, Ordering::SeqCst) {
        return Descriptors::new();
    }
    let open = |number: &RawFd| {
        // SAFETY: the number is only borrowed to test whether it is open.
        *number > 2 && fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok()
    };
    let mut found = Descriptors::new();
    for (number, name) in numbers {
        let again = found.iter().any(|(_, other)| other.as_raw_fd() == number);
        if again || !open(&number) {
            continue;
        }
        // SAFETY: it is open and has no other owner: the process was started with it, and this function takes it only once.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let _ = fcntl_setfd(&descriptor, FdFlags::CLOEXEC);
        found.push((name, descriptor));
    }
    found
}

/// Keeps descriptors open across exec. Returns a text that tells the executed program their numbers. The numbers stay as they
/// are, since threads of this process may still use others.
#[must_use]
pub fn keep_over_exec(descriptors: &Descriptors) -> String {
    let mut told = std::process::id().to_string();
    for (name, descriptor) in descriptors {
        if fcntl_setfd(descriptor, FdFlags::empty()).is_ok() {
            told.push_str(&format!(",{}={name}", descriptor.as_raw_fd()));
        }
    }
    told
}

/// The numbers in a text of [`keep_over_exec`]; none if it was meant for another process.
#[must_use]
pub fn kept_over_exec(told: &str) -> Vec<(RawFd, String)> {
    let mut parts = told.split(',');
    if parts.next() != Some(&std::process::id().to_string()) {
        return Vec::new();
    }
    let kept = parts.filter_map(|part| {
        let (number, name) = part.split_once('=')?;
        Some((number.parse().ok()?, name.to_owned()))
    });
    kept.collect()
}

// The limit of open files.

/// Raises the limit of open files to its hard limit: each VM over vhost-user passes some hundred descriptors.
pub(super) fn raise_limit() {
    let now = getrlimit(Resource::Nofile);
    if now.current == now.maximum {
        return;
    }
    let raised = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of open files: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_to_the_same_process_alone() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let number = file.as_raw_fd();
        let told = keep_over_exec(&vec![("name".into(), file)]);
        assert_eq!(kept_over_exec(&told), [(number, "name".to_owned())]);
        assert_eq!(kept_over_exec(&format!("1{told}")), []);
        assert_eq!(kept_over_exec(""), []);
    }

    #[test]
    fn numbers_that_are_not_open_are_left_out() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let number = std::os::fd::IntoRawFd::into_raw_fd(file);
        let numbers = [
            (number, "a"),
            (number, "twice"),
            (1 << 20, "closed"),
            (-1, "none"),
            (2, "error"),
        ];
        let numbers = numbers.map(|(number, name)| (number, name.to_owned()));
        let found = adopt(numbers.clone());
        assert_eq!(found.len(), 1);
        drop(found);
        assert!(adopt(numbers).is_empty());
    }
}
