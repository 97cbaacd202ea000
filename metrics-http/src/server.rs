//! Listening, and who is being served.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::client;
use crate::page::Page;

/// Clients that are served at one time. When one more comes, the one that has been there for longest is cut off: who
/// wants a page has it in milliseconds.
pub const MOST: usize = 16;
/// A cut-off client's thread ends within this time, or the newcomer is turned away.
const MAKE_ROOM: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
pub struct Server {
    address: SocketAddr,
    /// Closed to say that it is over.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Serves at `address` (port 0: any free one) what `text` makes: OpenMetrics, or why there are none (then
    /// the answer is 503). It is made when somebody asks, once a second at most.
    ///
    /// # Errors
    /// If the address cannot be listened at.
    pub fn start(
        address: SocketAddr,
        text: impl FnMut() -> Result<String, String> + Send + 'static,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let page = Arc::new(Page::new(Box::new(text)));
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || listen(&listener, &stopped, &page))?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Who is being served, by number, the longest first.
#[derive(Default)]
struct Clients {
    served: Mutex<VecDeque<(u64, TcpStream)>>,
    left: std::sync::Condvar,
}

impl Clients {
    fn served(&self) -> MutexGuard<'_, VecDeque<(u64, TcpStream)>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for one more, if need be at the expense of the one that has been there for longest.
    fn admit(&self, number: u64, client: TcpStream) -> bool {
        let mut served = self.served();
        if served.len() >= MOST {
            if let Some((_, longest)) = served.front() {
                let _ = longest.shutdown(Shutdown::Both);
            }
            let full = |served: &mut VecDeque<_>| served.len() >= MOST;
            let waited = self.left.wait_timeout_while(served, MAKE_ROOM, full);
            served = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let room = served.len() < MOST;
        if room {
            served.push_back((number, client));
        }
        room
    }

    fn leave(&self, number: u64) {
        self.served().retain(|(other, _)| *other != number);
        self.left.notify_all();
    }

    fn cut_off(&self) {
        for (_, client) in self.served().iter() {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

/// Leaves, whatever happens.
struct Leave<'a>(&'a Clients, u64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

fn listen(listener: &TcpListener, stopped: &OwnedFd, page: &Arc<Page>) {
    let clients = Arc::new(Clients::default());
    for number in 0.. {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        let polled = poll(&mut fds, None);
        if polled.is_ok() && !fds[1].revents().is_empty() {
            break;
        }
        let Ok((client, _)) = listener.accept() else {
            // No descriptors, say: later, perhaps, and not at full speed.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(handle) = client.try_clone() else {
            continue;
        };
        // Inherited from the listener on some systems.
        if client.set_nonblocking(false).is_err() || !clients.admit(number, handle) {
            continue;
        }
        let (page, serving) = (Arc::clone(page), Arc::clone(&clients));
        let spawned = std::thread::Builder::new()
            .name("metrics-client".into())
            .spawn(move || {
                let _leave = Leave(&serving, number);
                // A client that is gone does not want the answer.
                let _ = client::serve(&client, &page);
            });
        if spawned.is_err() {
            clients.leave(number);
        }
    }
    clients.cut_off();
}
