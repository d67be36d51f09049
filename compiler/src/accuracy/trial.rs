//! Evaluates a graph with some contractions at a lower precision.

use super::{
    dims::{GraphSymbol, for_each_size},
    distance, inputs,
    report::{TrialCall, TrialReport},
    work::{self, UnknownSizes},
};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::{
        Graph, Node, Op,
        eval::{Binding, eval_quick, sizes},
    },
    opt,
    scalar::Precision,
    tensor::Tensor,
};
use num_traits::ToPrimitive;
use std::collections::{BTreeMap, BTreeSet};
use symshape::Symbol;
use symshape_runtime::DType;

/// Calls that a model may refuse before the check gives up.
const MAX_REFUSED: usize = 8;

/// A model at both precisions.
pub(super) struct Trial {
    /// The optimised graph, at `f32`.
    graph: Graph,
    precision: Precision,
    /// The same with contractions at the lower precision.
    lower: Graph,
    symbols: Vec<GraphSymbol>,
    /// The names of the nodes of the original graph.
    pub(super) known: BTreeSet<String>,
}

/// A call of the check at `f32`.
pub(super) struct Call {
    /// One for each symbol.
    dims: Vec<i64>,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Multiplications, or the time of as many.
    pub(super) work: f64,
}

/// A call, and its error at the lower precision.
type Tried = (Call, Result<f64>);

/// The sizes of the calls of a check.
struct Sizes {
    /// Those that the model accepted.
    accepted: Vec<Vec<i64>>,
    /// Those that were not tried.
    missing: Vec<Vec<i64>>,
    /// Why it refuses the last of the others.
    failure: Error,
}

impl Trial {
    /// A trial of `graph` at this precision. `None` if no contraction uses it.
    ///
    /// # Errors
    /// Those of the optimiser.
    pub(super) fn of(graph: &Graph, precision: Precision) -> Result<Option<Trial>> {
        let mut known = BTreeSet::new();
        visit(graph, &mut |_, node| {
            if !node.name().is_empty() && !known.contains(node.name()) {
                known.insert(node.name().to_string());
            }
        });

        let mut graph = graph.clone();
        graph.facts = graph.facts.remembering();
        opt::optimize(&mut graph)?;
        // Other work on the model may run at the same time. The trial must not affect how long its searches may be.
        remember_alone(&mut graph);
        let lower = lowered(&graph, precision, &BTreeSet::new())?;
        let mut count = 0;
        visit(&lower, &mut |_, node| count += usize::from(is_lower(node)));
        if count == 0 {
            return Ok(None);
        }
        let symbols = GraphSymbol::all(&graph)?;
        Ok(Some(Trial { graph, precision, lower, symbols, known }))
    }

    /// Runs the calls of the check: at the smallest sizes, at the largest that don't take long, and at about half of
    /// these.
    ///
    /// A model may refuse sizes within their ranges, because of its other constraints. Such calls are left out.
    ///
    /// # Errors
    /// When calls take too long at all sizes, or the model refuses all of them; an evaluation fails that succeeds at
    /// `f32`.
    pub(super) fn measure(&self) -> Result<(Vec<Call>, TrialReport)> {
        let mut tried = BTreeMap::new();
        loop {
            let Sizes { accepted, missing, failure } = self.sizes(&tried);
            if missing.is_empty() {
                let calls = accepted.iter().filter_map(|dims| tried.remove(dims)?.ok());
                let (calls, errors): (Vec<Call>, Vec<Result<f64>>) = calls.unzip();
                if calls.is_empty() {
                    return Err(failure);
                }
                let errors = errors.into_iter().collect::<Result<Vec<_>>>()?;
                let report = self.report_of(&calls, errors, &self.lower);
                return Ok((calls, report));
            }
            let results = self.at_both(&missing);
            tried.extend(missing.into_iter().zip(results));
        }
    }

    /// The sizes of the calls, if the model accepts those that were not tried.
    fn sizes(&self, tried: &BTreeMap<Vec<i64>, Result<Tried>>) -> Sizes {
        let failure = Error::new(ErrorKind::Limit, "calls take too long even at the smallest sizes");
        let mut sizes = Sizes { accepted: Vec::new(), missing: Vec::new(), failure };
        let mut n_refused = 0;
        for_each_size(
            &self.symbols,
            |dims| self.work(dims),
            |dims| {
                if n_refused == MAX_REFUSED {
                    return false;
                }
                match tried.get(&dims) {
                    Some(Err(error)) => {
                        sizes.failure = error.clone();
                        n_refused += 1;
                        return false;
                    }
                    Some(Ok(_)) => sizes.accepted.push(dims),
                    None => sizes.missing.push(dims),
                }
                true
            },
        );
        sizes
    }

