//! Checks before the agent starts, the resulting limits of its work, and its errors.

use justitia_cgroup_tree::Rule;
use justitia_kernel::capabilities::{Capabilities, CapabilityId, Feature, State, SupportLevel};

use crate::agent::Agent;
use crate::config::{Config, StateOnDisk};
use crate::knobs::KnobStoreError;
use crate::page_cache::{ReclaimFeatures, lru_gen_usable};

/// Checks the features that the agent needs. Returns the limits of its work.
///
/// # Errors
/// If it cannot work at all.
pub(super) fn check_features(
    capabilities: &Capabilities,
    observe: bool,
) -> Result<Vec<String>, RunError> {
    let mut limitations = Vec::new();
    for feature in [
        Feature::CacheProtection,
        Feature::ProactiveReclaim,
        Feature::Weights,
    ] {
        let support = capabilities.feature(feature);
        let reasons: Vec<String> = support
            .causes
            .iter()
            .map(|b| format!("{} ({})", b.consequence, b.capability.reason))
            .collect();
        // Protection works without reclaim, and reclaim without protection. Without weights all tenants are equal. With another
        // page size even observed values would be wrong.
        let misread = capabilities.state(CapabilityId::PageSize) == State::No;
        let vital = feature == Feature::CacheProtection && (!observe || misread);
        if support.level == SupportLevel::Unavailable && vital {
            return Err(RunError::Unavailable {
                feature: feature.title(),
                reasons,
            });
        }
        limitations.extend(
            reasons
                .into_iter()
                .map(|r| format!("{}: {r}", feature.title())),
        );
    }
    Ok(limitations)
}

/// Checks the directory of the journal. In observe mode there is no journal.
///
/// # Errors
/// If a synced journal there would wait for a disk that the agent limits.
pub(super) fn check_state_dir(
    config: &Config,
    observe: bool,
) -> Result<Option<String>, StateOnDisk> {
    match config.state_on_disk() {
        Some(found) if found.refused() && !observe => Err(found),
        Some(found) => {
            tracing::warn!("{found}");
            Ok(Some(format!("Knob journal: {found}")))
        }
        None => Ok(None),
    }
}

/// The features of this kernel's reclaim.
pub(super) fn reclaim_features(capabilities: &Capabilities) -> ReclaimFeatures {
    let multi_gen = capabilities.has(CapabilityId::Mglru);
    ReclaimFeatures {
        reclaim: capabilities.has(CapabilityId::MemoryReclaim),
        swappiness: capabilities.has(CapabilityId::ReclaimSwappiness),
        multi_gen,
        lru_gen: multi_gen && lru_gen_usable(),
        bfq: capabilities.has(CapabilityId::Bfq),
    }
}

/// The most comparisons of paths with rules, a tenth of a second. The last rules come first: they are written for single
/// tenants.
const MAX_LOOKS: usize = 1 << 19;

/// The rules that no cgroup has matched, each with its text. These are the rules that may have been meant for an existing
/// cgroup, and with `all` also the others.
pub(super) fn unmatched(agent: &Agent, all: bool) -> Vec<(Rule, String)> {
    let cgroups = &agent.monitor.cgroups;
    let ids = cgroups.breadth_first();
    let nodes = ids.iter().filter_map(|id| cgroups.get(*id));
    let paths = nodes.map(|node| node.cgroup.path());
    let plain = |rule: &Rule| {
        format!(
            "[[tenant]] {} has matched no cgroup yet: `justitia status --all` shows paths and names",
            rule.matches
        )
    };
    let rules = agent.config.rules.iter().rev();
    let looked_at = MAX_LOOKS / ids.len().max(1);
    rules
        .filter(|rule| !rule.has_matched())
        .enumerate()
        .filter_map(|(n, rule)| {
            let near = (n < looked_at).then(|| rule.near_miss(paths.clone()));
            let meant = near.flatten();
            let told = meant.or_else(|| all.then(|| plain(rule)))?;
            Some((rule.clone(), told))
        })
        .collect()
}

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine lacks something that the agent needs.
    #[error("{feature} cannot work here: {}. `justitia doctor` says more; nothing was changed", reasons.join("; "))]
    Unavailable {
        /// The feature.
        feature: &'static str,
        /// The reasons.
        reasons: Vec<String>,
    },
    /// The journal would wait for a disk that the agent limits.
    #[error(transparent)]
    State(#[from] StateOnDisk),
    /// The knob store cannot be used.
    #[error(transparent)]
    KnobStore(#[from] KnobStoreError),
    /// Knobs could not be restored at the end.
    #[error(
        "{0} knobs could not be restored; their original values stay in the journal: the next start or `justitia reset` \
         restores them"
    )]
    NotRestored(usize),
    /// A file of the kernel cannot be read or written.
    #[error(transparent)]
    Kernel(#[from] justitia_kernel::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl RunError {
    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        |source| Self::System { what, source }
    }
}
