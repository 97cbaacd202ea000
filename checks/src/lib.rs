//! Checks of the repository itself. What is checked stands in `tests`; here is what they need: the sources of the
//! workspace, and which file names what of which other.

#![deny(unsafe_code)]

mod circles;
mod error;
mod imports;
mod modules;
mod workspace;

pub use circles::{Edge, circle_through, edges_in_circles};
pub use error::{Error, Result};
pub use imports::imports;
pub use modules::{Module, Modules};
pub use workspace::{Member, Workspace, read};
