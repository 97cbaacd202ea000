//! The report.

use crate::bench::Spread;
use std::fmt;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    pub(super) sections: Vec<Section>,
}

#[derive(Clone, Debug)]
pub(super) struct Section {
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(f, "\n{}", section.title)?;
            let ours = section.rows.first().map_or(&[][..], |row| &row.runs);
            for row in &section.rows {
                let rate = Spread::of(row.runs.clone());
                let ratio = Spread::of(ours.iter().zip(&row.runs).map(|(o, r)| o / r).collect());
                writeln!(
                    f,
                    "  {:<36} {:>9.0}/s ({:.0} to {:.0})  ours is {ratio} times that",
                    row.name, rate.median, rate.low, rate.high
                )?;
                if !row.cost.is_empty() {
                    let cost = Spread::of(row.cost.clone());
                    writeln!(f, "  {:<36} {cost} us of processor time a request", "")?;
                }
            }
        }
        Ok(())
    }
}
