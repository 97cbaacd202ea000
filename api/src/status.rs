//! The answer to `justitia status --json`, as a whole.

use serde::{Deserialize, Serialize};

use crate::{
    AgentUsage, Decision, DemandModel, ExternalKnob, GivenUpKnob, MemoryStatus, PolicyStatus,
    ProbeDrops, TenantStatus,
};

/// The version of [`Status`]. It is raised when a field changes its meaning, or is renamed or removed; not when one is
/// added.
pub const STATUS_VERSION: u32 = 2;

/// Everything that the agent tells. Amounts in bytes, times in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The version of this document: [`STATUS_VERSION`] of the agent.
    pub status_version: u32,
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
    /// Why nothing is known of the I/O of applications, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_io_unavailable: Option<String>,
    /// The constants by which the agent decides.
    #[serde(default)]
    pub policy: PolicyStatus,
    /// What of their caches tenants demand.
    #[serde(default)]
    pub demand_model: DemandModel,
    /// Proportionality variation of all backlogged leaves together, over the window: 0 is perfect. `None`
    /// with fewer than two of them; [`PV_INFINITE`] where the lightest got nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv: Option<f64>,
    /// The same of the tenants right below the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv_top: Option<f64>,
    /// The machine's memory.
    pub memory: MemoryStatus,
    /// Every tenant, parents first; the unmanaged one last.
    pub tenants: Vec<TenantStatus>,
    /// Knobs that the agent leaves alone: another process has set them.
    pub external: Vec<ExternalKnob>,
    /// Knobs that the agent does not write any more: the kernel refused its write, or took too long for it.
    #[serde(default)]
    pub given_up: Vec<GivenUpKnob>,
    /// The last decisions, oldest first: a few of each tenant.
    pub decisions: Vec<Decision>,
    /// What works less well than it could, and the fact that is the cause.
    pub limitations: Vec<String>,
    /// What the probes lost since they were attached, by its name: all that they can lose, whether any is
    /// or not. `limitations` says in words what is lost and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe_drops: Vec<ProbeDrops>,
    /// What the agent itself uses.
    pub agent_usage: AgentUsage,
}

impl Status {
    /// As JSON, at most `most` bytes long if that can be: decisions, external knobs and tenants, the last first, are
    /// left out as far as there is no room, and how many is said under the limitations.
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
                self.limitations.pop();
            }
            self.halve();
            self.limitations.push(format!(
                "Status: {} of {whole} tenants, and decisions, do not fit into {} MiB and are left out",
                whole - self.tenants.len(),
                most >> 20
            ));
        }
    }

    /// Leaves out half of what there may be much of.
    fn halve(&mut self) {
        // The unmanaged tenant is the last, and nobody's parent. Parents come first: those that stay are whole.
        let unmanaged = self.tenants.pop();
        self.tenants.truncate(self.tenants.len() / 2);
        self.tenants
            .extend(unmanaged.filter(|_| !self.tenants.is_empty()));
        self.external.truncate(self.external.len() / 2);
        self.given_up.truncate(self.given_up.len() / 2);
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
            limitations: vec!["a limitation".to_owned()],
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
        assert_eq!(told.limitations.len(), 2);
        let left = 3001 - told.tenants.len();
        let said = format!(
            "Status: {left} of 3001 tenants, and decisions, do not fit into 1 MiB and are left out"
        );
        assert_eq!(told.limitations[1], said);

        // There is room for this one.
        let whole: Status = serde_json::from_slice(&status.encode(16 << 20)).unwrap();
        assert_eq!((whole.tenants.len(), whole.limitations.len()), (3001, 1));
    }
}
