//! The report as a whole: structure, numbers, hostile input, failures.

mod fixture;
mod ordinary;
mod reading;

use std::collections::BTreeSet;

use scraper::{Html, Selector};

use super::goal::{Verdict, check_goals};
use super::schema::*;
use super::summary::groups;
use super::{html, read, terminal};
use fixture::*;

fn parse(page: &str) -> Html {
    let document = Html::parse_document(page);
    assert_eq!(document.errors, Vec::<String>::new());
    document
}

fn text(document: &Html) -> String {
    document.root_element().text().collect::<Vec<_>>().join(" ")
}

fn count(document: &Html, selector: &str) -> usize {
    document.select(&Selector::parse(selector).unwrap()).count()
}

/// Every drawing, parsed strictly as XML; each must have its title and description.
fn drawings(page: &str) -> usize {
    let mut found = 0;
    for start in page.match_indices("<svg ").map(|(at, _)| at) {
        let end = page[start..].find("</svg>").unwrap() + "</svg>".len();
        let source = &page[start..start + end];
        assert!(
            !source.contains("NaN") && !source.contains("inf"),
            "{source}"
        );
        let xml = roxmltree::Document::parse(source).unwrap();
        let root = xml.root_element();
        assert_eq!(root.attribute("role"), Some("img"));
        let ids: BTreeSet<_> = root.children().filter_map(|c| c.attribute("id")).collect();
        for id in root.attribute("aria-labelledby").unwrap().split(' ') {
            assert!(ids.contains(id), "{id}");
        }
        found += 1;
    }
    found
}

#[test]
fn the_page_is_well_formed_and_self_contained() {
    let page = html::page(&[results(), results()]);
    let document = parse(&page);
    // Three configurations' bars, one PV drawing, two timelines and two of curves (BFQ has none), twice.
    assert_eq!(drawings(&page), 2 * (3 + 1 + 2 + 2));
    assert_eq!(count(&document, "section.experiment"), 2);
    assert_eq!(
        count(
            &document,
            "script, link, img, iframe, object, [src], [onload]"
        ),
        0
    );
    assert!(
        !page
            .replace("http://www.w3.org/2000/svg", "")
            .contains("://")
    );
    assert!(!page.contains("url(") && !page.contains("@import"));
    let mut ids = BTreeSet::new();
    for element in document.select(&Selector::parse("[id]").unwrap()) {
        assert!(ids.insert(element.attr("id").unwrap()), "an id twice");
    }
}

#[test]
fn medians_spread_totals_and_pv() {
    let results = results();
    let groups = groups(&results);
    assert_eq!(groups.len(), 1);
    let row = |id: &str| {
        groups[0]
            .rows
            .iter()
            .find(|r| r.configuration.id == id)
            .unwrap()
    };
    let justitia = &row("justitia").cells[0];
    let high = justitia.normalised[1].unwrap();
    assert_eq!(
        (high.low, high.median, high.high, high.repeats),
        (2.4, 2.6, 3.0, 3)
    );
    assert_eq!(justitia.total.unwrap().median, 36e6);
    // |3 - 2.6| / 2 tenants.
    assert!((justitia.pv.unwrap().median - 0.2).abs() < 1e-9);
    assert_eq!(justitia.pv.unwrap().low, 0.0);
    assert_eq!(justitia.jain.unwrap().high, 1.0);
    assert!(justitia.jain.unwrap().low < 0.99);
    // The timeline shown is the median run's.
    assert_eq!(row("justitia").typical.unwrap().repeat, 1);
    let conventional = &row("conventional").cells[0];
    // An even number of repeats: the mean of the middle two.
    assert_eq!(conventional.total.unwrap().median, 41e6);
    assert_eq!((row("bfq").measured, row("bfq").failures.len()), (0, 1));
    assert_eq!(row("bfq").cells[0].total, None);
}

#[test]
fn measures_of_the_whole_run_share_a_table() {
    let mut results = results();
    results.runs[0]
        .values
        .insert("anonymous".into(), 2_097_152.0);
    let all = [results];
    let document = parse(&html::page(&all));
    // The goals, the bandwidth, its timeline, the curves, and the whole run's.
    assert_eq!(count(&document, "table"), 5);
    for text in [text(&document), terminal(&all)] {
        assert!(text.contains("The run as a whole") && text.contains("2.00 MiB"));
    }
}

