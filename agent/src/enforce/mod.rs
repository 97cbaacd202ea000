//! Acting: the ledger writes knobs and gives them back; a worker reclaims off the loop.

pub mod credits;
pub mod event;
pub mod guard;
pub mod journal;
pub mod keeper;
pub mod ledger;
pub mod pressure;
pub mod recharge;
pub mod rest;
pub mod worker;
