//! Several calls at once, node by node.
//!
//! Calls of a trial have the same weights, and often the same values up to the first contraction of another precision.
//! The weights are then read once for all calls, and equal operators of equal values are computed once.

use super::{
    contraction::{Contraction, contractions},
    lazy, map,
    offsets::Offsets,
    reduce::reduce,
    source::{LazyMap, Source, View},
};
use crate::{
    error::{At, Error, Result},
    graph::{
        Graph, Node, NodeId, Op, Value,
        eval::{
            binding::{Binding, sizes},
            node,
            rounding::Rounding,
            run::{Needed, control, external, needed, wanted},
        },
    },
    tensor::Tensor,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use symshape_runtime::DType;

/// A call of a graph: the values of its symbols, and its inputs.
pub(crate) struct Call<'c> {
    pub(crate) graph: &'c Graph,
    pub(crate) binding: Binding,
    pub(crate) inputs: &'c [Tensor],
}

/// The outputs of each call, or its error.
pub(crate) fn outputs(calls: &[Call<'_>]) -> Vec<Result<Vec<Tensor>>> {
    let mut lanes: Vec<Lane> = calls.iter().map(Lane::of).collect();
    let nodes: BTreeSet<NodeId> = lanes.iter().flat_map(|lane| &lane.nodes).copied().collect();
    for node in nodes {
        step(&mut lanes, node);
    }
    lanes.into_iter().map(Lane::outputs).collect()
}

/// The state of a call.
struct Lane<'c> {
    graph: &'c Graph,
    binding: Binding,
    inputs: &'c [Tensor],
    nodes: BTreeSet<NodeId>,
    wanted: Vec<Value>,
    uses: BTreeMap<Value, u32>,
    /// Values that are not stored if possible.
    lazy: BTreeSet<Value>,
    values: BTreeMap<Value, Source<'c>>,
    error: Option<Error>,
}

/// A node of a call, and its operands.
struct Step<'c> {
    lane: usize,
    node: &'c Node,
    operands: Vec<Source<'c>>,
}

impl<'c> Lane<'c> {
    fn of(call: &Call<'c>) -> Lane<'c> {
        let wanted = wanted(call.graph);
        let Needed { nodes, uses } = needed(call.graph, &wanted);
        Lane {
            graph: call.graph,
            binding: call.binding.clone(),
            inputs: call.inputs,
            lazy: lazy::values(call.graph, &nodes, &wanted),
            nodes,
            wanted,
            uses,
            values: BTreeMap::new(),
            error: None,
        }
    }

    /// The operands of a node, if this call runs it.
    fn start(&mut self, lane: usize, id: NodeId) -> Option<Step<'c>> {
        if self.error.is_some() || !self.nodes.contains(&id) {
            return None;
        }
        let node = &self.graph.nodes[id];
        let operands = node.operands.iter().map(|value| self.values[value].clone()).collect();
        for operand in &node.operands {
            let remaining = self.uses.entry(*operand).or_default();
            *remaining -= 1;
            if *remaining == 0 {
                self.values.remove(operand);
            }
        }
        Some(Step { lane, node, operands })
    }

    fn finish(&mut self, node: &Node, results: Result<Vec<Source<'c>>>) {
        let located =
            || if node.origin.is_empty() { node.op.name().to_string() } else { node.origin.clone() };
        match results.at(located) {
            Ok(results) => {
                for (result, source) in node.results.iter().zip(results) {
                    if self.uses.contains_key(result) {
                        self.values.insert(*result, source);
                    }
                }
            }
            Err(error) => {
                self.values.clear();
                self.error = Some(error);
            }
        }
    }

    fn outputs(self) -> Result<Vec<Tensor>> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.wanted
            .iter()
            .take(self.graph.outputs.len())
            .map(|value| map::tensor(&self.values[value]))
            .collect()
    }

    /// The results of a node that is evaluated by itself.
    fn eval(&mut self, step: &Step<'c>) -> Result<Vec<Source<'c>>> {
        let result = step.node.results[0];
        let dense = || step.operands.iter().map(map::tensor).collect::<Result<Vec<_>>>();
        let tensors = match &step.node.op {
            Op::Input(index) => vec![self.inputs[*index as usize].clone()],
            Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Fail { .. } => {
                control(self.graph, &step.node.op, &dense()?, &mut self.binding, Rounding::Quick)?
            }
            Op::Call { callee, results, scratch } => {
                external(callee, results, scratch, &dense()?, &self.binding)?
            }
            Op::View { index, .. } => {
                let tensor = map::tensor(&step.operands[0])?;
                let shape = sizes(self.graph.shape(result), &self.binding)?;
                match Offsets::of(index, &tensor, &shape, &self.binding)? {
                    Some(offsets) if self.lazy.contains(&result) => {
                        return Ok(vec![Source::View(Arc::new(View { tensor, shape, offsets }))]);
                    }
                    Some(offsets) => vec![offsets.gather(&tensor, &shape)?],
                    None => node::eval(&step.node.op, &[tensor], &self.binding, Rounding::Quick)?,
                }
            }
            Op::Map(body) if map::has_floats(body) => {
                return Ok(vec![Source::Map(Arc::new(LazyMap::of(body, step.operands.clone())))]);
            }
            Op::Reduce { op, axes } if step.operands[0].dtype() == DType::F32 => {
                let shape = sizes(self.graph.shape(result), &self.binding)?;
                vec![reduce(*op, axes, &step.operands[0], &shape)?]
            }
            Op::Gather { coords, .. } => {
                let operands = dense()?;
                let shape = sizes(self.graph.shape(result), &self.binding)?;
                match node::gather_rows(coords, &operands, &shape, &self.binding)? {
                    Some(tensor) => vec![tensor],
                    None => node::eval(&step.node.op, &operands, &self.binding, Rounding::Quick)?,
                }
            }
            op => node::eval(op, &dense()?, &self.binding, Rounding::Quick)?,
        };
        Ok(tensors.into_iter().map(Source::Tensor).collect())
    }
}

