//! What applications are said to have got, checked against what the device and the page cache have seen.

use super::{CreditLoop, Interval, Observed};
use crate::num;

/// An application has got at least this part of what its tenant read from the device and made dirty. The rest may be
/// readahead that nobody used, and the file system's own.
const AT_LEAST: f64 = 0.8;
/// Over so many seconds: neither the counters of dirty pages nor those of applications are told at once.
const WINDOW: f64 = 5.0;

impl CreditLoop {
    /// The tenants, none with less for its applications than its I/O accounts for. What pages of a mapped file are read
    /// for, or what is done in cgroups that nobody tells apart, is not counted as an application's; taken for nothing, it
    /// would be made up for at others' cost.
    pub(super) fn vouched(&mut self, interval: Interval, tenants: &[Observed]) -> Vec<Observed> {
        let follow = 1.0 - (-interval.seconds / WINDOW).exp();
        let vouch = |tenant: &Observed| {
            let state = self.states.entry(tenant.id).or_default();
            let application = tenant.application.map(|counted| {
                // Nobody saw how dirty pages grew before the first look.
                let growth = if state.watched > 0.0 {
                    (num::to_f64(tenant.dirty) - state.dirty) / interval.seconds
                } else {
                    0.0
                };
                let hidden = AT_LEAST * (tenant.flow.bytes() + growth) - counted;
                state.hidden += (hidden - state.hidden) * follow;
                counted + state.hidden.max(0.0)
            });
            Observed {
                application,
                ..*tenant
            }
        };
        tenants.iter().map(vouch).collect()
    }
}