    /// Calls with these dims, and their errors at the lower precision. All run together: they read the same weights.
    fn at_both(&self, sizes: &[Vec<i64>]) -> Vec<Result<Tried>> {
        let inputs: Vec<Result<Vec<Tensor>>> = sizes.iter().map(|dims| self.inputs(dims)).collect();
        let calls = inputs.iter().filter_map(|inputs| inputs.as_ref().ok());
        let calls: Vec<(&Graph, &[Tensor])> =
            calls.flat_map(|inputs| [&self.graph, &self.lower].map(|graph| (graph, &inputs[..]))).collect();
        let mut outputs = eval_quick(&calls).into_iter();
        let mut next = || outputs.next().ok_or_else(|| Error::internal("a call without its outputs"))?;
        let mut pairs = Vec::new();
        for inputs in &inputs {
            pairs.push(if inputs.is_ok() { Some((next(), next())) } else { None });
        }
        let tried = |((dims, inputs), pair): ((&Vec<i64>, Result<Vec<Tensor>>), Option<_>)| {
            let inputs = inputs?;
            let (outputs, lower): (Result<Vec<Tensor>>, Result<Vec<Tensor>>) =
                pair.ok_or_else(|| Error::internal("inputs without a call"))?;
            let outputs = outputs?;
            let error = lower.map(|lower| distance::max_error(&outputs, &lower));
            Ok((Call { dims: dims.clone(), inputs, outputs, work: self.work(dims) }, error))
        };
        sizes.iter().zip(inputs).zip(pairs).map(tried).collect()
    }

    /// The errors of these calls if the contractions of the nodes `kept` stay `f32`.
    ///
    /// # Errors
    /// An evaluation fails that succeeds at `f32`.
    pub(super) fn report(&self, calls: &[Call], kept: &BTreeSet<String>) -> Result<TrialReport> {
        let lower = lowered(&self.graph, self.precision, kept)?;
        let list: Vec<(&Graph, &[Tensor])> = calls.iter().map(|call| (&lower, &call.inputs[..])).collect();
        let error =
            |(call, outputs): (&Call, Result<Vec<Tensor>>)| Ok(distance::max_error(&call.outputs, &outputs?));
        let errors = calls.iter().zip(eval_quick(&list)).map(error).collect::<Result<Vec<_>>>()?;
        Ok(self.report_of(calls, errors, &lower))
    }

    fn report_of(&self, calls: &[Call], errors: Vec<f64>, lower: &Graph) -> TrialReport {
        let mut contractions = 0;
        visit(lower, &mut |_, node| contractions += usize::from(is_lower(node)));
        let call = |(call, error): (&Call, f64)| TrialCall { at: self.name(&call.dims), error };
        TrialReport {
            calls: calls.iter().zip(errors).map(call).collect(),
            contractions,
            share: calls.last().map_or(0.0, |call| self.share(call, lower)),
        }
    }

    /// The errors of a call if only the contractions of the nodes of a group have the lower precision, for each of
    /// `groups`. `None` if an evaluation fails. Up to the first node of a group, its values are those of the others.
    pub(super) fn errors_of(&self, call: &Call, groups: &[Vec<String>]) -> Vec<Option<f64>> {
        let graphs: Vec<Graph> = groups.iter().map(|group| self.with_only(group)).collect();
        let calls: Vec<(&Graph, &[Tensor])> = graphs.iter().map(|graph| (graph, &call.inputs[..])).collect();
        let error = |outputs: Result<Vec<Tensor>>| Some(distance::max_error(&call.outputs, &outputs.ok()?));
        eval_quick(&calls).into_iter().map(error).collect()
    }

    /// The nodes with contractions at the lower precision, in order.
    pub(super) fn places(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        visit(&self.lower, &mut |_, node| {
            if is_lower(node) && !all.iter().any(|name| name == node.name()) {
                all.push(node.name().to_string());
            }
        });
        all
    }

    /// The lower graph with the contractions of other nodes at `f32`.
    fn with_only(&self, lowered: &[String]) -> Graph {
        let mut graph = self.lower.clone();
        visit_mut(&mut graph, &mut |node| {
            let stays = !is_lower(node) || lowered.iter().any(|name| name == node.name());
            if let Op::Contraction { precision, .. } = &mut node.op
                && !stays
            {
                *precision = Precision::Full;
            }
        });
        graph
    }

    fn inputs(&self, dims: &[i64]) -> Result<Vec<Tensor>> {
        let binding: Binding = self.graph.symbols.iter().cloned().zip(dims.iter().copied()).collect();
        let input = |(idx, (name, value)): (usize, &(String, _))| {
            let shape = sizes(self.graph.shape(*value), &binding)?;
            inputs::random(idx as u64, self.graph.dtype(*value), shape)
                .map_err(|error| error.at(format!("`{name}`")))
        };
        self.graph.inputs.iter().enumerate().map(input).collect()
    }

