//! The graph for one sequence, and the shapes of a ragged call.

use super::{request::RaggedRequest, token_input::TokenInput};
use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::{Coord, Graph, Op, Value},
    kernel::PaddedPorts,
    scalar::Scalar,
};
use cranelift_entity::SecondaryMap;
use num_bigint::BigInt;
use symshape::{Assumption, Declaration, Dim, Facts, Symbol};
use symshape_runtime::DType;

/// The symbols and the ports of a ragged call.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// The length of one sequence.
    pub(crate) length: Symbol,
    /// The largest length.
    pub(crate) max_length: BigInt,
    /// The number of sequences.
    pub(crate) sequences: Symbol,
    pub(crate) max_sequences: BigInt,
    /// The number of rows of all sequences.
    pub(crate) rows: Symbol,
    pub(crate) max_rows: BigInt,
    /// The name of the input that holds the first row of each sequence.
    pub(crate) offsets: String,
    /// The shapes of the inputs in a ragged call, without the mask.
    pub(crate) inputs: Vec<Vec<Dim>>,
    /// The shapes of the outputs in a ragged call.
    pub(crate) outputs: Vec<Vec<Dim>>,
    /// The mask, and the axes of the batch in the padded model.
    pub(crate) padded: PaddedPorts,
    /// For each input, whether all sequences share it.
    shared: Vec<bool>,
}

impl Batch {
    /// Whether all sequences share the input with this index.
    pub(crate) fn is_shared_input(&self, input: u32) -> bool {
        self.shared.get(input as usize).copied().unwrap_or(false)
    }

    /// The batch of a call of `graph` whose padded inputs have the axes `batch` and `length`.
    ///
    /// # Errors
    /// A size without a bound, or a port whose rows are not adjacent in memory.
    pub(super) fn of(
        graph: &Graph,
        request: &RaggedRequest,
        batch: &Symbol,
        length: &Symbol,
        mask: Option<TokenInput>,
    ) -> Result<Batch> {
        let max_length = upper_bound(&graph.facts, length)?;
        let max_sequences = upper_bound(&graph.facts, batch)?;
        let max_rows = match request.max_rows {
            Some(max) => BigInt::from(max).min(&max_length * &max_sequences),
            None => &max_length * &max_sequences,
        };
        if max_rows < BigInt::from(1) {
            return Err(Error::new(ErrorKind::Contract, "the rows of a ragged batch must be at least 1"));
        }

        let rows = fresh("T", |name| graph.facts.declaration(&Symbol::new(name)).is_none());
        let rows = Symbol::new(&rows);
        let ports = Ports { batch, length, rows: &rows };
        let mut inputs = Vec::new();
        let mut shared = Vec::new();
        let mut batch_axes = Vec::new();
        for (idx, (name, value)) in graph.inputs.iter().enumerate() {
            if mask.map(TokenInput::input) == Some(idx) {
                continue;
            }
            let shape = graph.shape(*value);
            inputs.push(ports.shape(shape).at(|| format!("input `{name}`"))?);
            batch_axes.push(ports.batch_axis(shape));
            shared.push(!shape.iter().any(|dim| dim.contains(batch) || dim.contains(length)));
        }

        // The offsets follow the other inputs.
        batch_axes.push(None);
        let mut outputs = Vec::new();
        for (name, value) in &graph.outputs {
            let shape = graph.shape(*value);
            if !shape.iter().any(|dim| dim.as_symbol() == Some(batch)) {
                let why = format!("it has no axis {batch}, so it has no part for each sequence");
                return Err(Error::unsupported(why).at(format!("output `{name}`")));
            }
            outputs.push(ports.shape(shape).at(|| format!("output `{name}`"))?);
            batch_axes.push(ports.batch_axis(shape));
        }

        Ok(Batch {
            length: length.clone(),
            max_length,
            sequences: batch.clone(),
            max_sequences,
            rows,
            max_rows,
            offsets: fresh("offsets", |name| graph.inputs.iter().all(|(other, _)| other != name)),
            inputs,
            outputs,
            padded: padded_ports(graph, mask, batch_axes),
            shared,
        })
    }
}

