//! What is on the screen, and how keys change it. No I/O, no drawing.

mod key;
mod press;
mod rows;
mod sort;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use justitia_api::{Status, TenantStatus};

pub use key::{Command, Key};
pub use rows::Row;
pub use sort::Sort;

use rows::Arrangement;

/// Moments of a tenant's history that are kept.
const HISTORY: usize = 240;
/// Seconds over which the agent's own cost is told.
const SPENT: f64 = 10.0;

/// What fills the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    /// The tree.
    #[default]
    Tree,
    /// One tenant.
    Detail,
    /// What everything means.
    Help,
}

/// A moment of a tenant's history.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HistoryPoint {
    /// File pages held, bytes.
    pub usage: u64,
    /// What it was entitled to.
    pub entitlement: u64,
    /// Bytes read and written per second.
    pub bandwidth: f64,
    /// The part of what was read that was cached.
    pub hits: Option<f64>,
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub struct View {
    /// The latest status, if any has come.
    pub status: Option<Arc<Status>>,
    /// Where it comes from.
    pub source: String,
    /// Why none comes, if so.
    pub trouble: Option<String>,
    /// In a recording: the position and the number of statuses.
    pub replay: Option<(usize, usize)>,
    /// Whether new statuses wait.
    pub paused: bool,
    /// What fills the screen.
    pub screen: Screen,
    /// What the tree is sorted by.
    pub sort: Sort,
    /// Only tenants whose path contains this are shown, and their ancestors.
    pub filter: String,
    /// Whether the filter is being typed.
    pub typing: bool,
    /// Lines of the detail that are scrolled away.
    pub scrolled: u16,
    /// The chosen line.
    pub chosen: usize,
    /// The first line that is shown.
    pub first: usize,
    /// The lines.
    pub rows: Vec<Row>,
    folded: HashSet<u64>,
    histories: HashMap<u64, VecDeque<HistoryPoint>>,
    waiting: Option<Arc<Status>>,
    /// Of the last seconds: how long the agent had run, and the processor's seconds that it had taken by then.
    spent: VecDeque<(f64, f64)>,
}

impl View {
    /// An empty view of a source that is called so.
    #[must_use]
    pub fn of(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            ..Self::default()
        }
    }

    /// A new status. While paused it waits.
    pub fn take(&mut self, status: Arc<Status>) {
        self.trouble = None;
        let now = status.uptime;
        if self.spent.back().is_some_and(|(before, _)| *before > now) {
            self.spent.clear();
        }
        self.spent.push_back((now, status.agent_usage.cpu));
        // The first is as old as the window, or older: nothing else spans it.
        while self.spent.get(1).is_some_and(|(at, _)| now - at >= SPENT) {
            self.spent.pop_front();
        }
        for tenant in &status.tenants {
            let history = self.histories.entry(tenant.id).or_default();
            if history.len() == HISTORY {
                history.pop_front();
            }
            let app = tenant.app.unwrap_or_default();
            history.push_back(HistoryPoint {
                usage: tenant.usage,
                entitlement: tenant.entitlement,
                bandwidth: app.read_rate + app.write_rate,
                hits: app.hit_ratio,
            });
        }
        if self.histories.len() > 2 * status.tenants.len() + 16 {
            let living: HashSet<u64> = status.tenants.iter().map(|t| t.id).collect();
            self.histories.retain(|id, _| living.contains(id));
        }
        if self.paused && self.replay.is_none() && self.status.is_some() {
            self.waiting = Some(status);
        } else {
            self.show(status);
        }
    }

    /// Forgets the histories: what comes next is of another time.
    pub fn jump(&mut self) {
        self.histories.clear();
        self.spent.clear();
    }

    /// The part of a processor that the agent takes, over the last `SPENT` seconds; over its whole life as long as
    /// nothing else is known.
    #[must_use]
    pub fn agents_part(&self) -> f64 {
        let (Some(first), Some(last)) = (self.spent.front(), self.spent.back()) else {
            return 0.0;
        };
        if last.0 - first.0 < 0.5 {
            return last.1 / last.0.max(1.0);
        }
        (last.1 - first.1).max(0.0) / (last.0 - first.0)
    }

    fn show(&mut self, status: Arc<Status>) {
        let chosen = self.chosen().map(|t| t.id);
        self.status = Some(status);
        self.arrange();
        if let Some(id) = chosen {
            self.choose(id);
        }
    }

    /// The chosen tenant.
    #[must_use]
    pub fn chosen(&self) -> Option<&TenantStatus> {
        let row = self.rows.get(self.chosen)?;
        self.status.as_ref()?.tenants.get(row.index)
    }

    /// A tenant's history, oldest first.
    pub fn history(&self, id: u64) -> impl DoubleEndedIterator<Item = &HistoryPoint> {
        self.histories.get(&id).into_iter().flatten()
    }

    fn choose(&mut self, id: u64) {
        let Some(status) = &self.status else { return };
        let at = |row: &Row| status.tenants.get(row.index).is_some_and(|t| t.id == id);
        if let Some(found) = self.rows.iter().position(at) {
            self.chosen = found;
        }
    }

    /// Keeps the chosen line among the `height` lines that are shown.
    pub fn fit(&mut self, height: usize) {
        let most = self.rows.len().saturating_sub(height.max(1));
        self.first = self
            .first
            .min(self.chosen)
            .max((self.chosen + 1).saturating_sub(height.max(1)))
            .min(most.max(self.chosen.saturating_sub(height)));
    }

    /// Makes the lines anew.
    fn arrange(&mut self) {
        let Some(status) = &self.status else {
            self.rows.clear();
            return;
        };
        let arrangement = Arrangement {
            sort: self.sort,
            filter: &self.filter,
            folded: &self.folded,
        };
        self.rows = arrangement.rows(status);
        self.chosen = self.chosen.min(self.rows.len().saturating_sub(1));
    }

    fn rearrange(&mut self) {
        let chosen = self.chosen().map(|t| t.id);
        self.arrange();
        if let Some(id) = chosen {
            self.choose(id);
        }
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        if let (false, Some(status)) = (self.paused, self.waiting.take()) {
            self.show(status);
        }
    }
}
