//! Times calls, and the steps of calls.

use crate::error::{Error, ErrorKind, Result};
use std::{
    ops::Range,
    time::{Duration, Instant},
};
use symshape_runtime::{CallError, Context, Model, StepError, TensorRef};

/// How long the calls of one size may take.
const BUDGET: Duration = Duration::from_millis(400);

/// Most samples of each time. The budget may end the measurement earlier, after one sample at least.
const MAX_SAMPLES: usize = 101;

/// Median times in nanoseconds.
pub(super) struct Times {
    /// A usual call.
    pub(super) call_ns: f64,
    /// Each partition of the other model.
    pub(super) step_ns: Vec<f64>,
}

/// The times of calls of `usual`, and of the partitions of `stepped`, in turns.
pub(super) fn times(usual: &Model, stepped: &Model, inputs: &[TensorRef<'_>]) -> Result<Times> {
    let mut whole = context(usual)?;
    let mut by_steps = context(stepped)?;
    // The first calls commit memory.
    whole.run_views(inputs).map_err(refused)?;
    let steps = call_by_steps(&mut by_steps, inputs)?;

    let mut calls = Vec::new();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); steps.len()];
    let begin = Instant::now();
    while calls.is_empty() || (calls.len() < MAX_SAMPLES && begin.elapsed() < BUDGET) {
        let start = Instant::now();
        whole.run_views(inputs).map_err(refused)?;
        calls.push(nanoseconds(start));

        let steps = call_by_steps(&mut by_steps, inputs)?;
        samples.iter_mut().zip(&steps).for_each(|(samples, step)| samples.push(span_ns(step)));
    }

    let step_ns = samples.into_iter().map(median).collect();
    Ok(Times { call_ns: median(calls), step_ns })
}

/// The median time of calls in nanoseconds, after one call that is not counted.
pub(super) fn call_ns(model: &Model, inputs: &[TensorRef<'_>], budget: Duration) -> Result<f64> {
    let mut context = context(model)?;
    context.run_views(inputs).map_err(refused)?;
    let mut calls = Vec::new();
    let begin = Instant::now();
    while calls.is_empty() || begin.elapsed() < budget {
        let start = Instant::now();
        context.run_views(inputs).map_err(refused)?;
        calls.push(nanoseconds(start));
    }
    Ok(median(calls))
}

/// Calls a model partition by partition. Returns when each began and ended.
pub(super) fn call_by_steps(context: &mut Context, inputs: &[TensorRef<'_>]) -> Result<Vec<Range<Instant>>> {
    let count = context.model().partitions().len();
    let mut spans = Vec::with_capacity(count);
    let mut outcome: std::result::Result<(), StepError> = Ok(());
    let call = context.run_views_by_steps(inputs, |steps| {
        for number in 0..count {
            let start = Instant::now();
            outcome = steps.run(number);
            spans.push(start..Instant::now());
            if outcome.is_err() {
                return;
            }
        }
    });
    // A failed step is the reason of a failed call, which says more.
    call.map_err(refused)?;
    outcome.map_err(|error| Error::internal(error.to_string()))?;
    Ok(spans)
}

/// The length of a span in nanoseconds.
pub(super) fn span_ns(span: &Range<Instant>) -> f64 {
    (span.end - span.start).as_nanos() as f64
}

pub(super) fn context(model: &Model) -> Result<Context> {
    Context::new(model).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))
}

pub(super) fn refused(error: CallError) -> Error {
    Error::new(ErrorKind::Usage, error.to_string())
}

pub(super) fn nanoseconds(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}
