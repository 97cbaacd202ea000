//! Which features of the product work with the capabilities of this machine.

use serde::{Deserialize, Serialize};

use super::capability::CapabilityId as Id;
use super::capability::{Capability, CapabilityId, State};
use super::detect::Capabilities;

/// Something the product does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Standing protection of page cache by `memory.low`.
    CacheProtection,
    /// Reclaim of page cache from tenants above their share, by `memory.reclaim`.
    ProactiveReclaim,
    /// The tenants' weights are read from `io.weight` and `io.bfq.weight`.
    Weights,
    /// Contended disks are divided by corrected weights, and `memory.high`.
    DeviceBandwidth,
    /// Pages of shared files are recharged to their heaviest user.
    Recharge,
}

/// How well a feature works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupportLevel {
    /// It works fully.
    Full,
    /// It works, but less well or not for every tenant.
    Limited,
    /// It does not work.
    Unavailable,
}

/// How well one feature works on this machine, and why not better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureSupport {
    /// Which one.
    pub feature: Feature,
    /// How well it works.
    pub level: SupportLevel,
    /// The capabilities that limit or prevent it; empty when it works fully.
    pub causes: Vec<Cause>,
    /// The setting that switches it on; `None` for what is always on.
    pub switch: Option<String>,
}

/// A capability, or its lack, that limits or prevents a feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The capability as it was detected.
    pub capability: Capability,
    /// What that means for the feature.
    pub consequence: String,
}

/// What every feature needs that writes to cgroups.
const WRITABLE: &[CapabilityId] = &[
    Id::PageSize,
    Id::RootPrivileges,
    Id::Cgroup2,
    Id::Cgroup2Writable,
    Id::MemoryController,
    Id::MemoryEnabled,
];

impl Feature {
    /// Every feature.
    pub const ALL: [Self; 5] = [
        Self::CacheProtection,
        Self::ProactiveReclaim,
        Self::Weights,
        Self::DeviceBandwidth,
        Self::Recharge,
    ];

    /// Its name in messages.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::CacheProtection => "page-cache protection",
            Self::ProactiveReclaim => "proactive reclaim",
            Self::Weights => "weights from cgroups",
            Self::DeviceBandwidth => "device bandwidth",
            Self::Recharge => "page recharging",
        }
    }

    /// The setting that switches it on, if it is off otherwise.
    #[must_use]
    pub const fn switch(self) -> Option<&'static str> {
        match self {
            Self::CacheProtection | Self::ProactiveReclaim | Self::Weights => None,
            Self::DeviceBandwidth => Some("[io] enabled = true"),
            Self::Recharge => Some("[recharge] enabled = true"),
        }
    }

    /// The capabilities that it needs, the most basic first.
    fn needs(self) -> Vec<CapabilityId> {
        match self {
            Self::CacheProtection => WRITABLE.to_vec(),
            Self::ProactiveReclaim => [WRITABLE, &[Id::MemoryReclaim]].concat(),
            Self::Weights => vec![Id::Cgroup2, Id::IoController, Id::IoEnabled],
            Self::DeviceBandwidth => [WRITABLE, &[Id::IoController, Id::IoEnabled]].concat(),
            Self::Recharge => {
                let files = [Id::Cachestat, Id::RechargeableFiles, Id::Btf];
                [WRITABLE, &files].concat()
            }
        }
    }
}

impl Capabilities {
    /// How well `feature` works on this machine.
    #[must_use]
    pub fn feature(&self, feature: Feature) -> FeatureSupport {
        let needs = feature.needs();
        let missing = needs
            .iter()
            .find_map(|id| self.cause(*id, State::No, &format!("it needs {}", id.title())));
        let (level, causes) = if let Some(cause) = missing {
            (SupportLevel::Unavailable, vec![cause])
        } else {
            let unknown = "it may not work: this could not be found out";
            let mut causes: Vec<_> = needs
                .iter()
                .filter_map(|id| self.cause(*id, State::Unknown, unknown))
                .collect();
            causes.extend(self.limits(feature));
            let level = if causes.is_empty() {
                SupportLevel::Full
            } else {
                SupportLevel::Limited
            };
            (level, causes)
        };
        FeatureSupport {
            feature,
            level,
            causes,
            switch: feature.switch().map(str::to_owned),
        }
    }

    /// How well each feature works on this machine.
    #[must_use]
    pub fn features(&self) -> Vec<FeatureSupport> {
        Feature::ALL.map(|feature| self.feature(feature)).into()
    }

    /// The capabilities that limit `feature` where everything that it needs is there.
    fn limits(&self, feature: Feature) -> Vec<Cause> {
        let cause = |id, states: &[State], consequence| {
            let found = states
                .iter()
                .find_map(|state| self.cause(id, *state, consequence));
            found.into_iter()
        };
        match feature {
            Feature::CacheProtection => cause(
                Id::Mglru,
                &[State::Yes],
                "the kernel's own reclaim passes over a cgroup below memory.low only once; \
                 proactive reclaim has to keep the shares",
            )
            .collect(),
            Feature::ProactiveReclaim => {
                let absent = &[State::No, State::Unknown];
                let numa = cause(
                    Id::Numa,
                    &[State::No],
                    "some such kernels report success and reclaim nothing: \
                     only the change in memory.stat counts",
                );
                let from_root = match self.state(Id::Mglru) {
                    State::Yes => Id::MglruDebug,
                    _ => Id::ReclaimSwappiness,
                };
                let unmanaged = cause(
                    from_root,
                    absent,
                    "the unmanaged tenant cannot be reclaimed from alone: it is entitled to its share, \
                     and beyond that what the kernel leaves it",
                );
                let swappiness = cause(
                    Id::ReclaimSwappiness,
                    absent,
                    "with swap on, reclaim could take anonymous memory: \
                     tenants that have any are left alone",
                )
                .filter(|_| self.state(Id::Swap) != State::No);
                numa.chain(unmanaged).chain(swappiness).collect()
            }
            Feature::Weights | Feature::DeviceBandwidth | Feature::Recharge => Vec::new(),
        }
    }

    /// The capability `id` as a cause, if it is in `state`.
    fn cause(&self, id: CapabilityId, state: State, consequence: &str) -> Option<Cause> {
        (self.state(id) == state).then(|| Cause {
            capability: self.get(id).cloned().unwrap_or_else(|| Capability {
                id,
                state,
                reason: "not looked for".to_owned(),
            }),
            consequence: consequence.to_owned(),
        })
    }
}
