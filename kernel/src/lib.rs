//! The kernel's interfaces, typed.
