//! `symc selfcheck`: compares compiled code with the reference evaluator, at the ends of every symbol's range.
//!
//! Each call runs in memory that is poisoned with NaN patterns, between canaries. A result passes if its type and shape
//! are right, its integers and bools are equal to the reference, and its floats are within [`tolerance`]. The reference
//! sums in double precision. If the rounding of a model has a larger effect, its [`sensitivity`] is the tolerance, and
//! the printed line states it.

use super::{
    args, at,
    compare::{self, Distance, Tolerance},
    errors::usage,
    output::Verdict,
    progress::Progress,
    ragged::RaggedArgs,
    sensitivity, source,
};
use crate::{
    accuracy::{
        distance::{largest, largest_difference, max_relative_difference},
        inputs,
        work::{UnknownSizes, Work, work},
    },
    error::{At, Error, ErrorKind, Result},
    graph::{Graph, eval::eval},
    opt,
    options::CompileOptions,
    parallel,
    scalar::Precision,
    tensor::{self, Tensor},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    sync::mpsc::channel,
    thread,
};
use symshape_runtime::{Context, DType, Model, SymbolInfo};

/// Scalar operations that the optional combinations of sizes may take in total.
const MAX_EXTRA_OPS: f64 = 3e9;

/// Arguments of `symc selfcheck`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    #[command(flatten)]
    precision: args::PrecisionArgs,
    #[command(flatten)]
    offload: args::OffloadArgs,
    /// Sizes to check; default: the ends of every range
    #[arg(long, value_name = "N=8[,S=128]", num_args = 1..)]
    at: Vec<String>,
    /// Print one JSON object per line to standard output
    #[arg(long)]
    json: bool,
}

/// Compares compiled code with the reference at each binding.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    args.dims
        .state
        .refuse("selfcheck", "it checks single calls; `symc test --stateful` checks consecutive ones")?;
    // The loss of a precision is that on machines with tile registers, even if this machine has none.
    let support = CompileOptions::default().support.with_tiles();
    let loaded = source::load(
        &args.model,
        &args.dims,
        &args.precision,
        &args.offload,
        &RaggedArgs::default(),
        support,
    )?;
    let (graph, precision) =
        loaded.source.as_ref().ok_or_else(|| usage("selfcheck needs an ONNX model, not a shared object"))?;
    let definition = PrecisionDefinition::of(graph, *precision)?;
    let model = &loaded.model;
    let bindings = if args.at.is_empty() {
        bindings(graph, model)
    } else {
        args.at.iter().map(|at| at::dims(model, "--at", at)).collect::<Result<Vec<_>>>()?
    };

    let progress = Progress::new("checking", bindings.len() as u64);
    let mut verdict = Verdict::Yes;
    in_order(
        &bindings,
        |dims| check(graph, model, definition.as_ref(), dims),
        |dims, outcome| {
            let at = inputs::binding(model, dims);
            let outcome = outcome.at(|| args.model.display().to_string())?;
            if outcome.problem.is_some() {
                verdict = Verdict::No;
            }
            progress.line(&describe(&at, outcome, *precision, args.json));
            progress.step();
            Ok(())
        },
    )?;
    Ok(verdict)
}

/// The printed line for one binding.
fn describe(at: &str, outcome: Outcome, precision: Precision, json: bool) -> String {
    let Distance { max_abs, max_ulp, .. } = outcome.distance;
    let status = outcome.problem.unwrap_or_else(|| "pass".into());
    if json {
        // JSON has no infinity.
        let mut line =
            json!({"at": at, "max_abs": max_abs.min(f64::MAX), "max_ulp": max_ulp, "status": status});
        line["precision"] = json!(precision.name());
        line["max_relative"] = json!(outcome.relative);

        if let Some(defined) = outcome.defined {
            line["defined_relative"] = json!(defined);
        }

        if let Some(refused) = &outcome.refused {
            line["refused"] = json!(refused);
        }

        if let Some(rounding) = outcome.sensitivity {
            line["rounding"] = json!(rounding.min(f64::MAX));
        }

        return line.to_string();
    }

    if let Some(refused) = outcome.refused {
        return format!(
            "{at}: {status} (the reference and the compiled code both refuse the seeded inputs: {refused})"
        );
    }
    let rounding = outcome.sensitivity.map_or_else(String::new, |rounding| {
        format!("; rounding alone changes this model's outputs by up to {rounding:e}")
    });
    let compiled = outcome.relative;
    let relative = match outcome.defined {
        Some(defined) => format!("{compiled:.1e} compiled, {defined:.1e} by definition"),
        None => format!("{compiled:.1e}"),
    };
    format!(
        "{at}: {status} (largest difference {max_abs:e}, {max_ulp} ulp; relative to the largest element {relative}{rounding})"
    )
}

