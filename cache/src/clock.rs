//! The clock for reads and writes: the machine's, or a model's.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The start of models' time.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Clone, Copy)]
struct Model {
    /// The machine's time also passes.
    on_machine: bool,
    /// The added time.
    passed: Duration,
}

thread_local! {
    // In tests of this crate only modelled time passes, so that they are reproducible on every machine.
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

/// The time since `begun`.
pub(crate) fn since(begun: Instant) -> Duration {
    now().saturating_duration_since(begun)
}

/// Adds modelled time to this thread's clock.
#[cfg(any(test, feature = "lab"))]
pub fn pass(time: Duration) {
    let mut model = MODEL.get();
    model.passed = model.passed.saturating_add(time);
    MODEL.set(model);
}

/// Sets this thread's clock to `passed` after the start, and stops it.
#[cfg(any(test, feature = "lab"))]
pub fn set(passed: Duration) {
    let on_machine = false;
    MODEL.set(Model { on_machine, passed });
}

/// Returns this thread to the machine's clock.
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
