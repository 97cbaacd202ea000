//! One client: one request, one response, in a bounded time.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::page::{Format, Page, Response, bad_request, not_found};

/// A client is disconnected after this time, whatever it is doing.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request, bytes.
const MAX_REQUEST: usize = 8 << 10;
/// The most header lines of a request.
const MAX_HEADERS: usize = 64;
/// How much is written between two checks of the time, bytes.
const CHUNK: usize = 64 << 10;

/// Serves one client. An error means that the client has closed the connection, was too slow, or was disconnected.
pub(crate) fn serve(mut client: &TcpStream, page: &Page) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    let response = request(client, until, page)?;
    for part in response.chunks(CHUNK) {
        let mut rest = part;
        while !rest.is_empty() {
            client.set_write_timeout(Some(left(until)?))?;
            match client.write(rest)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                written => rest = rest.get(written..).unwrap_or_default(),
            }
        }
    }
    // If unread input is left at close, the kernel resets the connection and drops what the client has not read yet.
    client.shutdown(Shutdown::Write)?;
    let mut beyond = [0; 1024];
    for _ in 0..64 {
        client.set_read_timeout(Some(left(until)?.min(Duration::from_secs(1))))?;
        if client.read(&mut beyond)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Reads the head of the request; returns the response to it.
fn request(mut client: &TcpStream, until: Instant, page: &Page) -> Result<Response> {
    let mut head = Vec::with_capacity(1024);
    let mut buffer = [0; 1024];
    loop {
        client.set_read_timeout(Some(left(until)?))?;
        let read = client.read(&mut buffer)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.and_then(|path| path.split('?').next());
                return Ok(match (request.method, path) {
                    (Some("GET"), Some("/metrics")) => {
                        let mut headers = request.headers.iter();
                        let accept = headers.find(|h| h.name.eq_ignore_ascii_case("accept"));
                        page.response(Format::accepted(accept.map(|h| h.value)))
                    }
                    _ => not_found(),
                });
            }
            Ok(httparse::Status::Partial) if head.len() < MAX_REQUEST => {}
            Ok(httparse::Status::Partial) | Err(_) => return Ok(bad_request()),
        }
    }
}

/// The time until `until`; an error once it has passed.
fn left(until: Instant) -> Result<Duration> {
    until
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| Error::from(ErrorKind::TimedOut))
}
