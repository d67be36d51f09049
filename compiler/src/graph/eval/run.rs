//! Runs the nodes of a graph in order, and those of its nested graphs: branches, loops and data-dependent symbols.

use super::{
    binding::{Binding, check_constraints, dim_value, sizes},
    node, quick,
    rounding::Rounding,
    writer::tensor,
};
use crate::{
    error::{At, Error, ErrorKind, Result},
    external::Callee,
    graph::{Graph, NodeId, Op, Type, Value},
    scalar::Scalar,
    tensor::Tensor,
};
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The outputs of `graph`. Nodes that may end the call run too.
pub(super) fn outputs(
    graph: &Graph,
    binding: &Binding,
    inputs: &[Tensor],
    rounding: Rounding,
) -> Result<Vec<Tensor>> {
    if rounding == Rounding::Quick {
        let calls = [quick::Call { graph, binding: binding.clone(), inputs }];
        let missing = || Error::internal("a call without its outputs");
        return quick::outputs(&calls).pop().ok_or_else(missing)?;
    }
    let mut values = computed(graph, binding, inputs, &wanted(graph), rounding)?;
    values.truncate(graph.outputs.len());
    Ok(values)
}

/// The outputs, and a result of each node that may end the call.
pub(super) fn wanted(graph: &Graph) -> Vec<Value> {
    let mut wanted: Vec<Value> = graph.outputs.iter().map(|(_, value)| *value).collect();
    wanted.extend(graph.nodes.values().filter(|node| node.op.acts()).map(|node| node.results[0]));
    wanted
}

/// The values `wanted` for these symbols and inputs. Only the nodes that they depend on are computed.
///
/// # Errors
/// As [`eval`](super::eval).
pub fn values(graph: &Graph, binding: &Binding, inputs: &[Tensor], wanted: &[Value]) -> Result<Vec<Tensor>> {
    computed(graph, binding, inputs, wanted, Rounding::Last)
}

fn computed(
    graph: &Graph,
    binding: &Binding,
    inputs: &[Tensor],
    wanted: &[Value],
    rounding: Rounding,
) -> Result<Vec<Tensor>> {
    let binding = &mut binding.clone();
    let Needed { nodes, uses } = needed(graph, wanted);
    let mut remaining_uses = uses.clone();
    let mut done: BTreeMap<Value, Tensor> = BTreeMap::new();

    for node in nodes.iter().map(|id| &graph.nodes[*id]) {
        let located = || {
            if node.origin.is_empty() { node.op.name().to_string() } else { node.origin.clone() }
        };

        let operands: Vec<Tensor> = node.operands.iter().map(|value| done[value].clone()).collect();
        for operand in &node.operands {
            let remaining = remaining_uses.entry(*operand).or_default();
            *remaining -= 1;
            if *remaining == 0 {
                done.remove(operand);
            }
        }

        let results = match &node.op {
            Op::Input(index) => vec![inputs[*index as usize].clone()],
            Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Fail { .. } => {
                control(graph, &node.op, &operands, binding, rounding).at(located)?
            }
            Op::Call { callee, results, scratch } => {
                external(callee, results, scratch, &operands, binding).at(located)?
            }
            op => node::eval(op, &operands, binding, rounding).at(located)?,
        };
        for (result, tensor) in node.results.iter().zip(results) {
            if uses.contains_key(result) {
                done.insert(*result, tensor);
            }
        }
    }
    Ok(wanted.iter().map(|value| done[value].clone()).collect())
}

/// The results of an external function.
pub(super) fn external(
    callee: &Callee,
    results: &[Type],
    scratch: &Dim,
    operands: &[Tensor],
    binding: &Binding,
) -> Result<Vec<Tensor>> {
    let types = results.iter().map(|ty| Ok((ty.dtype, sizes(&ty.shape, binding)?)));
    let scratch = sizes(std::slice::from_ref(scratch), binding)?[0];
    callee.call(operands, &types.collect::<Result<Vec<_>>>()?, scratch)
}

pub(super) struct Needed {
    /// The nodes that the wanted values depend on, in order.
    pub(super) nodes: BTreeSet<NodeId>,
    /// The number of uses of each value among these nodes and the wanted values.
    pub(super) uses: BTreeMap<Value, u32>,
}

pub(super) fn needed(graph: &Graph, wanted: &[Value]) -> Needed {
    let mut needed = Needed { nodes: BTreeSet::new(), uses: BTreeMap::new() };
    let mut open = wanted.to_vec();
    while let Some(value) = open.pop() {
        *needed.uses.entry(value).or_default() += 1;
        let def = graph.values[value].def;
        if needed.nodes.insert(def) {
            open.extend(&graph.nodes[def].operands);
        }
    }
    needed
}

