//! What `reset` has done, or with `--dry-run` would do, as text and as JSON. Control characters in paths and values are escaped.

use justitia_agent::knobs::{Corruption, RestoreOutcome, RestoredKnob};
use justitia_api::escape::{encode, plain};

/// The result of restoring a knob.
pub(super) fn restored(r: &RestoredKnob, dry_run: bool) -> String {
    let what = match (&r.outcome, dry_run) {
        (RestoreOutcome::Restored, false) => format!("is {} again", r.original),
        (RestoreOutcome::Restored, true) => format!("would be {} again", r.original),
        (RestoreOutcome::External { found }, false) => {
            format!("is left at {found}: another writer has set it")
        }
        (RestoreOutcome::External { found }, true) => {
            format!("would be left at {found}: another writer has set it")
        }
        (RestoreOutcome::Gone, _) => "is gone with its cgroup".to_owned(),
        (RestoreOutcome::Failed { error }, false) => format!("could not be restored: {error}"),
        (RestoreOutcome::Failed { error }, true) => format!("cannot be read: {error}"),
    };
    // The machine's knobs have no cgroup but the root.
    let path = if r.path.is_empty() { "/" } else { &r.path };
    plain(&format!("{path} {} {what}", r.knob))
}

/// The same as JSON, with the field names of `status --json`.
pub(super) fn restored_json(r: &RestoredKnob, dry_run: bool) -> serde_json::Value {
    let (state, value, error) = match &r.outcome {
        RestoreOutcome::Restored if dry_run => ("to_restore", None, None),
        RestoreOutcome::Restored => ("restored", Some(&r.original), None),
        RestoreOutcome::External { found } => ("external", Some(found), None),
        RestoreOutcome::Gone => ("gone", None, None),
        RestoreOutcome::Failed { error } => ("failed", None, Some(error)),
    };
    serde_json::json!({
        "path": r.path,
        "knob": r.knob.to_string(),
        "original": r.original,
        "value": value,
        "state": state,
        "error": error,
    })
}

/// What a corrupt journal has lost, and what to do.
pub(super) fn corruption(corruption: &Corruption, dry_run: bool) -> String {
    let lines = if corruption.lines == 1 {
        "line"
    } else {
        "lines"
    };
    let file = encode(corruption.file.as_os_str());
    let is = if dry_run || corruption.stays {
        "is"
    } else {
        "was"
    };
    let moved = if corruption.stays {
        format!(
            "it stays {file} as the killed agent has not ended: give `justitia reset --salvage` again once it has"
        )
    } else if dry_run {
        format!("it would be moved to {file}")
    } else {
        format!("it is now {file}")
    };
    format!(
        "the knob journal {is} corrupt: {} {lines} of it could not be read, and {moved}. Knobs that only those lines \
         named may still have the agent's values: check memory.low (0 unless somebody has set it), memory.high (max) and \
         the lines of disks in io.weight and io.bfq.weight (none) of your cgroups, those in io.cost.qos (enable=0) and \
         io.cost.model (ctrl=auto) of the root, vm.dirty_background_ratio (10) and vm.vfs_cache_pressure (100)",
        corruption.lines,
    )
}

/// The same as JSON, as a last row.
pub(super) fn corruption_json(found: &Corruption, dry_run: bool) -> serde_json::Value {
    serde_json::json!({
        "path": null,
        "knob": null,
        "original": null,
        "value": null,
        "state": "corrupt",
        "error": corruption(found, dry_run),
        "lines": found.lines,
        "file": encode(found.file.as_os_str()),
    })
}

/// What the journal of a newer version has that this one does not know, and what to do.
pub(super) fn unknown(records: usize) -> String {
    format!(
        "the knob journal has {records} records that this version of Justitia does not know; they stay in it, and their \
         knobs may still have the agent's values: `justitia reset` of the version that wrote them restores these"
    )
}

/// The same as JSON, as a last row.
pub(super) fn unknown_json(records: usize) -> serde_json::Value {
    serde_json::json!({
        "path": null,
        "knob": null,
        "original": null,
        "value": null,
        "state": "unknown",
        "error": unknown(records),
        "lines": records,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::knob::Knob;

    const BAD: &str = "x\x1b]0;\u{9b}2J\u{202e}\r";

    fn harmless(text: &str) -> bool {
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        text.contains("x\\u{1b}]0;\\u{9b}2J\\u{202e}\\r") && !text.contains(bad)
    }

    #[test]
    fn control_characters_of_a_journal_do_not_reach_the_terminal() {
        let external = RestoreOutcome::External { found: BAD.into() };
        for outcome in [RestoreOutcome::Restored, external, RestoreOutcome::Gone] {
            let knob = RestoredKnob {
                path: format!("{BAD}\n"),
                knob: Knob::MemoryLow,
                original: BAD.into(),
                outcome,
            };
            for dry_run in [false, true] {
                let row = restored(&knob, dry_run);
                assert!(harmless(&row) && !row.contains('\n'), "{row:?}");
            }
        }
    }

    #[test]
    fn json_has_the_names_that_status_has() {
        let external = RestoredKnob {
            path: "a".into(),
            knob: Knob::MemoryLow,
            original: "0".into(),
            outcome: RestoreOutcome::External { found: "7".into() },
        };
        let row = restored_json(&external, false);
        let fields = ["original", "value", "state"].map(|field| row[field].as_str());
        assert_eq!(fields, [Some("0"), Some("7"), Some("external")]);
        assert!(row["error"].is_null());
        assert_eq!(restored_json(&external, true), row);
    }

    #[test]
    fn a_dry_run_does_not_say_that_anything_was_done() {
        let knob = |outcome| RestoredKnob {
            path: "a".into(),
            knob: Knob::MemoryLow,
            original: "0".into(),
            outcome,
        };
        let left = knob(RestoreOutcome::Restored);
        assert_eq!(restored(&left, true), "a memory.low would be 0 again");
        let row = restored_json(&left, true);
        assert_eq!(
            (&row["state"], &row["value"]),
            (&"to_restore".into(), &().into())
        );
        let external = knob(RestoreOutcome::External { found: "7".into() });
        let text = "a memory.low would be left at 7: another writer has set it";
        assert_eq!(restored(&external, true), text);
        let failed = knob(RestoreOutcome::Failed { error: "x".into() });
        assert_eq!(restored(&failed, true), "a memory.low cannot be read: x");
        let message = corruption(&corrupt(1), true);
        assert!(
            message.contains("would be moved to /run/x/ledger.corrupt"),
            "{message}"
        );
        for knob in [
            "memory.low",
            "memory.high",
            "io.weight",
            "io.bfq.weight",
            "io.cost.qos",
            "io.cost.model",
            "vm.dirty_background_ratio",
            "vm.vfs_cache_pressure",
        ] {
            assert!(message.contains(knob), "{knob} is not in {message}");
        }
        let row = corruption_json(&corrupt(3), false);
        assert_eq!(
            (&row["state"], &row["lines"]),
            (&"corrupt".into(), &3.into())
        );
        assert_eq!(row["file"], "/run/x/ledger.corrupt");
    }

    /// A journal that was moved, with `lines` corrupt lines.
    fn corrupt(lines: usize) -> Corruption {
        Corruption {
            lines,
            file: "/run/x/ledger.corrupt".into(),
            stays: false,
        }
    }
}
