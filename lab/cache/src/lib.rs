//! Measurements of the hypervisor cache, and the experiments of DoubleDecker (Middleware '17) with it, natively: what
//! `justitia-lab cache` runs.

pub mod bench;
pub mod experiment;
pub mod served;
