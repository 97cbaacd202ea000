//! The ways of controlling the machine that are compared. The tenants' weights are always set, in
//! all of them; a configuration decides what enforces the weights.

use justitia_common::toml_file::none_of;
use serde::{Deserialize, Serialize};

use crate::report::schema;

/// One way of controlling the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// As `--configuration` takes it.
    pub id: String,
    /// For people.
    pub label: String,
    /// What it sets, in one sentence.
    pub what: String,
    /// The disk's scheduler.
    pub scheduler: Scheduler,
    /// io.cost, if it is on.
    pub io_cost: Option<IoCost>,
    /// Whether the tenants' memory is limited by weight.
    pub memory: Option<MemoryLimit>,
    /// Whether the tenants' device bandwidth is limited by weight (`io.max`).
    pub io_max: bool,
    /// Whether the agent runs.
    pub agent: bool,
    /// Whether the agent divides the disk's bandwidth (`[io]`).
    pub credits: bool,
    /// Whether the agent recharges the pages of shared files to their heaviest user.
    pub recharge: bool,
    /// Whether the agent divides the cache by what tenants hold, not by what they use.
    pub usage: bool,
}

/// A scheduler of block requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheduler {
    /// None at all.
    None,
    /// BFQ, which takes `io.bfq.weight`, without its preference of interactive tasks and with small slices.
    Bfq,
    /// BFQ with its own settings.
    BfqDefault,
}

/// How io.cost is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCost {
    /// Its model, per cent of the disk's speed.
    pub model: u64,
    /// Whether it is slower while requests take long. Its rate is fixed otherwise.
    pub targets: bool,
}

impl IoCost {
    const fn fixed(model: u64) -> Self {
        Self {
            model,
            targets: false,
        }
    }

    /// With latency targets.
    const TARGETS: Self = Self {
        model: 90,
        targets: true,
    };
}

/// The models of which the curve of total against PV is made, per cent of the disk's speed.
const MODELS: [u64; 6] = [50, 70, 80, 90, 95, 98];

/// Which file limits a tenant's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryLimit {
    /// `memory.max`.
    Max,
    /// `memory.high`.
    High,
}

