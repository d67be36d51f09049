//! The graph IR: a list of core operators in an order in which they can run, over tensors with symbolic shapes.
//!
//! Values are immutable, and each is defined by one node. Nodes are always in topological order. [`build`] appends
//! nodes and infers their types, [`verify`] checks that a graph is well-formed, and [`text`] prints and parses it.
//! [`eval`] is the slow, obvious interpreter that everything else is tested against.

pub mod arbitrary;
pub mod build;
pub mod eval;
pub mod infer;
mod op;
mod state;
pub mod text;
pub mod tolerance;
pub mod verify;

pub use op::{Coord, Label, Op, ScatterMode, axis};
pub use state::{State, StatePair, StateRows, appended_axis};

use crate::scalar::Precision;
use cranelift_entity::{PrimaryMap, entity_impl};
use std::collections::BTreeSet;
use symshape::{Assumption, Dim, Facts, Symbol};
use symshape_runtime::{DType, external::Function};

/// The largest rank of a tensor. With more axes, contractions run out of letters for their labels.
pub const MAX_RANK: usize = 28;

/// A node of a [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);
entity_impl!(NodeId, "node");

/// A value of a [`Graph`]: one result of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "%");

/// The element type and symbolic shape of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Type {
    /// The element type.
    pub dtype: DType,
    /// One expression over the model's symbols for each axis, never negative.
    pub shape: Vec<Dim>,
}

/// An operator applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator.
    pub op: Op,
    /// The operands, all defined by earlier nodes.
    pub operands: Vec<Value>,
    /// The results. Most operators have one.
    pub results: Vec<Value>,
    /// The source of the node, for messages: the name of the ONNX node, or empty.
    pub origin: String,
}

impl Node {
    /// The name of the ONNX node that it comes from, or another description of its source. Empty if there is none.
    pub fn name(&self) -> &str {
        let quoted = self.origin.strip_prefix("node `").and_then(|rest| rest.strip_suffix('`'));
        quoted.unwrap_or(&self.origin)
    }
}

/// The facts about a value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// The element type and shape.
    pub ty: Type,
    /// The node that defines it.
    pub def: NodeId,
    /// The elements in row-major order, if they are integers (or booleans, as 0 and 1) that are expressions over the
    /// model's symbols, and few enough to be shapes, axes, pads and the like.
    pub contents: Option<Vec<Dim>>,
}

/// A graph: its inputs, nodes, outputs, and the facts about the symbols in its shapes.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The name of the model, a C identifier.
    pub name: String,
    /// The model's symbols in the order of the ABI's `dims`.
    pub symbols: Vec<Symbol>,
    /// The data-dependent symbols. Each is bound by one [`Op::Bind`].
    pub data_dependent: Vec<Symbol>,
    /// The declarations of the symbols, and the facts that follow from the graph.
    pub facts: Facts,
    /// Relations that the graph needs and that don't follow from the declarations. Examples are two inputs' dims that
    /// must be equal, and an axis that must be at least as long as its window. The artefact checks them on each call.
    pub constraints: Vec<Assumption>,
    /// The nodes in topological order.
    pub nodes: PrimaryMap<NodeId, Node>,
    /// All values, results of the nodes.
    pub values: PrimaryMap<Value, ValueData>,
    /// Names and values of the inputs. Input `i` is the node `Op::Input(i)`.
    pub inputs: Vec<(String, Value)>,
    /// Names and values of the outputs.
    pub outputs: Vec<(String, Value)>,
    /// The inputs and outputs that are state.
    pub state: Option<State>,
    /// Whether the caller is going to declare state. An operator with a cache may then require that its new rows follow
    /// all rows of the cache.
    pub keeps_state: bool,
    /// The [`Node::origin`] of new nodes.
    pub origin: String,
    /// The names of the nodes whose contractions multiply `f32` at any precision, see [`Graph::keep_f32`]. Those of a
    /// region have no effect.
    pub f32_nodes: BTreeSet<String>,
}

