//! TLS with certificates, as NBD clients expect it (`qemu --object tls-creds-x509`, `nbdinfo --tls…`).

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};

/// A certificate as it is: rustls has verified what it must be.
type Certificate = CertificateInner<Raw>;

/// A directory with `server-cert.pem`, `server-key.pem` and, to verify clients, `ca-cert.pem`: the names
/// that QEMU and libnbd use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The directory.
    pub directory: PathBuf,
    /// Clients must show a certificate of the CA, and see the disks of the VMs that its names belong to.
    pub verify_clients: bool,
}

/// Why TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not what it should be.
    #[error("cannot use {path} for TLS: expected {expected}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not go together, or the like.
    #[error("cannot use the certificates in {directory}: {source}")]
    Rejected {
        /// The directory.
        directory: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
}

impl TlsFiles {
    /// What is wrong with the files, in words: what cannot be used, and certificates that are not valid now.
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
            .map_err(|why| TlsError::File {
                path: key_path,
                expected: "a private key in PEM",
                why,
            })?;
        let rejected = |source| TlsError::Rejected {
            directory: self.directory.clone(),
            source,
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
                .map_err(|e| TlsError::File {
                    path: ca,
                    expected: "a CA certificate in PEM",
                    why: e.to_string(),
                })?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(chain, key).map_err(rejected)?;
        Ok(Arc::new(config))
    }
}

/// Which certificate of a file is not valid now, and since or from when.
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
    justitia_regular_file::read_text(path, MAX_BYTES)
}

/// The subject of a certificate: the common names of its subject, and its alternative names that are DNS names.
pub(super) fn certificate_names(certificate: &CertificateDer) -> Vec<String> {
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
    let error = |why: String| TlsError::File {
        path: path.into(),
        expected: "a certificate in PEM",
        why,
    };
    let text = pem(path).map_err(|e| error(e.to_string()))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| error(e.to_string()))?;
    if found.is_empty() {
        return Err(error("there is none".into()));
    }
    Ok(found)
}