    fn work(&self, dims: &[i64]) -> f64 {
        work::of_graph(&self.graph, &self.values(dims), UnknownSizes::UpperBound).in_multiplications()
    }

    fn values(&self, dims: &[i64]) -> impl Fn(&Symbol) -> Option<i64> {
        let values: BTreeMap<Symbol, i64> =
            self.graph.symbols.iter().cloned().zip(dims.iter().copied()).collect();
        move |symbol| values.get(symbol).copied()
    }

    /// The share of the multiplications of a call that `lower` has at the lower precision.
    fn share(&self, call: &Call, lower: &Graph) -> f64 {
        let all = work::multiplications(lower, &self.values(&call.dims), &|_| true);
        let low = work::multiplications(lower, &self.values(&call.dims), &is_lower);
        if all > 0.0 { low / all } else { 0.0 }
    }

    /// The dims in the format of `--at`: `N=8,S=128`.
    fn name(&self, dims: &[i64]) -> String {
        let pairs = self.graph.symbols.iter().zip(dims).map(|(symbol, dim)| format!("{symbol}={dim}"));
        pairs.collect::<Vec<_>>().join(",")
    }
}

/// An optimised graph at this precision, except for the contractions of the nodes `kept`, as the pipeline makes it.
fn lowered(graph: &Graph, precision: Precision, kept: &BTreeSet<String>) -> Result<Graph> {
    let mut graph = graph.clone();
    graph.keep_f32(kept);
    opt::apply_precision(&mut graph, precision)?;
    keep_f32_without_tiles(&mut graph);
    Ok(graph)
}

/// Gives the facts of a graph and of its regions new memories.
fn remember_alone(graph: &mut Graph) {
    graph.facts = std::mem::take(&mut graph.facts).remembering_alone();
    graph.nodes.values_mut().flat_map(|node| node.op.regions_mut()).for_each(remember_alone);
}

/// Whether a node is a contraction at the lower precision.
fn is_lower(node: &Node) -> bool {
    matches!(
        node.op,
        Op::Contraction { dtype: DType::F32, precision: Precision::Bf16x3 | Precision::Bf16, .. }
    )
}

/// Visits the nodes of a graph and of its regions.
fn visit(graph: &Graph, f: &mut dyn FnMut(&Graph, &Node)) {
    for node in graph.nodes.values() {
        f(graph, node);
        node.op.regions().into_iter().for_each(|(_, region)| visit(region, f));
    }
}

fn visit_mut(graph: &mut Graph, f: &mut dyn FnMut(&mut Node)) {
    for node in graph.nodes.values_mut() {
        f(node);
        node.op.regions_mut().into_iter().for_each(|region| visit_mut(region, f));
    }
}

/// Keeps contractions in `f32` that no tile multiplies on any machine: those without rows or columns of their own, such
/// as depthwise convolutions, and products of two computed operands with a short side.
fn keep_f32_without_tiles(graph: &mut Graph) {
    let mut kept = Vec::new();
    for (id, node) in &graph.nodes {
        let Op::Contraction { lhs, rhs, out, .. } = &node.op else { continue };
        let sizes: BTreeMap<_, _> = (lhs.iter().zip(graph.shape(node.operands[0])))
            .chain(rhs.iter().zip(graph.shape(node.operands[1])))
            .collect();
        let mut rows = out.iter().filter(|label| !rhs.contains(label)).peekable();
        let mut columns = out.iter().filter(|label| !lhs.contains(label)).peekable();
        let mut depth = lhs.iter().filter(|label| !out.contains(label)).peekable();
        let is_split = rows.peek().is_none() || columns.peek().is_none();
        let is_computed = node.operands.iter().all(|operand| graph.as_constant(*operand).is_none());
        let largest = |labels: &mut dyn Iterator<Item = &u8>| {
            let hi = |label: &u8| graph.facts.bounds(sizes[label]).hi.and_then(|hi| hi.to_f64());
            labels.map(|label| hi(label).unwrap_or(f64::INFINITY)).product::<f64>()
        };
        let mut is_short = || {
            [&mut rows as &mut dyn Iterator<Item = &u8>, &mut columns, &mut depth]
                .into_iter()
                .any(|labels| largest(labels) < crate::scalar::precision::MIN_SPLIT_EXTENT as f64)
        };
        if is_split || is_computed && is_short() {
            kept.push(id);
        }
    }
    for id in kept {
        if let Op::Contraction { precision: precision @ (Precision::Bf16x3 | Precision::Bf16), .. } =
            &mut graph.nodes[id].op
        {
            *precision = Precision::Full;
        }
    }
    for node in graph.nodes.values_mut() {
        node.op.regions_mut().into_iter().for_each(keep_f32_without_tiles);
    }
}
