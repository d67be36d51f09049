//! Whether a model stays near what it is at `f32`, at `bf16x3`: both are run, and compared.
//!
//! The error of one product is bounded, but what a model makes of it is not: a sigmoid far out, a difference of large
//! numbers or a gate that is nearly shut enlarges it to any size, and which numbers there are the weights alone don't tell.
//! So the model is tried, as `symc selfcheck` would: with its least sizes and with the largest that don't take long, and
//! with seeded inputs. Sizes and inputs are the same on every machine, so that a model gets the same precision wherever it
//! is compiled; where there are no tile registers they stand in memory.

pub(crate) mod distance;
pub(crate) mod inputs;
pub(crate) mod work;

use self::work::{Found, Work};
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
use symshape_runtime::{Context, Model, SymbolInfo};

/// How far a trial may be off, as a part of the largest element of an output, where nobody says otherwise: half of what is
/// promised of models ([`Precision::max_model_error`]), as other inputs and sizes do up to 1.6 times worse in models seen.
pub const WITHIN: f64 = 2.5e-5;

/// Multiplications of a call, at most, but for the least sizes.
const MOST_WORK: f64 = 8e9;

/// Those of the call with the least sizes; a model that takes more is not tried.
const MOST_LEAST_WORK: f64 = 1e11;

/// Multiplications of contractions that take as long as another operation.
const PRODUCTS: f64 = 16.0;

/// What sizes of images often are multiples of.
const ALIGNED: i64 = 32;

/// What came of a trial.
#[derive(Clone, PartialEq, Debug)]
pub enum Trial {
    /// No product of it is less precise.
    Same,
    /// It differs.
    Off {
        /// The largest difference of all calls, as a part of the largest element of its output.
        part: f64,
        /// The sizes of that call: `N=8,S=128`.
        at: String,
    },
    /// It can't be run here, or not in a moment.
    Untried(Error),
}

/// What becomes of a precision.
#[derive(Clone, PartialEq, Debug)]
pub struct Settled {
    /// What contractions of `f32` are to multiply.
    pub precision: Precision,
    /// Why that is not what was asked for, or not known to be near `f32`.
    pub note: Option<String>,
}

