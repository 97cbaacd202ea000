//! Which sequence numbers were handled: each is, once, in any order within a window, as IPsec does (RFC 4303, 3.4.3). The
//! numbers go round, so that no number is the last one.

use justitia_link::sequence::is_later;

/// Numbers below the highest that can still come.
const WIDTH: u64 = 1024;

const WORDS: usize = 16;

/// The window.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The latest number that was handled; 0 is none.
    highest: u64,
    /// Whether a number of the window was handled, by its remainder.
    handled: [u64; WORDS],
}

impl Window {
    pub(super) const fn highest(&self) -> u64 {
        self.highest
    }

    /// Is the number handled for the first time? It counts as handled then. 0 never is.
    pub(super) fn take(&mut self, number: u64) -> bool {
        if number == 0 {
            return false;
        }
        // The first may be any: a guest goes on where it was when the daemon is started anew.
        if self.highest == 0 || is_later(number, self.highest) {
            // Those that the window passes over are free again.
            for n in 0..number.wrapping_sub(self.highest).min(WIDTH) {
                self.mark(number.wrapping_sub(n), false);
            }
            self.highest = number;
        } else if self.highest.wrapping_sub(number) >= WIDTH || self.is_marked(number) {
            return false;
        }
        self.mark(number, true);
        true
    }

    /// The word of a number, by its remainder, and its bit.
    fn place(&mut self, number: u64) -> (&mut u64, u64) {
        let [word, ..] = (number % WIDTH / 64).to_le_bytes();
        // Fewer than there are words.
        let [first, rest @ ..] = &mut self.handled;
        let word = usize::from(word)
            .checked_sub(1)
            .and_then(|n| rest.get_mut(n));
        (word.unwrap_or(first), 1 << (number % 64))
    }

    fn is_marked(&mut self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        *word & bit != 0
    }

    fn mark(&mut self, number: u64, handled: bool) {
        let (word, bit) = self.place(number);
        if handled {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_number_is_handled_once(steps in prop::collection::vec((-1500_i64..1500, any::<bool>()), 1..400)) {
            let mut window = Window::default();
            let mut handled = BTreeSet::new();
            let mut at = 0_u64;
            for (step, jump) in steps {
                at = if jump { at.saturating_add_signed(step) } else { at.saturating_add_signed(step / 300) };
                let highest = handled.last().copied().unwrap_or(0);
                let new = at > 0 && !handled.contains(&at) && highest.saturating_sub(at) < WIDTH;
                prop_assert_eq!(window.take(at), new, "{} below {}", at, highest);
                if new {
                    handled.insert(at);
                }
                prop_assert_eq!(window.highest(), handled.last().copied().unwrap_or(0));
            }
        }
    }

    #[test]
    fn the_highest_number_of_all_ends_nothing() {
        let mut window = Window::default();
        assert!(window.take(u64::MAX) && !window.take(u64::MAX));
        assert!(window.take(u64::MAX - 1023) && !window.take(u64::MAX - 1024));
        assert!(!window.take(0));
        // The numbers go round.
        assert!(window.take(1) && !window.take(1) && window.take(1025));
        assert!(!window.take(u64::MAX - 3) && !window.take(u64::MAX) && window.take(2));
    }

    #[test]
    fn a_number_far_ahead_ends_nothing() {
        let mut window = Window::default();
        assert!(window.take(5000));
        // Behind, as the numbers go round.
        assert!(!window.take(u64::MAX) && window.take(5001));
        // As far as one message comes, and as far as two.
        assert!(window.take(5001 + (1 << 63) - 1) && window.take(u64::MAX));
        assert!(window.take(1) && window.take(2));
    }
}
