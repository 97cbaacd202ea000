//! A connection's bytes, plain or through TLS.

#![expect(clippy::indexing_slicing, reason = "four descriptors have four places")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::time::{Duration, Instant};
use x509_cert::certificate::{CertificateInner, Raw as RawProfile};
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};

/// An unchecked certificate: rustls has verified it.
type Certificate = CertificateInner<RawProfile>;

/// A stream socket, plain or with TLS on it.
pub(super) struct Transport {
    socket: Arc<OwnedFd>,
    tls: Option<Box<ServerConnection>>,
    /// Bytes that were sent.
    sent: u64,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readiness {
    /// Bytes arrived, or the peer is gone.
    pub readable: bool,
}

struct Raw<'a> {
    socket: BorrowedFd<'a>,
    wait: bool,
}

impl Read for Raw<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let flags = if self.wait {
            RecvFlags::empty()
        } else {
            RecvFlags::DONTWAIT
        };
        loop {
            match recv(self.socket, &mut *buf, flags) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(send(
            self.socket,
            buf,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport {
    pub(super) const fn new(socket: Arc<OwnedFd>) -> Self {
        Self {
            socket,
            tls: None,
            sent: 0,
        }
    }

    /// The socket below.
    pub(super) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Bytes that were sent so far.
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// The names in the client's certificate; none before the client has shown one, and without TLS.
    pub(super) fn client_names(&self) -> Vec<String> {
        let certificates = self.tls.as_ref().and_then(|tls| tls.peer_certificates());
        certificates
            .and_then(<[_]>::first)
            .map(certificate_names)
            .unwrap_or_default()
    }

    /// Begins TLS; the handshake happens as bytes are received.
    pub(super) fn secure(&mut self, config: Arc<ServerConfig>) -> io::Result<()> {
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(256 << 10));
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Does it use TLS?
    pub(super) const fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Sets the longest wait of [`receive`](Self::receive).
    pub(super) fn bound_waiting(&self, time: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.socket, Timeout::Recv, Some(time))?)
    }

    /// Receives available bytes, 0 at the end. Returns [`io::ErrorKind::WouldBlock`] when there are none; with `wait` only
    /// after the time that [`bound_waiting`](Self::bound_waiting) has set.
    pub(super) fn receive(&mut self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        let mut raw = Raw {
            socket: self.socket.as_fd(),
            wait,
        };
        let Some(tls) = &mut self.tls else {
            return raw.read(buf);
        };
        loop {
            match tls.reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // Closed without close_notify, which is fine: NBD has its own end.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            if tls.read_tls(&mut raw)? == 0 {
                return Ok(0);
            }
            let processed = tls.process_new_packets();
            // Send handshake messages, and the alert that names an error.
            self.sent += flush_tls(tls, self.socket.as_fd())?;
            processed.map_err(io::Error::other)?;
        }
    }

    /// Sends as much as fits now; [`io::ErrorKind::WouldBlock`] when nothing fits.
    pub(super) fn send(&mut self, parts: &[IoSlice]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut none = SendAncillaryBuffer::default();
            return match sendmsg(&*self.socket, parts, &mut none, flags) {
                Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
                sent => {
                    let sent = sent?;
                    self.sent += count(sent);
                    Ok(sent)
                }
            };
        };
        self.sent += flush_tls(tls, self.socket.as_fd())?;
        if tls.wants_write() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = tls.writer().write_vectored(parts)?;
        self.sent += flush_tls(tls, self.socket.as_fd())?;
        Ok(sent)
    }

    /// Are there accepted bytes that are not yet sent?
    pub(super) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends the bytes that [`has_unsent`](Self::has_unsent) reports, as far as they fit.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            self.sent += flush_tls(tls, self.socket.as_fd())?;
        }
        Ok(())
    }

    /// Sends the TLS close_notify alert.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The peer may have closed already.
            let _ = flush_tls(tls, self.socket.as_fd());
        }
    }

    /// Tells the peer at once that the connection has ended.
    pub(super) fn shut_down(&self) {
        // The peer may have closed already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Waits until the socket can be read (if `read`) or written (if `write`), one of `wakes` is readable, or
    /// the deadline passes (an error of kind [`io::ErrorKind::TimedOut`]).
    pub(super) fn wait(
        &self,
        read: bool,
        write: bool,
        wakes: [Option<BorrowedFd>; 3],
        deadline: Option<Instant>,
    ) -> io::Result<Readiness> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, read);
        events.set(PollFlags::OUT, write);
        let socket = PollFd::from_borrowed_fd(self.socket.as_fd(), events);
        let mut fds = [socket.clone(), socket.clone(), socket.clone(), socket];
        let mut count = 1;
        for wake in wakes.into_iter().flatten() {
            fds[count] = PollFd::from_borrowed_fd(wake, PollFlags::IN);
            count += 1;
        }
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = left.and_then(|l| Timespec::try_from(l).ok());
            match poll(&mut fds[..count], left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(e) => return Err(e.into()),
            }
        }
        let got = fds[0].revents();
        if !read && got.intersects(PollFlags::ERR | PollFlags::HUP) {
            // The socket is broken, and reading is not wanted: only an error can follow.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(Readiness {
            readable: got.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
        })
    }
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Sends the output of TLS, as far as it fits. Returns the number of bytes.
fn flush_tls(tls: &mut ServerConnection, socket: BorrowedFd) -> io::Result<u64> {
    let mut raw = Raw {
        socket,
        wait: false,
    };
    let mut sent = 0;
    while tls.wants_write() {
        match tls.write_tls(&mut raw) {
            Ok(bytes) => sent += count(bytes),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}

// TLS with certificates, as NBD clients expect it (`qemu --object tls-creds-x509`, `nbdinfo --tls…`).

/// A directory with `server-cert.pem`, `server-key.pem` and, to verify clients, `ca-cert.pem`: the names
/// that QEMU and libnbd use.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TlsFiles {
    /// The directory.
    pub directory: PathBuf,
    /// Clients must show a certificate of the CA. They see the disks of the VMs that name it.
    pub verify_clients: bool,
}

/// Why TLS cannot be offered: what was expected and found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The error for an invalid file.
fn unusable(path: &Path, expected: &str, why: impl std::fmt::Display) -> TlsError {
    let path = path.display();
    TlsError(format!(
        "cannot use {path} for TLS: expected {expected}: {why}"
    ))
}

impl TlsFiles {
    /// Faults of the files, in words: unusable ones, and certificates that are not valid now.
    pub(crate) fn faults(&self) -> Vec<String> {
        if let Err(e) = self.load() {
            return vec![e.to_string()];
        }
        let authority = self.verify_clients.then_some("ca-cert.pem");
        let names = ["server-cert.pem"].into_iter().chain(authority);
        let paths = names.map(|name| self.directory.join(name));
        paths.filter_map(|path| expiry(&path)).collect()
    }

    pub(super) fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&self.directory.join("server-cert.pem"))?;
        let key_path = self.directory.join("server-key.pem");
        let why = |e: &dyn std::fmt::Display| e.to_string();
        let key = pem(&key_path)
            .map_err(|e| why(&e))
            .and_then(|pem| PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| why(&e)))
            .map_err(|why| unusable(&key_path, "a private key in PEM", why))?;
        // For example, certificate and key do not match.
        let rejected = |e: rustls::Error| {
            let directory = self.directory.display();
            TlsError(format!("cannot use the certificates in {directory}: {e}"))
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(rejected)?;
        let builder = if self.verify_clients {
            let ca = self.directory.join("ca-cert.pem");
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&ca)? {
                roots.add(certificate).map_err(rejected)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|e| unusable(&ca, "a CA certificate in PEM", e))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(chain, key).map_err(rejected)?;
        Ok(Arc::new(config))
    }
}

