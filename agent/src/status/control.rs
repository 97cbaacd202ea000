//! The control socket: one request and one answer for each client, as JSON; only for root and the agent's own user.
//!
//! A thread of its own reads each client, so a silent client delays no other. The loop takes the requests one by one.

use std::io::{Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use justitia_api::control::{Answer, MAX_REQUEST_BYTES, Request, control_path};
use justitia_common::answer_socket::AnswerSocket;

/// A client that does not write or read for this long is disconnected.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The most clients at once; the others wait.
const MAX_CLIENTS: usize = 16;

/// The control socket; removed when dropped.
#[derive(Debug)]
pub struct Control {
    socket: AnswerSocket,
    requests: Receiver<Asked>,
    sender: Sender<Asked>,
    /// Becomes readable when there is a request.
    wake: UnixStream,
    waker: UnixStream,
}

/// A request whose client waits for the answer.
#[derive(Debug)]
pub struct Asked {
    /// The request.
    pub request: Request,
    client: UnixStream,
}

impl Asked {
    /// Answers. A client that does not read is disconnected.
    pub fn answer(self, answer: &Answer) {
        let (mut client, text) = (self.client, serde_json::to_vec(answer).unwrap_or_default());
        // In a thread, so that the loop does not wait.
        let tell = move || drop(client.write_all(&text));
        let _ = std::thread::Builder::new()
            .name("control-answer".into())
            .spawn(tell);
    }
}

impl Control {
    /// Listens beside the status socket `socket`.
    ///
    /// # Errors
    /// As [`AnswerSocket::listen`].
    pub fn listen(socket: &Path) -> Result<Self> {
        let socket = AnswerSocket::listen(&control_path(socket))?;
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let (sender, requests) = channel();
        Ok(Self {
            socket,
            requests,
            sender,
            wake,
            waker,
        })
    }

    /// The listener, to wait for clients.
    #[must_use]
    pub const fn listener(&self) -> &UnixListener {
        self.socket.listener()
    }

    /// Readable when there is a request.
    #[must_use]
    pub const fn wake(&self) -> &UnixStream {
        &self.wake
    }

    /// Starts reading the waiting clients; returns the requests read since the last call.
    pub fn requests(&mut self) -> Vec<Asked> {
        for _ in 0..MAX_CLIENTS {
            let Ok((client, _)) = self.listener().accept() else {
                break;
            };
            let (sender, waker) = (self.sender.clone(), self.waker.try_clone());
            let read = move || {
                let Some(asked) = read(client) else { return };
                if sender.send(asked).is_ok()
                    && let Ok(mut waker) = waker
                {
                    let _ = waker.write_all(&[1]);
                }
            };
            let _ = std::thread::Builder::new()
                .name("control-client".into())
                .spawn(read);
        }
        let mut woken = [0; 64];
        while self.wake.read(&mut woken).is_ok_and(|read| read > 0) {}
        self.requests.try_iter().collect()
    }
}

/// Reads one request. A client without permission, or with an invalid request, gets an error.
fn read(client: UnixStream) -> Option<Asked> {
    client.set_nonblocking(false).ok()?;
    client.set_read_timeout(Some(TIMEOUT)).ok()?;
    client.set_write_timeout(Some(TIMEOUT)).ok()?;
    let refuse = |mut client: UnixStream, why: String| {
        let answer = Answer {
            errors: vec![why],
            ..Answer::default()
        };
        let _ = client.write_all(&serde_json::to_vec(&answer).unwrap_or_default());
        None
    };
    let peer = rustix::net::sockopt::socket_peercred(&client).ok()?;
    let ours = rustix::process::geteuid();
    if !peer.uid.is_root() && peer.uid != ours {
        return refuse(client, "only root may ask that".to_owned());
    }
    let mut text = Vec::new();
    (&client)
        .take(MAX_REQUEST_BYTES)
        .read_to_end(&mut text)
        .ok()?;
    match serde_json::from_slice(&text) {
        Ok(request) => Some(Asked { request, client }),
        Err(error) => refuse(
            client,
            format!("expected a request that this version knows, found another: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_api::control::request;
    use rustix::event::{PollFd, PollFlags, poll};

    /// Waits for one request.
    fn next(control: &mut Control) -> Asked {
        loop {
            if let Some(asked) = control.requests().pop() {
                return asked;
            }
            let mut fds = [
                PollFd::new(control.listener(), PollFlags::IN),
                PollFd::new(control.wake(), PollFlags::IN),
            ];
            poll(&mut fds, None).unwrap();
        }
    }

    #[test]
    fn a_request_is_answered_while_other_clients_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.sock");
        let mut control = Control::listen(&path).unwrap();
        let _silent = UnixStream::connect(control_path(&path)).unwrap();
        let client = std::thread::spawn(move || request(&path, &Request::Reload));
        let found = next(&mut control);
        assert_eq!(found.request, Request::Reload);
        let answer = Answer {
            done: vec!["done".to_owned()],
            errors: Vec::new(),
        };
        found.answer(&answer);
        assert_eq!(client.join().unwrap().unwrap(), answer);
    }

    #[test]
    fn what_is_not_understood_is_refused_and_the_socket_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.sock");
        let mut control = Control::listen(&path).unwrap();
        let mode = std::fs::metadata(control_path(&path))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        for text in ["", "{}", "{\"command\":\"end\"}", "\u{0}"] {
            let mut client = UnixStream::connect(control_path(&path)).unwrap();
            client.write_all(text.as_bytes()).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(control.requests().is_empty());
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            let answer: Answer = serde_json::from_slice(&answer).unwrap();
            assert!(
                answer.errors[0].starts_with("expected a request that this version knows"),
                "{answer:?}"
            );
        }
    }
}
