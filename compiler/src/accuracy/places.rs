//! Finds the contractions that cause an error: all others keep the lower precision.
//!
//! The error of some contractions alone shows whether they matter. Groups of neighbours are measured first. A group
//! with a large error is divided, down to single nodes, which stay `f32`. The errors of the other groups add up, so
//! each may have only a part of the limit; the result is measured as a whole.

use super::{
    report::TrialReport,
    trial::{Call, Trial},
};
use std::collections::{BTreeMap, BTreeSet};

/// Evaluations of a search. Groups that are not measured by then stay `f32`.
const MAX_RUNS: usize = 48;

/// Largest work of a search, in multiplications.
const MAX_WORK: f64 = 1.5e10;

/// The parts of the limit that a group may take, one attempt after another.
const PARTS: [f64; 4] = [1.0, 0.5, 0.2, 0.05];

/// The smallest share of multiplications that makes the lower precision worth its second form of the weights.
const MIN_SHARE: f64 = 0.125;

/// Names in a message.
const MAX_NAMES: usize = 3;

/// The nodes that stay `f32`, so that no call has an error above `max_error`, and the errors then. `None` if there are
/// no such nodes, or too little of the model would be left.
pub(super) fn find(
    trial: &Trial,
    calls: &[Call],
    report: &TrialReport,
    max_error: f64,
) -> Option<(BTreeSet<String>, TrialReport)> {
    let places = trial.places();
    if places.len() < 2 {
        return None;
    }
    // The cheapest call that shows the error.
    let shows = calls.iter().zip(&report.calls).filter(|(_, measured)| measured.error > max_error);
    let (call, _) = shows.min_by(|(a, _), (b, _)| a.work.total_cmp(&b.work))?;
    let max_runs = ((MAX_WORK / call.work.max(1.0)) as usize).min(MAX_RUNS);
    let mut search =
        Search { trial, call, runs_left: max_runs, errors: BTreeMap::new(), counted: BTreeSet::new() };
    for part in PARTS {
        let mut kept = BTreeSet::new();
        search.divide(&places, part * max_error, &mut kept);
        // A contraction without a node in the model can't be named.
        if kept.len() == places.len() || !kept.is_subset(&trial.known) {
            return None;
        }
        let report = trial.report(calls, &kept).ok()?;
        if report.share < MIN_SHARE {
            return None;
        }
        if report.max_error() <= max_error {
            return Some((kept, report));
        }
    }
    None
}

/// The places that stay `f32`, for the note.
pub(super) fn describe(excess: &str, kept: &BTreeSet<String>, report: &TrialReport) -> String {
    let names: Vec<String> = kept.iter().take(MAX_NAMES).map(|name| format!("`{name}`")).collect();
    let others = kept.len().saturating_sub(MAX_NAMES);
    let others = if others == 0 { String::new() } else { format!(" and {others} more") };
    let nodes = if kept.len() == 1 { "node" } else { "nodes" };
    let share = 100.0 * report.share;
    format!(
        "{excess}, so the contractions of {nodes} {}{others} multiply f32; bf16x3 keeps {share:.0}% of the multiplications, and the error is {:.1e}",
        names.join(", "),
        report.max_error()
    )
}

struct Search<'t> {
    trial: &'t Trial,
    call: &'t Call,
    runs_left: usize,
    /// The error of each group that was evaluated, if it could be.
    errors: BTreeMap<Vec<String>, Option<f64>>,
    /// The groups whose errors the search read.
    counted: BTreeSet<Vec<String>>,
}

impl Search<'_> {
    /// Adds the nodes of a group that stay `f32` to `kept`.
    fn divide(&mut self, group: &[String], limit: f64, kept: &mut BTreeSet<String>) {
        let is_small = self.error(group).is_some_and(|error| error <= limit);
        if is_small {
            return;
        }
        if group.len() == 1 || self.runs_left == 0 {
            kept.extend(group.iter().cloned());
            return;
        }
        let (first, second) = group.split_at(group.len() / 2);
        self.evaluate(&[first, second]);
        self.divide(first, limit, kept);
        self.divide(second, limit, kept);
    }

    /// The error of the call if only these nodes have the lower precision. `None` if it can't be evaluated, or too many
    /// groups were measured.
    fn error(&mut self, group: &[String]) -> Option<f64> {
        if self.counted.insert(group.to_vec()) {
            match self.runs_left.checked_sub(1) {
                Some(left) => self.runs_left = left,
                None => {
                    self.counted.remove(group);
                    return None;
                }
            }
        }
        self.evaluate(&[group]);
        *self.errors.get(group)?
    }

    /// Evaluates the groups that were not evaluated yet. Together they take less time, because they share values.
    fn evaluate(&mut self, groups: &[&[String]]) {
        let unknown = groups.iter().filter(|group| !self.errors.contains_key(**group));
        let unknown: Vec<Vec<String>> = unknown.map(|group| group.to_vec()).collect();
        let errors = self.trial.errors_of(self.call, &unknown);
        self.errors.extend(unknown.into_iter().zip(errors));
    }
}
