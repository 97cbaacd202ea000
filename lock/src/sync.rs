//! The primitives underneath: the standard library's, or loom's when its model checker runs
//! (the feature `loom`).

#[cfg(feature = "loom")]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread::{Thread, current, park},
};
#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread::{Thread, current, park},
};

/// Rounds of looking at a lock before the thread parks. One round is some ten nanoseconds, so a waiter
/// burns about a microsecond at most: less than parking and being woken costs.
#[cfg(not(feature = "loom"))]
pub(crate) const SPINS: u32 = 100;
/// The model checker explores a spin as any other step; one is enough to cover the path.
#[cfg(feature = "loom")]
pub(crate) const SPINS: u32 = 1;
