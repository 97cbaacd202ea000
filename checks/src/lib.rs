//! Checks of the repository itself. What is checked stands in `tests`; here is what they need: the sources of the
//! workspace, which file names what of which other, how long functions are, and the lists of exceptions.

#![deny(unsafe_code)]

mod circles;
mod error;
mod exceptions;
mod functions;
mod imports;
mod modules;
mod workspace;

pub use circles::{Edge, circle_through, edges_in_circles};
pub use error::{Error, Result};
pub use exceptions::exceptions;
pub use functions::{Function, MOST_LINES, functions, lines_of_code};
pub use imports::imports;
pub use modules::{Module, Modules};
pub use workspace::{Member, Workspace, read};
