//! What a tenant demands of the page cache, and how its use is known.

use serde::{Deserialize, Serialize};

/// What of its cache a tenant demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DemandModel {
    /// What it uses again and again first; what it takes in once, of what is left.
    #[default]
    Use,
    /// Whatever it holds, and all that it can get while it grows (Justitia, section III-B3).
    Usage,
}

/// How a tenant's use of its cache is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EstimateBasis {
    /// From its accesses: their miss-ratio curve ([`MissRatioCurve::working_set`](justitia_share::curve::MissRatioCurve::working_set)).
    Accesses,
    /// From the kernel's lists: what was used twice while it lay there is on the active one. The multi-gen LRU does not say.
    #[default]
    Lists,
}
