//! What goes into a negotiation, and what comes out of it.

use crate::nbd::encode::Style;

/// What negotiation must know of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name; the empty name asks for the default.
    pub name: String,
    /// For people.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Transmission flags (`proto::export_flag`).
    pub flags: u16,
}

/// Where negotiation finds the exports.
pub trait ExportLookup {
    /// The export of that name, or the default one for the empty name.
    fn find(&self, name: &str) -> Option<ExportInfo>;
    /// All of them.
    fn list(&self) -> Vec<ExportInfo>;
    /// How many there are.
    fn count(&self) -> usize {
        self.list().len()
    }
}

/// Whether the connection uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// The server has none.
    Unavailable,
    /// The client may ask for it.
    Offered,
    /// Nothing else is answered before it.
    Required,
    /// It is on.
    Active,
}

/// What comes after the bytes that were consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes are needed.
    More,
    /// The replies go out, then TLS begins; call again with what arrives through it.
    StartTls,
    /// Requests follow.
    Transmission(Agreed),
    /// The replies go out, then the connection ends, for this reason.
    Close(&'static str),
}

/// What was negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The export's name, as the exports knows it.
    pub export: String,
    /// How replies look.
    pub style: Style,
    /// BLOCK_STATUS may be asked.
    pub allocation: bool,
}
