//! The paper's numbers.

use super::super::schema::{Paper, PaperResult, Results};

/// What the paper reports for a configuration, if its figure is about the metric.
pub(super) fn paper_of<'a>(
    results: &'a Results,
    metric: usize,
    configuration: &str,
) -> Option<&'a PaperResult> {
    let of_figure = paper_results(results, metric);
    of_figure
        .iter()
        .find(|result| result.configuration == configuration)
}

/// What the paper reports, if its figure is about the metric.
pub(super) fn paper_results(results: &Results, metric: usize) -> &[PaperResult] {
    let about = |paper: &&Paper| match &paper.metric {
        Some(key) => results.metrics.get(metric).is_some_and(|m| m.key == *key),
        None => metric == 0,
    };
    let paper = results.paper.as_ref().filter(about);
    paper.map_or(&[], |paper| &paper.results)
}
