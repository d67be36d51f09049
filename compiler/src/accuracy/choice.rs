//! The precision of a model after an accuracy check, and the reason.

use super::{places, report::TrialReport, trial::Trial};
use crate::{error::Result, scalar::Precision};
use std::collections::BTreeSet;

/// Precision of a model after the accuracy check.
#[derive(Clone, PartialEq, Debug)]
pub struct PrecisionChoice {
    /// Precision of `f32` contractions.
    pub precision: Precision,
    /// The nodes whose contractions multiply `f32` in any case, see [`crate::graph::Graph::keep_f32`].
    pub kept: BTreeSet<String>,
    /// Why the check was skipped, or why not all of the model has the requested precision.
    pub note: Option<String>,
    /// The calls of the check and their errors, if it ran.
    pub report: Option<TrialReport>,
}

impl PrecisionChoice {
    /// A precision without a check.
    pub(crate) fn unchecked(precision: Precision) -> PrecisionChoice {
        PrecisionChoice { precision, kept: BTreeSet::new(), note: None, report: None }
    }
}

/// The precision of the model of a trial if no error may exceed `max_error`.
///
/// # Errors
/// As [`Trial::measure`].
pub(super) fn choose(trial: &Trial, max_error: f64) -> Result<PrecisionChoice> {
    let (calls, report) = trial.measure()?;
    let precision = Precision::Bf16x3;
    if report.max_error() <= max_error {
        return Ok(PrecisionChoice { precision, kept: BTreeSet::new(), note: None, report: Some(report) });
    }
    let excess = excess(&report, max_error);
    if let Some((kept, report)) = places::find(trial, &calls, &report, max_error) {
        let note = places::describe(&excess, &kept, &report);
        return Ok(PrecisionChoice { precision, kept, note: Some(note), report: Some(report) });
    }
    let note = format!("{excess}, so contractions multiply f32{}", accepted(&report));
    let kept = BTreeSet::new();
    Ok(PrecisionChoice { precision: Precision::F32, kept, note: Some(note), report: Some(report) })
}

/// Why the requested precision is not that of the whole model.
fn excess(report: &TrialReport, limit: f64) -> String {
    let at = report.worst().map_or("", |call| &call.at);
    let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
    let error = report.max_error();
    if error.is_finite() {
        format!("the error{at} is {error:.1e} of the largest output, above the limit of {limit:.1e}")
    } else {
        format!("integers, infinities or shapes of the outputs differ{at}")
    }
}

/// The limit that accepts these errors.
fn accepted(report: &TrialReport) -> String {
    let accepted = 2.0 * report.max_error();
    if accepted.is_finite() {
        format!("; a limit of {accepted:.0e} (--max-error) accepts it")
    } else {
        String::new()
    }
}
