//! What the tests of real databases need.

pub(crate) mod host;
pub(crate) mod image;
pub(crate) mod measure;
pub(crate) mod scale;
pub(crate) mod slow_disk;
pub(crate) mod table;

use super::{cache_daemon, retry};
