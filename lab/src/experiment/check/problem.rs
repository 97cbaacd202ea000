//! What is wrong with a definition.

use super::super::source::Place;

/// What is wrong, and with what.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Where it is written.
    pub place: Place,
    /// Expected and found.
    pub what: String,
}

/// A problem as a result.
pub(super) fn problem<T>(place: Place, what: impl Into<String>) -> Result<T, Problem> {
    Err(Problem {
        place,
        what: what.into(),
    })
}
