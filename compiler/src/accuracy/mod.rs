//! Accuracy check: whether a model at `bf16x3` stays close to the same model at `f32`.
//!
//! The error of one multiplication is bounded, but a model can amplify it to any size. Examples are a saturated
//! sigmoid, a difference of large values and a gate that is almost closed. The weights alone don't show which values
//! occur. So the check runs the model at both precisions and compares the outputs, as `symc selfcheck` does.
//!
//! It calls the model with seeded inputs at its smallest sizes, and at the largest sizes that don't take long. Sizes
//! and inputs are the same on every machine, so a model gets the same precision wherever it is compiled. A machine
//! without tile registers emulates them in memory.

pub(crate) mod dims;
pub(crate) mod distance;
pub(crate) mod inputs;
mod state;
pub(crate) mod work;

pub use state::{StateError, state_error};

use self::{
    dims::{aligned, halved},
    work::{UnknownSizes, Work},
};
use crate::{
    emit,
    error::{Error, ErrorKind, Result},
    graph::Graph,
    options::{CompileOptions, Microkernels},
    pipeline::{Lowered, Pipeline},
    scalar::Precision,
    target::Target,
    tensor::{self, Tensor},
};
use symshape_runtime::{Context, Model};

/// Default limit of the error in an accuracy check, relative to the largest element of an output.
///
/// It is half of the error that models are promised, [`Precision::max_model_error`]: with other inputs and sizes,
/// errors up to 1.6 times as large were measured.
pub const MAX_ERROR: f64 = 2.5e-5;

/// Largest work of a call, in multiplications, except at the smallest sizes.
const MAX_WORK: f64 = 8e9;

/// Largest work of the call at the smallest sizes. A model that needs more is not checked.
const MAX_SMALLEST_WORK: f64 = 1e11;

/// Multiplications of contractions that take as long as computing one element by another operation.
const MULTIPLICATIONS_PER_ELEMENT: f64 = 16.0;

/// Result of an accuracy check.
#[derive(Clone, PartialEq, Debug)]
pub enum AccuracyCheck {
    /// No contraction uses the lower precision, so the outputs are those at `f32`.
    Identical,
    /// The model ran at both precisions.
    Measured {
        /// Largest difference in all calls, relative to the largest element of its output. Infinite if shapes,
        /// integers, infinities or NaNs differ.
        max_error: f64,
        /// Sizes of the call with the largest difference: `N=8,S=128`.
        at: String,
    },
    /// The model can't run on this machine, or takes too long.
    Skipped(Error),
}

/// Precision of a model after the accuracy check.
#[derive(Clone, PartialEq, Debug)]
pub struct PrecisionChoice {
    /// Precision of `f32` contractions.
    pub precision: Precision,
    /// Why the check was skipped, or why the precision is not the requested one.
    pub note: Option<String>,
}

/// Chooses the precision of a model: that of `options`, or [`Precision::F32`] if the error of `bf16x3` exceeds
/// `max_error`.
///
/// `max_error` is relative to the largest element of an output; infinity skips the check. Only `bf16x3` is checked.
///
/// # Errors
/// When `max_error` is negative or NaN, and as [`check_accuracy`].
pub fn choose_precision(graph: &Graph, options: &CompileOptions, max_error: f64) -> Result<PrecisionChoice> {
    if max_error.is_nan() || max_error < 0.0 {
        let message =
            format!("maximum error {max_error}: expected a number of 0 or more, such as 1e-4, or infinity");
        return Err(Error::new(ErrorKind::Usage, message));
    }

    let requested = PrecisionChoice { precision: options.precision, note: None };
    if options.precision != Precision::Bf16x3 || max_error == f64::INFINITY {
        return Ok(requested);
    }

    Ok(match check_accuracy(graph, options)? {
        AccuracyCheck::Measured { max_error: error, at } if error > max_error => {
            PrecisionChoice { precision: Precision::F32, note: Some(describe_excess(error, &at, max_error)) }
        }
        AccuracyCheck::Skipped(why) => {
            PrecisionChoice { note: Some(format!("accuracy not checked: {why}")), ..requested }
        }
        AccuracyCheck::Identical | AccuracyCheck::Measured { .. } => requested,
    })
}

/// Explains that `error`, measured at the sizes `at`, exceeds `limit`.
fn describe_excess(error: f64, at: &str, limit: f64) -> String {
    let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
    if !error.is_finite() {
        return format!(
            "integers, infinities or shapes of the outputs differ{at}, so contractions multiply f32"
        );
    }

    let accepted = 2.0 * error;
    format!(
        "the error{at} is {error:.1e} of the largest output, above the limit of {limit:.1e}, so contractions multiply f32; \
         a limit of {accepted:.0e} (--max-error) accepts it"
    )
}

/// Runs a graph at `f32` and at the precision of `options`, as machines with tile registers do.
///
/// # Errors
/// As [`Pipeline::lower`]. All other errors give [`AccuracyCheck::Skipped`].
pub fn check_accuracy(graph: &Graph, options: &CompileOptions) -> Result<AccuracyCheck> {
    if options.precision == Precision::F32 || !options.support.has_tiles() {
        return Ok(AccuracyCheck::Identical);
    }

    let lowered = lower_for_check(graph, options.precision)?;
    if lowered.program.on_tiles_count() == 0 {
        return Ok(AccuracyCheck::Identical);
    }

    Ok(compare_with_f32(graph, lowered).unwrap_or_else(AccuracyCheck::Skipped))
}

