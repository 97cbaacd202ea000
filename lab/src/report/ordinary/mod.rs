//! `justitia-lab ordinary`: the mixtures that hosts have, ours against the kernel alone, in one table.

mod table;

use serde::Serialize;

use super::number::{percent, times};
use super::schema::{Outcome, Results, Run};
use super::spread::Spread;
use super::summary::PROCESSOR_BOUND;
pub use table::table;

/// The configurations that are compared: the kernel alone, and the agent without a scheduler, which would be a second
/// difference.
pub const COMPARED: [&str; 2] = ["conventional", "justitia+none"];

/// What a tenant that is not above its share keeps of the kernel's hits and of its throughput, at least.
const KEPT: f64 = 0.97;
/// Hits that do not count as lost, as a fraction of what was read: where nearly nothing hits, a ratio says nothing.
const HITS_NOISE: f64 = 0.005;
/// The disk reads of the host, of the kernel's, at most.
const DISK_READS: f64 = 1.03;
/// Bytes that the host's disk may read more without it counting: where nearly nothing is read, a ratio says nothing.
const DISK_NOISE: f64 = 8_388_608.0;
/// Bytes below which a tenant counts as one that does not read.
const READS: f64 = 1_048_576.0;

/// A value of the kernel alone and of the agent: medians of the repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pair {
    /// The kernel's.
    pub kernel: Option<f64>,
    /// Ours.
    pub ours: Option<f64>,
}

impl Pair {
    /// Ours over the kernel's.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.kernel
            .zip(self.ours)
            .filter(|(kernel, _)| *kernel > 0.0)
            .map(|(kernel, ours)| ours / kernel)
    }

    fn larger(&self) -> Option<f64> {
        self.kernel.into_iter().chain(self.ours).reduce(f64::max)
    }
}

/// A tenant of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrdinaryTenant {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: u64,
    /// Whether the kernel gives it more than its share: then it may lose.
    pub above_share: bool,
    /// The part of its reads that no disk had to deliver; of one that reads.
    pub hits: Pair,
    /// Bytes that its applications read.
    pub reads: Pair,
    /// Operations per second, of the load generator.
    pub operations: Pair,
    /// File pages that it held, on average, in bytes.
    pub pages: Pair,
    /// Whether it kept what it must; `None` where it need not, or nothing was measured.
    pub good: Option<bool>,
}

impl OrdinaryTenant {
    /// Its throughput: reads, or operations where it does not read.
    #[must_use]
    pub fn throughput(&self) -> Pair {
        match self.reads.kernel {
            Some(kernel) if kernel >= READS => self.reads,
            _ => self.operations,
        }
    }

    fn judge(&self) -> Option<bool> {
        if self.above_share {
            return None;
        }
        let throughput = self.throughput().ratio().map(|ratio| ratio >= KEPT);
        let hits = self.hits.kernel.zip(self.hits.ours);
        let hits = hits.map(|(kernel, ours)| ours >= KEPT * kernel - HITS_NOISE);
        match (throughput, hits) {
            (None, None) => None,
            (throughput, hits) => Some(throughput.unwrap_or(true) && hits.unwrap_or(true)),
        }
    }
}

/// A mixture with one of the kernel's LRU lists.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mixture {
    /// The experiment's name.
    pub name: String,
    /// Whether MGLRU was on; `None` where the kernel has none.
    pub mglru: Option<bool>,
    /// The guest's kernel.
    pub kernel: String,
    /// Runs of each configuration that measured something.
    pub repeats: Pair,
    /// Its tenants.
    pub tenants: Vec<OrdinaryTenant>,
    /// Bytes that the host's disk read.
    pub disk_reads: Pair,
    /// Seconds in which everything waited for memory (PSI full).
    pub memory_stall: Pair,
    /// The part of the time that the processors were busy.
    pub processor: Pair,
    /// The part of the time that the disk was busy.
    pub disk: Pair,
    /// Whether the processors were the bottleneck: then throughput says little.
    pub processor_bound: bool,
    /// Whether the disk read no more than it may; `None` where it was not measured.
    pub disk_good: Option<bool>,
    /// Whether all goals were reached; `None` where a configuration has no run.
    pub good: Option<bool>,
}

