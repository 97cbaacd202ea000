//! What a block says once: names, texts, and what seldom changes. As JSON, at its beginning.

use justitia_api::{
    Decision, DemandModel, ExternalKnob, GivenUpKnob, Status, TenantStatus, WeightSource,
};
use serde::{Deserialize, Serialize};

use super::fields::TENANT;

/// Columns of a tenant in the first recordings, which do not say how many they have.
pub(super) const MIN_COLUMNS: usize = 23;
/// Columns of a tenant that a later version may have. Those that are not known here are passed over.
pub(super) const MAX_COLUMNS: usize = 100;
/// Tenants of a block. The agent manages 10,000 cgroups; within a minute some may have come and gone.
pub(super) const MAX_TENANTS: usize = 50_000;
/// The longest header, bytes: an answer of the agent is half of it.
pub(super) const MAX_HEADER: usize = 32 << 20;
/// The longest reason of an exemption, bytes: each of many tenants may have the same.
pub(super) const MAX_REASON: usize = 512;

/// What a block says once.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BlockHeader {
    version: String,
    /// Columns of a tenant.
    #[serde(default = "min_columns", rename = "figures")]
    pub(super) columns: usize,
    #[serde(default)]
    demand: DemandModel,
    observe: bool,
    window: f64,
    pub(super) tenants: Vec<TenantName>,
    #[serde(rename = "strings")]
    pub(super) reasons: Vec<String>,
    decisions: Vec<Decision>,
    external: Vec<ExternalKnob>,
    #[serde(default)]
    given_up: Vec<GivenUpKnob>,
    limitations: Vec<String>,
    app_io_unavailable: Option<String>,
}

const fn min_columns() -> usize {
    MIN_COLUMNS
}

/// What of a tenant does not change.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TenantName {
    pub(super) path: String,
    pub(super) id: u64,
    pub(super) parent: Option<usize>,
    leaf: bool,
    #[serde(rename = "from")]
    weight_source: WeightSource,
}

impl TenantName {
    /// Of a tenant whose parent has this position among the block's names.
    pub(super) fn of(tenant: &TenantStatus, parent: Option<usize>) -> Self {
        Self {
            path: tenant.path.clone(),
            id: tenant.id,
            parent,
            leaf: tenant.leaf,
            weight_source: tenant.weight_source,
        }
    }

    /// A tenant that is called so, without any figures.
    pub(super) fn tenant(&self, parent: Option<usize>) -> TenantStatus {
        TenantStatus {
            path: self.path.clone(),
            id: self.id,
            parent,
            leaf: self.leaf,
            weight_source: self.weight_source,
            ..TenantStatus::default()
        }
    }
}

impl BlockHeader {
    /// Takes from a status what a block has once. Decisions up to `since`, seconds since the agent's start, are in an
    /// earlier block.
    pub(super) fn update(&mut self, status: &Status, since: f64) {
        self.version.clone_from(&status.version);
        self.columns = TENANT.len();
        self.demand = status.demand_model;
        self.observe = status.observe;
        self.window = status.window;
        self.external.clone_from(&status.external);
        self.given_up.clone_from(&status.given_up);
        self.limitations.clone_from(&status.limitations);
        self.app_io_unavailable
            .clone_from(&status.app_io_unavailable);
        let news = status.decisions.iter().filter(|d| d.at > since);
        self.decisions = news.cloned().collect();
    }

    /// Puts into a status what the block has once; its uptime is known already.
    pub(super) fn complete(&self, status: &mut Status) {
        status.status_version = justitia_api::STATUS_VERSION;
        status.version.clone_from(&self.version);
        status.demand_model = self.demand;
        status.observe = self.observe;
        status.window = self.window;
        status.external.clone_from(&self.external);
        status.given_up.clone_from(&self.given_up);
        status.limitations.clone_from(&self.limitations);
        status
            .app_io_unavailable
            .clone_from(&self.app_io_unavailable);
        let made = self.decisions.iter().filter(|d| d.at <= status.uptime);
        status.decisions = made.cloned().collect();
    }
}
