//! How long nothing is offered of what was worth nothing: each time twice as long.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_secs(60);
/// Pauses that grow: the longest has 64 minutes.
const GROWING: u32 = 7;

/// The length of the `number`th pause in a row; the first has number 1.
pub(crate) fn length(number: u32) -> Duration {
    FIRST * 2_u32.pow(number.clamp(1, GROWING) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_twice_as_long_up_to_an_hour() {
        let seconds = [0, 1, 2, 7, 8, u32::MAX].map(|number| length(number).as_secs());
        assert_eq!(seconds, [60, 60, 120, 3840, 3840, 3840]);
    }
}
