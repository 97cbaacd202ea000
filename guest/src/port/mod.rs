//! The port: finding it, and the conversation over it.

mod device;
mod find;
mod session;

pub(crate) use find::find;
pub(crate) use session::{Ended, Session};