#[test]
fn values_of_other_metrics_are_left_out() {
    let mut results = results();
    for run in &mut results.runs {
        run.values.insert("unasked".into(), 77_777.0);
        if let Some(tenant) = run.tenants.first_mut() {
            tenant.values.insert("unasked".into(), 77_777.0);
        }
    }
    let json = serde_json::to_string(&results).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json).unwrap();
    let page = html::page(&read(file.path()).unwrap());
    assert!(!page.contains("unasked") && !page.contains("77777"));
}

#[test]
fn a_missing_value_makes_the_total_unknown_but_not_the_others() {
    let mut results = results();
    results.runs = vec![run("justitia", 0, [10e6, 30e6])];
    results.runs[0].tenants.remove(1);
    let groups = groups(&results);
    let cell = &groups[0].rows[2].cells[0];
    assert_eq!((cell.total, cell.pv), (None, None));
    assert!(cell.values[0].is_some() && cell.values[1].is_none());
}

#[test]
fn goals_are_judged_within_a_repeat() {
    let mut results = results();
    let verdicts = |results: &Results| -> Vec<Verdict> {
        let groups = groups(results);
        check_goals(results, &groups[0])
            .iter()
            .map(|j| j.verdict)
            .collect()
    };
    // PV 0.2 of at most 0.5; totals 40/40 and 36/42 of at least 0.98; nothing for the third.
    assert_eq!(
        verdicts(&results),
        [Verdict::Reached, Verdict::Missed, Verdict::Unknown]
    );
    results.goals[0].stretch = Some(0.2 + 1e-9);
    results.goals[1].must = 0.92;
    results.runs[0].values.insert("anonymous".into(), 0.0);
    assert_eq!(
        verdicts(&results),
        [Verdict::Stretch, Verdict::Reached, Verdict::Reached]
    );
    results.runs[0].values.insert("anonymous".into(), 4096.0);
    assert_eq!(verdicts(&results)[2], Verdict::Missed);
    // The same totals as an upper bound: 0.93 times the other's.
    results.goals[1].measure = Measure::TimesAgainst("conventional".into());
    results.goals[1].must = 0.92;
    assert_eq!(verdicts(&results)[1], Verdict::Missed);
    results.goals[1].must = 1.0;
    assert_eq!(verdicts(&results)[1], Verdict::Reached);
    // Where the processors are the bottleneck, of either, throughput is not judged; other quantities are.
    let busy = |results: &mut Results, run: usize, part: f64| {
        let values = &mut results.runs[run].values;
        values.insert("processor".into(), part)
    };
    for conventional in [1, 2] {
        busy(&mut results, conventional, 0.9);
    }
    assert_eq!(
        verdicts(&results),
        [Verdict::Stretch, Verdict::ProcessorBound, Verdict::Missed]
    );
    busy(&mut results, 0, 0.9);
    busy(&mut results, 3, 0.9);
    busy(&mut results, 4, 0.5);
    assert_eq!(
        verdicts(&results),
        [
            Verdict::ProcessorBound,
            Verdict::ProcessorBound,
            Verdict::Missed
        ]
    );
}

#[test]
fn findings_and_failures_are_said() {
    let all = [results()];
    let document = parse(&html::page(&all));
    let page = text(&document);
    let terminal = terminal(&all);
    for expected in [
        "Justitia: PV 0.20 of the bandwidth, Conventional 1.02",
        "the guest panicked",
        "missed",
    ] {
        assert!(page.contains(expected), "{expected} in {page}");
        assert!(terminal.contains(expected), "{expected} in {terminal}");
    }
    assert!(page.contains("Kernel panic - not syncing"));
    assert!(page.contains("PV in the paper") && page.contains("1.40"));
    assert!(terminal.contains("2.60   26.0"), "{terminal}");
    assert!(
        !terminal.contains("The anonymous, MiB"),
        "nothing to tabulate"
    );
}

