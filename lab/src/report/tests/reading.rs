//! Reading documents of results: good ones, old ones, wrong ones.

use std::path::PathBuf;

use super::super::schema::*;
use super::super::{read, render};
use super::fixture::results;

#[test]
fn results_are_read_as_they_were_written_and_a_report_is_rendered() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { directory.path().join(name) };
    assert!(
        read(directory.path())
            .unwrap_err()
            .to_string()
            .contains("holds no results")
    );
    assert!(
        read(&path("none.json"))
            .unwrap_err()
            .to_string()
            .contains("could not read")
    );
    std::fs::write(path("a.json"), serde_json::to_string(&results()).unwrap()).unwrap();
    std::fs::write(path("ignored.txt"), "not results").unwrap();
    assert_eq!(read(directory.path()).unwrap(), [results()]);
    let out = path("deep/report.html");
    render(directory.path(), &out).unwrap();
    assert!(
        std::fs::read_to_string(out)
            .unwrap()
            .starts_with("<!DOCTYPE html>")
    );
}

#[test]
fn results_that_contradict_themselves_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { directory.path().join(name) };
    type Spoil = fn(&mut Results);
    let cases: [(Spoil, &str); 10] = [
        (|r| r.schema = 2, "expected schema 1, found 2"),
        (
            |r| r.tenants[0].weight = 0,
            "expected a weight from 1 to 10000",
        ),
        (
            |r| r.tenants[1].name = "low".into(),
            "every tenant once, found \"low\" twice",
        ),
        (|r| r.runs[0].configuration = "x".into(), "found \"x\""),
        (
            |r| r.runs[0].tenants[0].name = "x".into(),
            "expected a tenant",
        ),
        (|r| r.goals[0].metric = "x".into(), "expected a metric"),
        (
            |r| r.paper.as_mut().unwrap().metric = Some("x".into()),
            "expected a metric",
        ),
        (
            |r| r.goals[1].measure = Measure::LostAgainst("x".into()),
            "expected a configuration",
        ),
        (
            |r| r.goals[1].measure = Measure::TimesAgainst("x".into()),
            "expected a configuration",
        ),
        (|r| r.metrics.clear(), "expected a metric"),
    ];
    for (spoil, expected) in cases {
        let mut results = results();
        spoil(&mut results);
        std::fs::write(path("a.json"), serde_json::to_string(&results).unwrap()).unwrap();
        let error = read(&path("a.json")).unwrap_err().to_string();
        assert!(
            error.contains(expected) && error.contains("a.json"),
            "{error}"
        );
    }
    for broken in ["", "{", "[]", "{\"schema\":1}", "\u{0}"] {
        std::fs::write(path("a.json"), broken).unwrap();
        let error = read(&path("a.json")).unwrap_err().to_string();
        assert!(
            error.contains("expected results of an experiment"),
            "{error}"
        );
    }
}