/// Lowers a graph for this machine with tile registers, even if the machine has none.
fn lower_for_check(graph: &Graph, precision: Precision) -> Result<Lowered> {
    let options = CompileOptions::default();
    let options = options.threads(1).precision(precision).support(options.support.with_tiles());
    Pipeline::new(graph).options(options).lower()
}

fn compare_with_f32(graph: &Graph, lowered: Lowered) -> Result<AccuracyCheck> {
    let model = compile_with_tiles(&lowered)?;
    drop(lowered);
    let calls = run_calls(graph, &model, inputs::inputs)?;

    // Keep only one of the two models in memory.
    drop(model);
    let model = lower_for_check(graph, Precision::F32)?.jit()?;

    let (max_error, at) = worst(&calls, &model, inputs::inputs, |_| true)?;
    Ok(AccuracyCheck::Measured { max_error, at })
}

/// The largest difference of the outputs that `counts` selects by their index, and the sizes of its call: those of
/// `calls` next to those of this model.
fn worst(
    calls: &[MeasuredCall],
    model: &Model,
    make_inputs: MakeInputs,
    counts: impl Fn(usize) -> bool,
) -> Result<(f64, String)> {
    let counted = |outputs: &[Tensor]| {
        let outputs = outputs.iter().enumerate().filter(|(idx, _)| counts(*idx));
        outputs.map(|(_, output)| output.clone()).collect::<Vec<_>>()
    };
    let mut max_error = 0.0;
    let mut at = String::new();
    for call in calls {
        let outputs = run_seeded(model, &call.dims, make_inputs)?;
        let error = distance::max_error(&counted(&outputs), &counted(&call.outputs));
        if error >= max_error {
            max_error = error;
            at = inputs::binding(model, &call.dims);
        }
    }
    Ok((max_error, at))
}

/// Compiles for tile registers, which are emulated in memory if this machine has none.
fn compile_with_tiles(Lowered { program, plan, options, .. }: &Lowered) -> Result<Model> {
    if Target::host()?.has_tiles() {
        let (model, _) = emit::jit::jit(program, plan, &options.require_tiles(true))?;
        if model.uses_tiles() {
            return Ok(model);
        }
    }

    let options = options.microkernels(Microkernels::EmulatedTiles);
    emit::jit::jit(program, plan, &options).map(|(model, _)| model)
}

/// Makes the seeded inputs of a call with these dims.
type MakeInputs = fn(&Model, &[i64]) -> Result<Vec<Tensor>>;

/// Runs the model on seeded inputs with these dims and returns its outputs.
fn run_seeded(model: &Model, dims: &[i64], make_inputs: MakeInputs) -> Result<Vec<Tensor>> {
    let limit = |error: String| Error::new(ErrorKind::Limit, error);
    let inputs = make_inputs(model, dims)?;
    let mut context = Context::new(model).map_err(|error| limit(error.to_string()))?;
    let outputs = context.run_views(&tensor::refs(&inputs)?).map_err(|error| limit(error.to_string()))?;
    Ok(tensor::copies(&outputs))
}

/// A call of the check.
struct MeasuredCall {
    /// One for each symbol of the model.
    dims: Vec<i64>,
    outputs: Vec<Tensor>,
}

/// Runs the calls of the check: at the smallest sizes, at the largest that don't take long, and at about half of these.
///
/// A model may refuse sizes within their ranges, because of its other constraints. Such calls are left out.
///
/// # Errors
/// When calls take too long at all sizes, or the model refuses all of them.
fn run_calls(graph: &Graph, model: &Model, make_inputs: MakeInputs) -> Result<Vec<MeasuredCall>> {
    let work = |dims: &[i64]| {
        let Work { multiplications, elements } = work::work(graph, model, dims, UnknownSizes::UpperBound);
        multiplications + MULTIPLICATIONS_PER_ELEMENT * elements
    };

    let mut failure = Error::new(ErrorKind::Limit, "calls take too long even at the smallest sizes");
    let mut calls: Vec<MeasuredCall> = Vec::new();
    // Runs a call unless it is too much work or has run before, and returns the number of calls so far.
    let mut run = |dims: Vec<i64>, max_work: f64| {
        if work(&dims) <= max_work && calls.iter().all(|call| call.dims != dims) {
            match run_seeded(model, &dims, make_inputs) {
                Ok(outputs) => calls.push(MeasuredCall { dims, outputs }),
                Err(error) => failure = error,
            }
        }
        calls.len()
    };

    let n_smallest = run(halved(model, u64::BITS), MAX_SMALLEST_WORK);
    for times in 0..u64::BITS {
        let dims = halved(model, times);
        if run(aligned(model, &dims), MAX_WORK) >= n_smallest + 2 || run(dims, MAX_WORK) >= n_smallest + 2 {
            break;
        }
    }

    if calls.is_empty() { Err(failure) } else { Ok(calls) }
}
