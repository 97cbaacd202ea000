//! The list of eviction policies: `policy` in a configuration, `--policy` of `justitia cache set vm`.

use super::EvictionPolicy;
use super::{fifo, ghost, s3_fifo, sieve};
use serde::{Deserialize, Serialize};

/// Makes the type of the policies from their list: name, name in configurations, and what decides.
macro_rules! policies {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $policy:expr;)+) => {
        /// The eviction policy of a VM's pools in memory.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Policy {
            $($(#[$doc])* #[serde(rename = $text)] $name,)+
        }

        impl Policy {
            /// All of them.
            pub const ALL: [Self; [$($text,)+].len()] = [$(Self::$name,)+];

            /// Its name in configurations.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// The policy's decisions.
            pub(super) const fn decides(self) -> &'static dyn EvictionPolicy {
                match self {
                    $(Self::$name => &$policy,)+
                }
            }
        }
    };
}

policies! {
    /// In the order in which the blocks were put (the paper's; LRU when hits take blocks out).
    #[default]
    Fifo, "fifo", fifo::Fifo;
    /// For exclusive caches: a block that was hit or evicted before and is put again is kept longer than one that is put
    /// for the first time. A ghost list remembers the blocks.
    Ghost, "ghost", ghost::Ghost;
    /// For inclusive caches: a hand passes over the blocks, oldest first, and spares those that were hit.
    Sieve, "sieve", sieve::Sieve;
    /// For inclusive caches: a small queue for new blocks, a main queue for those that were hit there or are put again.
    S3Fifo, "s3-fifo", s3_fifo::S3Fifo;
}
