//! Branches and loops: the graphs inside are lowered into the same program, between the markers of a region.
//!
//! A region reads its inputs in place. The outputs of a branch are computed into the memory of the results. The
//! carried values of a loop are stored in the memory of its results: an iteration reads them there, computes the next
//! values in separate memory, and copies them at its end. Collected slices are computed in place. The counter is a
//! cell of memory from which each iteration binds its symbol.

use super::{
    buffers::{self, stored},
    fuse,
    index::is_row_major,
    inline::Inliner,
    layout,
    lowering::{LowerRoot, Lowering, node_name, static_bound},
    map,
    storage::Storage,
};
use crate::{
    Error, Result,
    graph::{Graph, Op, Value, build::declare_data_dependent},
    kernel::{Buffer, BufferId, Control, DataDependent, Inst, Kernel, MemorySpace, Stmt},
    scalar::{BinaryOp, CompareOp, Scalar},
};
use std::collections::HashMap;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// Declares the data-dependent symbols of `lowering.graph`.
pub(super) fn declare_all(lowering: &mut Lowering) {
    for node in lowering.graph.nodes.values() {
        if let Op::Bind { symbol, hi, .. } = &node.op {
            let upper_bound = static_bound(&lowering.program, hi);
            lowering.program.data_dependent.push(DataDependent { symbol: symbol.clone(), upper_bound });
        }
    }
}

/// The kernels that bind a data-dependent symbol, and check its value and the constraints on it.
pub(super) fn lower_bind(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let Op::Bind { symbol, lo, hi } = graph.op(value) else {
        return Err(Error::internal("not a binding"));
    };
    let operand = graph.operands(value)[0];
    let from = cell(lowering, operand)?;
    let context = node_name(graph, value);
    let control = Control::Bind { symbol: symbol.clone(), from, lo: lo.clone(), end: hi + 1, context };
    push_control(lowering, value, control);
    let bound: Vec<&Symbol> = bound_by(graph, value);
    for constraint in &graph.constraints {
        let relation = &constraint.relation;
        let uses = |symbol: &Symbol| relation.a.contains(symbol) || relation.b.contains(symbol);
        let complete = graph.data_dependent.iter().all(|symbol| !uses(symbol) || bound.contains(&symbol));
        if uses(symbol) && complete {
            push_control(lowering, value, Control::Require(constraint.clone()));
        }
    }

    let storage = lowering.storage[&value].clone();
    map::copy(lowering, operand, &storage, "bind")
}

/// The symbols that are bound up to the node of `value`.
fn bound_by(graph: &Graph, value: Value) -> Vec<&Symbol> {
    let last = graph.values[value].def;
    let nodes = graph.nodes.iter().take_while(|(id, _)| *id <= last);
    let symbol = |op: &'_ Op| match op {
        Op::Bind { symbol, .. } => Some(symbol.clone()),
        _ => None,
    };
    let names: Vec<Symbol> = nodes.filter_map(|(_, node)| symbol(&node.op)).collect();
    graph.data_dependent.iter().filter(|symbol| names.contains(symbol)).collect()
}

/// Ends a call whose values contradict the model's declarations.
pub(super) fn lower_fail(lowering: &mut Lowering, value: Value) -> Result<()> {
    let Op::Fail { why } = lowering.graph.op(value) else {
        return Err(Error::internal("not a failure"));
    };
    push_control(lowering, value, Control::Fail(why.clone()));

    let storage = lowering.storage[&value].clone();
    let mut scope = lowering.scope();
    let mut inliner = Inliner::new(lowering, &mut scope);
    let zero = inliner.code.push(Inst::Const(Scalar::i64(0)));
    inliner.store(&storage, &[], zero);

    let body = vec![Stmt::Block(inliner.code)];
    lowering.push(value, "fail", Kernel::default(), body);

    Ok(())
}

/// Lowers both branches, each into the memory of the results.
pub(super) fn lower_if(lowering: &mut Lowering, value: Value, lower_root: LowerRoot) -> Result<()> {
    let graph = lowering.graph;
    let Op::If { then, otherwise } = graph.op(value) else {
        return Err(Error::internal("not a branch"));
    };

    let operands = graph.operands(value);
    let cond = cell(lowering, operands[0])?;

    let results = results(lowering, value);
    let (first, second) = operands[1..].split_at(then.inputs.len());
    let first = stored_all(lowering, first)?;
    let second = stored_all(lowering, second)?;
    push_control(lowering, value, Control::If(cond));
    region(lowering, value, then, first, &results, lower_root)?;

    push_control(lowering, value, Control::Else);
    region(lowering, value, otherwise, second, &results, lower_root)?;
    push_control(lowering, value, Control::End);

    Ok(())
}

