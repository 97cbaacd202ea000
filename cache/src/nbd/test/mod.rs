//! The server by its parts and by its socket; real clients are in `tests/nbd_clients.rs`.

pub(crate) mod client;
mod hang;
mod hostile;
mod image;
mod leave;
pub(crate) mod live;
mod order;
mod pure;