#[test]
fn a_finding_also_tells_the_other_promised_metric() {
    let mut results = results();
    results.metrics.swap(0, 1);
    let groups = groups(&results);
    let found = super::finding::finding(&results, &groups[0]);
    assert_eq!(
        found,
        "Justitia gave no the anonymous. The bandwidth: PV 0.20, Conventional 1.02."
    );
}

#[test]
fn what_did_not_run_is_shown_as_such() {
    let mut results = results();
    results.runs.retain(|run| run.configuration == "bfq");
    let document = parse(&html::page(std::slice::from_ref(&results)));
    let page = text(&document);
    assert!(page.contains("Justitia did not run."), "{page}");
    assert!(page.contains("Conventional did not run."));
    assert_eq!(count(&document, "table"), 1, "the goals, not measured");
    assert!(page.contains("not measured"));
    results.runs = vec![failed("justitia", 0, "no disk", "")];
    let page = html::page(std::slice::from_ref(&results));
    assert!(text(&parse(&page)).contains("Justitia was not measured: 1 of 1 runs failed."));
    results.runs.clear();
    let page = text(&parse(&html::page(&[results])));
    assert!(page.contains("Nothing ran."));
}

#[test]
fn a_run_that_failed_before_it_could_tell_is_among_the_others() {
    let mut results = results();
    results.runs.retain(|run| run.mglru == Some(true));
    let mut lost = failed("conventional", 9, "no disk", "");
    lost.mglru = None;
    results.runs.push(lost);
    let found = groups(&results);
    assert_eq!(found.len(), 1);
    let failures = |row: &super::summary::Row<'_>| row.failures.iter().any(|f| f.repeat == 9);
    assert!(found[0].rows.iter().any(failures));
    results.runs.retain(|run| run.mglru.is_none());
    let page = text(&parse(&html::page(&[results])));
    assert!(page.contains("Nothing was measured") && !page.contains("without MGLRU"));
}

#[test]
fn hostile_names_are_text() {
    const HOSTILE: &str = "<script>alert(1)</script>\"'>&amp;<!--]]>\u{1b}[2J\u{0}\u{202e}\n</svg>";
    let mut results = results();
    results.title = HOSTILE.into();
    results.question = HOSTILE.into();
    results.experiment = HOSTILE.into();
    results.machine.cpu = HOSTILE.into();
    results.tenants[1].name = HOSTILE.into();
    for run in &mut results.runs {
        for tenant in run.tenants.iter_mut().filter(|t| t.name == "high") {
            tenant.name = HOSTILE.into();
        }
        for series in run.timeline.iter_mut().filter(|s| s.tenant == "high") {
            series.tenant = HOSTILE.into();
        }
        if let Outcome::Failed { reason, console } = &mut run.outcome {
            *reason = HOSTILE.into();
            *console = HOSTILE.into();
        }
    }
    for configuration in &mut results.configurations {
        configuration.label = format!("{HOSTILE}{}", configuration.id);
    }
    for metric in &mut results.metrics {
        metric.label = HOSTILE.into();
    }
    let all = [results];
    let page = html::page(&all);
    let document = parse(&page);
    assert_eq!(count(&document, "script"), 0);
    assert_eq!(drawings(&page), 3 + 1 + 2 + 2);
    assert!(text(&document).contains("<script>alert(1)</script>\"'>&amp;<!--]]>"));
    let terminal = terminal(&all);
    assert!(!terminal.contains(['\u{1b}', '\u{0}']), "{terminal:?}");
}

#[test]
fn extreme_numbers_still_draw() {
    let mut results = results();
    results.runs.clear();
    for (repeat, values) in [
        [0.0, 0.0],
        [0.0, 1e300],
        [1e-300, 1e300],
        [f64::MAX, f64::MAX],
        [-5.0, 5.0],
    ]
    .into_iter()
    .enumerate()
    {
        let repeat = u32::try_from(repeat).unwrap();
        results.runs.push(run("conventional", repeat, values));
        results.runs.push(run("justitia", repeat, values));
    }
    let page = html::page(std::slice::from_ref(&results));
    parse(&page);
    assert_eq!(drawings(&page), 3 + 1 + 2 + 2);
    assert!(!terminal(&[results]).is_empty());
}
