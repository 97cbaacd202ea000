//! A guest's answers.

use serde::{Deserialize, Serialize};

use crate::memory::cached::Cached;
use crate::memory::state::State;
use crate::memory::tenants::Tenants;
use crate::memory::text::{ErrorText, Malformed, read};

/// A guest's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Answer {
    /// The id of the request.
    pub id: u64,
    /// The content.
    #[serde(flatten)]
    pub body: Body,
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// To [`crate::memory::Request::State`]. At most a second old.
    State(State),
    /// To [`crate::memory::Request::Reclaim`].
    Reclaimed(Reclaimed),
    /// To [`crate::memory::Request::Cached`].
    Cached(Cached),
    /// To [`crate::memory::Request::Tenants`].
    Tenants(Tenants),
    /// The request was not understood, or failed.
    Error(ErrorText),
}

/// The memory that a guest gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Bytes that were reclaimed. A guest that reports free pages gives them to its host within seconds.
    pub bytes: u64,
    /// Bytes that are free afterwards.
    pub free: u64,
}

impl Answer {
    /// An error.
    #[must_use]
    pub fn error(id: u64, text: &str) -> Self {
        Self {
            id,
            body: Body::Error(ErrorText::new(text)),
        }
    }

    /// Reads a line.
    ///
    /// # Errors
    /// If it is no answer. An answer has one body: a line with, for example, a state and an error is none.
    pub fn decode(line: &[u8]) -> Result<Self, Malformed> {
        read(line, "an answer")
    }
}

/// The fields as they are read.
#[derive(Deserialize)]
struct Fields {
    id: u64,
    state: Option<State>,
    reclaimed: Option<Reclaimed>,
    cached: Option<Cached>,
    tenants: Option<Tenants>,
    error: Option<ErrorText>,
}

impl TryFrom<Fields> for Answer {
    type Error = &'static str;

    fn try_from(fields: Fields) -> Result<Self, Self::Error> {
        let bodies = [
            fields.state.map(Body::State),
            fields.reclaimed.map(Body::Reclaimed),
            fields.cached.map(Body::Cached),
            fields.tenants.map(Body::Tenants),
            fields.error.map(Body::Error),
        ];
        let mut said = bodies.into_iter().flatten();
        let (Some(body), None) = (said.next(), said.next()) else {
            return Err("expected one of state, reclaimed, cached, tenants and error");
        };
        Ok(Self {
            id: fields.id,
            body,
        })
    }
}