/// The results of a control-flow operator. A symbol that it binds is added to `binding`.
pub(super) fn control(
    graph: &Graph,
    op: &Op,
    operands: &[Tensor],
    binding: &mut Binding,
    rounding: Rounding,
) -> Result<Vec<Tensor>> {
    match op {
        Op::Bind { symbol, lo, hi } => {
            let value = operands[0].get(0).as_i64();
            let lo = dim_value(lo, binding)?;
            let hi = dim_value(hi, binding)?;
            if !(lo..=hi).contains(&value) {
                let message = format!("{symbol} = {value} is outside of {lo}..={hi}");
                return Err(Error::new(ErrorKind::Usage, message));
            }
            binding.insert(symbol.clone(), value);
            let known = |dim: &Dim| dim.symbols().iter().all(|symbol| binding.contains_key(symbol));
            check_constraints(graph, &known, binding)?;
            Ok(vec![operands[0].clone()])
        }
        Op::If { then, otherwise } => {
            let inputs = &operands[1..];
            let (first, second) = inputs.split_at(then.inputs.len());
            if operands[0].get(0).is_true() {
                region(then, binding, first, rounding)
            } else {
                region(otherwise, binding, second, rounding)
            }
        }
        Op::Loop { counter, max_iterations, carried, body } => {
            let max_iterations = dim_value(max_iterations, binding)?;
            let repeated = Loop { counter, max_iterations, carried: *carried, body };
            repeated.run(operands, binding, rounding)
        }
        Op::Fail { why } => Err(Error::new(ErrorKind::Usage, why.clone())),
        _ => Err(Error::internal("not a control-flow operator")),
    }
}

fn region(graph: &Graph, binding: &Binding, inputs: &[Tensor], rounding: Rounding) -> Result<Vec<Tensor>> {
    check_constraints(graph, &|dim| !graph.is_data_dependent(dim), binding)?;
    outputs(graph, binding, inputs, rounding)
}

/// The attributes of [`Op::Loop`] with the bound evaluated.
struct Loop<'g> {
    counter: &'g Symbol,
    max_iterations: i64,
    carried: usize,
    body: &'g Graph,
}

impl Loop<'_> {
    fn run(&self, operands: &[Tensor], binding: &Binding, rounding: Rounding) -> Result<Vec<Tensor>> {
        let Loop { counter, max_iterations, carried, body } = *self;
        let trip_count = operands[0].get(0).as_i64();
        let mut goes_on = operands[1].get(0).is_true();
        let mut inputs = operands[2..].to_vec();
        let mut slices: Vec<Vec<Tensor>> = vec![Vec::new(); body.outputs.len() - 1 - carried];

        let mut iteration = 0;
        while goes_on && iteration < trip_count {
            if iteration == max_iterations {
                let message = format!("{counter} = {iteration} is outside of 0..{max_iterations}");
                return Err(Error::new(ErrorKind::Usage, message));
            }

            let mut inner = binding.clone();
            inner.insert(counter.clone(), iteration);
            let mut results = region(body, &inner, &inputs, rounding)?.into_iter();

            goes_on = results.next().is_some_and(|again| again.get(0).is_true());
            for input in inputs.iter_mut().take(carried) {
                *input = results.next().ok_or_else(|| Error::internal("a body without its outputs"))?;
            }
            slices.iter_mut().zip(results).for_each(|(slices, slice)| slices.push(slice));
            iteration += 1;
        }

        let count = Tensor::from_scalars(DType::I64, Vec::new(), &[Scalar::i64(iteration)]);
        let count = count.ok_or_else(|| Error::internal("rank 0 holds one element"))?;
        let mut results = vec![count];
        results.extend(inputs.into_iter().take(carried));
        for (k, slices) in slices.iter().enumerate() {
            let (_, output) = body.outputs[1 + carried + k];
            results.push(self.collected(slices, output, binding)?);
        }
        Ok(results)
    }

    /// The slices one after another, followed by zeros up to the bound.
    fn collected(&self, slices: &[Tensor], output: Value, binding: &Binding) -> Result<Tensor> {
        let inner = match slices.first() {
            Some(slice) => slice.shape().to_vec(),
            None => sizes(self.body.shape(output), binding)?,
        };
        let shape = [&[usize::try_from(self.max_iterations).unwrap_or(0)], &inner[..]].concat();
        let dtype = self.body.dtype(output);
        let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.bytes().iter().copied()).collect();
        bytes.resize(shape.iter().product::<usize>() * dtype.size_bytes(), 0);
        tensor(dtype, &shape, bytes)
    }
}
