//! What cgroups are, and what weights were declared for them: asked when a cgroup appears, while files of its runtime are
//! missing, when its weight is written, and once in a while.

use std::cmp::Reverse;
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::{DeclaredWeight, TenantKind, escape};
use justitia_kernel::cgroup::CgroupId;
use justitia_runtimes::{Declared, Identity};
use justitia_share::Weight;

use crate::node::Node;
use crate::rules::{Override, Rule, Subject, overrides};
use crate::tree::{CgroupTree, Changes};

/// A runtime writes its files a moment before or after it makes the cgroup: as long as some are missing they are asked for
/// again after this time, and then each time after twice as much …
const RETRY: Duration = Duration::from_millis(250);
/// … this many times: the last one 32 s after the first.
const RETRIES: u8 = 7;
/// A runtime may note a new weight after it has written it: after a write the second look comes after this time.
const CONFIRM: Duration = Duration::from_secs(1);
/// A container may be renamed, which nothing tells.
const REFRESH: Duration = Duration::from_secs(300);
/// What others than the administrator made is asked for no more often than this: they can write their weights in a loop.
const MIN_PERIOD: Duration = Duration::from_secs(30);

impl<M> CgroupTree<M> {
    /// Asks again, after its weight was written.
    pub(crate) fn inquire_anew(&mut self, id: CgroupId, now: Instant) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.inquiry.tries = 0;
        node.inquiry.confirm = true;
        let earliest = node.inquiry.done.filter(|_| node.in_delegation);
        let at = earliest.map_or(now, |done| now.max(done + MIN_PERIOD));
        self.inquire(id, at);
    }

    /// Asks what a cgroup is at `at`, unless that is asked sooner.
    pub(crate) fn inquire(&mut self, id: CgroupId, at: Instant) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.inquiry.due.is_none_or(|due| at < due)
        {
            node.inquiry.due = Some(at);
            self.inquiries.0.push(Reverse((at, id)));
        }
    }

    /// Asks what cgroups are, of `most` of those that are due. The others come next time.
    pub(crate) fn identify(
        &mut self,
        most: usize,
        rules: &[Rule],
        now: Instant,
        changes: &mut Changes,
    ) {
        let mut asked = 0;
        while asked < most
            && let Some(&Reverse((at, id))) = self.inquiries.0.peek()
            && at <= now
        {
            self.inquiries.0.pop();
            let Some(node) = self
                .nodes
                .get_mut(&id)
                .filter(|n| n.inquiry.due == Some(at))
            else {
                continue;
            };
            let in_delegation = node.in_delegation;
            node.inquiry.due = None;
            let root = in_delegation.then(|| self.delegation_root(id)).flatten();
            if let Some(later) = root.and_then(|root| self.inquiries.1.until(root, now)) {
                self.inquire(id, later);
                continue;
            }
            asked += 1;
            let begun = Instant::now();
            self.identify_one(id, rules, now, changes);
            if let Some(root) = root {
                self.inquiries.1.charge(root, begun.elapsed(), now);
            }
        }
    }

    fn identify_one(&mut self, id: CgroupId, rules: &[Rule], now: Instant, changes: &mut Changes) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let found = self
            .resolver
            .resolve(node.cgroup.path(), node.in_delegation);
        let inquiry = &mut node.inquiry;
        let next = if !found.complete && inquiry.tries < RETRIES {
            inquiry.tries += 1;
            Some(RETRY * (1 << (inquiry.tries - 1)))
        } else if std::mem::take(&mut inquiry.confirm) {
            Some(CONFIRM)
        } else {
            found.may_change.then_some(REFRESH)
        };
        (inquiry.due, inquiry.done) = (None, Some(now));
        let (identity, parent) = (found.identity, node.parent);
        let is_new = node.identity != identity;
        let declared = |node: &Node<M>| node.identity.declared.as_ref().map(|d| d.weight);
        let before = declared(node);
        let is_container = identity.kind == TenantKind::PodContainer;
        node.identity = identity;
        changes.weights_changed |= declared(node) != before;
        if let Some(after) = next {
            self.inquire(id, now + after);
        }
        // A pod is known by its containers.
        if let Some(parent) = parent.filter(|_| is_new && is_container)
            && let Some(node) = self.nodes.get(&parent)
            && node.identity.kind == TenantKind::Pod
        {
            self.inquire(parent, now);
        }
        self.apply_rules_to(id, rules, changes);
    }

    /// What a new cgroup is, if that decides whether it is managed, else nothing; and what the rules say of it.
    pub(crate) fn rules_of_new(
        &mut self,
        rules: &[Rule],
        path: &Path,
        in_delegation: bool,
    ) -> (Identity, Override) {
        let decides = !in_delegation && rules.iter().any(Rule::excludes_by_identity);
        let identity = if decides {
            self.resolver.resolve(path, in_delegation).identity
        } else {
            Identity::default()
        };
        let subject = Subject {
            path,
            identity: &identity,
            made: in_delegation,
        };
        let overrides = overrides(rules, &subject);
        (identity, overrides)
    }

    /// Applies the rules to what is known of a cgroup by now.
    fn apply_rules_to(&mut self, id: CgroupId, rules: &[Rule], changes: &mut Changes) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let subject = Subject {
            path: node.cgroup.path(),
            identity: &node.identity,
            made: node.in_delegation,
        };
        let overrides = overrides(rules, &subject);
        let before = std::mem::replace(&mut node.overrides, overrides);
        changes.weights_changed |= before.weight != overrides.weight;
        if overrides.exclude == Some(true) {
            let (cgroup, parent) = (node.cgroup.clone(), node.parent);
            self.remove(id, changes);
            self.exclude(cgroup, parent);
        } else if before.delegated != overrides.delegated {
            self.apply_delegation(id, changes);
        }
    }

    /// When the next cgroup is asked for, if any is.
    #[must_use]
    pub fn next_inquiry(&self) -> Option<Instant> {
        self.inquiries.0.peek().map(|Reverse((at, _))| *at)
    }

    /// How many files of runtimes and units were there and could not be used.
    #[must_use]
    pub fn identity_errors(&self) -> u64 {
        self.resolver.errors()
    }

    /// Whether the files of a cgroup have neither the weight that was declared for it nor what its runtime makes of that; not
    /// without such files. crun writes it to the container's own cgroup inside the scope, if that is there.
    #[must_use]
    pub fn drifts(&self, node: &Node<M>) -> bool {
        let Some(declared) = &node.identity.declared else {
            return false;
        };
        let part = node.children.iter().filter_map(|id| self.nodes.get(id));
        let part = part.filter(|child| child.identity.part.is_some());
        let files = std::iter::once(node).chain(part);
        let mut standing = files
            .flat_map(|node| <[_; 2]>::from(node.standing.defaults()))
            .flatten()
            .peekable();
        standing.peek().is_some() && !standing.any(|weight| declared.is_met_by(weight))
    }

    /// The weight that was declared for a cgroup, beside what stands in its files.
    #[must_use]
    pub fn declared(&self, node: &Node<M>) -> Option<DeclaredWeight> {
        let declared = node.identity.declared.as_ref()?;
        let number = |weight: Option<Weight>| weight.map(Weight::get);
        let (io, bfq) = node.standing.defaults();
        Some(DeclaredWeight {
            weight: declared.weight.get(),
            source: declared.source,
            file: escape::encode(declared.file.as_os_str()),
            converted: converted(declared),
            io_weight: number(io),
            io_bfq_weight: number(bfq),
            drift: self.drifts(node),
        })
    }
}

/// What the runtime writes instead, if that is another number.
fn converted(declared: &Declared) -> Option<u64> {
    let converted = declared.converted()?;
    (converted != declared.weight.get()).then_some(converted)
}
