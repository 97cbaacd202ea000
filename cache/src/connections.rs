//! Connections of clients that a daemon leaves to the program that it executes.
//!
//! Their descriptors stay open over the exec, with the same numbers. A memfd describes them: a preamble, a head in JSON, and
//! the unparsed and the unsent bytes of each connection. It is sealed, so that its content does not change after the check. If
//! the head is of another version, its connections are closed.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: u64 = u64::from_le_bytes(*b"jstccons");
/// Advances whenever the layout, or the meaning of a protocol's state, changes.
const VERSION: u64 = 2;
/// Magic, version, length of the head, a checksum of all that follows, and one of the preamble.
const PREAMBLE: usize = 40;
/// The longest head, bytes: some hundred for each connection.
const MAX_HEAD: usize = 16 << 20;
/// The most unparsed and unsent bytes of all connections. One connection can have up to 32 MiB of a partly received large
/// write, and as much of unsent replies.
const MAX_BYTES: usize = 256 << 20;
/// The most descriptors. Their numbers go through one environment variable, which has at most 128 KiB.
const MAX_DESCRIPTORS: usize = 8192;
/// Seals against all changes.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE)
    .union(SealFlags::SEAL);

/// A connection without requests in flight.
pub(crate) struct LeftConnection {
    pub(crate) socket: OwnedFd,
    /// Descriptors from the client, in the order of the protocol's server.
    pub(crate) others: Vec<OwnedFd>,
    pub(crate) state: ConnectionState,
}

/// The state of a connection.
pub(crate) struct ConnectionState {
    /// Its protocol.
    pub(crate) protocol: String,
    /// The name of its disk or port.
    pub(crate) export: String,
    /// The negotiated values, in the form of the protocol's server.
    pub(crate) agreed: Value,
    /// Received bytes that are not parsed yet.
    pub(crate) received: Vec<u8>,
    /// Replies that are not sent yet.
    pub(crate) unsent: Vec<u8>,
}

/// The head of the memfd.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    /// The daemon's configuration.
    served: Value,
    connections: Vec<Entry>,
}

/// A connection in the head.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    protocol: String,
    export: String,
    socket: RawFd,
    others: Vec<RawFd>,
    agreed: Value,
    received: usize,
    unsent: usize,
}

impl LeftConnection {
    fn entry(&self) -> Entry {
        let state = &self.state;
        Entry {
            protocol: state.protocol.clone(),
            export: state.export.clone(),
            socket: self.socket.as_raw_fd(),
            others: self.others.iter().map(AsRawFd::as_raw_fd).collect(),
            agreed: state.agreed.clone(),
            received: state.received.len(),
            unsent: state.unsent.len(),
        }
    }

    fn bytes(&self) -> usize {
        self.state.received.len() + self.state.unsent.len()
    }

    fn descriptors(self) -> impl Iterator<Item = OwnedFd> {
        std::iter::once(self.socket).chain(self.others)
    }
}

/// Saves the configuration and the connections in a memfd. Returns it with the connections' descriptors. Connections beyond the
/// limits are left out, those with most bytes first; the log tells how many.
///
/// # Errors
/// When the system refuses memory.
pub(crate) fn save(
    served: Value,
    mut connections: Vec<LeftConnection>,
) -> io::Result<(File, Vec<OwnedFd>)> {
    connections.sort_by_key(LeftConnection::bytes);
    let (mut bytes, mut descriptors) = (0, 0);
    let all = connections.len();
    let fitting = connections.iter().take_while(|connection| {
        bytes += connection.bytes();
        descriptors += 1 + connection.others.len();
        bytes <= MAX_BYTES && descriptors <= MAX_DESCRIPTORS
    });
    let fitting = fitting.count();
    connections.truncate(fitting);
    if fitting < all {
        tracing::warn!(
            "{} connections are closed: they have more than {MAX_DESCRIPTORS} descriptors, or {MAX_BYTES} bytes that are under way",
            all - fitting
        );
    }
    let head = serde_json::to_vec(&Head {
        served,
        connections: connections.iter().map(LeftConnection::entry).collect(),
    })?;
    if head.len() > MAX_HEAD {
        return Err(invalid(
            "the connections and the configuration take over 16 MiB to describe",
        ));
    }
    let mut content = head.clone();
    for connection in &mut connections {
        content.append(&mut connection.state.received);
        content.append(&mut connection.state.unsent);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("justitia-connections", flags)?);
    file.write_all_at(&preamble(head.len(), &content), 0)?;
    file.write_all_at(&content, number(PREAMBLE))?;
    fcntl_add_seals(&file, SEALS)?;
    let descriptors = connections
        .into_iter()
        .flat_map(LeftConnection::descriptors);
    Ok((file, descriptors.collect()))
}

/// Loads the configuration, and the connections that a memfd describes, with these descriptors. A descriptor without
/// description is closed, and so is a connection with a missing descriptor.
///
/// # Errors
/// When [`save`] of this version has not made it.
pub(crate) fn load(
    file: &File,
    descriptors: Vec<OwnedFd>,
) -> io::Result<(Value, Vec<LeftConnection>)> {
    let seals = fcntl_get_seals(file)
        .map_err(|_| invalid("expected a memfd of connections, found something else"))?;
    if !seals.contains(SEALS) {
        return Err(invalid(
            "expected a sealed memfd of connections, found one that may change",
        ));
    }
    let most = PREAMBLE + MAX_HEAD + MAX_BYTES;
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if size > most {
        return Err(invalid(
            "expected a description of connections of at most 272 MiB, found more",
        ));
    }
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0)?;
    let (head, mut rest) = parse(&bytes).ok_or_else(|| {
        invalid("expected a description of connections of this version, found another")
    })?;
    let mut by_number: BTreeMap<_, _> = descriptors
        .into_iter()
        .map(|descriptor| (descriptor.as_raw_fd(), descriptor))
        .collect();
    let mut found = Vec::new();
    for entry in head.connections {
        let received = take(&mut rest, entry.received)?;
        let unsent = take(&mut rest, entry.unsent)?;
        let others = entry.others.iter().map(|other| by_number.remove(other));
        let others: Option<Vec<_>> = others.collect();
        if let (Some(socket), Some(others)) = (by_number.remove(&entry.socket), others) {
            found.push(LeftConnection {
                socket,
                others,
                state: ConnectionState {
                    protocol: entry.protocol,
                    export: entry.export,
                    agreed: entry.agreed,
                    received,
                    unsent,
                },
            });
        }
    }
    Ok((head.served, found))
}

