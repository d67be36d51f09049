//! Accuracy check: whether a model at `bf16x3` stays close to the same model at `f32`.
//!
//! The error of one multiplication is bounded, but a model can amplify it to any size. Examples are a saturated
//! sigmoid, a difference of large values and a gate that is almost closed. The weights alone don't show which values
//! occur. So the check runs the model at both precisions and compares the outputs, as `symc selfcheck` does.
//!
//! It evaluates the graph with seeded inputs at its smallest sizes, and at larger sizes that don't take long. Nothing
//! is compiled for it. Sizes and inputs are the same on every machine, so a model gets the same precision wherever it
//! is compiled. If the error is too large, `places` finds the contractions that cause it.

mod calls;
mod choice;
pub(crate) mod dims;
pub(crate) mod distance;
pub(crate) mod inputs;
mod places;
mod report;
mod state;
mod trial;
pub(crate) mod work;

pub use choice::PrecisionChoice;
pub use report::{TrialCall, TrialReport};
pub use state::{StateError, state_error};

use self::trial::Trial;
use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
    options::CompileOptions,
    parallel,
    scalar::Precision,
};

/// Default limit of the error in an accuracy check, relative to the largest element of an output.
///
/// It is half of the error that models are promised, [`Precision::max_model_error`]: with other inputs and sizes,
/// errors up to 1.6 times as large were measured.
pub const MAX_ERROR: f64 = 2.5e-5;

/// Result of an accuracy check.
#[derive(Clone, PartialEq, Debug)]
pub enum AccuracyCheck {
    /// No contraction uses the lower precision, so the outputs are those at `f32`.
    Identical,
    /// The model ran at both precisions.
    Measured(TrialReport),
    /// The model can't be evaluated with seeded inputs, or takes too long.
    Skipped(Error),
}

/// Chooses the precision of a model: that of `options` if the error of `bf16x3` is at most `max_error`. Otherwise the
/// contractions that cause the error stay `f32`, or all of them do.
///
/// `max_error` is relative to the largest element of an output; infinity skips the check. Only `bf16x3` is checked. The
/// choice holds for the graph after [`Graph::keep_f32`] with its nodes.
///
/// # Errors
/// When `max_error` is negative or NaN, and as [`check_accuracy`].
pub fn choose_precision(graph: &Graph, options: &CompileOptions, max_error: f64) -> Result<PrecisionChoice> {
    Ok(choose_in_parallel(graph, options, max_error, || ())?.0)
}

/// As [`choose_precision`], with `attempt` at the same time. Its result is returned if the choice is the precision of
/// `options` for all contractions: then it is that of a later run, too.
///
/// Lowering and code generation mostly use one core, and most models keep their precision. So the check adds little to
/// the time of a compile if there are more cores. `attempt` runs on the calling thread.
///
/// # Errors
/// As [`choose_precision`].
pub fn choose_in_parallel<R>(
    graph: &Graph,
    options: &CompileOptions,
    max_error: f64,
    attempt: impl FnOnce() -> R,
) -> Result<(PrecisionChoice, Option<R>)> {
    let precision = options.precision;
    let Some(trial) = trial(graph, options, max_error)? else {
        return Ok((PrecisionChoice::unchecked(precision), Some(attempt())));
    };
    let choose = move || {
        choice::choose(&trial, max_error).unwrap_or_else(|why| PrecisionChoice {
            note: Some(format!("accuracy not checked: {why}")),
            ..PrecisionChoice::unchecked(precision)
        })
    };
    let (attempted, choice) = parallel::join(attempt, choose);
    let is_attempted = choice.precision == precision && choice.kept.is_empty();
    Ok((choice, is_attempted.then_some(attempted)))
}

/// The trial that decides about the precision of a model. `None` if it is not checked.
///
/// # Errors
/// As [`choose_precision`].
fn trial(graph: &Graph, options: &CompileOptions, max_error: f64) -> Result<Option<Trial>> {
    if max_error.is_nan() || max_error < 0.0 {
        let message =
            format!("maximum error {max_error}: expected a number of 0 or more, such as 1e-4, or infinity");
        return Err(Error::new(ErrorKind::Usage, message));
    }

    let is_checked = options.precision == Precision::Bf16x3 && max_error != f64::INFINITY;
    if is_checked && options.support.has_tiles() { Trial::of(graph, options.precision) } else { Ok(None) }
}

/// Evaluates a graph at `f32` and at the precision of `options`, as machines with tile registers multiply.
///
/// # Errors
/// Those of the optimiser. All other errors give [`AccuracyCheck::Skipped`].
pub fn check_accuracy(graph: &Graph, options: &CompileOptions) -> Result<AccuracyCheck> {
    if options.precision == Precision::F32 || !options.support.has_tiles() {
        return Ok(AccuracyCheck::Identical);
    }
    let Some(trial) = Trial::of(graph, options.precision)? else { return Ok(AccuracyCheck::Identical) };
    let measured = trial.measure().map(|(_, report)| AccuracyCheck::Measured(report));
    Ok(measured.unwrap_or_else(AccuracyCheck::Skipped))
}
