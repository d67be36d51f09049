//! `Scan`: loops over slices.

use crate::{
    error::{At, Error, Result},
    graph::{Graph, Type, Value, build::declare_counter},
    import::{
        model::proto::GraphProto,
        node::{OnnxNode, axes::normal_axis},
        ops::control::{LoopStart, run},
        scope::{NameScope, regions::Origin},
    },
    scalar::Scalar,
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Scan 8 scan_batch,
    Scan 9 scan,
}

/// The axes along which inputs and outputs are sliced and stacked, and which of them run backwards.
#[derive(Default)]
struct ScanAxes {
    in_axes: Vec<i64>,
    in_directions: Vec<i64>,
    out_axes: Vec<i64>,
    out_directions: Vec<i64>,
}

/// The number of sliced inputs.
fn sliced(n: &OnnxNode, count: usize) -> Result<usize> {
    let sliced = n.int("num_scan_inputs")?.and_then(|count| usize::try_from(count).ok());
    let sliced = sliced.filter(|sliced| (1..=count).contains(sliced));
    sliced.ok_or_else(|| Error::invalid("`num_scan_inputs` must be given and fit the inputs"))
}

/// Runs the graph `body` once per slice of the inputs along their scan axes. States are carried from iteration to
/// iteration. The other outputs are stacked. Attributes choose the axis and direction of each scanned input and output.
fn scan(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let inputs: Vec<Value> = (0..n.input_count()).map(|k| n.input(k)).collect::<Result<_>>()?;
    let (states, over) = inputs.split_at(inputs.len() - sliced(n, inputs.len())?);
    let lists = |name: &str| Ok::<_, Error>(n.ints(name)?.unwrap_or_default());
    let scan_axes = ScanAxes {
        in_axes: lists("scan_input_axes")?,
        in_directions: lists("scan_input_directions")?,
        out_axes: lists("scan_output_axes")?,
        out_directions: lists("scan_output_directions")?,
    };
    rounds(g, n.scope, n.graph("body")?, states, over, &scan_axes)
}

/// As in opset 9, for each element of a batch. The batch is axis 0 of all inputs and outputs, the scan axis is axis 1.
///
/// Limits: no `sequence_lens` (input 0).
fn scan_batch(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    if n.optional(0).is_some() {
        return Err(Error::unsupported("Scan (opset 8) with sequence_lens"));
    }

    let inputs: Vec<Value> = (1..n.input_count()).map(|k| n.input(k)).collect::<Result<_>>()?;
    let states = inputs.len() - sliced(n, inputs.len())?;
    let scan_axes =
        ScanAxes { in_directions: n.ints("directions")?.unwrap_or_default(), ..ScanAxes::default() };
    let first = |g: &Graph, value: Value| {
        g.shape(value).first().cloned().ok_or_else(|| Error::invalid("the inputs of Scan need a batch axis"))
    };
    let batch = first(g, inputs[0])?;

    for value in &inputs {
        let dim = first(g, *value)?;
        g.require(Relation::eq(dim, &batch), "batch of Scan")?;
    }

    let body = n.graph("body")?;
    let types: Vec<Type> = inputs.iter().map(|value| g.ty(*value).clone()).collect();
    let counter = n.fresh(g);

    let mut region = n.scope.enclosed(g, "batch", Default::default(), |scope, region| {
        declare_counter(region, &counter, &batch)?;
        let mut own = Vec::new();
        for ty in types {
            let whole = region.region_input(ty, None);
            let one = region.slice(whole, 0, Dim::from(&counter), Dim::one(), 1)?;
            own.push(region.squeeze(one, &[0])?);
        }
        let (states, over) = own.split_at(states);
        let mut results = rounds(region, scope, body, states, over, &scan_axes)?;
        results.insert(0, region.scalar(Scalar::bool(true))?);
        Ok(results)
    })?;

    region.captured.splice(0..0, inputs);
    let count = g.dim(DType::I64, batch.clone())?;
    let yes = g.scalar(Scalar::bool(true))?;
    let start = LoopStart {
        limit: count,
        condition: yes,
        counter: &counter,
        max_rounds: &batch,
        carried: &[],
        growths: &[],
    };
    let mut results = run(g, region, &start)?;
    results.remove(0);

    Ok(results)
}

/// The last states and the stacked outputs of the iterations of `body`.
fn rounds<'a>(
    g: &mut Graph,
    scope: &NameScope<'_, 'a>,
    body: &'a GraphProto,
    states: &[Value],
    over: &[Value],
    scan_axes: &ScanAxes,
) -> Result<Vec<Value>> {
    let mut axes = Vec::new();
    for (k, value) in over.iter().enumerate() {
        axes.push(normal_axis(scan_axes.in_axes.get(k).copied().unwrap_or(0), g.rank(*value))?);
    }

    let count = g.shape(over[0])[axes[0]].clone();
    for (value, k) in over.iter().zip(&axes) {
        let dim = g.shape(*value)[*k].clone();
        g.require(Relation::eq(dim, &count), "inputs of Scan")?;
    }

    let counter = scope.fresh(g, "Scan");
    let types: Vec<Type> = states.iter().map(|value| g.ty(*value).clone()).collect();
    let given: Vec<Type> = over.iter().map(|value| g.ty(*value).clone()).collect();

    let region = scope.region(g, body, |region| {
        declare_counter(region, &counter, &count)?;
        let own = |ty: &Type| Origin::Own(region.region_input(ty.clone(), None));

        let mut values: Vec<Origin> = types.iter().map(own).collect();
        for (k, ty) in given.iter().enumerate() {
            let whole = region.region_input(ty.clone(), None);
            let at = match scan_axes.in_directions.get(k) {
                Some(1) => &count - 1 - Dim::from(&counter),
                _ => Dim::from(&counter),
            };
            let slice = region.slice(whole, axes[k], at, Dim::one(), 1)?;
            values.push(Origin::Own(region.squeeze(slice, &[axes[k]])?));
        }

        Ok(values)
    });

    let mut region = region.at(|| "body of Scan")?;
    let again = region.graph.scalar(Scalar::bool(true))?;
    region.outputs.insert(0, again);
    region.captured.splice(0..0, over.iter().copied());

    let limit = g.dim(DType::I64, count.clone())?;
    let yes = g.scalar(Scalar::bool(true))?;
    let start = LoopStart {
        limit,
        condition: yes,
        counter: &counter,
        max_rounds: &count,
        carried: states,
        growths: &[],
    };
    let mut results = run(g, region, &start)?;
    results.remove(0);

    for (k, value) in results[states.len()..].iter_mut().enumerate() {
        if scan_axes.out_directions.get(k) == Some(&1) {
            *value = g.reverse(*value, 0)?;
        }
        let to = normal_axis(scan_axes.out_axes.get(k).copied().unwrap_or(0), g.rank(*value))?;
        let mut perm: Vec<usize> = (1..g.rank(*value)).collect();
        perm.insert(to, 0);
        *value = g.transpose(*value, &perm)?;
    }

    Ok(results)
}
