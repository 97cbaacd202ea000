//! What the probes dropped, and which setting would have avoided it.

use justitia_kernel::probes::{Limits, Sample};

/// One kind of dropped events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDrop {
    /// The kind, as a label.
    pub what: &'static str,
    /// The number since the probes were attached.
    pub count: u64,
    /// The same for people.
    pub text: String,
}

/// All kinds, also those of which nothing was dropped. `uses` is
/// [`IoProbes::dropped_uses`](justitia_kernel::probes::IoProbes::dropped_uses).
pub(super) fn drops(limits: &Limits, sample: &Sample, uses: u64) -> Vec<ProbeDrop> {
    let full = format!(
        "the map has {} entries, one a cgroup (probes.max_cgroups)",
        limits.max_cgroups
    );
    let Sample {
        dropped_events,
        map_full,
        map_busy,
        ..
    } = sample;
    [
        (
            "events",
            *dropped_events,
            format!("What applications get: {dropped_events} events could not be counted"),
        ),
        (
            "map_full",
            *map_full,
            format!("What applications get: {map_full} events count for no tenant; {full}"),
        ),
        (
            "map_busy",
            *map_busy,
            format!(
                "What applications get: {map_busy} events count for no tenant; the map was locked by another CPU"
            ),
        ),
        (
            "shared_file_evicted",
            uses,
            format!(
                "Shared files: {uses} uses were evicted; the map has {} entries (probes.max_shared_files)",
                limits.max_shared_files
            ),
        ),
    ]
    .map(|(what, count, text)| ProbeDrop { what, count, text })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drop_is_reported_by_its_cause_alone() {
        let limits = Limits {
            max_cgroups: 16,
            max_shared_files: 64,
            ..Limits::default()
        };
        let none = Sample::default();
        let dropped = Sample {
            dropped_events: 7,
            ..none.clone()
        };
        let full = Sample {
            map_full: 7,
            ..none.clone()
        };
        let busy = Sample {
            map_busy: 7,
            ..none.clone()
        };
        let cases = [
            (&dropped, 0, "7 events could not be counted"),
            (
                &full,
                0,
                "7 events count for no tenant; the map has 16 entries, one a cgroup (probes.max_cgroups)",
            ),
            (&busy, 0, "7 events count for no tenant; the map was locked"),
            (
                &none,
                7,
                "7 uses were evicted; the map has 64 entries (probes.max_shared_files)",
            ),
        ];
        for (sample, uses, expected) in cases {
            let all = drops(&limits, sample, uses);
            let some: Vec<_> = all.iter().filter(|drop| drop.count > 0).collect();
            assert!(
                matches!(some[..], [ProbeDrop { count: 7, text, .. }] if text.contains(expected)),
                "expected {expected:?} alone, found {some:?}"
            );
        }
        assert!(drops(&limits, &none, 0).iter().all(|d| d.count == 0));
    }
}
