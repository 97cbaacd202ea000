//! The protocol between a host and a guest about the guest's memory (Singh, section 5.2: cooperative ballooning).
//!
//! The channel is a virtio-serial port named [`PORT_NAME`]. The host asks, the guest answers, each in one line of JSON:
//!
//! ```text
//! host -> guest   {"request":"state","id":7}
//! guest -> host   {"id":7,"state":{"total":402653184, ...}}
//! host -> guest   {"request":"reclaim","id":8,"bytes":67108864,"within_ms":2000}
//! guest -> host   {"id":8,"reclaimed":{"bytes":67108864,"free":120586240}}
//! host -> guest   {"request":"cached","id":9,"seed":7}
//! guest -> host   {"id":9,"cached":{"seed":7,"shift":5,"file":62914560,"whole":true,"disks":[{"serial":"root", ...}]}}
//! host -> guest   {"request":"tenants","id":10}
//! guest -> host   {"id":10,"tenants":{"list":[{"name":"web","weight":300,"file":41943040}, ...],"more":2}}
//! guest -> host   {"id":11,"error":"..."}
//! ```
//!
//! Both sides are untrusted here. Nothing does I/O, knows the time or panics. Lines have at most [`MAX_LINE`] bytes, and texts of
//! the other side are printable ([`ErrorText`]). Unknown fields are ignored, so that newer sides may say more. A request of an
//! unknown kind is an error with its id ([`Malformed::id`]).

mod answer;
mod cached;
mod lines;
mod request;
mod state;
mod tenants;
mod text;

#[cfg(test)]
mod tests;

pub use answer::{Answer, Body, Reclaimed};
pub use cached::{BLOCK, Cached, CachedDisk, MAX_DISKS, Sampler, is_sampled};
pub use lines::{LineTooLong, Lines};
pub use request::Request;
pub use state::State;
pub use tenants::{MAX_TENANTS, MAX_WEIGHT, Tenant, Tenants};
pub use text::{ErrorText, Malformed, SerialText, TenantName};

/// The name of the virtio-serial port.
pub const PORT_NAME: &str = "org.justitia.memory.0";

/// Bytes of the longest line, with its newline.
pub const MAX_LINE: usize = 4096;

/// The line of a message, with its newline: at most [`MAX_LINE`] bytes.
#[must_use]
pub fn encode<T: Message>(message: &T) -> Vec<u8> {
    // Numbers, texts and fixed names always serialize.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// A message: a [`Request`] or an [`Answer`].
pub trait Message: serde::Serialize + sealed::Sealed {}

impl Message for Request {}
impl Message for Answer {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Request {}
    impl Sealed for super::Answer {}
}
