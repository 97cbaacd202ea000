//! A block that was read, as columns: a status of it is made when it is wanted.

use justitia_api::Status;

use super::block::{BlockHeader, MAX_COLUMNS, MAX_HEADER, MAX_REASON, MAX_TENANTS, MIN_COLUMNS};
use super::fields::{EXISTS, STATUS, TENANT};
use super::numbers::{get, size};

/// What is wrong with a payload: what was expected where it holds something else.
type Wrong = &'static str;
/// A tenant's figures at one moment.
type Row = [i64; TENANT.len()];

/// What a payload says.
#[derive(Debug)]
pub(super) struct ColumnarBlock {
    header: BlockHeader,
    statuses: Vec<[i64; STATUS.len()]>,
    /// By tenant: the first status that has it, and its figures from then on.
    tenants: Vec<(usize, Vec<Row>)>,
}

impl ColumnarBlock {
    /// Reads a payload. What it takes in memory is bounded by the payload's own length, whatever it says.
    ///
    /// # Errors
    /// What was expected where it holds something else.
    pub(super) fn read(payload: &[u8]) -> Result<Self, Wrong> {
        let mut from = payload;
        let header = header(&mut from)?;
        let count = size(&mut from)?;
        if count > super::BLOCK {
            return Err("at most 60 statuses");
        }
        let mut statuses = vec![[0; STATUS.len()]; count];
        for column in 0..STATUS.len() {
            fill(&mut from, &mut statuses, column)?;
        }
        let spans = spans(&mut from, &header, count)?;
        let rows: usize = spans.iter().map(|(_, rows)| rows).sum();
        // A figure takes a byte at least: before there is room for them, they must be there.
        if rows * header.columns > from.len() {
            return Err("more figures");
        }
        let mut tenants: Vec<(usize, Vec<Row>)> = spans
            .into_iter()
            .map(|(first, rows)| (first, vec![[0; TENANT.len()]; rows]))
            .collect();
        for column in 0..header.columns {
            for (_, rows) in &mut tenants {
                fill(&mut from, rows, column)?;
            }
        }
        Ok(Self {
            header,
            statuses,
            tenants,
        })
    }

    /// When the status at `at` was told, seconds since 1970.
    pub(super) fn time(&self, at: usize) -> Option<f64> {
        Some(self.figures(at)?.time)
    }

    /// The status at `at`, if there are so many.
    pub(super) fn status(&self, at: usize) -> Option<Status> {
        let mut status = self.figures(at)?;
        self.header.complete(&mut status);
        let mut places: Vec<Option<usize>> = Vec::with_capacity(self.tenants.len());
        // What is outside is last, whenever its name came.
        let (outside, inside): (Vec<_>, Vec<_>) = self
            .header
            .tenants
            .iter()
            .zip(&self.tenants)
            .partition(|(name, _)| name.id == 0);
        for (name, (first, rows)) in inside.into_iter().chain(outside) {
            let row = at.checked_sub(*first).and_then(|at| rows.get(at));
            let parent = name.parent.map(|p| places.get(p).copied().flatten());
            let row = row.filter(|row| row[0] & EXISTS != 0 && parent != Some(None));
            places.push(row.map(|_| status.tenants.len()));
            if let Some(row) = row {
                let mut tenant = name.tenant(parent.flatten());
                for (column, figure) in TENANT.iter().zip(row) {
                    (column.set)(&mut tenant, *figure, &self.header.reasons);
                }
                // The working set is the first column that the oldest recordings do not have.
                tenant.working_set_unknown |= self.header.columns <= MIN_COLUMNS;
                status.tenants.push(tenant);
            }
        }
        Some(status)
    }

    /// A status with its figures alone.
    fn figures(&self, at: usize) -> Option<Status> {
        let row = self.statuses.get(at)?;
        let mut status = Status::default();
        for (column, figure) in STATUS.iter().zip(row) {
            (column.set)(&mut status, *figure);
        }
        Some(status)
    }
}

fn header(from: &mut &[u8]) -> Result<BlockHeader, Wrong> {
    let length = size(from)?;
    if length > MAX_HEADER {
        return Err("names of at most 32 MiB");
    }
    let (header, rest) = from.split_at_checked(length).ok_or("the names' length")?;
    *from = rest;
    let header: BlockHeader = serde_json::from_slice(header).map_err(|_| "names")?;
    if header.tenants.len() > MAX_TENANTS {
        return Err("at most 50,000 tenants");
    }
    if !(MIN_COLUMNS..=MAX_COLUMNS).contains(&header.columns) {
        return Err("23 to 100 figures of a tenant");
    }
    if header.reasons.iter().any(|why| why.len() > MAX_REASON) {
        return Err("reasons of at most 512 bytes");
    }
    Ok(header)
}

/// Of each tenant, the first status that has it, and in how many it is from then on.
fn spans(
    from: &mut &[u8],
    header: &BlockHeader,
    statuses: usize,
) -> Result<Vec<(usize, usize)>, Wrong> {
    let mut spans: Vec<(usize, usize)> = Vec::with_capacity(header.tenants.len());
    for name in &header.tenants {
        let (first, rows) = (size(from)?, size(from)?);
        let whole = first.checked_add(rows).is_some_and(|end| end <= statuses);
        if !whole || name.parent.is_some_and(|p| p >= spans.len()) {
            return Err("tenants, parents first, within the block");
        }
        spans.push((first, rows));
    }
    Ok(spans)
}

/// Reads a column: the first figure, then changes. A column that is not known here is passed over.
fn fill<const N: usize>(
    from: &mut &[u8],
    rows: &mut [[i64; N]],
    column: usize,
) -> Result<(), Wrong> {
    let mut last = 0i64;
    for row in rows {
        last = last.wrapping_add(get(from)?);
        if let Some(figure) = row.get_mut(column) {
            *figure = last;
        }
    }
    Ok(())
}
