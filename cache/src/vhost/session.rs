//! One front end, from its first message to its end.

use super::config_channel::{Next, look_ahead, take_channel};
use super::device::Device;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::{BackendReqHandler, Error};

/// Answers the front end's messages until it leaves. Its queues are stopped then, and what was in flight is answered.
///
/// # Errors
/// When it sends what no front end sends, or asks for what cannot be had.
pub(super) fn serve(socket: UnixStream, device: Device) -> io::Result<()> {
    let ahead = socket.try_clone()?;
    let device = Arc::new(Mutex::new(device));
    let mut messages = BackendReqHandler::from_stream(socket, Arc::clone(&device));
    let done = answer(&ahead, &device, &mut messages);
    let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
    device.config_channel.close();
    device.stop();
    device
        .hangup
        .why()
        .map_or(done, |why| Err(io::Error::other(why)))
}

fn answer(
    socket: &UnixStream,
    device: &Mutex<Device>,
    messages: &mut BackendReqHandler<Mutex<Device>>,
) -> io::Result<()> {
    loop {
        match look_ahead(socket)? {
            Next::End => return Ok(()),
            Next::Channel => {
                let device = device.lock().unwrap_or_else(PoisonError::into_inner);
                take_channel(socket, &device.config_channel, |f| device.has_protocol(f))?;
            }
            Next::Other => match messages.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected) => return Ok(()),
                Err(Error::SocketRetry(_)) => {}
                Err(e) => return Err(io::Error::other(e)),
            },
        }
    }
}
