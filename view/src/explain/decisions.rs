//! The last decisions.

use std::fmt::Write;

use justitia_api::{Action, Status, TenantStatus};

use super::current::CurrentValues;
use super::knobs::amount;
use crate::clock::clock;
use justitia_api::units::seconds;

pub(super) fn decisions(
    out: &mut String,
    status: &Status,
    tenant: &TenantStatus,
    current: &CurrentValues,
) {
    let _ = writeln!(out, "\nLast decisions");
    let mut none = true;
    for decision in status.decisions.iter().filter(|d| d.path == tenant.path) {
        none = false;
        let began = status.time - status.uptime;
        let since = if decision.at - decision.since >= 1.0 {
            format!("{} to ", clock(began + decision.since))
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "  {since}{} ({} ago): {}",
            clock(began + decision.at),
            seconds(status.uptime - decision.at),
            decision.what_with(&|knob| current.name(knob), &amount)
        );
        let _ = writeln!(out, "    {}", decision.reason);
    }
    for line in back_and_forth(status, tenant, current) {
        let _ = writeln!(out, "  {line}");
    }
    if none {
        let _ = writeln!(
            out,
            "  none about it since the agent's start, {} ago",
            seconds(status.uptime)
        );
    }
}

/// Which knobs were set and restored more than once in the last minute.
fn back_and_forth(status: &Status, tenant: &TenantStatus, current: &CurrentValues) -> Vec<String> {
    let mut knobs: Vec<(&str, u32, u32)> = Vec::new();
    let lately = |at: f64| status.uptime - at <= MINUTE;
    for decision in &status.decisions {
        if decision.path != tenant.path || !lately(decision.at) {
            continue;
        }
        let (knob, set) = match &decision.action {
            Action::Set {
                knob, from: None, ..
            } => (knob.as_str(), true),
            Action::Restore { knob } => (knob.as_str(), false),
            _ => continue,
        };
        let at = knobs.iter().position(|(known, ..)| *known == knob);
        let at = at.unwrap_or_else(|| {
            knobs.push((knob, 0, 0));
            knobs.len() - 1
        });
        if let Some((_, sets, backs)) = knobs.get_mut(at) {
            *sets += u32::from(set);
            *backs += u32::from(!set);
        }
    }
    knobs
        .into_iter()
        .filter(|(_, sets, backs)| *backs > 0 && sets + backs > 2)
        .map(|(knob, sets, backs)| {
            format!(
                "{} alternates: in the last minute it was set {} and restored {}, by the decisions that are kept",
                current.name(knob),
                times(sets),
                times(backs)
            )
        })
        .collect()
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

/// Seconds.
const MINUTE: f64 = 60.0;
