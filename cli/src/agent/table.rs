//! What `reset` has done, as text and as JSON. Control characters in paths and values are escaped.

use justitia_agent::enforce::knob_store::{Corruption, RestoreOutcome, RestoredKnob};
use justitia_api::escape::{encode, plain};

/// The result of restoring a knob.
pub(super) fn restored(r: &RestoredKnob) -> String {
    let what = match &r.outcome {
        RestoreOutcome::Restored => format!("is {} again", r.original),
        RestoreOutcome::External { found } => {
            format!("is left at {found}: another writer has set it")
        }
        RestoreOutcome::Gone => "is gone with its cgroup".to_owned(),
        RestoreOutcome::Failed { error } => format!("could not be restored: {error}"),
    };
    // The machine's knobs have no cgroup but the root.
    let path = if r.path.is_empty() { "/" } else { &r.path };
    plain(&format!("{path} {} {what}", r.knob))
}

/// The same as JSON, with the field names of `status --json`.
pub(super) fn restored_json(r: &RestoredKnob) -> serde_json::Value {
    let (state, value, error) = match &r.outcome {
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
pub(super) fn corruption(corruption: &Corruption) -> String {
    let lines = if corruption.lines == 1 {
        "line"
    } else {
        "lines"
    };
    format!(
        "the knob journal was corrupt: {} {lines} of it could not be read, and it is now {}. Knobs that only those lines \
         named may still have the agent's values: check memory.low (0 unless somebody has set it), memory.high (max) and \
         io.max (empty) of your cgroups, and vm.dirty_background_ratio (10)",
        corruption.lines,
        encode(corruption.moved_to.as_os_str()),
    )
}

/// The same as JSON, as a last row.
pub(super) fn corruption_json(found: &Corruption) -> serde_json::Value {
    serde_json::json!({
        "path": null,
        "knob": null,
        "original": null,
        "value": null,
        "state": "corrupt",
        "error": corruption(found),
        "lines": found.lines,
        "file": encode(found.moved_to.as_os_str()),
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
            let row = restored(&RestoredKnob {
                path: format!("{BAD}\n"),
                knob: Knob::MemoryLow,
                original: BAD.into(),
                outcome,
            });
            assert!(harmless(&row) && !row.contains('\n'), "{row:?}");
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
        let row = restored_json(&external);
        let fields = ["original", "value", "state"].map(|field| row[field].as_str());
        assert_eq!(fields, [Some("0"), Some("7"), Some("external")]);
        assert!(row["error"].is_null());
    }

    #[test]
    fn the_message_about_a_corrupt_journal_names_the_knobs_to_check() {
        let found = Corruption {
            lines: 3,
            moved_to: "/run/x/ledger.corrupt".into(),
        };
        let message = corruption(&found);
        for part in [
            "3 lines of it could not be read",
            "now /run/x/ledger.corrupt.",
            "memory.low",
            "memory.high",
            "io.max",
            "vm.dirty_background_ratio",
        ] {
            assert!(message.contains(part), "{part} is not in {message}");
        }
        let row = corruption_json(&found);
        assert_eq!(
            (&row["state"], &row["lines"]),
            (&"corrupt".into(), &3.into())
        );
        assert_eq!(row["file"], "/run/x/ledger.corrupt");
    }
}
