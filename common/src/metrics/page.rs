//! The page of metrics, made on demand and kept for a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The content type of OpenMetrics 1.0.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A request within this time of another gets the same page, so that frequent requests cost no more than one.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(1);

/// The content type of Prometheus' own text format.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A format of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' own text format.
    Text,
}

/// A whole HTTP response.
pub(crate) type Response = Arc<[u8]>;

type Make = Box<dyn FnMut() -> Result<String, String> + Send>;

/// Makes the page, and keeps it for [`MAX_AGE`].
pub(crate) struct Page(Mutex<Inner>);

struct Inner {
    make: Make,
    made: Option<(Instant, [Response; 2])>,
}

impl Page {
    /// `make` returns OpenMetrics text, or an error, which is served with status 503.
    pub(crate) fn new(make: Make) -> Self {
        Self(Mutex::new(Inner { make, made: None }))
    }

    /// The page, at most [`MAX_AGE`] old.
    pub(crate) fn response(&self, format: Format) -> Response {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = inner.made.as_ref().filter(|(at, _)| at.elapsed() < MAX_AGE);
        let made = match fresh {
            Some((_, made)) => made.clone(),
            None => {
                let made = match (inner.make)() {
                    Ok(text) => [
                        response("200 OK", OPENMETRICS, &text),
                        response("200 OK", TEXT, &text_format(&text)),
                    ],
                    Err(why) => {
                        let why = format!("{why}\n");
                        let failed = response("503 Service Unavailable", PLAIN, &why);
                        [Arc::clone(&failed), failed]
                    }
                };
                inner.made = Some((Instant::now(), made.clone()));
                made
            }
        };
        let [openmetrics, text] = made;
        match format {
            Format::OpenMetrics => openmetrics,
            Format::Text => text,
        }
    }
}

impl Format {
    /// The format that a client takes by its `Accept` header; OpenMetrics if it says nothing.
    pub(crate) fn accepted(header: Option<&[u8]>) -> Self {
        let Some(header) = header.and_then(|header| std::str::from_utf8(header).ok()) else {
            return Self::OpenMetrics;
        };
        // Quality in thousandths of the first kind that `wanted` says.
        let quality = |wanted: &[&str]| {
            let ranges = header.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let kind = parts.next()?.to_ascii_lowercase();
                let q = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
                wanted.contains(&kind.as_str()).then_some(q.unwrap_or(1.0))
            });
            ranges.fold(0.0, f64::max)
        };
        let openmetrics = quality(&["application/openmetrics-text"]);
        let text = quality(&["text/plain", "text/*"]);
        let any = quality(&["*/*", "application/*"]);
        match openmetrics.max(if text > 0.0 { 0.0 } else { any }) >= text {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }
}

/// OpenMetrics as Prometheus' own text format: a counter is called as its samples are, and there are neither units nor an
/// end.
fn text_format(openmetrics: &str) -> String {
    let mut counters = std::collections::BTreeSet::new();
    for line in openmetrics.lines() {
        let typed = line.strip_prefix("# TYPE ");
        counters.extend(typed.and_then(|typed| typed.strip_suffix(" counter")));
    }
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let described = ["# HELP ", "# TYPE "]
            .iter()
            .find_map(|kind| Some((*kind, line.strip_prefix(kind)?.split_once(' ')?)));
        match described {
            Some((kind, (name, rest))) => {
                let suffix = if counters.contains(name) {
                    "_total"
                } else {
                    ""
                };
                let rest = match (kind, rest) {
                    ("# TYPE ", "unknown") => "untyped",
                    ("# TYPE ", "info") => "gauge",
                    _ => rest,
                };
                text.extend([kind, name, suffix, " ", rest, "\n"]);
            }
            None => text.extend([line, "\n"]),
        }
    }
    text
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