fn padded_ports(graph: &Graph, mask: Option<TokenInput>, batch_axes: Vec<Option<usize>>) -> PaddedPorts {
    let name = |idx: usize| Some(graph.inputs[idx].0.clone());
    let (mask, lengths) = match mask {
        Some(TokenInput::Mask(idx)) => (name(idx), None),
        Some(TokenInput::Lengths(idx)) => (None, name(idx)),
        None => (None, None),
    };
    PaddedPorts { mask, lengths, batch_axes }
}

fn upper_bound(facts: &Facts, symbol: &Symbol) -> Result<BigInt> {
    let hi = facts.bounds(&Dim::from(symbol)).hi;
    hi.ok_or_else(|| {
        let why = format!("{symbol} has no upper bound: declare a range for it, as in --dim {symbol}=1..64");
        Error::new(ErrorKind::Contract, why)
    })
}

/// `name`, or the first of `name_2`, `name_3`, … that is free.
fn fresh(name: &str, is_free: impl Fn(&str) -> bool) -> String {
    let mut names = std::iter::once(name.to_string()).chain((2..).map(|n| format!("{name}_{n}")));
    names.find(|name| is_free(name)).unwrap_or_default()
}

/// The rule that gives a port its shape in a ragged call.
struct Ports<'p> {
    batch: &'p Symbol,
    length: &'p Symbol,
    rows: &'p Symbol,
}

impl Ports<'_> {
    /// The axis of the batch in a port with rows.
    fn batch_axis(&self, shape: &[Dim]) -> Option<usize> {
        let axis = |symbol: &Symbol| shape.iter().position(|dim| dim.as_symbol() == Some(symbol));
        axis(self.length).and(axis(self.batch))
    }

    /// `[N, S, D]` becomes `[T, D]`, and `[N, D]` stays. Rows are adjacent only if no axis precedes them.
    fn shape(&self, shape: &[Dim]) -> Result<Vec<Dim>> {
        let is = |dim: &Dim, symbol: &Symbol| dim.as_symbol() == Some(symbol);
        let text = || {
            let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
            format!("[{}]", dims.join(", "))
        };
        for symbol in [self.batch, self.length] {
            if let Some(dim) = shape.iter().find(|dim| dim.contains(symbol) && !is(dim, symbol)) {
                let why = format!("its shape {} has the size {dim}, where {symbol} is expected", text());
                return Err(Error::unsupported(why));
            }
            if shape.iter().filter(|dim| is(dim, symbol)).count() > 1 {
                let why = format!("its shape {} has the axis {symbol} twice", text());
                return Err(Error::unsupported(why));
            }
        }

        let has_rows = shape.iter().any(|dim| is(dim, self.length));
        let mut result: Vec<Dim> = shape.to_vec();
        if has_rows {
            result.retain(|dim| !is(dim, self.batch));
        }
        let own = if has_rows { self.length } else { self.batch };
        let first = result.iter().position(|dim| is(dim, own)).unwrap_or(0);
        if result[..first].iter().any(|dim| dim.as_i64() != Some(1)) {
            let why = format!("its shape {} has an axis before {own}, so its rows are not adjacent", text());
            return Err(Error::unsupported(why));
        }
        for dim in result.iter_mut().filter(|dim| is(dim, self.length)) {
            *dim = Dim::from(self.rows);
        }
        Ok(result)
    }
}

