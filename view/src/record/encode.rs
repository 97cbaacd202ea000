//! A block in the making: statuses as columns of small numbers.

use std::collections::HashMap;

use justitia_api::{Reason, Status};

use super::block::{BlockHeader, MAX_REASON, MAX_TENANTS, TenantName};
use super::fields::{STATUS, TENANT};
use super::numbers::{length, put};

/// A tenant's figures at one moment.
type Row = [i64; TENANT.len()];

/// A block in the making.
#[derive(Debug, Default)]
pub(super) struct BlockBuilder {
    header: BlockHeader,
    places: HashMap<(u64, String), usize>,
    reasons: HashMap<String, i64>,
    statuses: Vec<[i64; STATUS.len()]>,
    /// By tenant: the first status that has it, and its figures from then on.
    tenants: Vec<(usize, Vec<Row>)>,
}

impl BlockBuilder {
    /// How many statuses there are.
    pub(super) const fn len(&self) -> usize {
        self.statuses.len()
    }

    /// Whether a block should hold no more: it has as many statuses as it may, or half as many tenants, or figures (of a
    /// byte or two each) that take half of its length.
    pub(super) fn is_full(&self) -> bool {
        let rows: usize = self.tenants.iter().map(|(_, rows)| rows.len()).sum();
        self.len() >= super::BLOCK
            || self.tenants.len() > MAX_TENANTS / 2
            || rows * TENANT.len() > super::MAX_PAYLOAD_BYTES / 4
    }

    /// Adds a status. Decisions up to `since`, seconds since the agent's start, are in an earlier block.
    pub(super) fn push(&mut self, status: &Status, since: f64) {
        let at = self.statuses.len();
        self.statuses
            .push(STATUS.map(|column| (column.get)(status)));
        self.header.update(status, since);
        let mut places: Vec<usize> = Vec::with_capacity(status.tenants.len());
        for tenant in &status.tenants {
            let key = (tenant.id, tenant.path.clone());
            let place = *self.places.entry(key).or_insert_with(|| {
                let parent = tenant.parent.and_then(|p| places.get(p).copied());
                self.header.tenants.push(TenantName::of(tenant, parent));
                self.tenants.push((at, Vec::new()));
                self.tenants.len() - 1
            });
            places.push(place);
            let reason = tenant.exempt.as_ref().map_or(0, |why| self.reason(why));
            let figures = TENANT.map(|column| (column.get)(tenant, reason));
            if let Some((first, rows)) = self.tenants.get_mut(place) {
                // Absent meanwhile: as before, and not there.
                while *first + rows.len() < at {
                    let mut absent = rows.last().copied().unwrap_or([0; TENANT.len()]);
                    absent[0] = 0;
                    rows.push(absent);
                }
                rows.push(figures);
            }
        }
    }

    /// The number of a reason among the header's texts.
    fn reason(&mut self, reason: &Reason) -> i64 {
        let mut text = reason.to_string();
        while text.len() > MAX_REASON {
            text.pop();
        }
        if let Some(number) = self.reasons.get(&text) {
            return *number;
        }
        self.header.reasons.push(text.clone());
        let number = length(self.header.reasons.len());
        self.reasons.insert(text, number);
        number
    }

    /// The block's payload, not yet compressed.
    #[expect(
        clippy::indexing_slicing,
        reason = "a row has a figure for each column"
    )]
    pub(super) fn bytes(&self) -> Vec<u8> {
        // Plain data always serialises.
        let header = serde_json::to_vec(&self.header).unwrap_or_default();
        let mut out = Vec::new();
        put(&mut out, length(header.len()));
        out.extend(header);
        put(&mut out, length(self.statuses.len()));
        for column in 0..STATUS.len() {
            changes(&mut out, self.statuses.iter().map(|row| row[column]));
        }
        for (first, rows) in &self.tenants {
            put(&mut out, length(*first));
            put(&mut out, length(rows.len()));
        }
        for column in 0..TENANT.len() {
            for (_, rows) in &self.tenants {
                changes(&mut out, rows.iter().map(|row| row[column]));
            }
        }
        out
    }
}

/// A column: the first figure, then changes.
fn changes(out: &mut Vec<u8>, figures: impl Iterator<Item = i64>) {
    let mut last = 0i64;
    for figure in figures {
        put(out, figure.wrapping_sub(last));
        last = figure;
    }
}
