//! One front end, from its first message to its end.

use super::config_channel::{Next, look_ahead, take_channel};
use super::device::Device;
use super::leave::Left;
use crate::connections::LeftConnection;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::{BackendReqHandler, Error};

/// Answers the front end's messages until it leaves. Its queues are stopped then, and what was in flight is answered. `left`
/// is what the last daemon has left of it. Returns the connection if the next daemon is to go on with it.
///
/// # Errors
/// When it sends what no front end sends, or asks for what cannot be had.
pub(super) fn serve(
    socket: UnixStream,
    device: Device,
    left: Option<Left>,
) -> io::Result<Option<LeftConnection>> {
    let ahead = socket.try_clone()?;
    let device = Arc::new(Mutex::new(device));
    let mut messages = match left {
        None => BackendReqHandler::from_stream(socket, Arc::clone(&device)),
        Some(left) => left.resume(socket, &device)?,
    };
    let done = answer(&ahead, &device, &mut messages);
    let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
    let is_whole = device.stop();
    let why = device.hangup.why();
    if let (Ok(End::Leaving), true, None) = (&done, is_whole, why) {
        return device.leave(ahead).map(Some);
    }
    device.config_channel.close();
    why.map_or(done.map(|_| None), |why| Err(io::Error::other(why)))
}

/// How the messages of a front end end.
enum End {
    /// It has left.
    Left,
    /// The next daemon goes on.
    Leaving,
}

fn answer(
    socket: &UnixStream,
    device: &Mutex<Device>,
    messages: &mut BackendReqHandler<Mutex<Device>>,
) -> io::Result<End> {
    let hangup = {
        let device = device.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&device.hangup)
    };
    loop {
        if !hangup.wait()? {
            return Ok(End::Leaving);
        }
        match look_ahead(socket)? {
            Next::End => return Ok(End::Left),
            Next::Channel => {
                let device = device.lock().unwrap_or_else(PoisonError::into_inner);
                take_channel(socket, &device.config_channel, |f| device.has_protocol(f))?;
            }
            Next::Other => match messages.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected) => return Ok(End::Left),
                Err(Error::SocketRetry(_)) => {}
                Err(e) => return Err(io::Error::other(e)),
            },
        }
    }
}
