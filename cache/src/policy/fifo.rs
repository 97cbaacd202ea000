//! First in, first out: the paper's policy (DoubleDecker, section 4.2).

use super::EvictionPolicy;

pub(super) struct Fifo;

impl EvictionPolicy for Fifo {}
