//! TLS with certificates, as NBD clients expect it (`qemu --object tls-creds-x509`, `nbdinfo --tls…`).

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};

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
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let (validity, now) = (certificate.validity(), ASN1Time::now());
        let why = if validity.not_after < now {
            format!("one that has expired, on {}", validity.not_after)
        } else if validity.not_before > now {
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
    let Ok((_, found)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let common = found.subject().iter_common_name();
    let mut names: Vec<_> = common.filter_map(|name| name.as_str().ok()).collect();
    if let Ok(Some(alternative)) = found.subject_alternative_name() {
        let all = alternative.value.general_names.iter();
        names.extend(all.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        }));
    }
    names.into_iter().map(str::to_owned).collect()
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
