//! What is on the screen, and how keys change it. No I/O, no drawing.

use justitia_api::{Status, TenantStatus};
use justitia_share::num::to_u64;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

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
    /// Bytes read and written per second.
    pub bandwidth: f64,
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
    /// Whether tenants without process and cache are shown, too.
    pub all: bool,
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
                bandwidth: app.read_rate + app.write_rate,
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
            all: self.all,
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

/// What the keys mean to do beyond the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Leave.
    Quit,
    /// In a recording: forward or back by this number of statuses.
    Seek(i64),
    /// In a recording: to its beginning (false) or end (true).
    SeekTo(bool),
}

/// A key, as far as the view is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what their names say")]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Escape,
    Backspace,
    Char(char),
}

impl View {
    /// Does what a key says; what is beyond the view is returned.
    pub fn press(&mut self, key: Key) -> Option<Command> {
        if self.typing {
            self.type_filter(key);
            return None;
        }
        match (self.screen, key) {
            (_, Key::Char('q')) => return Some(Command::Quit),
            (Screen::Tree, Key::Escape) if self.filter.is_empty() => return Some(Command::Quit),
            (Screen::Tree, Key::Escape) => {
                self.filter.clear();
                self.rearrange();
            }
            (_, Key::Escape | Key::Backspace) => self.screen = Screen::Tree,
            (Screen::Help, _) => self.screen = Screen::Tree,
            (_, Key::Char('?' | 'h')) => self.screen = Screen::Help,
            (_, Key::Char(' ' | 'p')) => self.pause(),
            (_, Key::Left) if self.replay.is_some() => return Some(Command::Seek(-10)),
            (_, Key::Right) if self.replay.is_some() => return Some(Command::Seek(10)),
            (_, Key::Char('[')) => return Some(Command::Seek(-60)),
            (_, Key::Char(']')) => return Some(Command::Seek(60)),
            (_, Key::Char('<')) => return Some(Command::SeekTo(false)),
            (_, Key::Char('>')) => return Some(Command::SeekTo(true)),
            (Screen::Detail, Key::Enter) => self.screen = Screen::Tree,
            (Screen::Detail, Key::Up) => self.scrolled = self.scrolled.saturating_sub(1),
            (Screen::Detail, Key::Down) => self.scrolled = self.scrolled.saturating_add(1),
            (Screen::Tree, key) => self.press_in_tree(key),
            _ => {}
        }
        None
    }

    fn press_in_tree(&mut self, key: Key) {
        let last = self.rows.len().saturating_sub(1);
        match key {
            Key::Up => self.chosen = self.chosen.saturating_sub(1),
            Key::Down => self.chosen = (self.chosen + 1).min(last),
            Key::PageUp => self.chosen = self.chosen.saturating_sub(10),
            Key::PageDown => self.chosen = (self.chosen + 10).min(last),
            Key::Home => self.chosen = 0,
            Key::End => self.chosen = last,
            Key::Enter if self.chosen().is_some() => {
                self.screen = Screen::Detail;
                self.scrolled = 0;
            }
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.rearrange();
            }
            Key::Char('/') => self.typing = true,
            Key::Char('a') => {
                self.all = !self.all;
                self.rearrange();
            }
            Key::Char('c') => {
                if let Some(id) = self.chosen().map(|t| t.id) {
                    if !self.folded.remove(&id) {
                        self.folded.insert(id);
                    }
                    self.rearrange();
                }
            }
            _ => {}
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.rearrange();
    }
}

/// A line of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The tenant's position in the status.
    pub index: usize,
    /// How deep in the tree.
    pub depth: usize,
    /// Whether it has children that are not shown.
    pub folded: bool,
}

/// What of the tree is shown, and how.
#[derive(Clone, Copy, Debug)]
struct Arrangement<'a> {
    sort: Sort,
    /// A part of the path or name of every tenant that is shown.
    filter: &'a str,
    /// Tenants whose children are not shown, by their ids.
    folded: &'a HashSet<u64>,
    /// Whether minor ones are shown.
    all: bool,
}

impl Arrangement<'_> {
    /// The lines: siblings sorted, what is folded or filtered left out.
    fn rows(&self, status: &Status) -> Vec<Row> {
        let tenants = &status.tenants;
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); tenants.len()];
        let mut top = Vec::new();
        for (i, tenant) in tenants.iter().enumerate() {
            match tenant.parent.and_then(|p| children.get_mut(p)) {
                Some(siblings) => siblings.push(i),
                None => top.push(i),
            }
        }
        let wanted = self.wanted(tenants);
        self.order(&mut top, tenants);
        let mut stack: Vec<(usize, usize)> = top.into_iter().rev().map(|i| (i, 0)).collect();
        let mut rows = Vec::with_capacity(tenants.len());
        while let Some((index, depth)) = stack.pop() {
            if wanted.as_ref().is_some_and(|w| !w[index]) {
                continue;
            }
            let group = &mut children[index];
            let folded = self.folded.contains(&tenants[index].id) && self.filter.is_empty();
            let shown = self.all || !tenants[index].is_minor();
            if shown {
                rows.push(Row {
                    index,
                    depth,
                    folded: folded && !group.is_empty(),
                });
            }
            if !folded {
                self.order(group, tenants);
                let deeper = depth + usize::from(shown);
                stack.extend(group.iter().rev().map(|i| (*i, deeper)));
            }
        }
        rows
    }

    /// Sorts siblings.
    fn order(&self, group: &mut [usize], tenants: &[TenantStatus]) {
        if self.sort == Sort::Tree {
            // The kernel lists them in no order. What is outside comes last.
            group.sort_by_key(|i| (tenants[*i].is_unmanaged(), tenants[*i].path.as_str()));
        } else {
            group.sort_by_key(|i| std::cmp::Reverse(self.sort.key(&tenants[*i])));
        }
    }

    /// Which tenants the filter lets through, their ancestors included; `None` for all.
    fn wanted(&self, tenants: &[TenantStatus]) -> Option<Vec<bool>> {
        if self.filter.is_empty() {
            return None;
        }
        let part = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&part);
        let matches = |t: &TenantStatus| has(&t.path) || has(&t.name);
        let mut wanted: Vec<bool> = tenants.iter().map(matches).collect();
        for i in (0..wanted.len()).rev() {
            let parent = tenants[i].parent.filter(|_| wanted[i]);
            if let Some(of_parent) = parent.and_then(|parent| wanted.get_mut(parent)) {
                *of_parent = true;
            }
        }
        Some(wanted)
    }
}

/// What the siblings of a group are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// As the agent tells them.
    #[default]
    Tree,
    /// By weight, heaviest first.
    Weight,
    /// By file pages held.
    Usage,
    /// By usage above the entitlement.
    Excess,
    /// By bytes read and written per second.
    Bandwidth,
}

impl Sort {
    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::Tree => Self::Usage,
            Self::Usage => Self::Excess,
            Self::Excess => Self::Bandwidth,
            Self::Bandwidth => Self::Weight,
            Self::Weight => Self::Tree,
        }
    }

    /// What it is called.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Weight => "weight",
            Self::Usage => "cache",
            Self::Excess => "excess",
            Self::Bandwidth => "bandwidth",
        }
    }

    fn key(self, tenant: &TenantStatus) -> u64 {
        match self {
            Self::Tree => 0,
            Self::Weight => tenant.weight,
            Self::Usage => tenant.usage,
            Self::Excess => tenant.usage.saturating_sub(tenant.entitlement),
            Self::Bandwidth => tenant.app.map_or(0, |a| to_u64(a.read_rate + a.write_rate)),
        }
    }
}
