//! Branches and loops. Conditions known at compile time leave no trace; all others become branches or loops of the
//! graph.

use crate::{
    error::{Error, Result},
    graph::{Graph, Op, Type, Value, build::declare_counter},
    import::{
        constant,
        node::{OnnxNode, axes::larger},
        ops::shared::{
            branches::{branch, contradiction, refuse_rank},
            loop_body::Rounds,
        },
        scope::regions::{Origin, Region},
    },
    scalar::Scalar,
};
use symshape::{Dim, Relation, Symbol};
use symshape_runtime::DType;

ops! {
    If 1 if_,
    Loop 1 loop_,
}

/// The outputs of `then_branch` or `else_branch`. Shapes may differ between the branches; such sizes are
/// data-dependent. A branch that contradicts the declared inputs ends the call with an error if it runs. A name that a
/// branch defines hides that name outside: a branch may name its outputs as the node does.
///
/// Limits: if the outputs differ in rank, both branches get a copy of all following nodes.
fn if_(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let condition = n.input(0)?;
    let names = ["then_branch", "else_branch"];
    if let Some(taken) = decided(g, condition)? {
        n.graph(names[usize::from(taken)])?;
        return n.branch(g, names[usize::from(!taken)]);
    }

    let mut branches = Vec::new();
    for name in names {
        branches.push(contradiction(n.region(g, name, |_| Ok(Vec::new())))?);
    }

    for k in 0..n.output_count() {
        let declared = n.declared(g, k).map(|dims| dims.len());
        if let Some(why) = refuse_rank(&mut branches, k, declared) {
            return Err(n.scope.needs_split(why));
        }
    }

    let condition = g.reshape(condition, Vec::new())?;
    branch(g, n, condition, branches)
}

/// The condition, if it is known at compile time.
fn decided(g: &Graph, condition: Value) -> Result<Option<bool>> {
    if let Some([value]) = g.contents(condition)
        && let Some(value) = value.as_i64()
    {
        return Ok(Some(value != 0));
    }
    match constant::value_of(g, condition)? {
        Some(value) if value.elems() == 1 => Ok(Some(value.get(0).is_true())),
        Some(_) => Err(Error::invalid("the condition must have one element")),
        None => Ok(None),
    }
}

/// The bound of a loop where nothing depends on it. No machine runs as many iterations.
const ENDLESS: i64 = 1 << 40;

/// The maximum number of iterations.
struct IterationLimit {
    max: Dim,
    /// The symbol whose declaration is the limit. Nothing else limits the loop then.
    declared_by: Option<Symbol>,
}

impl From<Dim> for IterationLimit {
    fn from(max: Dim) -> IterationLimit {
        IterationLimit { max, declared_by: None }
    }
}

/// The maximum number of iterations. It follows from the trip count, the condition, or the declared shapes of stacked
/// outputs; without any of these, the caller declares it.
fn trips(g: &mut Graph, rounds: &Rounds, limit: Option<Value>) -> Result<IterationLimit> {
    let n = rounds.n;
    let stacked = rounds.carried.len()..rounds.body.output.len().saturating_sub(1);

    if let Some([limit]) = limit.and_then(|limit| g.contents(limit)) {
        let limit = limit.clone();
        if g.facts.bounds(&limit).hi.is_some_and(|hi| hi < ENDLESS.into()) {
            let limit = larger(g, &limit, &Dim::zero());
            return Ok(g.facts.simplify(&limit).into());
        }
    }

    if let Some(max_rounds) = rounds.max_rounds(g)? {
        return Ok(max_rounds.into());
    }
    if stacked.is_empty() {
        return Ok(Dim::from(ENDLESS).into());
    }

    match stacked.filter_map(|k| n.declared(g, k)?.first()?.clone()).next() {
        Some(declared) => Ok(declared.into()),
        None => {
            let (symbol, max) = n.open_bound(g)?;
            Ok(IterationLimit { max, declared_by: Some(symbol) })
        }
    }
}

/// A carried value whose size along an axis grows in every iteration. It is stored at its largest size, together with
/// its current size.
pub(crate) struct Growth {
    /// Index of the carried value.
    value: usize,
    axis: usize,
    /// Growth per iteration.
    step: Dim,
    /// Largest size.
    max_size: Dim,
    /// Current size, in the body.
    symbol: Symbol,
}

/// The values that a loop passes to its body.
struct BodyInputs<'a> {
    /// Types of the carried values, at the start of the loop.
    types: &'a [Type],
    growths: &'a [Growth],
    /// Values that do not change: the body reads them from the enclosing graph instead of carrying them.
    kept: &'a [Option<Value>],
}

