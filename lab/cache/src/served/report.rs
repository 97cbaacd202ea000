//! The report.

use crate::bench::Spread;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    pub(super) sections: Vec<Section>,
}

/// Servers under one load.
#[derive(Clone, Debug)]
pub struct Section {
    pub(super) title: &'static str,
    /// The first is ours.
    pub(super) rows: Vec<Row>,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) runs: Vec<f64>,
    /// Processor time of the server for a request, microseconds; only of ours, which is this process.
    pub(super) cost: Vec<f64>,
}

/// A server under a load.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The server.
    pub name: &'static str,
    /// Requests a second.
    pub rate: Spread,
    /// The rate of ours in the same round, as a multiple of this one's.
    pub ratio: Spread,
    /// Processor time of the server for a request, microseconds; `None` of other processes.
    pub cost: Option<Spread>,
}

impl Report {
    /// By load, in the order of measurement.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }
}

impl Section {
    /// The load.
    #[must_use]
    pub const fn title(&self) -> &'static str {
        self.title
    }

    /// Each server; the first is ours.
    pub fn rows(&self) -> impl Iterator<Item = Measured> {
        let ours = self.rows.first().map_or(&[][..], |row| &row.runs);
        self.rows.iter().map(move |row| Measured {
            name: row.name,
            rate: Spread::of(row.runs.clone()),
            ratio: Spread::of(ours.iter().zip(&row.runs).map(|(o, r)| o / r).collect()),
            cost: (!row.cost.is_empty()).then(|| Spread::of(row.cost.clone())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_round_are_compared() {
        let row = |name, runs: [f64; 3]| Row {
            name,
            runs: runs.to_vec(),
            cost: Vec::new(),
        };
        let section = Section {
            title: "reads",
            rows: vec![
                row("ours", [10.0, 40.0, 20.0]),
                row("theirs", [10.0, 10.0, 40.0]),
            ],
        };
        let rows: Vec<Measured> = section.rows().collect();
        assert_eq!((rows[0].rate.median, rows[0].ratio.median), (20.0, 1.0));
        let ratio = rows[1].ratio;
        assert_eq!((ratio.low, ratio.median, ratio.high), (0.5, 1.0, 4.0));
        assert!(rows[1].cost.is_none());
    }
}
