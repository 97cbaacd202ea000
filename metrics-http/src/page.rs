//! The page, as it was made last.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The content type of OpenMetrics 1.0.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Who asks so soon after another gets the same page: its figures belong together all the same, and nobody can keep
/// its maker busy by asking.
pub const FRESH: Duration = Duration::from_secs(1);

/// A whole answer.
pub type Answer = Arc<[u8]>;

type Make = Box<dyn FnMut() -> Result<String, String> + Send>;

/// Makes the page, and keeps it for a moment.
pub struct Page(Mutex<Inner>);

struct Inner {
    make: Make,
    made: Option<(Instant, Answer)>,
}

impl Page {
    /// What `make` makes: OpenMetrics, or why there are none.
    pub fn new(make: Make) -> Self {
        Self(Mutex::new(Inner { make, made: None }))
    }

    /// The page.
    pub fn answer(&self) -> Answer {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, answer)) = &inner.made
            && at.elapsed() < FRESH
        {
            return Arc::clone(answer);
        }
        let answer = match (inner.make)() {
            Ok(text) => answer("200 OK", OPENMETRICS, &text),
            Err(why) => answer("503 Service Unavailable", PLAIN, &format!("{why}\n")),
        };
        inner.made = Some((Instant::now(), Arc::clone(&answer)));
        answer
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// To who wants something else.
pub fn not_found() -> Answer {
    answer("404 Not Found", PLAIN, "expected GET /metrics\n")
}

/// To who does not speak HTTP.
pub fn not_understood() -> Answer {
    answer("400 Bad Request", PLAIN, "expected GET /metrics by HTTP\n")
}

fn answer(status: &str, kind: &str, body: &str) -> Answer {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat().into()
}