/// A certificate of a file that has expired or is not yet valid, and the date.
fn expiry(path: &Path) -> Option<String> {
    let found = certificates(path).ok()?;
    found.iter().find_map(|certificate| {
        let certificate = Certificate::from_der(certificate).ok()?;
        let validity = certificate.tbs_certificate().validity();
        let now = SystemTime::now();
        let why = if validity.not_after.to_system_time() < now {
            format!("one that has expired, on {}", validity.not_after)
        } else if validity.not_before.to_system_time() > now {
            format!("one that is not valid before {}", validity.not_before)
        } else {
            return None;
        };
        Some(format!(
            "expected a certificate that is valid now in {}, found {why}: no client accepts it; make a new one",
            path.display()
        ))
    })
}

/// The largest file with keys or certificates, bytes.
const MAX_BYTES: u64 = 1 << 20;

fn pem(path: &Path) -> std::io::Result<String> {
    justitia_common::regular_file::read_text(path, MAX_BYTES)
}

/// The names of a certificate: its subject's common names, and its DNS names.
fn certificate_names(certificate: &CertificateDer) -> Vec<String> {
    let Ok(found) = Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let found = found.tbs_certificate();
    let common = found
        .subject()
        .iter()
        .filter(|part| part.oid == COMMON_NAME);
    let common = common.filter_map(|part| part.value.decode_as::<DirectoryString>().ok());
    let mut names: Vec<_> = common.map(|name| name.value().into_owned()).collect();
    if let Ok(Some((_, SubjectAltName(alternative)))) = found.get_extension() {
        names.extend(alternative.into_iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            _ => None,
        }));
    }
    names
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |why: String| unusable(path, "a certificate in PEM", why);
    let text = pem(path).map_err(|e| error(e.to_string()))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| error(e.to_string()))?;
    if found.is_empty() {
        return Err(error("there is none".into()));
    }
    Ok(found)
}