impl Configuration {
    /// Every configuration the lab knows, in the order in which results show them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Self::baselines();
        all.extend(Self::with_agent());
        all.extend(Self::with_device_bandwidth());
        all.extend(MODELS.into_iter().flat_map(Self::with_model));
        all
    }

    /// The stock kernel alone: no scheduler, nothing set but weights.
    fn conventional() -> Self {
        Self {
            id: "conventional".into(),
            label: "Conventional".into(),
            what: "The stock kernel as it comes: no scheduler, weights without effect.".into(),
            scheduler: Scheduler::None,
            io_cost: None,
            memory: None,
            io_max: false,
            agent: false,
            credits: false,
            recharge: false,
            usage: false,
        }
    }

    fn named(id: &str, label: &str, what: &str) -> Self {
        Self {
            id: id.into(),
            label: label.into(),
            what: what.into(),
            ..Self::conventional()
        }
    }

    /// Without the agent.
    fn baselines() -> Vec<Self> {
        let bfq =
            "BFQ schedules the disk by io.bfq.weight, with low_latency=0 and max_budget=1024.";
        let bfq_default = "BFQ schedules the disk by io.bfq.weight, with its own settings.";
        let io_cost = "io.cost shares the disk by io.weight, its model set to the disk's speed.";
        let targets = "The same, its model set to 90 % of the disk's speed, with latency targets.";
        let memory = "memory.max by weight, over BFQ.";
        let io_max = "io.max by weight, out of the disk's known speed.";
        let both = "io.max and memory.high by weight, out of the disk's known speed.";
        vec![
            Self::conventional(),
            Self {
                scheduler: Scheduler::Bfq,
                ..Self::named("bfq", "BFQ", bfq)
            },
            Self {
                scheduler: Scheduler::BfqDefault,
                ..Self::named("bfq-default", "BFQ as it comes", bfq_default)
            },
            Self {
                io_cost: Some(IoCost::fixed(100)),
                ..Self::named("iocost", "io.cost", io_cost)
            },
            Self {
                io_cost: Some(IoCost::TARGETS),
                ..Self::named("iocost-targets", "io.cost with targets", targets)
            },
            Self {
                scheduler: Scheduler::Bfq,
                memory: Some(MemoryLimit::Max),
                ..Self::named("memcg", "Memory limits", memory)
            },
            Self {
                io_max: true,
                ..Self::named("io-max", "Static io.max", io_max)
            },
            Self {
                io_max: true,
                memory: Some(MemoryLimit::High),
                ..Self::named("io-max+memory-high", "Static io.max and memory.high", both)
            },
        ]
    }

    /// With the agent.
    fn with_agent() -> Vec<Self> {
        let agent = |scheduler, id, label, what| Self {
            scheduler,
            agent: true,
            ..Self::named(id, label, what)
        };
        vec![
            agent(
                Scheduler::Bfq,
                "justitia",
                "Justitia",
                "justitia run, over BFQ with io.bfq.weight.",
            ),
            agent(
                Scheduler::None,
                "justitia+none",
                "Justitia, no scheduler",
                "justitia run alone: no scheduler enforces weights at the disk.",
            ),
            Self {
                usage: true,
                ..agent(
                    Scheduler::Bfq,
                    "justitia+usage",
                    "Justitia, demand by usage",
                    "justitia run with the paper's rule (demand = \"usage\"), over BFQ with io.bfq.weight.",
                )
            },
            Self {
                recharge: true,
                ..agent(
                    Scheduler::Bfq,
                    "justitia+recharge",
                    "Justitia with recharging",
                    "justitia run with pages of shared files recharged, sampled every 10 s, over BFQ with io.bfq.weight.",
                )
            },
        ]
    }

    /// With the agent, which divides the disk, too.
    fn with_device_bandwidth() -> Vec<Self> {
        let io = |scheduler, io_cost, id, label, over| Self {
            scheduler,
            io_cost,
            agent: true,
            credits: true,
            ..Self::named(
                id,
                label,
                &format!(
                    "justitia run with device bandwidth ([io]) enabled, {over}; background writeback starts late."
                ),
            )
        };
        let corrected = |id, label, scheduler, io_cost, over| {
            let over = format!("over {over}, whose weights it corrects");
            io(scheduler, io_cost, id, label, over)
        };
        vec![
            io(
                Scheduler::None,
                None,
                "justitia+io",
                "Justitia with [io]",
                "without a scheduler: it enables io.cost".to_owned(),
            ),
            corrected(
                "justitia+bfq+io",
                "Justitia with [io] over BFQ",
                Scheduler::Bfq,
                None,
                "BFQ",
            ),
            corrected(
                "justitia+bfq-default+io",
                "Justitia with [io] over BFQ as it comes",
                Scheduler::BfqDefault,
                None,
                "BFQ with its own settings",
            ),
            corrected(
                "justitia+iocost+io",
                "Justitia with [io] over io.cost",
                Scheduler::None,
                Some(IoCost::fixed(100)),
                "io.cost with a model of the disk's speed",
            ),
            corrected(
                "justitia+iocost-targets+io",
                "Justitia with [io] over io.cost with targets",
                Scheduler::None,
                Some(IoCost::TARGETS),
                "io.cost with a model of 90 % of the disk's speed and latency targets",
            ),
        ]
    }

    /// io.cost with a model of `model` per cent of the disk's speed, and the agent over it.
    fn with_model(model: u64) -> [Self; 2] {
        let io_cost = Some(IoCost::fixed(model));
        let what = format!(
            "io.cost shares the disk by io.weight, its model set to {model} % of the disk's speed."
        );
        [
            Self {
                io_cost,
                ..Self::named(
                    &format!("iocost-{model}"),
                    &format!("io.cost at {model} %"),
                    &what,
                )
            },
            Self {
                io_cost,
                agent: true,
                credits: true,
                ..Self::named(
                    &format!("justitia+iocost-{model}+io"),
                    &format!("Justitia with [io] over io.cost at {model} %"),
                    &format!(
                        "justitia run with device bandwidth ([io]) enabled, over io.cost with a model of {model} % of the disk's speed, whose weights it corrects."
                    ),
                )
            },
        ]
    }

    /// The configuration of this name.
    ///
    /// # Errors
    /// If none has this name; it lists the names that there are.
    pub fn find(id: &str) -> Result<Self, String> {
        let all = Self::all();
        match all.iter().find(|known| known.id == id) {
            Some(found) => Ok(found.clone()),
            None => {
                let known = all.iter().map(|known| known.id.as_str());
                Err(none_of("a configuration", id, known))
            }
        }
    }

    /// As results name it.
    #[must_use]
    pub fn described(&self) -> schema::Configuration {
        schema::Configuration {
            id: self.id.clone(),
            label: self.label.clone(),
            what: self.what.clone(),
        }
    }
}
