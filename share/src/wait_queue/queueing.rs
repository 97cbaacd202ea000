//! The queueing disciplines.

/// How the weight of a waiter grows with every grant that passes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aging {
    /// It does not: the lowest weight may starve (Justitia, Fig. 12, "without aging").
    Off,
    /// By this much a grant, in units of weight. At most `(10000 / increment + 1) * waiters` grants
    /// pass before a waiter is served.
    By(u32),
}

impl Default for Aging {
    /// 100, as in the Justitia paper's evaluation (section III-A).
    fn default() -> Self {
        Self::By(100)
    }
}

/// Which waiter is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// The first that came; weights do not matter.
    Fifo,
    /// The one of the highest effective weight, the first that came among equals (Justitia, Algorithm 1).
    PriorityAging(Aging),
    /// Weighted fair queueing: grants in proportion to weight. Each costs `1 / weight` of virtual time
    /// (start-time fair queueing, Goyal et al. 1996).
    Wfq,
}

impl Default for Queueing {
    fn default() -> Self {
        Self::PriorityAging(Aging::default())
    }
}