/// The precision of `options`, but [`Precision::F32`] for a graph that a trial at `bf16x3` finds farther off than `within`
/// of the largest element of an output; infinity is for no trial. Other precisions are not tried.
///
/// # Errors
/// When `within` is negative or no number, and as [`trial()`].
pub fn settle(graph: &Graph, options: &CompileOptions, within: f64) -> Result<Settled> {
    if within.is_nan() || within < 0.0 {
        let message =
            format!("a trial within {within}: expected a number from 0 on, such as 1e-4, or infinity");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let asked = Settled { precision: options.precision, note: None };
    if options.precision != Precision::Bf16x3 || within == f64::INFINITY {
        return Ok(asked);
    }
    Ok(match trial(graph, options)? {
        Trial::Off { part, at } if part > within => {
            let far = match part.is_finite() {
                true => format!("{part:.1e} of the largest output off"),
                false => "other integers, infinities or shapes".into(),
            };
            let at = if at.is_empty() { at } else { format!(" at {at}") };
            let allowed = 2.0 * part;
            let note = format!(
                "{far} in a trial{at}, so contractions multiply f32; within {allowed:.0e} that is allowed"
            );
            Settled { precision: Precision::F32, note: Some(note) }
        }
        Trial::Untried(why) => Settled { note: Some(format!("not tried: {why}")), ..asked },
        Trial::Same | Trial::Off { .. } => asked,
    })
}

/// Runs a graph at the precision of `options`, as machines with tile registers do, and at `f32`.
///
/// # Errors
/// As [`Pipeline::lower`]; what else goes wrong leaves the model untried.
pub fn trial(graph: &Graph, options: &CompileOptions) -> Result<Trial> {
    if options.precision == Precision::F32 || !options.support.has_tiles() {
        return Ok(Trial::Same);
    }
    let lowered = lowered(graph, options.precision)?;
    if lowered.program.on_tiles_count() == 0 {
        return Ok(Trial::Same);
    }
    Ok(compared(graph, lowered).unwrap_or_else(Trial::Untried))
}

/// For a trial on this machine, with tile registers, whatever it has.
fn lowered(graph: &Graph, precision: Precision) -> Result<Lowered> {
    let options = CompileOptions::default();
    let options = options.threads(1).precision(precision).support(options.support.with_tiles());
    Pipeline::new(graph).options(options).lower()
}

fn compared(graph: &Graph, lowered: Lowered) -> Result<Trial> {
    let model = on_tiles(&lowered)?;
    drop(lowered);
    let calls = calls(graph, &model)?;
    // Only one of both is in memory at a time.
    drop(model);
    let model = self::lowered(graph, Precision::F32)?.jit()?;
    let mut worst = (0.0, String::new());
    for (dims, got) in &calls {
        let part = distance::part(&outputs(&model, dims)?, got);
        if part >= worst.0 {
            worst = (part, inputs::binding(&model, dims));
        }
    }
    let (part, at) = worst;
    Ok(Trial::Off { part, at })
}

/// The model on tile registers, or on what stands in memory for them.
fn on_tiles(Lowered { program, plan, options }: &Lowered) -> Result<Model> {
    if Target::host()?.has_tiles() {
        let (model, _) = emit::jit::jit(program, plan, &options.require_tiles(true))?;
        if model.uses_tiles() {
            return Ok(model);
        }
    }
    let options = options.microkernels(Microkernels::EmulatedTiles);
    emit::jit::jit(program, plan, &options).map(|(model, _)| model)
}

/// What the model gives for seeded inputs.
fn outputs(model: &Model, dims: &[i64]) -> Result<Vec<Tensor>> {
    let limit = |error: String| Error::new(ErrorKind::Limit, error);
    let inputs = inputs::inputs(model, dims)?;
    let mut context = Context::new(model).map_err(|error| limit(error.to_string()))?;
    let outputs = context.run_views(&tensor::refs(&inputs)?).map_err(|error| limit(error.to_string()))?;
    Ok(tensor::copies(&outputs))
}

/// Sizes and results of the calls that are tried: with the least sizes, with the largest that don't take long, and with
/// about half of these. What the model refuses, as it may require more of its sizes than their ranges, is left out.
///
/// # Errors
/// When a call takes long at any sizes, or all are refused.
fn calls(graph: &Graph, model: &Model) -> Result<Vec<(Vec<i64>, Vec<Tensor>)>> {
    let work = |dims: &Vec<i64>| {
        let Work { products, others } = work::work(graph, model, dims, Found::Most);
        products + PRODUCTS * others
    };
    let mut refused = Error::new(ErrorKind::Limit, "a call at its least sizes takes long");
    let mut calls: Vec<(Vec<i64>, Vec<Tensor>)> = Vec::new();
    let mut call = |dims: Vec<i64>, most: f64| {
        if work(&dims) <= most && calls.iter().all(|(tried, _)| *tried != dims) {
            match outputs(model, &dims) {
                Ok(outputs) => calls.push((dims, outputs)),
                Err(error) => refused = error,
            }
        }
        calls.len()
    };
    let least = call(halved(model, u64::BITS), MOST_LEAST_WORK);
    for times in 0..u64::BITS {
        let dims = halved(model, times);
        if call(aligned(model, &dims), MOST_WORK) >= least + 2 || call(dims, MOST_WORK) >= least + 2 {
            break;
        }
    }
    if calls.is_empty() { Err(refused) } else { Ok(calls) }
}

/// The largest dims, whose distance from the least ones is halved so many times.
fn halved(model: &Model, times: u32) -> Vec<i64> {
    let place = |count: u64| count.saturating_sub(1).checked_shr(times).unwrap_or(0);
    let dim = |symbol: &SymbolInfo| symbol.nth(place(symbol.count())).unwrap_or(symbol.lo());
    model.symbols().iter().map(dim).collect()
}

/// These dims as multiples of [`ALIGNED`], where such are allowed: images are often halved several times.
fn aligned(model: &Model, dims: &[i64]) -> Vec<i64> {
    let dim = |(symbol, dim): (&SymbolInfo, &i64)| {
        let rounded = dim - dim % ALIGNED;
        if symbol.allows(rounded) { rounded } else { *dim }
    };
    model.symbols().iter().zip(dims).map(dim).collect()
}