/// The body of a loop.
fn body(
    g: &mut Graph,
    n: &OnnxNode,
    counter: &Symbol,
    max_rounds: &Dim,
    inputs: &BodyInputs,
) -> Result<Region> {
    let BodyInputs { types, growths, kept } = *inputs;
    let mut region = n.region(g, "body", |region| {
        declare_counter(region, counter, max_rounds)?;
        let round = region.index(DType::I64, Vec::new(), counter.into())?;
        let goes_on = region.scalar(Scalar::bool(true))?;

        let mut carried: Vec<Value> = Vec::new();
        for (k, ty) in types.iter().enumerate() {
            let mut ty = ty.clone();
            for growth in growths.iter().filter(|growth| growth.value == k) {
                ty.shape[growth.axis] = growth.max_size.clone();
            }
            carried.push(region.region_input(ty, None));
        }

        for growth in growths {
            let size = region.region_input(Type { dtype: DType::I64, shape: Vec::new() }, None);
            let size = region.bind(&growth.symbol, size, 0, growth.max_size.clone())?;
            let next = &size + &growth.step;
            region
                .require(Relation::le(next, &growth.max_size), "the size of a value that a loop carries")?;
            carried[growth.value] = region.slice(carried[growth.value], growth.axis, Dim::zero(), size, 1)?;
        }

        let mut carried = carried.into_iter();
        let given = kept.iter().map(|kept| match kept {
            Some(outer) => Ok(Origin::Outer(*outer)),
            None => carried
                .next()
                .map(Origin::Own)
                .ok_or_else(|| Error::internal("each carried value must have a type")),
        });

        [round, goes_on].map(|head| Ok(Origin::Own(head))).into_iter().chain(given).collect()
    })?;

    let is_kept = |k: &usize| k.checked_sub(1).and_then(|k| kept.get(k)).is_some_and(Option::is_some);
    let left = (0..region.outputs.len()).filter(|k| !is_kept(k)).map(|k| region.outputs[k]);
    region.outputs = left.collect();

    Ok(region)
}

/// The sizes that an iteration changes.
fn growths(
    g: &Graph,
    n: &OnnxNode,
    region: &Region,
    types: &[Type],
    max_rounds: &Dim,
) -> Result<Vec<Growth>> {
    let mut growths = Vec::new();
    for (value, ty) in types.iter().enumerate() {
        let output =
            *region.outputs.get(1 + value).ok_or_else(|| Error::invalid("the body has too few outputs"))?;
        let next = region.graph.ty(output);
        if next.dtype != ty.dtype || next.shape.len() != ty.shape.len() {
            let message = format!("a Loop whose carried value {value} changes its rank or element type");
            return Err(Error::unsupported(message));
        }

        for (axis, (from, to)) in ty.shape.iter().zip(&next.shape).enumerate() {
            if from == to || region.graph.facts.prove_eq(from, to).is_yes() {
                continue;
            }

            let step = region.graph.facts.simplify(&(to - from));
            let hidden =
                region.graph.is_data_dependent(&step) || step.symbols().iter().any(|s| !region_knows(g, s));
            let bounded = max_rounds.as_i64() != Some(ENDLESS);
            if hidden || !bounded || !g.facts.prove_le(&Dim::zero(), &step).is_yes() {
                let message =
                    format!("a Loop whose carried value {value} changes its size from {from} to {to}");
                return Err(Error::unsupported(message));
            }

            let max_size = g.facts.simplify(&(from + max_rounds * &step));
            growths.push(Growth { value, axis, step, max_size, symbol: n.fresh(g) });
        }
    }

    Ok(growths)
}

fn region_knows(g: &Graph, symbol: &Symbol) -> bool {
    g.symbols.contains(symbol) || g.data_dependent.contains(symbol)
}

