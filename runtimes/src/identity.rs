//! What is known of a cgroup.

use std::path::PathBuf;

use justitia_api::{TenantKind, WeightSource};
use justitia_share::Weight;

/// The longest name, image or label that is kept, bytes.
pub(crate) const MAX_NAME: usize = 256;
/// The most labels of one container that are kept.
pub(crate) const MAX_LABELS: usize = 64;
/// The largest weight of BFQ (`BFQ_MAX_WEIGHT`, block/bfq-iosched.h).
const BFQ_MAX: u64 = 1000;

/// What a cgroup is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// What it belongs to.
    pub kind: TenantKind,
    /// As its runtime calls it: a container's name, `NAMESPACE/NAME` of a pod, `NAMESPACE/POD/CONTAINER` of a container in
    /// one, a domain's name, a unit's. As others chose it, at most 256 bytes: to be escaped wherever it is shown. Empty for a
    /// cgroup that is none of these.
    pub name: String,
    /// The image that a container runs, as it was named.
    pub image: Option<String>,
    /// `KEY=VALUE`, at most 64 of them.
    pub labels: Vec<String>,
    /// The name of a cgroup that the runtime makes inside: crun's `container`, libvirt's `emulator`. It belongs to its parent's
    /// container or machine.
    pub part: Option<String>,
    /// The I/O weight that was declared.
    pub declared: Option<Declared>,
}

/// An I/O weight, as it was declared to the runtime or in the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The number, as it was declared.
    pub weight: Weight,
    /// What the runtime was told, or the unit.
    pub source: WeightSource,
    /// The file that says so.
    pub file: PathBuf,
    /// Whether the runtime takes it for a weight of cgroup v1 and writes another number to `io.weight`: see
    /// [`Declared::converted`].
    pub converts: bool,
}

impl Declared {
    /// What runc and crun write to `io.weight` where there is no `io.bfq.weight`: 10 to 1000 become 1 to 10000, linearly
    /// (`ConvertBlkIOToIOWeightValue` of runc, `write_blkio_resources` of crun).
    #[must_use]
    pub fn converted(&self) -> Option<u64> {
        let weight = self.weight.get();
        self.converts
            .then(|| 1 + weight.saturating_sub(10) * 9999 / 990)
    }

    /// What the runtime or systemd writes to `io.weight`; `None` where that is nothing: a runtime that converts leaves it alone where
    /// there is an `io.bfq.weight` (`bfq`), and the kernel takes no more than 10000.
    #[must_use]
    pub fn in_io_weight(&self, bfq: bool) -> Option<Weight> {
        match self.converted() {
            None => Some(self.weight),
            Some(_) if bfq => None,
            Some(converted) => Weight::try_from(converted).ok(),
        }
    }

    /// What the runtime or systemd writes to `io.bfq.weight`: runc and crun the number as it is, systemd another one above 100
    /// (`BFQ_WEIGHT` in its src/core/cgroup.c). `None` where the kernel does not take that.
    #[must_use]
    pub fn in_bfq_weight(&self) -> Option<Weight> {
        let weight = self.weight.get();
        let written = match weight {
            101.. if !self.converts => 100 + (weight - 100) * 900 / 9900,
            _ => weight,
        };
        let written = Weight::try_from(written).ok();
        written.filter(|weight| weight.get() <= BFQ_MAX)
    }

    /// Whether a number in `io.weight` or `io.bfq.weight` is what was declared, or what the runtime or systemd makes of it.
    #[must_use]
    pub fn is_met_by(&self, found: Weight) -> bool {
        let converted = Some(found.get()) == self.converted();
        found == self.weight || converted || Some(found) == self.in_bfq_weight()
    }
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What the cgroup is, as far as it is known.
    pub identity: Identity,
    /// Whether files that should be there were read. Else it is worth asking again: a runtime writes them a moment before or
    /// after it makes the cgroup.
    pub complete: bool,
    /// Whether any of this may change while the cgroup exists: a container can be renamed and given another weight.
    pub may_change: bool,
}

/// At most [`MAX_NAME`] bytes of a text.
pub(crate) fn bounded(text: &str) -> String {
    let mut end = MAX_NAME.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
