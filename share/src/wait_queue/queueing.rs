//! The queueing disciplines.

/// Which waiter is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// The one of the highest effective weight, the first that came among equals (Justitia, Algorithm 1).
    PriorityAging {
        /// By this much the weight of a waiter grows with every grant that passes it over, in units of weight. At most
        /// `(10000 / increment + 1) * waiters` grants pass before a waiter is served; with 0 the lowest weight may starve
        /// (Justitia, Fig. 12, "without aging").
        increment: u32,
    },
    /// Start-time fair queueing (Goyal et al. 1996): grants in proportion to weight. Each costs `1 / weight` of virtual
    /// time.
    Sfq,
}

impl Default for Queueing {
    /// Aging by 100, as in the Justitia paper's evaluation (section III-A).
    fn default() -> Self {
        Self::PriorityAging { increment: 100 }
    }
}
