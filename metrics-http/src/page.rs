//! The page of metrics, made on demand and kept for a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The content type of OpenMetrics 1.0.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A request within this time of another gets the same page, so that frequent requests cost no more than one.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(1);

/// A whole HTTP response.
pub(crate) type Response = Arc<[u8]>;

type Make = Box<dyn FnMut() -> Result<String, String> + Send>;

/// Makes the page, and keeps it for [`MAX_AGE`].
pub(crate) struct Page(Mutex<Inner>);

struct Inner {
    make: Make,
    made: Option<(Instant, Response)>,
}

impl Page {
    /// `make` returns OpenMetrics text, or an error, which is served with status 503.
    pub(crate) fn new(make: Make) -> Self {
        Self(Mutex::new(Inner { make, made: None }))
    }

    /// The page, at most [`MAX_AGE`] old.
    pub(crate) fn response(&self) -> Response {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, response)) = &inner.made
            && at.elapsed() < MAX_AGE
        {
            return Arc::clone(response);
        }
        let response = match (inner.make)() {
            Ok(text) => response("200 OK", OPENMETRICS, &text),
            Err(why) => response("503 Service Unavailable", PLAIN, &format!("{why}\n")),
        };
        inner.made = Some((Instant::now(), Arc::clone(&response)));
        response
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// The response to a request for anything but `GET /metrics`.
pub(crate) fn not_found() -> Response {
    response("404 Not Found", PLAIN, "expected GET /metrics\n")
}

/// The response to what is no HTTP request.
pub(crate) fn bad_request() -> Response {
    response("400 Bad Request", PLAIN, "expected GET /metrics by HTTP\n")
}

fn response(status: &str, kind: &str, body: &str) -> Response {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat().into()
}
