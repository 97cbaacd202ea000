//! Rules and actions in words. Those of knobs are in `view/explain`; those of device bandwidth come as text
//! ([`Reason::Text`]).

use std::fmt::{Display, Formatter, Result};

use crate::units::{self, bytes};
use crate::{
    Action, AnonymousReason, Decision, ExcessReason, ProtectionReason, Reason, RechargeGain,
    RechargeReason, RechargeResult, ReclaimExemption, Rule, SlabReason,
};

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Excess(reason) => reason.fmt(f),
            Self::Anonymous(reason) => reason.fmt(f),
            Self::Slab(reason) => reason.fmt(f),
            Self::Protection(reason) => reason.fmt(f),
            Self::Exempt(exemption) => exemption.fmt(f),
            Self::ExternalWrite { found, applied, by } => {
                match (by, applied) {
                    (Some(by), _) => write!(f, "{by} wrote {found}")?,
                    (None, None) => write!(f, "another process wrote {found}")?,
                    (None, Some(_)) => write!(f, "found {found}")?,
                }
                match applied {
                    Some(applied) => write!(f, " where the agent had written {applied}"),
                    None => Ok(()),
                }
            }
            Self::SetBack { found, by } => {
                let by = by.as_deref().unwrap_or("another process");
                write!(f, "{by} set it back to {found}")
            }
            Self::WeightDrift {
                declared,
                file,
                found,
            } => write!(
                f,
                "{declared} was declared in {file}, the kernel had {found}"
            ),
            Self::KernelError { error } => f.write_str(error),
            Self::Recharge(reason) => reason.fmt(f),
        }
    }
}

impl Display for ExcessReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let usage = bytes(self.usage);
        if self.orphaned {
            write!(
                f,
                "holds {usage} of orphaned pages, which none of its children is charged for"
            )?;
        } else {
            let entitlement = bytes(self.entitlement);
            write!(f, "holds {usage}, entitled to {entitlement}")?;
        }
        let (free, headroom) = (bytes(self.free), bytes(self.free_headroom));
        write!(f, "; {free} free, {headroom} of headroom wanted")
    }
}

impl Display for AnonymousReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "has {} of anonymous memory, of which {} were swapped out and {} swapped in lately; {} of file pages were read \
             again lately after reclaim",
            bytes(self.anon),
            bytes(self.swapped_out),
            bytes(self.swapped_in),
            bytes(self.refaulted)
        )
    }
}

impl Display for SlabReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "holds {} of reclaimable slab, its share of the cap is {}; all hold {}, the cap is {}",
            bytes(self.slab),
            bytes(self.share),
            bytes(self.held),
            bytes(self.cap)
        )
    }
}

impl Display for ProtectionReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{} of file pages are protected, and memory.low counts {} of other memory, too",
            bytes(self.protected),
            bytes(self.other)
        )
    }
}

impl Display for ReclaimExemption {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Thrashing { full_avg10 } => {
                write!(
                    f,
                    "thrashing (memory pressure full avg10 {full_avg10:.0} %)"
                )
            }
            Self::Anonymous => f.write_str(
                "this kernel's memory.reclaim has no swappiness= and the tenant has swappable \
                 anonymous memory",
            ),
            Self::Unsupported => f.write_str("this kernel cannot reclaim from it alone"),
            Self::UnmanagedChild => {
                f.write_str("reclaim would also take from an excluded or untracked cgroup below it")
            }
            Self::TooManyChildren => {
                f.write_str("it has too many children, and reclaim could take from any of them")
            }
            Self::NoProgress => f.write_str("recent attempts freed nothing"),
        }
    }
}

impl Display for RechargeReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}: ", self.file)?;
        match (&self.gain, &self.result) {
            (Some(gain), None) => gain.fmt(f),
            (Some(gain), Some(result @ RechargeResult::Failed { .. })) => {
                write!(f, "{result}; the re-read was planned because {gain}")
            }
            (Some(gain), Some(result)) => write!(f, "{gain}; result: {result}"),
            (None, Some(result)) => write!(f, "a heavier tenant uses it; result: {result}"),
            (None, None) => f.write_str("a heavier tenant uses it"),
        }
    }
}

impl Display for RechargeGain {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let percent = |part: f64| 100.0 * part;
        write!(
            f,
            "the tenant ({:.0} % by weight) has read {} of it, each page counted once, that the kernel charges to another \
             ({:.0} %), its first reader; {:.0} % of the other's cache is above its entitlement and is reclaimed first when memory \
             is short, of this tenant's it would be {:.0} %; expected gain: {} not read again within {} s, for {} read now",
            percent(self.owner_share),
            bytes(self.used),
            percent(self.charged_share),
            percent(self.exposed),
            percent(self.exposed_after),
            bytes(self.gain),
            self.horizon,
            bytes(self.cost),
        )
    }
}

impl Display for RechargeResult {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Done {
                read,
                skipped,
                owner_gained,
                charged_lost,
                stopped,
            } => {
                write!(
                    f,
                    "{} dropped and read again, {} passed over (dirty, in use or mapped); by the kernel's counters the owner \
                     is charged {} more and the cgroup charged before {} less",
                    units::bytes(*read),
                    units::bytes(*skipped),
                    units::bytes(*owner_gained),
                    units::bytes(*charged_lost)
                )?;
                match stopped {
                    Some(why) => write!(f, "; it ended early: {why}"),
                    None => Ok(()),
                }
            }
            Self::Failed { error } => f.write_str(error),
        }
    }
}

impl Decision {
    /// What was done, in words.
    #[must_use]
    pub fn what(&self) -> String {
        self.what_with(&str::to_owned, &str::to_owned)
    }

    /// The same, with the names of knobs and the values written to them as the caller shows them.
    #[must_use]
    pub fn what_with(
        &self,
        name: &dyn Fn(&str) -> String,
        value: &dyn Fn(&str) -> String,
    ) -> String {
        let would = if self.dry_run { "would " } else { "" };
        let steps = match self.steps {
            0 | 1 => String::new(),
            steps => format!(" in {steps} steps"),
        };
        match &self.action {
            Action::Reclaim { bytes } => format!("{would}reclaim {}{steps}", units::bytes(*bytes)),
            Action::Set {
                knob,
                from: Some(from),
                to,
            } => format!(
                "{would}set {} from {} to {}{steps}",
                name(knob),
                amount(from),
                amount(to)
            ),
            Action::Set {
                knob,
                from: None,
                to,
            } => format!("{would}set {} to {}{steps}", name(knob), value(to)),
            Action::Restore { knob } => format!("restore {}{steps}", name(knob)),
            Action::MarkExternal { knob } => format!("leave {} to its other writer", name(knob)),
            Action::TakeBack { knob } => format!("take {} back", name(knob)),
            Action::GiveUp { knob } => format!("give up {}", name(knob)),
            Action::TakeCharge { bytes } => {
                format!(
                    "{would}recharge {} of a shared file to it{steps}",
                    units::bytes(*bytes)
                )
            }
            Action::LoseCharge { bytes } => format!(
                "recharge {} of a shared file to a heavier tenant{steps}",
                units::bytes(*bytes)
            ),
            Action::RechargeFailed => "a shared file could not be recharged to it".to_owned(),
            Action::ReclaimRefused => format!("reclaim refused{steps}"),
            Action::Exempt => format!("exempt from reclaim{steps}"),
            Action::Text(text) => text.clone(),
        }
    }
}

/// A value in bytes; anything else as it is.
fn amount(value: &str) -> String {
    value.parse().map_or_else(|_| value.to_owned(), bytes)
}
