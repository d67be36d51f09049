//! Rounds the activations of products with weights of few bits to 8 bits.
//!
//! The optimised graph says which constants have few bits. Their contractions get [`Precision::Int8`], so the evaluator
//! of the new graph defines the results; [`activations`](crate::scalar::activations) has the formula.

use super::{table::OutputError, trial::Trial};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::{Graph, Node, Op, Value, axis as axis_symbol},
    opt::{self, dead::dead, rebuild::rebuild, views::compose},
    pipeline::Pipeline,
    scalar::{
        Precision,
        activations::{MAX_BLOCK, MAX_DEPTH},
    },
    tensor::{FewBits, Tensor},
};
use std::{fmt, str::FromStr};
use symshape::Dim;
use symshape_runtime::DType;

/// How products with weights of few bits read their other operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Activations {
    /// As it is.
    #[default]
    F32,
    /// Rounded to integers of 8 bits with a scale for each block of a row. Blocks are those of the weights.
    Int8,
}

impl Activations {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Activations {
    type Err = Error;

    fn from_str(text: &str) -> Result<Activations> {
        [Activations::F32, Activations::Int8].into_iter().find(|known| known.name() == text).ok_or_else(
            || Error::new(ErrorKind::Usage, format!("activations {text:?}: expected f32 or int8")),
        )
    }
}

/// A graph with rounded activations.
#[derive(Debug)]
pub struct RoundedActivations {
    /// The optimised graph.
    pub graph: Graph,
    /// What was rounded, and how far the outputs moved.
    pub summary: ActivationSummary,
}

/// The effect of rounded activations.
#[derive(Clone, PartialEq, Debug)]
pub struct ActivationSummary {
    /// Products whose activations are rounded.
    pub rounded: usize,
    /// Products with weights of few bits.
    pub products: usize,
    /// The error of the outputs next to those of the same weights and activations in `f32`, if trial runs measured it.
    pub output_error: Option<OutputError>,
    /// Why it was not measured.
    pub note: Option<String>,
}

impl ActivationSummary {
    /// One sentence for a terminal.
    pub fn line(&self) -> String {
        let ActivationSummary { rounded, products, output_error, note } = self;
        if *products == 0 {
            return "activations stay f32: no matrix product has weights of few bits; --weights int4 or int8 \
                    makes them"
                .into();
        }
        let measured = match (output_error, note) {
            (Some(OutputError { error, at }), _) if at.is_empty() => {
                format!("; that moves the outputs by {error:.1e}")
            }
            (Some(OutputError { error, at }), _) => {
                format!("; that moves the outputs by {error:.1e} at {at}")
            }
            (None, Some(note)) => format!("; {note}"),
            (None, None) => String::new(),
        };
        format!("activations: int8 in {rounded} of {products} products with weights of few bits{measured}")
    }

    /// The summary as JSON.
    pub fn json(&self) -> serde_json::Value {
        let error = self.output_error.as_ref();
        serde_json::json!({
            "rounded": self.rounded,
            "products": self.products,
            "output_error": error.map(|error| error.error.min(f64::MAX)),
            "at": error.map(|error| &error.at),
            "note": self.note,
        })
    }
}

/// Optimises a graph and rounds the activations of its products with weights of few bits.
///
/// A product keeps its activations in `f32` if its weights are reduced along several axes or differ by batch, or if a
/// block has more than 1,024 elements along the reduction.
///
/// # Errors
/// A bug in a pass of the optimiser. If trial runs fail, the summary says why.
pub fn round_activations(graph: &Graph) -> Result<RoundedActivations> {
    let mut before = graph.clone();
    opt::optimize(&mut before)?;
    let mut after = before.clone();
    let mut count = Count::default();
    mark(&mut after, &mut count)?;

    let Count { rounded, products } = count;
    let mut summary = ActivationSummary { rounded, products, output_error: None, note: None };
    if rounded > 0 {
        match measure(&before, &after) {
            Ok(error) => summary.output_error = Some(error),
            Err(why) => summary.note = Some(format!("the error of the outputs was not measured: {why}")),
        }
    }
    Ok(RoundedActivations { graph: after, summary })
}

/// The number of products whose activations are rounded, and of all with weights of few bits.
#[derive(Default)]
struct Count {
    rounded: usize,
    products: usize,
}

/// Marks the products of a graph and its regions.
fn mark(graph: &mut Graph, count: &mut Count) -> Result<()> {
    for node in graph.nodes.values_mut() {
        node.op.regions_mut().into_iter().try_for_each(|region| mark(region, count))?;
    }
    rebuild(graph, |new, node| {
        let Some(product) = Product::of(new, node) else { return Ok(None) };
        count.products += 1;
        let Some(weights) = product.packed_weights(new, node) else { return Ok(None) };
        count.rounded += 1;

        let mut op = node.op.clone();
        if let Op::Contraction { precision, .. } = &mut op {
            *precision = Precision::Int8;
        }
        let mut operands = node.operands.clone();
        if let Some(weights) = weights {
            operands[product.side] = new.constant(Tensor::from_few_bits(weights))?;
        }
        new.push(op, &operands).map(|result| Some(vec![result]))
    })?;
    dead(graph)
}

/// A product with weights of few bits.
struct Product {
    /// The operand that has them.
    side: usize,
    /// The constant that the operand is, or that it shows through views.
    constant: Value,
}

impl Product {
    fn of(graph: &Graph, node: &Node) -> Option<Product> {
        let Op::Contraction { dtype: DType::F32, .. } = &node.op else { return None };
        (0..2).find_map(|side| {
            let constant = few_bits(graph, node.operands[side])?;
            Some(Product { side, constant })
        })
    }

