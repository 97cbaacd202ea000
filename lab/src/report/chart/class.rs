//! Style classes, which the style sheet gives their colours.

/// Colours for configurations in the style sheet (`c0`, `c1`, …).
const CONTENDER_COLOURS: usize = 8;
/// Colours for tenants in the style sheet (`t0`: lowest weight, …).
const TENANT_COLOURS: usize = 8;

/// The style class of the configuration at `position`; the product's own has its own colour.
pub(crate) fn configuration_class(position: usize, id: &str) -> String {
    if id == "justitia" {
        "own".into()
    } else {
        format!("c{}", position % CONTENDER_COLOURS)
    }
}

/// The style class of tenant `position` of `count`: spread over the ramp from low to high.
pub(crate) fn tenant_class(position: usize, count: usize) -> String {
    let last = TENANT_COLOURS - 1;
    let step = if count <= 1 {
        last
    } else if count <= TENANT_COLOURS {
        // To the nearest: 0, 2, 5, 7 for four tenants.
        (position * last * 2 + (count - 1)) / (2 * (count - 1))
    } else {
        position % TENANT_COLOURS
    };
    format!("t{}", step.min(last))
}
