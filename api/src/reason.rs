//! Why something was decided: the rule, and what went into it.
//!
//! A [`Rule`] is data: a machine can read it, and the numbers of a decision can be recomputed from it. Its words are in
//! [`words`](crate::words), those of what a knob holds in `view/explain`. Device bandwidth has no rules yet: its reasons are [`Reason::Text`].

use justitia_share::PAGE_SIZE;
use serde::{Deserialize, Serialize, Serializer};

/// A rule of the agent with its inputs. Amounts in bytes, fractions 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// Free memory is short: file pages above the entitlement are reclaimed.
    Excess(ExcessReason),
    /// Free memory is short and file pages come back after reclaim: cold anonymous memory is swapped out.
    Anonymous(AnonymousReason),
    /// Reclaimable slab is above its cap.
    Slab(SlabReason),
    /// `memory.low` protects what the tenant uses of its entitlement.
    Protection(ProtectionReason),
    /// Nothing is reclaimed from the tenant for now.
    Exempt(ReclaimExemption),
    /// Another process wrote a knob: it is left to its writer.
    ExternalWrite {
        /// The value found there.
        found: String,
        /// The value that the agent had written; `None` if it had not written the knob before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        applied: Option<String>,
        /// The writer; `None` where it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// systemd or the kubelet set a knob back that had been left to it.
    SetBack {
        /// The value found there.
        found: String,
        /// The process that set it back; `None` where it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A cgroup's file has another weight than was declared for it.
    WeightDrift {
        /// What was declared.
        declared: u64,
        /// The file that says so, escaped.
        file: String,
        /// What the cgroup's file had.
        found: u64,
    },
    /// The kernel refused.
    KernelError {
        /// Its error, with the file.
        error: String,
    },
    /// A shared file's pages should be charged to a heavier tenant.
    Recharge(RechargeReason),
}

/// Why anonymous memory of a tenant is swapped out. Bytes; what happened lately halves every ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnonymousReason {
    /// Its anonymous memory that may be swapped out.
    pub anon: u64,
    /// File pages of all tenants that were read again lately after they had been reclaimed.
    pub refaulted: u64,
    /// What was swapped out of it lately.
    pub swapped_out: u64,
    /// What it swapped in again lately.
    pub swapped_in: u64,
}

/// Why a tenant has to give back file pages. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcessReason {
    /// Cache that it holds.
    pub usage: u64,
    /// The cache that it is entitled to.
    pub entitlement: u64,
    /// Whether these are pages of an inner node that none of its children is charged for.
    pub orphaned: bool,
    /// Free memory.
    pub free: u64,
    /// The free memory that the agent keeps available.
    pub free_headroom: u64,
}

/// Why reclaimable slab is shrunk: of one tenant, or, as the reason of `vm.vfs_cache_pressure`, of all. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabReason {
    /// What it holds.
    pub slab: u64,
    /// Its share of the cap by weight.
    pub share: u64,
    /// What all hold.
    pub held: u64,
    /// The cap.
    pub cap: u64,
}

/// What a value of `memory.low` is made of. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtectionReason {
    /// Protected file pages.
    pub protected: u64,
    /// Memory beside them that `memory.low` counts as well.
    pub other: u64,
}

impl ProtectionReason {
    /// Of a leaf: without protected file pages its other memory needs no protection either.
    #[must_use]
    pub const fn of_leaf(protected: u64, other: u64) -> Self {
        Self {
            protected,
            other: if protected > 0 { other } else { 0 },
        }
    }

    /// The goal of `memory.low`, bytes. The kernel rounds the knob down to whole pages, and the value that is read back has
    /// to be the one written.
    #[must_use]
    pub const fn memory_low(&self) -> u64 {
        self.protected.saturating_add(self.other) / PAGE_SIZE * PAGE_SIZE
    }
}

/// Why nothing is reclaimed from a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "exemption", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReclaimExemption {
    /// Its tasks are all stalled on memory for a large part of the time.
    Thrashing {
        /// PSI `full avg10` of its memory pressure, percent.
        full_avg10: f64,
    },
    /// This kernel cannot reclaim from it without touching anonymous memory.
    Anonymous,
    /// This kernel has no interface to reclaim from it alone.
    Unsupported,
    /// An excluded cgroup, or one that is not managed separately, lives below it: reclaim would take from that, too.
    UnmanagedChild,
    /// It has more children than can be sampled each time, to see that reclaim costs them nothing.
    TooManyChildren,
    /// Recent attempts freed nothing; it is left alone until the next one.
    NoProgress,
}

/// Why a shared file's pages should be charged to another tenant, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RechargeReason {
    /// The file: its path where it is known, or else its device and inode.
    pub file: String,
    /// What is expected of the re-read; `None` for the tenant that loses the charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<RechargeGain>,
    /// What came of it; `None` if it was not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RechargeResult>,
}

/// What is expected of reading a shared file again on behalf of a heavier tenant. Bytes, fractions 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RechargeGain {
    /// The new owner's fraction of the machine by weight.
    pub owner_share: f64,
    /// The same of the cgroup that is charged now; 0 for a removed one.
    pub charged_share: f64,
    /// Distinct bytes of the file that the owner has read in the sampling interval and others are charged for.
    pub used: u64,
    /// The fraction of the charged cgroup's file pages above its entitlement: these are reclaimed first.
    pub exposed: f64,
    /// The same of the owner's, with the file.
    pub exposed_after: f64,
    /// Bytes that need not be read again within `horizon`.
    pub gain: u64,
    /// Bytes read once now.
    pub cost: u64,
    /// The time over which the gain is counted, seconds.
    pub horizon: u32,
}

/// What came of a recharge. Bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum RechargeResult {
    /// Pages were dropped and read again.
    Done {
        /// Dropped and read again.
        read: u64,
        /// Passed over: dirty, in use or mapped.
        skipped: u64,
        /// What the owner was charged more, by the kernel's counters.
        owner_gained: u64,
        /// What the cgroup charged before was charged less.
        charged_lost: u64,
        /// Why it ended early, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stopped: Option<String>,
    },
    /// It was not possible.
    Failed {
        /// Why.
        error: String,
    },
}

/// Why something was decided.
///
/// In JSON an object: the rule's name, its inputs, and `text`, the same in words. Read from a plain string, as agents up to
/// 0.1 tell it, or from a rule that this version does not know, it is a [`Reason::Text`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Wire")]
pub enum Reason {
    /// A rule with its inputs.
    Rule(Rule),
    /// Words alone: of device bandwidth, which has no rule as data yet, or of another version.
    Text(String),
}

impl From<Rule> for Reason {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl From<ReclaimExemption> for Reason {
    fn from(exemption: ReclaimExemption) -> Self {
        Self::Rule(Rule::Exempt(exemption))
    }
}

/// A reason in any form that it may be read in.
#[derive(Deserialize)]
#[serde(untagged)]
enum Wire {
    Rule(Rule),
    Object { text: String },
    Plain(String),
}

impl From<Wire> for Reason {
    fn from(wire: Wire) -> Self {
        match wire {
            Wire::Rule(rule) => Self::Rule(rule),
            Wire::Object { text } | Wire::Plain(text) => Self::Text(text),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Out<'a> {
            #[serde(flatten)]
            rule: Option<&'a Rule>,
            text: String,
        }
        let rule = match self {
            Self::Rule(rule) => Some(rule),
            Self::Text(_) => None,
        };
        let text = self.to_string();
        Out { rule, text }.serialize(serializer)
    }
}
