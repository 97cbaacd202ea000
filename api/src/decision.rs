//! What was decided.

use crate::Reason;
use serde::{Deserialize, Serialize, Serializer};

/// Something that was decided; the same again within seconds is told as one. In JSON, `what` is the action in words.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Wire")]
pub struct Decision {
    /// When, at the last step: seconds since the agent started.
    pub at: f64,
    /// The same at the first step.
    pub since: f64,
    /// The tenant's path.
    pub path: String,
    /// What was done.
    pub action: Action,
    /// In how many steps.
    pub steps: u32,
    /// Whether nothing was done: the agent only observes.
    pub dry_run: bool,
    /// Why, at the last step.
    pub reason: Reason,
}

/// A decision as it is read; agents up to 0.1 tell `what` and `why` alone.
#[derive(Deserialize)]
struct Wire {
    at: f64,
    #[serde(default)]
    since: f64,
    path: String,
    #[serde(default)]
    action: Option<Known>,
    #[serde(default)]
    steps: u32,
    #[serde(default)]
    dry_run: bool,
    reason: Reason,
    what: String,
}

/// An action, or one of a later version.
#[derive(Deserialize)]
#[serde(untagged)]
enum Known {
    Action(Action),
    Unknown(serde::de::IgnoredAny),
}

impl From<Wire> for Decision {
    fn from(wire: Wire) -> Self {
        let action = match wire.action {
            Some(Known::Action(action)) => action,
            Some(Known::Unknown(_)) | None => Action::Text(wire.what),
        };
        Self {
            at: wire.at,
            since: wire.since,
            path: wire.path,
            action,
            steps: wire.steps.max(1),
            dry_run: wire.dry_run,
            reason: wire.reason,
        }
    }
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Out<'a> {
            at: f64,
            since: f64,
            path: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            action: Option<&'a Action>,
            steps: u32,
            dry_run: bool,
            reason: &'a Reason,
            what: String,
        }
        let out = Out {
            at: self.at,
            since: self.since,
            path: &self.path,
            action: (!matches!(self.action, Action::Text(_))).then_some(&self.action),
            steps: self.steps,
            dry_run: self.dry_run,
            reason: &self.reason,
            what: self.what(),
        };
        out.serialize(serializer)
    }
}

/// A knob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnobStatus {
    /// Its file, with the device for a disk's line.
    pub knob: String,
    /// Its value; in observe mode, the value that it would get. Empty if the agent has given it up.
    pub value: String,
    /// Whose value it is: the agent's, or another process's.
    pub owner: KnobOwner,
    /// The value before the agent wrote it, if the agent owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// Why it has the agent's value, which other process wrote it, or why the agent has given it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Which process wrote a knob's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnobOwner {
    /// The agent.
    Agent,
    /// None yet: the agent would write it, but only observes.
    Proposed,
    /// Another process: the agent leaves it alone.
    External,
    /// Not the agent, which has given the knob up: the kernel refused its write, or took too long for it.
    GivenUp,
}

/// A knob that the agent leaves alone: another process has set it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExternalKnob {
    /// The cgroup's path.
    pub path: String,
    /// The knob.
    pub knob: String,
    /// The value found there. Agents of version 1 tell refused writes as external, too, without a value.
    pub value: String,
    /// The writer, if it is known: `systemd`, or a process with its program and its cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A knob that the agent does not write any more: the kernel refused its write, or took too long for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUpKnob {
    /// The cgroup's path.
    pub path: String,
    /// The knob.
    pub knob: String,
    /// What happened, in words.
    pub reason: String,
}

/// What the agent did to a tenant; in observe mode, what it would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Action {
    /// File pages were reclaimed from it.
    Reclaim {
        /// How many bytes.
        bytes: u64,
    },
    /// A knob was written.
    Set {
        /// The knob's file, with the device for a disk's line.
        knob: String,
        /// The value before; `None` where only the new one is told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// The value now.
        to: String,
    },
    /// A knob was restored to its value before the agent.
    Restore {
        /// The knob's file.
        knob: String,
    },
    /// Another process wrote a knob: the agent leaves it to that process.
    MarkExternal {
        /// The knob's file.
        knob: String,
    },
    /// A knob that was left to systemd or the kubelet was set back: the agent writes it again.
    TakeBack {
        /// The knob's file.
        knob: String,
    },
    /// The kernel refused the agent's write of a knob: the agent does not write it any more.
    GiveUp {
        /// The knob's file.
        knob: String,
    },
    /// A shared file's pages were charged to it.
    TakeCharge {
        /// How many bytes.
        bytes: u64,
    },
    /// A shared file's pages are charged to a heavier tenant instead.
    LoseCharge {
        /// How many bytes.
        bytes: u64,
    },
    /// A shared file's pages could not be charged to it.
    RechargeFailed,
    /// The kernel refused to reclaim.
    ReclaimRefused,
    /// It is exempt from reclaim for a while.
    Exempt,
    /// Told in words alone, by an older agent or recording.
    #[serde(skip)]
    Text(String),
}