/// Takes the next bytes.
fn take(rest: &mut &[u8], count: usize) -> io::Result<Vec<u8>> {
    let (taken, left) = rest
        .split_at_checked(count)
        .ok_or_else(|| invalid("expected the bytes of each connection, found fewer"))?;
    *rest = left;
    Ok(taken.to_vec())
}

fn preamble(head: usize, content: &[u8]) -> Vec<u8> {
    let words = [MAGIC, VERSION, number(head), xxh3_64(content)];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// Parses the head, and returns it with the bytes of the connections. `None` when another version has made it, or it is
/// damaged.
fn parse(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let (first, content) = bytes.split_at_checked(PREAMBLE)?;
    let head = usize::try_from(u64::from_le_bytes(*first.get(16..)?.first_chunk()?)).ok()?;
    let expected = preamble(head, content);
    if head > MAX_HEAD || first != expected {
        return None;
    }
    let (head, bytes) = content.split_at_checked(head)?;
    Some((serde_json::from_slice(head).ok()?, bytes))
}

fn number(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn connection(export: &str, received: &[u8]) -> (LeftConnection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let left = LeftConnection {
            socket: ours.into(),
            others: vec![tempfile::tempfile().unwrap().into()],
            state: ConnectionState {
                protocol: "test".into(),
                export: export.into(),
                agreed: format!("of {export}").into(),
                received: received.to_vec(),
                unsent: export.into(),
            },
        };
        (left, theirs)
    }

    fn has_left(theirs: &mut UnixStream) -> bool {
        theirs.set_nonblocking(true).unwrap();
        matches!(std::io::Read::read(theirs, &mut [0; 1]), Ok(0))
    }

    #[test]
    fn connections_come_back_each_with_its_own() {
        let (first, _a) = connection("first", b"some");
        let (second, _b) = connection("second", b"");
        let numbers = [first.socket.as_raw_fd(), second.socket.as_raw_fd()];
        let other = first.others[0].as_raw_fd();
        let (file, mut descriptors) = save("served".into(), vec![first, second]).unwrap();
        // In whatever order they come.
        descriptors.reverse();
        let (served, mut found) = load(&file, descriptors).unwrap();
        assert_eq!(served, "served");
        found.sort_by_key(|found| found.state.export.clone());
        let sockets: Vec<_> = found.iter().map(|found| found.socket.as_raw_fd()).collect();
        assert_eq!(sockets, numbers);
        assert_eq!(found[0].others[0].as_raw_fd(), other);
        for (found, received) in found.iter().zip(["some", ""]) {
            let state = &found.state;
            let ConnectionState { export, agreed, .. } = state;
            assert_eq!(*agreed, format!("of {export}"));
            assert_eq!(state.received, received.as_bytes());
            assert_eq!(state.unsent, export.as_bytes());
        }
    }

    #[test]
    fn a_connection_without_all_its_descriptors_is_closed() {
        let (left, mut theirs) = connection("left", b"");
        let (file, mut descriptors) = save(Value::Null, vec![left]).unwrap();
        descriptors.pop();
        assert!(load(&file, descriptors).unwrap().1.is_empty());
        assert!(has_left(&mut theirs));
    }

    #[test]
    fn another_version_and_damage_close_all() {
        let (left, _theirs) = connection("left", b"some");
        let (file, _) = save(Value::Null, vec![left]).unwrap();
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let made = |bytes: &[u8], seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let made = File::from(memfd_create("test", flags).unwrap());
            made.write_all_at(bytes, 0).unwrap();
            fcntl_add_seals(&made, seals).unwrap();
            made
        };
        assert!(load(&made(&bytes, SEALS), Vec::new()).is_ok());
        assert!(load(&made(&bytes, SealFlags::SHRINK), Vec::new()).is_err());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let (left, mut theirs) = connection("left", b"");
            let given = left.descriptors().collect();
            assert!(load(&made(&damaged, SEALS), given).is_err(), "byte {at}");
            assert!(has_left(&mut theirs));
        }
        for end in 0..bytes.len() {
            assert!(load(&made(&bytes[..end], SEALS), Vec::new()).is_err());
        }
        // As this version would have written it, but for its number.
        let mut other = bytes.clone();
        other[8] += 1;
        let sum = xxh3_64(&other[..32]);
        other[32..40].copy_from_slice(&sum.to_le_bytes());
        assert!(load(&made(&other, SEALS), Vec::new()).is_err());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        assert!(load(&file, Vec::new()).is_err());
    }

    #[test]
    fn who_has_sent_most_is_left_out_first() {
        let (large, mut closed) = connection("large", &vec![0; MAX_BYTES]);
        let (small, mut kept) = connection("small", b"some");
        let (file, descriptors) = save(Value::Null, vec![large, small]).unwrap();
        let found = load(&file, descriptors).unwrap().1;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].state.export, "small");
        assert!(has_left(&mut closed) && !has_left(&mut kept));
    }
}