/// What was measured, mixture by mixture.
#[must_use]
pub fn mixtures(all: &[Results]) -> Vec<Mixture> {
    all.iter().flat_map(of_results).collect()
}

fn of_results(results: &Results) -> Vec<Mixture> {
    let mut states: Vec<Option<bool>> = results.runs.iter().map(|run| run.mglru).collect();
    // MGLRU first, as the kernel comes.
    states.sort_by_key(|state| std::cmp::Reverse(*state));
    states.dedup();
    states
        .into_iter()
        .map(|mglru| mixture(results, mglru))
        .collect()
}

fn mixture(results: &Results, mglru: Option<bool>) -> Mixture {
    let runs_of = |id: &str| -> Vec<&Run> {
        let runs = results.runs.iter().filter(|run| run.mglru == mglru);
        runs.filter(|run| run.configuration == id && run.outcome == Outcome::Measured)
            .collect()
    };
    let [kernel, ours] = COMPARED.map(runs_of);
    let pair = |of: &dyn Fn(&Run) -> Option<f64>| {
        let median = |runs: &[&Run]| Spread::of(runs.iter().filter_map(|run| of(run)));
        Pair {
            kernel: median(&kernel).map(|spread| spread.median),
            ours: median(&ours).map(|spread| spread.median),
        }
    };
    let whole = |key: &str| pair(&|run: &Run| run.values.get(key).copied());
    let tenants = results.tenants.iter().map(|tenant| {
        let value = |key: &str| {
            pair(&|run: &Run| {
                let found = run.tenants.iter().find(|found| found.name == tenant.name)?;
                found.values.get(key).copied()
            })
        };
        let mut row = OrdinaryTenant {
            name: tenant.name.clone(),
            weight: tenant.weight,
            above_share: tenant.above_share,
            hits: value("hits"),
            reads: value("reads"),
            operations: value("operations"),
            pages: value("pages"),
            good: None,
        };
        if row.reads.kernel.is_none_or(|kernel| kernel < READS) {
            row.hits = Pair::default();
        }
        row.good = row.judge();
        row
    });
    let count = |runs: &[&Run]| justitia_share::num::to_f64(runs.len() as u64);
    let mut mixture = Mixture {
        name: results.experiment.clone(),
        mglru,
        kernel: results.machine.kernel.clone(),
        repeats: Pair {
            kernel: Some(count(&kernel)),
            ours: Some(count(&ours)),
        },
        tenants: tenants.collect(),
        disk_reads: whole("disk_reads"),
        memory_stall: whole("memory_stall"),
        processor: whole("processor"),
        disk: whole("disk"),
        processor_bound: false,
        disk_good: None,
        good: None,
    };
    mixture.judge();
    mixture
}

impl Mixture {
    fn judge(&mut self) {
        self.processor_bound = self
            .processor
            .larger()
            .is_some_and(|busy| busy >= PROCESSOR_BOUND);
        let disk = self.disk_reads.kernel.zip(self.disk_reads.ours);
        self.disk_good = disk.map(|(kernel, ours)| ours <= DISK_READS * kernel + DISK_NOISE);
        self.good = self.disk_good.map(|disk| {
            let tenants = self.tenants.iter().filter_map(|tenant| tenant.good);
            disk && tenants.into_iter().all(|good| good)
        });
    }

    /// The kernel's LRU lists.
    #[must_use]
    pub const fn lru(&self) -> &'static str {
        match self.mglru {
            Some(true) => "MGLRU",
            Some(false) | None => "classic",
        }
    }

    /// What was worse than it may be, in words; empty if nothing was.
    #[must_use]
    pub fn losses(&self) -> Vec<String> {
        let bad = self.tenants.iter().filter(|t| t.good == Some(false));
        let mut losses: Vec<String> = bad
            .map(|tenant| {
                format!(
                    "{}: hits {} of {}, throughput {} of the kernel's",
                    tenant.name,
                    percent(tenant.hits.ours),
                    percent(tenant.hits.kernel),
                    times(tenant.throughput().ratio())
                )
            })
            .collect();
        if self.disk_good == Some(false) {
            let ratio = times(self.disk_reads.ratio());
            losses.push(format!("disk reads {ratio} of the kernel's"));
        }
        losses
    }
}
