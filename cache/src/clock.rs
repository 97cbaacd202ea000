//! The time by which reads and writes are measured: the machine's, or where it is modelled the model's.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Where the time of models begins.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Clone, Copy)]
struct Model {
    /// The machine's time passes, too.
    on_machine: bool,
    /// What was passed besides.
    passed: Duration,
}

thread_local! {
    // In tests of this crate only time passes that is modelled, so that they do the same on every machine.
    static MODEL: Cell<Model> = const {
        Cell::new(Model { on_machine: !cfg!(test), passed: Duration::ZERO })
    };
}

/// The time of this thread.
pub(crate) fn now() -> Instant {
    let model = MODEL.get();
    let begin = match model.on_machine {
        true => Instant::now(),
        false => *BEGIN,
    };
    begin + model.passed
}

/// How long ago that was.
pub(crate) fn since(begun: Instant) -> Duration {
    now().saturating_duration_since(begun)
}

/// Adds a time that this thread would have taken, and the machine has not.
#[cfg(any(test, feature = "lab"))]
pub fn pass(time: Duration) {
    let mut model = MODEL.get();
    model.passed = model.passed.saturating_add(time);
    MODEL.set(model);
}

/// From now on it is `passed` after the beginning on this thread, and the machine's time does not pass.
#[cfg(any(test, feature = "lab"))]
pub fn set(passed: Duration) {
    let on_machine = false;
    MODEL.set(Model { on_machine, passed });
}

/// From now on this thread has the machine's time.
#[cfg(any(test, feature = "lab"))]
pub fn reset() {
    MODEL.set(Model {
        on_machine: true,
        passed: Duration::ZERO,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_s_time_passes_as_it_is_told() {
        set(Duration::from_secs(5));
        let begun = now();
        assert_eq!(since(begun), Duration::ZERO);
        pass(Duration::from_millis(3));
        assert_eq!(since(begun), Duration::from_millis(3));
        set(Duration::from_secs(4));
        assert_eq!(since(begun), Duration::ZERO, "not backwards");
        reset();
        let begun = now();
        pass(Duration::from_secs(1));
        assert!(since(begun) >= Duration::from_secs(1));
    }
}
