//! Miss-ratio curves: how many of a tenant's reads would come from the disk if its cache had another size.
//!
//! One block in 2^k, chosen by a hash of what block it is, is sampled (spatially hashed sampling: SHARDS, Waldspurger
//! et al., FAST '15). Of these the times between two accesses are counted ([`ReuseTimes`]), in accesses of the same
//! tenant, and the curve follows from how these times are distributed (AET: Hu et al., USENIX ATC '16). Against reuse
//! distances, which SHARDS itself uses, this costs one look into a small table for each sampled access and no order of
//! all blocks, so that a probe in the kernel can do it. The hypervisor cache, which is in a process, samples distances
//! ([`DistanceSampler`]): its accesses follow each other less evenly than the model takes them to.
//!
//! From the curve follows the tenant's working set: [`MissRatioCurve::working_set`].
//!
//! Sizes are in blocks of the caller's ([`BLOCK`] for the page cache). Of a block that is accessed here and there not all
//! pages are in memory: [`touched`] is the fraction that is.

mod decayed;
mod distance_sampler;
mod miss_ratio;
mod pages;
mod reuse_times;
mod sampler;

pub use decayed::{DecayedHistogram, HALF_LIFE};
pub use distance_sampler::DistanceSampler;
pub use miss_ratio::{BREAK_EVEN, MissRatioCurve};
pub use pages::{PAGES, PagesAccessed, touched};
pub use reuse_times::{BUCKETS, ReuseTimes, bucket};
pub use sampler::{ENTRIES, SETS, Sampler, SamplerUse, first_shift, next_shift};

/// Bytes of the blocks that the page cache's accesses are counted in: what a fault maps around itself, and half of
/// the kernel's usual readahead.
pub const BLOCK: u64 = 64 << 10;