/// Lowers a loop, see the module's description.
pub(super) fn lower_loop(lowering: &mut Lowering, value: Value, lower_root: LowerRoot) -> Result<()> {
    let graph = lowering.graph;
    let Op::Loop { counter, max_iterations: bound, carried, body } = graph.op(value) else {
        return Err(Error::internal("not a loop"));
    };
    let operands = graph.operands(value);
    let results = results(lowering, value);
    let count = &results[0];
    let kept = &results[1..=*carried];
    let slices = &results[1 + carried..];
    for (operand, to) in operands[2..].iter().zip(kept) {
        map::copy(lowering, *operand, to, "carry")?;
    }
    let counted = arena(lowering, "round", DType::I64);
    let goes_on = arena(lowering, "again", DType::Bool);
    let limit = stored(lowering, operands[0])?;
    start(lowering, value, &counted, &goes_on, operands[1])?;

    let last = static_bound(&lowering.program, &(bound - 1));
    lowering.program.data_dependent.push(DataDependent { symbol: counter.clone(), upper_bound: last });
    push_control(lowering, value, Control::While(goes_on.buffer));
    let context = node_name(graph, value);
    let symbol = counter.clone();
    let lo = Dim::zero();
    let end = bound.clone();
    push_control(lowering, value, Control::Bind { symbol, from: counted.buffer, lo, end, context });
    let mut inputs = kept.to_vec();
    inputs.extend(stored_all(lowering, &operands[2 + carried..])?);
    let again = arena(lowering, "again", DType::Bool);
    let next: Vec<Storage> = (0..*carried)
        .map(|k| {
            let (_, output) = body.outputs[1 + k];
            buffers::new_tensor(lowering, "next", body.dtype(output), body.shape(output))
        })
        .collect();
    let slices = slices.iter().map(|slice| slice_at(slice, counter));
    let outputs: Vec<Storage> =
        [again.clone()].into_iter().chain(next.iter().cloned()).chain(slices).collect();
    region(lowering, value, body, inputs, &outputs, lower_root)?;
    for ((_, output), (from, to)) in body.outputs[1..].iter().zip(next.iter().zip(kept)) {
        map::move_to(lowering, value, body.shape(*output), from, to);
    }
    finish(lowering, value, &counted, &goes_on, &again, &limit);
    push_control(lowering, value, Control::End);
    map::move_to(lowering, value, &[], &counted, count);
    Ok(())
}

/// Sets the counter to zero, and stores whether there is a first iteration.
fn start(
    lowering: &mut Lowering,
    value: Value,
    counted: &Storage,
    goes_on: &Storage,
    cond: Value,
) -> Result<()> {
    let limit = lowering.graph.operands(value)[0];
    let mut scope = lowering.scope();
    let mut inliner = Inliner::new(lowering, &mut scope);
    let limit = inliner.load(limit, &[])?;
    let cond = inliner.load(cond, &[])?;

    let zero = inliner.code.push(Inst::Const(Scalar::i64(0)));
    let any = inliner.code.push(Inst::Compare(CompareOp::Lt, zero, limit));
    let first = inliner.code.push(Inst::Binary(BinaryOp::And, any, cond));
    inliner.store(counted, &[], zero);
    inliner.store(goes_on, &[], first);

    let body = vec![Stmt::Block(inliner.code)];
    lowering.push(value, "start", Kernel::default(), body);

    Ok(())
}

/// Increments the counter, and stores whether there is another iteration.
fn finish(
    lowering: &mut Lowering,
    value: Value,
    counted: &Storage,
    goes_on: &Storage,
    again: &Storage,
    limit: &Storage,
) {
    let mut scope = lowering.scope();
    let mut inliner = Inliner::new(lowering, &mut scope);
    let at = inliner.code.push(Inst::Load(counted.at(&[])));

    let one = inliner.code.push(Inst::Const(Scalar::i64(1)));
    let done = inliner.code.push(Inst::Binary(BinaryOp::Add, at, one));
    let limit = inliner.code.push(Inst::Load(limit.at(&[])));
    let more = inliner.code.push(Inst::Compare(CompareOp::Lt, done, limit));
    let again = inliner.code.push(Inst::Load(again.at(&[])));
    let next = inliner.code.push(Inst::Binary(BinaryOp::And, more, again));

    inliner.store(counted, &[], done);
    inliner.store(goes_on, &[], next);

    let body = vec![Stmt::Block(inliner.code)];
    lowering.push(value, "round", Kernel::default(), body);
}

