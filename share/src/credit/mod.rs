//! Device credits: who may spend how much of a disk's time.
//!
//! After WDT ("Weight-based Dynamic Throttling", slides "Overview of WDT Scheme"): a *future I/O demand
//! predictor* ([`predict`]), a *budget distributor* ([`distribute`]), *residual credits carry-over*
//! ([`carry`]) and a *TotalCredit updater* ([`total`]), joined by one loop a device ([`device`]).
//!
//! The slides count bytes or requests of one known SSD. Here one credit is one second of the saturated
//! device, and what a byte or a request costs is learnt ([`price`]): the same loop serves disks that are
//! limited by bytes, by requests, or by both, and follows them when they change.

pub mod carry;
pub mod correct;
pub mod device;
pub mod distribute;
pub mod limit;
pub mod predict;
pub mod price;
pub mod total;

pub use carry::Residual;
pub use correct::Correction;
pub use device::{Allowance, BUFFERED, CreditLoop, Interval, MOST_EMPTYING, Observed, Settings};
pub use distribute::{distribute, rooms};
pub use limit::Limits;
pub use predict::{Percentile, Predict, Swift};
pub use price::{Flow, Prices};
pub use total::{TotalCredit, Verdict};