/// Runs a node in all calls.
fn step(lanes: &mut [Lane<'_>], id: NodeId) {
    let steps: Vec<Step> =
        lanes.iter_mut().enumerate().filter_map(|(idx, lane)| lane.start(idx, id)).collect();
    let mut equal_to: Vec<Option<usize>> = Vec::new();
    for (idx, step) in steps.iter().enumerate() {
        let is_equal = |other: &usize| equal_to[*other].is_none() && equal(lanes, &steps[*other], step);
        equal_to.push((0..idx).find(is_equal));
    }
    let is_product = |idx: &usize| {
        let Step { lane, node, .. } = &steps[*idx];
        lazy::is_product(lanes[*lane].graph, node)
    };
    let own = (0..steps.len()).filter(|idx| equal_to[*idx].is_none());
    let (products, others): (Vec<usize>, Vec<usize>) = own.partition(is_product);

    let mut results: BTreeMap<usize, Result<Vec<Source>>> = BTreeMap::new();
    let multiplied = multiplied(&products.iter().map(|idx| &steps[*idx]).collect::<Vec<_>>(), lanes);
    results.extend(products.into_iter().zip(multiplied));
    for idx in others {
        let result = lanes[steps[idx].lane].eval(&steps[idx]);
        results.insert(idx, result);
    }
    store(&steps, lanes, &mut results);
    for (idx, Step { lane, node, .. }) in steps.iter().enumerate() {
        let result = results.get(&equal_to[idx].unwrap_or(idx)).cloned();
        let missing = || Err(Error::internal("a node without its result"));
        lanes[*lane].finish(node, result.unwrap_or_else(missing));
    }
}

/// Whether two calls compute the same at a node, from the same operands in memory.
fn equal(lanes: &[Lane<'_>], a: &Step<'_>, b: &Step<'_>) -> bool {
    let has_state = matches!(
        a.node.op,
        Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Fail { .. } | Op::Call { .. } | Op::Input(_)
    );
    !has_state
        && a.operands.len() == b.operands.len()
        && a.operands.iter().zip(&b.operands).all(|(a, b)| a.is(b))
        && lanes[a.lane].binding == lanes[b.lane].binding
        && a.node.op.is_same(&b.node.op)
}

/// The results of contractions that are multiplied together.
fn multiplied<'c>(steps: &[&Step<'c>], lanes: &[Lane<'c>]) -> Vec<Result<Vec<Source<'c>>>> {
    let mut list = Vec::new();
    for step in steps {
        if let (Op::Contraction { lhs, rhs, out, precision, .. }, [a, b]) =
            (&step.node.op, &step.operands[..])
        {
            list.push(Contraction { labels: [lhs, rhs, out], precision: *precision, operands: [a, b] });
        }
    }
    let products = match contractions(&list) {
        Ok(products) => products,
        Err(error) => return steps.iter().map(|_| Err(error.clone())).collect(),
    };
    let result = |(product, step): (Option<Tensor>, &&Step<'c>)| match product {
        Some(product) => Ok(vec![Source::Tensor(product)]),
        None => {
            let dense = step.operands.iter().map(map::tensor).collect::<Result<Vec<_>>>()?;
            let results = node::eval(&step.node.op, &dense, &lanes[step.lane].binding, Rounding::Quick)?;
            Ok(results.into_iter().map(Source::Tensor).collect())
        }
    };
    products.into_iter().zip(steps).map(result).collect()
}

/// Computes the elementwise operators that are not computed where they are read.
fn store<'c>(steps: &[Step<'c>], lanes: &[Lane<'c>], results: &mut BTreeMap<usize, Result<Vec<Source<'c>>>>) {
    let mut waiting: Vec<(usize, Arc<LazyMap>)> = Vec::new();
    for (idx, result) in &*results {
        let Step { lane, node, .. } = &steps[*idx];
        if let Ok(sources) = result
            && let [Source::Map(map)] = &sources[..]
            && (!lanes[*lane].lazy.contains(&node.results[0]) || map.is_deep())
        {
            waiting.push((*idx, map.clone()));
        }
    }
    let list: Vec<&LazyMap> = waiting.iter().map(|(_, map)| &**map).collect();
    match map::maps(&list) {
        Ok(tensors) => {
            let stored = |((idx, _), tensor): (&(usize, _), Tensor)| (*idx, Ok(vec![Source::Tensor(tensor)]));
            results.extend(waiting.iter().zip(tensors).map(stored));
        }
        Err(error) => results.extend(waiting.iter().map(|(idx, _)| (*idx, Err(error.clone())))),
    }
}