/// The slice of a collected tensor that this iteration computes.
fn slice_at(whole: &Storage, counter: &Symbol) -> Storage {
    let part = whole.from(0, &Dim::from(counter));
    Storage { strides: part.strides[1..].to_vec(), ..part }
}

/// Lowers the graph of a region, which stores its outputs to the given memory.
fn region(
    lowering: &mut Lowering,
    value: Value,
    graph: &Graph,
    inputs: Vec<Storage>,
    outputs: &[Storage],
    lower_root: LowerRoot,
) -> Result<()> {
    let fusion = fuse::fuse(graph);
    let orders = layout::orders(graph, &fusion);
    let mut program = std::mem::take(&mut lowering.program);
    let facts = std::mem::replace(&mut program.facts, graph.facts.clone());
    let mut inner = Lowering::new(graph, &fusion, program);
    declare_all(&mut inner);
    for constraint in graph.constraints.iter().filter(|constraint| {
        !graph.is_data_dependent(&constraint.relation.a) && !graph.is_data_dependent(&constraint.relation.b)
    }) {
        let control = Control::Require(constraint.clone());
        inner.program.kernels.push(Kernel::control(node_name(lowering.graph, value), control));
    }

    for ((_, input), storage) in graph.inputs.iter().zip(inputs) {
        inner.storage.insert(*input, storage);
    }
    let mut in_place = HashMap::new();
    for (position, ((_, output), storage)) in graph.outputs.iter().zip(outputs).enumerate() {
        let order = orders.get(output);
        let dense = order.is_some_and(|order| is_row_major(graph.shape(*output), order));
        if dense && fusion.is_root(*output) && !inner.storage.contains_key(output) {
            inner.storage.insert(*output, storage.clone());
            in_place.insert(*output, position);
        }
    }

    buffers::roots(&mut inner, &orders);
    inner.lower_roots(lower_root)?;
    for (position, ((_, output), storage)) in graph.outputs.iter().zip(outputs).enumerate() {
        if in_place.get(output) != Some(&position) {
            map::copy(&mut inner, *output, storage, "output")?;
        }
    }

    lowering.program = inner.program;
    lowering.program.facts = facts;

    // Kernels of the region use its symbols. Only their ranges hold outside of the region too.
    let known: Vec<DataDependent> = lowering.program.data_dependent.clone();
    for DataDependent { symbol, upper_bound } in known {
        if lowering.program.facts.declaration(&symbol).is_none() {
            let upper_bound = if lowering.program.facts.prove_le(&Dim::zero(), &upper_bound).is_yes() {
                upper_bound
            } else {
                Dim::max(&upper_bound, 0)
            };
            declare_data_dependent(&mut lowering.program.facts, &symbol, &Dim::zero(), &upper_bound)?;
        }
    }
    Ok(())
}

fn push_control(lowering: &mut Lowering, value: Value, control: Control) {
    let name = node_name(lowering.graph, value);
    lowering.program.kernels.push(Kernel::control(name, control));
}

/// The memory of the results of the node that defines `value`.
fn results(lowering: &Lowering, value: Value) -> Vec<Storage> {
    let graph = lowering.graph;
    graph.nodes[graph.values[value].def]
        .results
        .iter()
        .map(|result| lowering.storage[result].clone())
        .collect()
}

fn stored_all(lowering: &mut Lowering, values: &[Value]) -> Result<Vec<Storage>> {
    values.iter().map(|value| stored(lowering, *value)).collect()
}

/// A buffer whose element 0 is `value`, of rank 0.
fn cell(lowering: &mut Lowering, value: Value) -> Result<BufferId> {
    if let Some(storage) = lowering.storage.get(&value)
        && storage.offset.as_i64() == Some(0)
    {
        return Ok(storage.buffer);
    }
    let to = arena(lowering, "cell", lowering.graph.dtype(value));
    map::copy(lowering, value, &to, "cell")?;
    Ok(to.buffer)
}

/// Memory for one element.
fn arena(lowering: &mut Lowering, name: &str, dtype: DType) -> Storage {
    let buffer = Buffer { name: name.to_string(), dtype, elems: Dim::one(), space: MemorySpace::Arena };
    Storage::dense(lowering.program.buffers.push(buffer), &[], &[])
}