impl Action {
    /// Takes in a later action that is the same but for its amount or value. Returns whether it was.
    pub fn merge(&mut self, later: &Self) -> bool {
        match (&mut *self, later) {
            (Self::Reclaim { bytes }, Self::Reclaim { bytes: more })
            | (Self::TakeCharge { bytes }, Self::TakeCharge { bytes: more })
            | (Self::LoseCharge { bytes }, Self::LoseCharge { bytes: more }) => {
                *bytes = bytes.saturating_add(*more);
                true
            }
            (
                Self::Set { knob, to, .. },
                Self::Set {
                    knob: same,
                    to: new,
                    ..
                },
            ) if knob == same => {
                to.clone_from(new);
                true
            }
            // A limit that comes and goes: the latest counts.
            (
                Self::Set {
                    knob, from: None, ..
                },
                Self::Restore { knob: same },
            )
            | (
                Self::Restore { knob },
                Self::Set {
                    knob: same,
                    from: None,
                    ..
                },
            )
            | (Self::Restore { knob }, Self::Restore { knob: same }) => {
                let is_same = knob == same;
                if is_same {
                    *self = later.clone();
                }
                is_same
            }
            (Self::MarkExternal { knob }, Self::MarkExternal { knob: same })
            | (Self::TakeBack { knob }, Self::TakeBack { knob: same })
            | (Self::GiveUp { knob }, Self::GiveUp { knob: same }) => knob == same,
            (Self::ReclaimRefused, Self::ReclaimRefused) | (Self::Exempt, Self::Exempt) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReclaimExemption, Rule};

    fn decision(action: Action, reason: impl Into<Reason>) -> Decision {
        Decision {
            at: 2.0,
            since: 1.0,
            path: "a".to_owned(),
            action,
            steps: 2,
            dry_run: false,
            reason: reason.into(),
        }
    }

    #[test]
    fn a_decision_is_told_as_data_and_in_words() {
        let exemption = ReclaimExemption::Thrashing { full_avg10: 80.0 };
        let told = decision(Action::Exempt, exemption);
        let json = serde_json::to_value(&told).unwrap();
        assert_eq!(json["action"]["kind"], "exempt");
        assert_eq!(json["what"], "exempt from reclaim in 2 steps");
        assert_eq!(json["reason"]["rule"], "exempt");
        assert_eq!(json["reason"]["exemption"], "thrashing");
        assert_eq!(json["reason"]["full_avg10"], 80.0);
        let text = "thrashing (memory pressure full avg10 80 %)";
        assert_eq!(json["reason"]["text"], text);
        assert_eq!(serde_json::from_value::<Decision>(json).unwrap(), told);
    }

    #[test]
    fn words_alone_come_back_as_words() {
        let text = Reason::Text("the disk is contended".to_owned());
        let knob = "io.weight 8:0".to_owned();
        let told = decision(Action::Restore { knob }, text);
        let json = serde_json::to_value(&told).unwrap();
        assert_eq!(serde_json::from_value::<Decision>(json).unwrap(), told);
    }

    #[test]
    fn later_agents_are_understood() {
        let later = r#"{"at":2.0,"path":"a","action":{"kind":"levitate","height":3},"what":"levitate",
            "reason":{"rule":"gravity","mass":5,"text":"it is light"}}"#;
        let later: Decision = serde_json::from_str(later).unwrap();
        assert_eq!(later.what(), "levitate");
        assert_eq!(later.reason.to_string(), "it is light");
    }

    #[test]
    fn a_rule_in_words_has_its_numbers() {
        let rule = |by: Option<&str>| Rule::ExternalWrite {
            found: "max".to_owned(),
            applied: Some("4096".to_owned()),
            by: by.map(str::to_owned),
        };
        let text = "found max where the agent had written 4096";
        assert_eq!(Reason::from(rule(None)).to_string(), text);
        let text = "systemd wrote max where the agent had written 4096";
        assert_eq!(Reason::from(rule(Some("systemd"))).to_string(), text);
    }
}