/// Runs the graph `body` up to `M` times (input 0), while the condition (input 1, then output 0 of the body) holds.
/// Carried values are passed from iteration to iteration. The other outputs are stacked. A size that changes must grow
/// by the same amount in each iteration. A name that the body defines hides that name outside.
///
/// Limits: with stacked outputs, the number of iterations needs a bound: the trip count, a condition that compares a
/// counter with a limit, the declared output shape, or `--dim`.
fn loop_(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let limit = n.optional(0);
    let condition = n.optional(1);

    let all: Vec<Value> = (2..n.input_count()).map(|k| n.input(k)).collect::<Result<_>>()?;
    let rounds = Rounds::new(n, n.graph("body")?, &all);
    let IterationLimit { max: max_rounds, declared_by } = trips(g, &rounds, limit)?;
    let kept: Vec<Option<Value>> = (0..all.len()).map(|k| rounds.keep(k).then_some(all[k])).collect();
    let carried: Vec<Value> = (0..all.len()).filter(|k| kept[*k].is_none()).map(|k| all[k]).collect();

    let limit = match limit {
        Some(limit) => {
            let limit = g.reshape(limit, Vec::new())?;
            g.cast(DType::I64, limit)?
        }
        None => g.scalar(Scalar::i64(i64::MAX))?,
    };

    let condition = match condition {
        Some(condition) => g.reshape(condition, Vec::new())?,
        None => g.scalar(Scalar::bool(true))?,
    };

    let types: Vec<Type> = carried.iter().map(|value| g.ty(*value).clone()).collect();
    let counter = n.fresh(g);
    let inputs = BodyInputs { types: &types, growths: &[], kept: &kept };
    let mut region = body(g, n, &counter, &max_rounds, &inputs)?;

    // The first import of the body shows which sizes grow.
    let growths = growths(g, n, &region, &types, &max_rounds)?;
    if !growths.is_empty() {
        let inputs = BodyInputs { growths: &growths, ..inputs };
        region = body(g, n, &counter, &max_rounds, &inputs)?;
    }

    let start = LoopStart {
        limit,
        condition,
        counter: &counter,
        max_rounds: &max_rounds,
        carried: &carried,
        growths: &growths,
    };
    // A call that passes a declared limit must name the flag that raises it.
    let origin = g.origin.clone();
    if let Some(symbol) = declared_by {
        g.origin = format!("{origin} (limited by --dim {symbol})");
    }
    let rounds = run(g, region, &start)?;
    g.origin = origin;

    let mut last = rounds[1..=carried.len()].to_vec();
    for (growth, size) in growths.iter().zip(&rounds[1 + carried.len()..]) {
        let size = n.data_dependent(g, *size, 0, growth.max_size.clone())?;
        last[growth.value] = g.slice(last[growth.value], growth.axis, Dim::zero(), size, 1)?;
    }

    let mut last = last.into_iter();
    let mut results: Vec<Value> = kept.iter().filter_map(|kept| kept.or_else(|| last.next())).collect();

    let stacked = &rounds[1 + carried.len() + growths.len()..];
    if !stacked.is_empty() {
        let done = n.data_dependent(g, rounds[0], 0, max_rounds)?;
        for slices in stacked {
            results.push(g.slice(*slices, 0, Dim::zero(), done.clone(), 1)?);
        }
    }

    Ok(results)
}

/// The values that start a loop, and the bound of its iterations.
pub(crate) struct LoopStart<'a> {
    /// Maximum number of iterations.
    pub(crate) limit: Value,
    /// Whether the first iteration runs.
    pub(crate) condition: Value,
    /// The index of the iteration, in the body.
    pub(crate) counter: &'a Symbol,
    /// Upper bound of `limit`.
    pub(crate) max_rounds: &'a Dim,
    /// Initial carried values.
    pub(crate) carried: &'a [Value],
    pub(crate) growths: &'a [Growth],
}

/// The loop of the graph over an imported body.
pub(crate) fn run(g: &mut Graph, region: Region, start: &LoopStart) -> Result<Vec<Value>> {
    let LoopStart { limit, condition, counter, max_rounds, carried, growths } = *start;
    let Region { mut graph, mut outputs, captured } = region;
    outputs[0] = graph.reshape(outputs[0], Vec::new())?;

    let mut init = carried.to_vec();
    let mut sizes = Vec::new();
    let mut next = Vec::new();
    for growth in growths {
        let pad = |graph: &mut Graph, value: Value, size: &Dim| {
            let lo = vec![Dim::zero(); graph.rank(value)];
            let mut hi = lo.clone();
            hi[growth.axis] = &growth.max_size - size;
            let fill = Scalar::from_i64(graph.dtype(value), 0);
            graph.pad(value, &lo, &hi, fill)
        };

        let size = g.shape(init[growth.value])[growth.axis].clone();
        init[growth.value] = pad(g, init[growth.value], &size)?;
        sizes.push(g.dim(DType::I64, size)?);
        let output = outputs[1 + growth.value];
        let size = graph.shape(output)[growth.axis].clone();

        let expected = Dim::from(&growth.symbol) + &growth.step;
        if !graph.facts.prove_eq(&size, &expected).is_yes() {
            return Err(Error::unsupported(format!("a Loop whose carried size becomes {size}")));
        }

        outputs[1 + growth.value] = pad(&mut graph, output, &size)?;
        next.push(graph.dim(DType::I64, size)?);
    }

    let at = 1 + carried.len();
    outputs.splice(at..at, next);
    init.extend(sizes);

    for (k, value) in outputs.iter().enumerate() {
        graph.output(&format!("out{k}"), *value)?;
    }

    let op = Op::Loop {
        counter: counter.clone(),
        max_iterations: max_rounds.clone(),
        carried: init.len(),
        body: Box::new(graph),
    };
    let operands = [&[limit, condition], &init[..], &captured[..]].concat();
    g.push_multi(op, &operands)
}
