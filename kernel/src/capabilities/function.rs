//! What follows from the facts for the product.

use serde::{Deserialize, Serialize};

use super::{Fact, FactName, KernelSupport, State};

/// Something the product does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Function {
    /// Standing protection of page cache by `memory.low`.
    CacheProtection,
    /// Taking page cache back from those above their share by `memory.reclaim`.
    ProactiveReclaim,
    /// Reading the tenants' weights from `io.weight` and `io.bfq.weight`.
    Weights,
    /// Dividing contended disks by `io.max` and `memory.high`.
    DeviceCredits,
    /// Handing shared files' pages to their heaviest user.
    PageOwnership,
}

/// How well a function will work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As meant.
    Works,
    /// Works, but less well or not for everybody: see the facts named.
    Limited,
    /// Does not work.
    Prevented,
}

/// How well one function will work here, and why not better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which.
    pub function: Function,
    /// How well.
    pub outcome: Outcome,
    /// The facts that limit or prevent it, with what that means; empty when it works.
    pub because: Vec<Because>,
    /// The setting that switches it on; `None` for what is always on.
    pub switch: Option<String>,
}

/// A fact that limits or prevents a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Because {
    /// The fact, as it was found.
    pub fact: Fact,
    /// What it means for the function.
    pub consequence: String,
}

const WRITABLE: &[FactName] = &[
    FactName::RootPrivileges,
    FactName::Cgroup2,
    FactName::Cgroup2Writable,
    FactName::MemoryController,
    FactName::MemoryEnabled,
];

impl Function {
    /// Every function.
    pub const ALL: [Self; 5] = [
        Self::CacheProtection,
        Self::ProactiveReclaim,
        Self::Weights,
        Self::DeviceCredits,
        Self::PageOwnership,
    ];

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::CacheProtection => "page-cache protection",
            Self::ProactiveReclaim => "proactive reclaim",
            Self::Weights => "weights from cgroups",
            Self::DeviceCredits => "device credits",
            Self::PageOwnership => "page ownership",
        }
    }

    /// The setting that switches it on, if it is off otherwise.
    #[must_use]
    pub const fn switch(self) -> Option<&'static str> {
        match self {
            Self::CacheProtection | Self::ProactiveReclaim | Self::Weights => None,
            Self::DeviceCredits => Some("[credits] enabled = true"),
            Self::PageOwnership => Some("[ownership] enabled = true"),
        }
    }

    /// The facts without which it does not work, the most basic first.
    fn needs(self) -> Vec<FactName> {
        match self {
            Self::CacheProtection => WRITABLE.to_vec(),
            Self::ProactiveReclaim => [WRITABLE, &[FactName::MemoryReclaim]].concat(),
            Self::Weights => vec![
                FactName::Cgroup2,
                FactName::IoController,
                FactName::IoEnabled,
            ],
            Self::DeviceCredits => {
                let disks = [
                    FactName::SafeLimits,
                    FactName::IoController,
                    FactName::IoEnabled,
                ];
                [WRITABLE, &disks].concat()
            }
            Self::PageOwnership => {
                let files = [FactName::Cachestat, FactName::OwnableFiles, FactName::Btf];
                [WRITABLE, &files].concat()
            }
        }
    }
}

impl KernelSupport {
    /// How well `function` will work here.
    #[must_use]
    pub fn verdict(&self, function: Function) -> Verdict {
        let missing = function
            .needs()
            .into_iter()
            .find_map(|name| self.because(name, State::No, "it cannot work without this"));
        if let Some(because) = missing {
            return Verdict {
                function,
                outcome: Outcome::Prevented,
                because: vec![because],
                switch: function.switch().map(str::to_owned),
            };
        }
        let mut because: Vec<_> = function
            .needs()
            .into_iter()
            .filter_map(|name| {
                self.because(
                    name,
                    State::Unknown,
                    "it may not work: this could not be found out",
                )
            })
            .collect();
        because.extend(self.limits(function));
        let outcome = if because.is_empty() {
            Outcome::Works
        } else {
            Outcome::Limited
        };
        Verdict {
            function,
            outcome,
            because,
            switch: function.switch().map(str::to_owned),
        }
    }

    /// How well each function will work here.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        Function::ALL.map(|function| self.verdict(function)).into()
    }

    fn limits(&self, function: Function) -> Vec<Because> {
        let limits = match function {
            Function::CacheProtection => vec![self.because(
                FactName::Mglru,
                State::Yes,
                "the kernel's own reclaim passes over a cgroup below memory.low only once; \
                 proactive reclaim has to keep the shares",
            )],
            Function::ProactiveReclaim => {
                let mut limits = vec![self.because(
                    FactName::Numa,
                    State::No,
                    "some such kernels report success and reclaim nothing: \
                     only the change in memory.stat counts",
                )];
                if self.state(FactName::Mglru) == State::Yes {
                    for state in [State::No, State::Unknown] {
                        limits.push(self.because(
                            FactName::MglruDebug,
                            state,
                            "nothing can be reclaimed from what is outside any tenant alone: it has its weight's part, \
                             and beyond that what the kernel leaves it",
                        ));
                    }
                }
                if self.state(FactName::Swap) != State::No {
                    for state in [State::No, State::Unknown] {
                        limits.push(self.because(
                            FactName::ReclaimSwappiness,
                            state,
                            "with swap on, reclaim could take anonymous memory: \
                             tenants that have any are left alone",
                        ));
                    }
                }
                limits
            }
            Function::DeviceCredits => vec![self.because(
                FactName::IoCost,
                State::Yes,
                "its operator's choice works alone there: these disks get no credits",
            )],
            Function::Weights | Function::PageOwnership => Vec::new(),
        };
        limits.into_iter().flatten().collect()
    }

    /// The fact `name`, if it is in `state`.
    fn because(&self, name: FactName, state: State, consequence: &str) -> Option<Because> {
        (self.state(name) == state).then(|| Because {
            fact: self.fact(name).cloned().unwrap_or_else(|| Fact {
                name,
                state,
                reason: "not looked for".to_owned(),
            }),
            consequence: consequence.to_owned(),
        })
    }
}
