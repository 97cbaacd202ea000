//! The weight of a cgroup, and where it comes from.

use justitia_api::WeightSource;
use justitia_kernel::Result;
use justitia_kernel::cgroup::{CgroupId, Ownership};
use justitia_kernel::io::IoWeight;
use justitia_kernel::knob::Knob;
use justitia_share::Weight;

use super::node::Node;
use super::tree::{CgroupTree, Changes};

impl CgroupTree {
    /// The weight in effect, and where it comes from: the configuration; the cgroup's own file; or, where neither sets
    /// it, the file of its only child. podman with crun sets the weight on the cgroup `container` inside the scope, where
    /// it has no sibling.
    ///
    /// An only child's weight does not count if it was set by somebody who may not set the parent's: a delegatee with a
    /// single cgroup would choose the weight of everything it has.
    #[must_use]
    pub fn weight(&self, node: &Node) -> (Weight, WeightSource) {
        if let Some(weight) = node.overrides.weight {
            return (weight, WeightSource::Configuration);
        }
        if let Some((weight, _)) = node.weight {
            return (weight, WeightSource::Cgroup);
        }
        let only_child = match node.children.as_slice() {
            [only] => self.nodes.get(only).and_then(|child| child.weight),
            _ => None,
        };
        match only_child {
            Some((weight, author)) if node.honors(author) => (weight, WeightSource::OnlyChild),
            _ => (Weight::default(), WeightSource::Default),
        }
    }

    /// Takes over whether any disk has the BFQ scheduler: that decides which weights are in effect.
    pub fn set_bfq(&mut self, bfq: bool, changes: &mut Changes) {
        if std::mem::replace(&mut self.bfq, bfq) != bfq {
            for id in self.breadth_first() {
                changes.weights_changed |= self.read_weight(id);
            }
        }
    }

    /// Reads a weight again; returns whether it changed. One that cannot be read at this moment stays.
    pub(super) fn read_weight(&mut self, id: CgroupId) -> bool {
        let bfq = self.bfq;
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        match weight_set(node, bfq) {
            Ok(set) => {
                let before = node.weight;
                node.weight = set.filter(|(_, author)| node.honors(*author));
                node.weight != before
            }
            Err(error) => {
                self.note_unread(&error);
                false
            }
        }
    }
}

/// The weight that was set, and its source. `io.bfq.weight` is looked at first where BFQ schedules a disk, else `io.weight`.
/// The other file counts where only that was set: runc writes `io.bfq.weight` alone wherever BFQ is loaded, whether or not
/// it schedules a disk.
///
/// # Errors
/// If a file cannot be read for lack of a file descriptor or of memory. With any other error nobody has set it.
fn weight_set(node: &Node, bfq: bool) -> Result<Option<(Weight, Ownership)>> {
    let cgroup = &node.cgroup;
    let set = |found: Result<Option<IoWeight>>, knob: Knob| match found {
        Err(error) if error.is_exhausted() => Err(error),
        found => Ok(found
            .ok()
            .flatten()
            .map(|found| found.default)
            .filter(|weight| *weight != Weight::default())
            .map(|weight| (weight, node.author_of(knob.file())))),
    };
    let io = || set(cgroup.io_weight(), Knob::IoWeight);
    let io_bfq = || set(cgroup.io_bfq_weight(), Knob::IoBfqWeight);
    let first = if bfq { io_bfq()? } else { io()? };
    match first {
        None if bfq => io(),
        None => io_bfq(),
        first => Ok(first),
    }
}
