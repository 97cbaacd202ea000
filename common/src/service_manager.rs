//! Messages to the service manager (sd_notify(3)) from a loop that must not wait for it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the service manager something, such as `WATCHDOG=1`, if this is a service of one. One that does not read, since it has crashed or
/// is stopped, is told nothing. Returns whether it knows, or there is none: what it has to know, such as `READY=1`, is told again at the
/// next turn.
pub fn tell(message: &str) -> bool {
    let socket = std::env::var_os("NOTIFY_SOCKET");
    // Without a service manager there is nothing to tell.
    socket.is_none_or(|socket| send(socket.as_bytes(), message).is_ok())
}

fn send(socket: &[u8], message: &str) -> std::io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    let from = UnixDatagram::unbound()?;
    from.set_nonblocking(true)?;
    from.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_read_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("justitia-test-{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, address) in [
            (
                UnixDatagram::bind(&path).unwrap(),
                path.as_os_str().as_bytes().to_vec(),
            ),
            (
                UnixDatagram::bind_addr(&by_name).unwrap(),
                format!("@{name}").into_bytes(),
            ),
        ] {
            let sent = (0..100_000).take_while(|_| send(&address, "WATCHDOG=1").is_ok());
            let sent = sent.count();
            assert!((1..100_000).contains(&sent), "{sent}");
            let mut told = [0; 64];
            let length = manager.recv(&mut told).unwrap();
            assert_eq!(told.get(..length), Some(&b"WATCHDOG=1"[..]));
        }
    }
}
