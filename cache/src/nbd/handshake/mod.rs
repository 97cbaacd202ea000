//! Negotiation (fixed newstyle), apart from I/O.

mod exports;
mod machine;
mod parse;
mod types;

pub use machine::Handshake;
pub use types::{Agreed, ExportInfo, ExportLookup, Next, Tls};