    /// The weights as kernels pack them: `None` if they are the operand already. The outer `None` means that
    /// activations can't be rounded.
    fn packed_weights(&self, graph: &Graph, node: &Node) -> Option<Option<FewBits>> {
        let Op::Contraction { lhs, rhs, out, precision, .. } = &node.op else { return None };
        let other = node.operands[1 - self.side];
        let labels = [lhs, rhs];
        let of_weights = labels[self.side];
        let mut reduced = (0..of_weights.len()).filter(|axis| !out.contains(&of_weights[*axis]));
        let (Some(axis), None) = (reduced.next(), reduced.next()) else { return None };
        let is_batch = |label| labels[1 - self.side].contains(label) && out.contains(label);
        let is_plain = *precision == Precision::F32
            && graph.dtype(other) == DType::F32
            && few_bits(graph, other).is_none()
            && !of_weights.iter().any(is_batch);
        if !is_plain {
            return None;
        }

        let operand = node.operands[self.side];
        let stored = graph.as_constant(self.constant)?.few_bits()?;
        if operand == self.constant {
            return is_packed(stored, axis).then_some(None);
        }
        let weights = viewed(graph, operand, stored)?;
        is_packed(&weights, axis).then_some(Some(weights))
    }
}

/// The constant of few bits that a value is, or that it shows through views.
fn few_bits(graph: &Graph, value: Value) -> Option<Value> {
    let source = graph.through_views(value);
    graph.as_constant(source)?.few_bits()?;
    Some(source)
}

/// The weights that `value` shows through views, if their places are linear.
fn viewed(graph: &Graph, value: Value, stored: &FewBits) -> Option<FewBits> {
    let shape = graph.shape(value).to_vec();
    let mut index: Vec<Dim> = (0..shape.len()).map(|k| Dim::from(axis_symbol(k))).collect();
    let mut source = value;
    while let Op::View { index: map, .. } = graph.op(source) {
        index = compose(map, &index);
        source = graph.operands(source)[0];
    }

    let row_major = |place: Dim, (dim, at): (&usize, &Dim)| place * Dim::from(*dim) + at;
    let place = stored.shape().iter().zip(&index).fold(Dim::zero(), row_major);
    let facts = graph.index_facts(&shape);
    let mut rest = facts.simplify(&place);
    let mut steps = Vec::new();
    for k in 0..shape.len() {
        let (step, without) = facts.linear_in(&rest, &axis_symbol(k))?;
        steps.push(usize::try_from(step.as_i64()?).ok()?);
        rest = without;
    }
    let first = usize::try_from(rest.as_i64()?).ok()?;
    let shape = shape.iter().map(|dim| usize::try_from(dim.as_i64()?).ok()).collect::<Option<Vec<_>>>()?;
    stored.at_places(shape, first, &steps)
}

/// Whether kernels have a packed form for products that reduce this axis.
fn is_packed(weights: &FewBits, axis: usize) -> bool {
    let depth = weights.shape()[axis];
    weights.elems() > 0 && weights.block()[axis].min(depth) <= MAX_BLOCK && depth <= MAX_DEPTH
}

/// The error of the outputs of `after`, next to those of `before`.
fn measure(before: &Graph, after: &Graph) -> Result<OutputError> {
    let trial = Trial::new(before, &[], 2)?;
    let error = trial.error_of(&Pipeline::new(after).jit()?)?;
    Ok(OutputError { error, at: trial.at })
}