impl Graph {
    /// The type of `value`.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value].ty
    }

    /// The shape of `value`.
    pub fn shape(&self, value: Value) -> &[Dim] {
        &self.values[value].ty.shape
    }

    /// The element type of `value`.
    pub fn dtype(&self, value: Value) -> DType {
        self.values[value].ty.dtype
    }

    /// The number of axes of `value`.
    pub fn rank(&self, value: Value) -> usize {
        self.shape(value).len()
    }

    /// The operator that defines `value`.
    pub fn op(&self, value: Value) -> &Op {
        &self.nodes[self.values[value].def].op
    }

    /// The operands of the node that defines `value`.
    pub fn operands(&self, value: Value) -> &[Value] {
        &self.nodes[self.values[value].def].operands
    }

    /// The value that `value` views, through all views.
    pub(crate) fn through_views(&self, mut value: Value) -> Value {
        while let Op::View { .. } = self.op(value) {
            value = self.operands(value)[0];
        }
        value
    }

    /// The constant that defines `value`, if there is one.
    pub fn as_constant(&self, value: Value) -> Option<&crate::tensor::Tensor> {
        match self.op(value) {
            Op::Const(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The constant that `value` is, possibly through views.
    pub(crate) fn viewed_constant(&self, value: Value) -> Option<&crate::tensor::Tensor> {
        self.as_constant(self.through_views(value))
    }

    /// Whether `dim` contains a data-dependent symbol.
    pub fn is_data_dependent(&self, dim: &Dim) -> bool {
        self.data_dependent.iter().any(|symbol| dim.contains(symbol))
    }

    /// Links external functions to the functions of this process, by C name. Functions without a match stay as they
    /// are.
    pub fn register(&mut self, function: &dyn Fn(&str) -> Option<Function>) {
        for node in self.nodes.values_mut() {
            if let Op::Call { callee, .. } = &mut node.op
                && let Some(found) = function(&callee.symbol)
            {
                callee.function = Some(found);
            }
            node.op.regions_mut().into_iter().for_each(|region| region.register(function));
        }
    }

    /// Sets the precision of all `f32` contractions, except for those that are [`Precision::Full`] or
    /// [`Precision::Int8`]. Those of [`Graph::f32_nodes`] become [`Precision::Full`].
    pub fn set_precision(&mut self, wanted: Precision) {
        let kept = std::mem::take(&mut self.f32_nodes);
        self.set_precision_except(wanted, &kept);
        self.f32_nodes = kept;
    }

    fn set_precision_except(&mut self, wanted: Precision, kept: &BTreeSet<String>) {
        for node in self.nodes.values_mut() {
            let is_kept = wanted != Precision::F32 && kept.contains(node.name());
            if let Op::Contraction { dtype: DType::F32, precision, .. } = &mut node.op
                && !matches!(precision, Precision::Full | Precision::Int8)
            {
                *precision = if is_kept { Precision::Full } else { wanted };
            }
            let regions = node.op.regions_mut();
            regions.into_iter().for_each(|region| region.set_precision_except(wanted, kept));
        }
    }

    /// Lets the `f32` contractions of these nodes, by [`Node::name`], multiply `f32` at any precision. Returns the
    /// names that no node has.
    pub fn keep_f32(&mut self, names: &BTreeSet<String>) -> BTreeSet<String> {
        self.f32_nodes.extend(names.iter().cloned());
        let mut missing = names.clone();
        self.remove_names(&mut missing);
        missing
    }

    /// Removes the names of the nodes, also of those in regions.
    fn remove_names(&self, names: &mut BTreeSet<String>) {
        for node in self.nodes.values() {
            names.remove(node.name());
            node.op.regions().into_iter().for_each(|(_, region)| region.remove_names(names));
        }
    }

    /// Whether a contraction rounds one of its operands to 8 bits.
    pub(crate) fn rounds_activations(&self) -> bool {
        self.nodes.values().any(|node| match &node.op {
            Op::Contraction { precision, .. } => *precision == Precision::Int8,
            Op::If { then, otherwise } => then.rounds_activations() || otherwise.rounds_activations(),
            Op::Loop { body, .. } => body.rounds_activations(),
            _ => false,
        })
    }

    /// The symbolic elements of `value`, if they are known.
    pub fn contents(&self, value: Value) -> Option<&[Dim]> {
        self.values[value].contents.as_deref()
    }
}
