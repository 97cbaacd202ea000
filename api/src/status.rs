//! The answer to `justitia status --json`, as a whole.

use serde::{Deserialize, Serialize};

use crate::{Cost, Decision, DemandModel, LossStatus, MemoryStatus, TenantStatus, Yield};

/// Everything that the agent tells. Amounts in bytes, times in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// Whether it only observes.
    pub observe: bool,
    /// For how long it has run.
    pub uptime: f64,
    /// When this was told, seconds since 1970.
    #[serde(default)]
    pub time: f64,
    /// What applications get is taken over this many seconds, at most.
    #[serde(default)]
    pub window: f64,
    /// Why nothing is known of what applications get, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blind: Option<String>,
    /// What of their caches tenants demand.
    #[serde(default)]
    pub demand: DemandModel,
    /// Proportionality variation of all contending leaves together, over the window: 0 is perfect. `None`
    /// with fewer than two of them; [`PV_INFINITE`] where the lightest got nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv: Option<f64>,
    /// The same of the tenants right below the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv_top: Option<f64>,
    /// The machine's memory.
    pub memory: MemoryStatus,
    /// Every tenant, parents first; the one outside any cgroup last.
    pub tenants: Vec<TenantStatus>,
    /// Knobs that belong to others.
    pub yielded: Vec<Yield>,
    /// The last decisions, oldest first: a few of each tenant.
    pub decisions: Vec<Decision>,
    /// What works less well than it could, and the fact that is the cause.
    pub limits: Vec<String>,
    /// What the probes lost since they were attached, by its name: all that they can lose, whether any is
    /// or not. `limits` says in words what is lost and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<LossStatus>,
    /// What the agent itself costs.
    pub cost: Cost,
}

impl Status {
    /// As JSON, at most `most` bytes long if that can be: decisions, what was yielded and tenants, the last first, are
    /// left out as far as there is no room, and how many is said under the limits.
    #[must_use]
    pub fn encode(mut self, most: usize) -> Vec<u8> {
        let whole = self.tenants.len();
        loop {
            // Plain data always serialises.
            let text = serde_json::to_vec(&self).unwrap_or_default();
            if text.len() <= most || self.tenants.is_empty() {
                return text;
            }
            if self.tenants.len() < whole {
                self.limits.pop();
            }
            self.halve();
            self.limits.push(format!(
                "Status: {} of {whole} tenants, and decisions, do not fit into {} MiB and are left out",
                whole - self.tenants.len(),
                most >> 20
            ));
        }
    }

    /// Leaves out half of what there may be much of.
    fn halve(&mut self) {
        // The one outside any cgroup is the last, and nobody's parent. Parents come first: those that stay are whole.
        let outside = self.tenants.pop();
        self.tenants.truncate(self.tenants.len() / 2);
        self.tenants
            .extend(outside.filter(|_| !self.tenants.is_empty()));
        self.yielded.truncate(self.yielded.len() / 2);
        self.decisions.drain(..self.decisions.len().div_ceil(2));
    }
}

/// Stands for an infinite PV.
pub const PV_INFINITE: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Reason};

    #[test]
    fn an_answer_is_bounded_and_says_what_is_left_out() {
        let tenant = |parent| TenantStatus {
            path: "x".repeat(640),
            parent,
            ..TenantStatus::default()
        };
        let decision = Decision {
            at: 0.0,
            since: 0.0,
            path: "x".repeat(640),
            action: Action::Reclaim { bytes: 1 },
            steps: 1,
            dry_run: false,
            reason: Reason::Text("x".repeat(640)),
        };
        let mut status = Status {
            tenants: (0..3000_usize).map(|n| tenant(n.checked_sub(1))).collect(),
            decisions: vec![decision; 100],
            limits: vec!["a limit".to_owned()],
            ..Status::default()
        };
        let outside = TenantStatus {
            path: "-".to_owned(),
            ..TenantStatus::default()
        };
        status.tenants.push(outside);
        let text = status.clone().encode(1 << 20);
        assert!(
            text.len() <= 1 << 20 && text.len() > 1 << 18,
            "{}",
            text.len()
        );
        let told: Status = serde_json::from_slice(&text).unwrap();
        assert_eq!(told.tenants.last().unwrap().path, "-");
        let parents = told.tenants.iter().filter_map(|t| t.parent);
        assert!(parents.max().unwrap() < told.tenants.len() - 1);
        assert_eq!(told.limits.len(), 2);
        let left = 3001 - told.tenants.len();
        let said = format!(
            "Status: {left} of 3001 tenants, and decisions, do not fit into 1 MiB and are left out"
        );
        assert_eq!(told.limits[1], said);

        // There is room for this one.
        let whole: Status = serde_json::from_slice(&status.encode(16 << 20)).unwrap();
        assert_eq!((whole.tenants.len(), whole.limits.len()), (3001, 1));
    }
}
