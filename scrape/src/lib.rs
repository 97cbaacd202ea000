//! OpenMetrics over HTTP: `GET /metrics`, nothing else. The text is made anew for every scrape, so that its
//! figures belong together.

pub mod promtool;

use std::net::SocketAddr;
use std::sync::Arc;

/// The content type of OpenMetrics 1.0.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until it is dropped.
pub struct Server {
    address: SocketAddr,
    http: Arc<tiny_http::Server>,
    thread: Option<std::thread::JoinHandle<()>>,
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
    /// the answer is 503).
    ///
    /// # Errors
    /// If the address cannot be listened at.
    pub fn start(
        address: SocketAddr,
        mut text: impl FnMut() -> Result<String, String> + Send + 'static,
    ) -> std::io::Result<Self> {
        let http = tiny_http::Server::http(address).map_err(std::io::Error::other)?;
        let http = Arc::new(http);
        let address = http.server_addr().to_ip().unwrap_or(address);
        let serving = Arc::clone(&http);
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                for request in serving.incoming_requests() {
                    respond(request, &mut text);
                }
            })?;
        Ok(Self {
            address,
            http,
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
        self.http.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A label's value as the format wants it: the encoder writes values down as they are.
#[must_use]
pub fn label(text: &str) -> String {
    let mut label = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => label.push_str("\\\\"),
            '"' => label.push_str("\\\""),
            '\n' => label.push_str("\\n"),
            other => label.push(other),
        }
    }
    label
}

fn respond(request: tiny_http::Request, text: &mut impl FnMut() -> Result<String, String>) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, body) = match (request.method(), path) {
        (tiny_http::Method::Get, "/metrics") => match text() {
            Ok(text) => (200, text),
            Err(why) => (503, format!("{why}\n")),
        },
        _ => (404, "expected GET /metrics\n".to_owned()),
    };
    let mut response = tiny_http::Response::from_string(body).with_status_code(status);
    let kind = tiny_http::Header::from_bytes(&b"Content-Type"[..], OPENMETRICS);
    if let (200, Ok(kind)) = (status, kind) {
        response.add_header(kind);
    }
    // A client that is gone does not want the answer.
    let _ = request.respond(response);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn get(address: SocketAddr, path: &str) -> String {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        write!(client, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_label_cannot_end_itself() {
        assert_eq!(label("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
        assert_eq!(label("plain/path.slice"), "plain/path.slice");
    }

    #[test]
    fn one_page_made_for_every_scrape() {
        let mut scrapes = 0;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start(any, move || {
            scrapes += 1;
            if scrapes > 2 {
                return Err("the agent is gone".into());
            }
            Ok(format!("scrapes {scrapes}\n# EOF\n"))
        })
        .unwrap();
        let first = get(server.address(), "/metrics");
        assert!(
            first.starts_with("HTTP/1.1 200") || first.starts_with("HTTP/1.0 200"),
            "{first}"
        );
        assert!(
            first.contains(OPENMETRICS) && first.ends_with("scrapes 1\n# EOF\n"),
            "{first}"
        );
        assert!(get(server.address(), "/metrics?x=1").contains("scrapes 2"));
        let failed = get(server.address(), "/metrics");
        assert!(
            failed.contains(" 503 ") && failed.ends_with("the agent is gone\n"),
            "{failed}"
        );
        assert!(get(server.address(), "/").contains(" 404 "));
        let address = server.address();
        drop(server);
        // The library closes its listener on a thread of its own.
        let closed = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::net::TcpStream::connect(address).is_err()
        });
        assert!(closed, "it has stopped listening");
    }
}