/// Replaces the graph by that of one sequence: the batch is 1, and the mask is 1 everywhere, or the length is that of
/// the sequence.
///
/// # Errors
/// An operator that can't have these sizes.
pub(super) fn fix(
    graph: &mut Graph,
    batch: &Symbol,
    length: &Symbol,
    mask: Option<TokenInput>,
) -> Result<()> {
    let old = std::mem::take(graph);
    let is_batch = |symbol: &Symbol| symbol == batch;
    let mut new = Graph {
        name: old.name.clone(),
        facts: facts_without(&old.facts, batch, true)?,
        constraints: constraints_at_one(&old, batch),
        data_dependent: old.data_dependent.clone(),
        f32_nodes: old.f32_nodes.clone(),
        ..Graph::default()
    };

    let mut map: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
    for node in old.nodes.values() {
        new.origin.clone_from(&node.origin);
        let operands: Vec<Value> = node.operands.iter().filter_map(|value| map[*value]).collect();
        let results = match &node.op {
            Op::Input(idx) => {
                let (name, value) = &old.inputs[*idx as usize];
                let ty = old.ty(*value);
                let shape: Vec<Dim> = ty.shape.iter().map(|dim| dim_at_one(dim, batch)).collect();
                let idx = *idx as usize;
                let value = if mask == Some(TokenInput::Mask(idx)) {
                    ones(&mut new, ty.dtype, &shape)?
                } else if mask == Some(TokenInput::Lengths(idx)) {
                    new.index(ty.dtype, shape, Dim::from(length))?
                } else {
                    new.input(name, ty.dtype, shape)?
                };
                vec![value]
            }
            op => new.push_multi(at_one(op.clone(), batch), &operands)?,
        };
        for (from, to) in node.results.iter().zip(results) {
            map[*from] = Some(to);
        }
    }

    new.origin.clear();
    for (name, value) in &old.outputs {
        let value = map[*value].ok_or_else(|| Error::internal("an output is defined by a node"))?;
        new.output(name, value)?;
    }
    new.symbols.retain(|symbol| !is_batch(symbol));
    for symbol in old.symbols.iter().filter(|symbol| !is_batch(symbol)) {
        if !new.symbols.contains(symbol) {
            new.symbols.push(symbol.clone());
        }
    }
    new.facts = facts_without(&new.facts, batch, false)?;
    *graph = new;
    Ok(())
}

/// The dim where the batch is 1.
fn dim_at_one(dim: &Dim, batch: &Symbol) -> Dim {
    dim.substitute(&|symbol| (symbol == batch).then(Dim::one))
}

/// The constraints where the batch is 1.
fn constraints_at_one(graph: &Graph, batch: &Symbol) -> Vec<Assumption> {
    let at_one = |fact: &Assumption| {
        let mut fact = fact.clone();
        fact.relation.a = dim_at_one(&fact.relation.a, batch);
        fact.relation.b = dim_at_one(&fact.relation.b, batch);
        fact
    };
    graph.constraints.iter().map(at_one).collect()
}

/// The operator where the batch is 1.
fn at_one(mut op: Op, batch: &Symbol) -> Op {
    for dim in op.sizes_mut() {
        *dim = dim_at_one(dim, batch);
    }
    let replace = |dim: &mut Dim| *dim = dim_at_one(dim, batch);
    match &mut op {
        Op::Index { expr, .. } => replace(expr),
        Op::View { index, .. } => index.iter_mut().for_each(replace),
        Op::Gather { coords, .. } | Op::Scatter { coords, .. } => {
            coords.iter_mut().for_each(|coord| match coord {
                Coord::At(at) => replace(at),
                Coord::Load { at, .. } => at.iter_mut().for_each(replace),
            });
        }
        _ => {}
    }
    op
}

/// The same facts where the batch is 1, or without it.
fn facts_without(facts: &Facts, batch: &Symbol, is_one: bool) -> Result<Facts> {
    let invalid = |error: symshape::FactError| Error::new(ErrorKind::Contract, error.to_string());
    let mut new = Facts::new().remembering();
    for symbol in facts.symbols() {
        let declaration = if symbol != batch {
            facts.declaration(symbol).cloned()
        } else if is_one {
            Some(Declaration::range(1, 1))
        } else {
            None
        };
        if let Some(declaration) = declaration {
            new.declare(symbol, declaration).map_err(invalid)?;
        }
    }

    for fact in facts.assumptions() {
        let mut relation = fact.relation.clone();
        relation.a = dim_at_one(&relation.a, batch);
        relation.b = dim_at_one(&relation.b, batch);
        if !new.prove(&relation).is_yes() {
            new.assume(relation, &fact.origin).map_err(invalid)?;
        }
    }
    Ok(new)
}

/// A tensor of ones, which is true for a mask of bools.
fn ones(graph: &mut Graph, dtype: DType, shape: &[Dim]) -> Result<Value> {
    let one = if dtype == DType::Bool { Scalar::bool(true) } else { Scalar::from_f64(dtype, 1.0) };
    let one = graph.scalar(one)?;
    graph.broadcast_to(one, shape)
}
