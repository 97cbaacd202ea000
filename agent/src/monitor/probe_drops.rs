//! What the probes lost, in words: how much room there is, and what to configure for more.

use justitia_kernel::probes::{Limits, Probe, Sample};

/// Something that can be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDrop {
    /// Its name as a label.
    pub what: &'static str,
    /// How much has been.
    pub count: u64,
    /// The same for people.
    pub text: String,
}

/// Everything that can be lost, whether any is or not. `of` a probe on demand says what
/// [`IoProbes::dropped`](justitia_kernel::probes::IoProbes::dropped) does.
pub fn drops(room: &Limits, sample: &Sample, of: impl Fn(Probe) -> u64) -> Vec<ProbeDrop> {
    let cgroups = format!(
        "there is room for {} cgroups at a time (eyes.cgroups)",
        room.max_cgroups
    );
    let calls = of(Probe::Latency);
    let uses = of(Probe::SharedInodes);
    let waits = of(Probe::LockContention);
    let Sample {
        dropped_events: missed,
        map_full: no_room,
        map_busy: busy,
        ..
    } = sample;
    [
        (
            "events",
            *missed,
            format!("What applications get: {missed} events could not be counted"),
        ),
        (
            "room",
            *no_room,
            format!("What applications get: {no_room} events are no tenant's; {cgroups}"),
        ),
        (
            "busy",
            *busy,
            format!(
                "What applications get: {busy} events are no tenant's; the kernel could not tell just then whose"
            ),
        ),
        (
            "calls",
            calls,
            format!("How long calls take: {calls} were not timed; {cgroups}"),
        ),
        (
            "shared_files",
            uses,
            format!(
                "Files that several tenants use: {uses} uses were forgotten; there is room for {} at a time \
                 (eyes.shared_files)",
                room.max_shared_files
            ),
        ),
        (
            "lock_waits",
            waits,
            format!("Contended locks: {waits} waits were not counted; {cgroups}"),
        ),
    ]
    .map(|(what, count, text)| ProbeDrop { what, count, text })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_told_by_its_cause_and_only_by_that() {
        let room = Limits {
            max_cgroups: 16,
            max_shared_files: 64,
            ..Limits::default()
        };
        let none = Sample::default();
        let (missed, no_room, busy) = (
            Sample {
                dropped_events: 7,
                ..Sample::default()
            },
            Sample {
                map_full: 7,
                ..Sample::default()
            },
            Sample {
                map_busy: 7,
                ..Sample::default()
            },
        );
        let cases = [
            (&missed, None, "7 events could not be counted"),
            (
                &no_room,
                None,
                "7 events are no tenant's; there is room for 16 cgroups at a time (eyes.cgroups)",
            ),
            (
                &busy,
                None,
                "7 events are no tenant's; the kernel could not tell",
            ),
            (
                &none,
                Some(Probe::Latency),
                "7 were not timed; there is room for 16 cgroups",
            ),
            (
                &none,
                Some(Probe::SharedInodes),
                "7 uses were forgotten; there is room for 64 at a time (eyes.shared_files)",
            ),
            (
                &none,
                Some(Probe::LockContention),
                "7 waits were not counted; there is room for 16 cgroups",
            ),
        ];
        for (sample, probe, expected) in cases {
            let all = drops(&room, sample, |of| if Some(of) == probe { 7 } else { 0 });
            let lost: Vec<_> = all.iter().filter(|loss| loss.count > 0).collect();
            assert!(
                matches!(lost[..], [ProbeDrop { count: 7, text, .. }] if text.contains(expected)),
                "expected {expected:?} alone, found {lost:?}"
            );
        }
        assert!(drops(&room, &none, |_| 0).iter().all(|l| l.count == 0));
    }
}
