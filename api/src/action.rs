//! What was done.

use serde::{Deserialize, Serialize};

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
        /// The knob's file, with the device for `io.max`.
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
            | (Self::GiveUp { knob }, Self::GiveUp { knob: same }) => knob == same,
            (Self::ReclaimRefused, Self::ReclaimRefused) | (Self::Exempt, Self::Exempt) => true,
            _ => false,
        }
    }
}
