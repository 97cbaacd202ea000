//! One client: one request, one answer, in a bounded time.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::page::{Answer, Page, not_found, not_understood};

/// A client is cut off after this long, whatever it is doing.
const PATIENCE: Duration = Duration::from_secs(10);
/// A request is no longer, bytes.
const LONGEST: usize = 8 << 10;
/// It has no more header lines.
const HEADERS: usize = 64;
/// So much is written between two looks at the time, bytes.
const STEP: usize = 64 << 10;

/// Serves one client. An error means that it is gone, or was too slow, or was cut off.
pub fn serve(mut client: &TcpStream, page: &Page) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let answer = request(client, until, page)?;
    for part in answer.chunks(STEP) {
        let mut rest = part;
        while !rest.is_empty() {
            client.set_write_timeout(Some(left(until)?))?;
            match client.write(rest)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                written => rest = rest.get(written..).unwrap_or_default(),
            }
        }
    }
    // What it has sent beyond its request would make the kernel drop what it has not read yet.
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

/// Reads the request's head; the answer to it.
fn request(mut client: &TcpStream, until: Instant, page: &Page) -> Result<Answer> {
    let mut head = Vec::with_capacity(1024);
    let mut buffer = [0; 1024];
    loop {
        client.set_read_timeout(Some(left(until)?))?;
        let read = client.read(&mut buffer)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.and_then(|path| path.split('?').next());
                return Ok(match (request.method, path) {
                    (Some("GET"), Some("/metrics")) => page.answer(),
                    _ => not_found(),
                });
            }
            Ok(httparse::Status::Partial) if head.len() < LONGEST => {}
            Ok(httparse::Status::Partial) | Err(_) => return Ok(not_understood()),
        }
    }
}

/// The time that is left.
fn left(until: Instant) -> Result<Duration> {
    until
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| Error::from(ErrorKind::TimedOut))
}