/// Runs `work` on all jobs, on at most one thread per core, and passes the results to `take` in the order of the jobs.
fn in_order<J: Sync, R: Send>(
    jobs: &[J],
    work: impl Fn(&J) -> R + Sync,
    mut take: impl FnMut(&J, R) -> Result<()>,
) -> Result<()> {
    let threads = parallel::cores().min(jobs.len().max(1));
    let next = AtomicUsize::new(0);
    let (send, receive) = channel();

    thread::scope(|scope| {
        let start = |_: &usize| {
            let (send, work, next) = (send.clone(), &work, &next);
            let run = move || {
                while let Some((idx, job)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|idx| Some((idx, jobs.get(idx)?)))
                {
                    // The receiver is gone after an error.
                    if send.send((idx, work(job))).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().spawn_scoped(scope, run).is_ok()
        };
        // The system may have no more threads.
        if (0..threads).take_while(start).count() == 0 {
            return jobs.iter().try_for_each(|job| take(job, work(job)));
        }

        drop(send);
        let mut waiting = BTreeMap::new();

        let mut taken = 0;
        for (idx, result) in receive {
            waiting.insert(idx, result);
            while let Some(result) = waiting.remove(&taken) {
                take(&jobs[taken], result)?;
                taken += 1;
            }
        }

        Ok(())
    })
}

/// The outcome at one binding.
#[derive(Default)]
struct Outcome {
    distance: Distance,
    problem: Option<String>,
    /// The error of compiled code if the reference refused the call too; nothing is compared then.
    refused: Option<String>,
    /// The largest sensitivity of an output, if it was computed.
    sensitivity: Option<f64>,
    /// The largest error, relative to the largest element of its output.
    relative: f64,
    /// The same error of the definition of the precision, unless it is `f32`.
    defined: Option<f64>,
}

/// A model with the contractions of a precision other than `f32`, for the reference evaluator.
struct PrecisionDefinition {
    precision: Precision,
    graph: Graph,
}

impl PrecisionDefinition {
    fn of(graph: &Graph, precision: Precision) -> Result<Option<PrecisionDefinition>> {
        if precision == Precision::F32 {
            return Ok(None);
        }

        // The precision of a contraction depends on the constants and on the multiplications of the optimised graph.
        let mut graph = graph.clone();
        opt::optimize(&mut graph)?;
        opt::apply_precision(&mut graph, precision)?;
        Ok(Some(PrecisionDefinition { precision, graph }))
    }

    /// Whether compiled code of this machine loses precision. Without tile registers, only tensors stored as bf16 do.
    fn applies_to(&self, model: &Model) -> bool {
        model.uses_tiles() || self.precision == Precision::Bf16
    }

    /// The largest allowed error of each output, as a fraction of its largest element.
    fn allowed(&self, want: &[Tensor]) -> Vec<f64> {
        want.iter().map(|want| self.precision.max_model_error() * largest(want)).collect()
    }
}

/// The larger value of each pair; missing values are 0.
fn elementwise_max(rounding: &[f64], allowed: Option<&[f64]>) -> Vec<f64> {
    let allowed = allowed.unwrap_or_default().iter().copied().chain(std::iter::repeat(0.0));
    rounding.iter().zip(allowed).map(|(one, other)| one.max(other)).collect()
}

/// Whether the error of any output exceeds the allowed error.
fn exceeds(want: &[Tensor], got: &[Tensor], allowed: &[f64]) -> bool {
    want.iter().zip(got).zip(allowed).any(|((want, got), allowed)| largest_difference(want, got) > *allowed)
}

/// Runs the reference and the compiled code at one binding, and compares their outputs.
fn check(
    graph: &Graph,
    model: &Model,
    definition: Option<&PrecisionDefinition>,
    dims: &[i64],
) -> Result<Outcome> {
    let at = || inputs::binding(model, dims);
    let mut context = Context::new(model).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;

    let inputs = inputs::inputs(model, dims)?;
    let want = eval(graph, &inputs).at(|| format!("reference evaluator at {}", at()));
    let refs = tensor::refs(&inputs)?;
    let got = context.run_guarded(&refs).map(|(outputs, is_intact)| (tensor::copies(&outputs), is_intact));

    let mut outcome = Outcome::default();
    match (want, got) {
        (Ok(want), Ok((got, is_intact))) => {
            let results = Results { graph, inputs: &inputs, want: &want, got: &got };
            judge(&mut outcome, model, definition, &results)?;
            if !is_intact {
                outcome.problem = Some("fail: wrote outside its memory".into());
            }
        }
        // The seeded inputs may, for instance, contain an index out of bounds.
        (Err(error), Err(refused)) if error.kind() != ErrorKind::Internal => {
            outcome.refused = Some(refused.to_string());
        }
        (Err(error), _) => return Err(error),
        (Ok(_), Err(error)) => outcome.problem = Some(format!("error: {error}")),
    }
    Ok(outcome)
}

/// The inputs and outputs of a model at one binding.
struct Results<'a> {
    graph: &'a Graph,
    inputs: &'a [Tensor],
    want: &'a [Tensor],
    got: &'a [Tensor],
}

/// Compares compiled code with the reference, and the error of a precision with its promised bound. If either is too
/// large, the model's sensitivity to rounding is computed and allowed in addition.
fn judge(
    outcome: &mut Outcome,
    model: &Model,
    definition: Option<&PrecisionDefinition>,
    results: &Results,
) -> Result<()> {
    let Results { graph, inputs, want, got } = *results;
    let defined = definition.map(|definition| eval(&definition.graph, inputs)).transpose()?;
    let promised = definition.map(|definition| definition.allowed(want));
    let applies = definition.is_some_and(|definition| definition.applies_to(model));
    let allowed = promised.as_deref().filter(|_| applies);
    let is_off = compare_all(outcome, model, want, got, allowed);
    let breaks_promise = match (&defined, &promised) {
        (Some(defined), Some(promised)) => exceeds(want, defined, promised),
        _ => false,
    };
    outcome.relative = max_relative_difference(want, got);
    outcome.defined = defined.as_ref().map(|defined| max_relative_difference(want, defined));
    if !is_off && !breaks_promise {
        return Ok(());
    }

    let rounding = sensitivity::sensitivity(graph, inputs, want)?;
    outcome.sensitivity = rounding.iter().copied().reduce(f64::max);
    if is_off {
        outcome.problem = None;
        compare_all(outcome, model, want, got, Some(&elementwise_max(&rounding, allowed)));
    }
    if let (Some(definition), Some(defined)) = (definition, defined)
        && exceeds(want, &defined, &elementwise_max(&rounding, promised.as_deref()))
    {
        let PrecisionDefinition { precision, .. } = definition;
        let problem = format!("fail: the error of {precision} exceeds {:e}", precision.max_model_error());
        outcome.problem.get_or_insert(problem);
    }
    Ok(())
}

/// Compares every output and records the first problem; `allowed` widens the tolerance of each output. Returns whether
/// any element is out of tolerance.
fn compare_all(
    outcome: &mut Outcome,
    model: &Model,
    want: &[Tensor],
    got: &[Tensor],
    allowed: Option<&[f64]>,
) -> bool {
    let mut is_off = false;
    for (idx, ((want, got), info)) in want.iter().zip(got).zip(model.outputs()).enumerate() {
        let mut tolerance = tolerance(want);
        tolerance.atol = tolerance.atol.max(allowed.map_or(0.0, |allowed| allowed[idx]));

        let problem = match compare::distance(want, got, tolerance) {
            Err(problem) => Some(problem),
            Ok(distance) => {
                outcome.distance.max_abs = outcome.distance.max_abs.max(distance.max_abs);
                outcome.distance.max_ulp = outcome.distance.max_ulp.max(distance.max_ulp);
                is_off |= distance.n_wrong > 0;
                (distance.n_wrong > 0).then(|| compare::describe(want, got, &distance))
            }
        };

        if let Some(problem) = problem {
            outcome.problem.get_or_insert_with(|| format!("fail: `{}`: {problem}", info.name()));
        }
    }

    is_off
}

/// The usual effect of rounding: relative to the element, plus a fraction of the output's largest magnitude, since the
/// error of a sum follows its largest terms.
fn tolerance(want: &Tensor) -> Tolerance {
    let (rtol, fraction) = match want.dtype() {
        DType::F64 => (1e-9, 1e-11),
        DType::F16 => (1e-2, 1e-2),
        DType::BF16 => (5e-2, 5e-2),
        _ => (1e-3, 1e-5),
    };
    Tolerance { rtol, atol: fraction * largest(want) }
}

/// Five values of a symbol: the two smallest, an odd one, and the two largest.
fn edges(symbol: &SymbolInfo) -> Vec<i64> {
    let count = symbol.count();
    let mut indices = vec![0, 1, count.saturating_sub(2), count.saturating_sub(1)];
    // The first odd value from the middle on; a range of even values has none.
    let odd = (count / 2..count).take(64).find(|idx| symbol.nth(*idx).is_some_and(|value| value % 2 != 0));
    indices.extend(odd);
    indices.sort_unstable();
    indices.dedup();
    indices.into_iter().filter_map(|idx| symbol.nth(idx)).collect()
}

/// The bindings to check: every edge of each symbol with the other symbols at their smallest values, then the other
/// combinations of edges, cheapest first, within [`MAX_EXTRA_OPS`].
fn bindings(graph: &Graph, model: &Model) -> Vec<Vec<i64>> {
    let edges: Vec<Vec<i64>> = model.symbols().iter().map(edges).collect();
    let smallest: Vec<i64> = edges.iter().map(|values| values[0]).collect();
    let mut chosen = vec![smallest.clone()];
    for (idx, values) in edges.iter().enumerate() {
        for value in values {
            let mut dims = smallest.clone();
            dims[idx] = *value;
            if !chosen.contains(&dims) {
                chosen.push(dims);
            }
        }
    }

    let mut others = combinations(&edges);
    others.retain(|dims| !chosen.contains(dims));
    let mut costed: Vec<(f64, Vec<i64>)> =
        others.into_iter().map(|dims| (operations(graph, model, &dims), dims)).collect();
    costed.sort_by(|a, b| a.0.total_cmp(&b.0));

    let mut budget = MAX_EXTRA_OPS;
    for (cost, dims) in costed {
        budget -= cost;
        if budget >= 0.0 {
            chosen.push(dims);
        }
    }
    chosen
}

/// All combinations of the symbols' edges, or the first few thousand.
fn combinations(edges: &[Vec<i64>]) -> Vec<Vec<i64>> {
    let mut all = vec![vec![]];
    for values in edges {
        let longer = all.iter().flat_map(|dims: &Vec<i64>| {
            values.iter().map(move |value| dims.iter().copied().chain([*value]).collect::<Vec<i64>>())
        });
        all = longer.take(5_usize.pow(5)).collect();
    }
    all
}

/// Estimated scalar operations of the reference evaluator.
fn operations(graph: &Graph, model: &Model, dims: &[i64]) -> f64 {
    let Work { multiplications, elements } = work(graph, model, dims, UnknownSizes::One);
    multiplications + elements
}
