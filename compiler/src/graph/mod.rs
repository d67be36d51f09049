//! The graph IR: a list of core operators in an order in which they can run, over tensors with symbolic shapes.
//!
//! Values are immutable and each is defined by one node; nodes stand in topological order, always.
//! [`build`] appends nodes and infers types on the spot; [`verify`] says what a well-formed graph is; [`text`] prints
//! and reads it; [`eval`] is the slow, obvious interpreter that everything else is tested against.

pub mod arbitrary;
pub mod build;
pub mod eval;
pub mod infer;
mod op;
pub mod text;
pub mod tolerance;
pub mod verify;

pub use op::{Coord, Label, Op, ScatterMode, axis};

use crate::scalar::Precision;
use cranelift_entity::{PrimaryMap, entity_impl};
use symshape::{Assumption, Dim, Facts, Symbol};
use symshape_runtime::{DType, external::Function};

/// Most axes of a tensor: with more, matrix products run out of letters for their labels. No format allows so many.
pub const MAX_RANK: usize = 28;

/// A node of a [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);
entity_impl!(NodeId, "node");

/// A value of a [`Graph`]: one result of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "%");

/// Element type and symbolic shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Type {
    /// Type of the elements.
    pub dtype: DType,
    /// One expression over the model's symbols for each axis, never negative.
    pub shape: Vec<Dim>,
}

/// An operator applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// From what, all defined earlier.
    pub operands: Vec<Value>,
    /// Its results; most operators have one.
    pub results: Vec<Value>,
    /// Where it comes from, for messages: the ONNX node's name, or empty.
    pub origin: String,
}

/// What is known of a value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: Type,
    /// The node that defines it.
    pub def: NodeId,
    /// Its elements in row-major order, when they are integers (or booleans, as 0 and 1) that are expressions over
    /// the model's symbols and few enough to be shapes, axes, pads and the like.
    pub contents: Option<Vec<Dim>>,
}

/// A graph: inputs, nodes, outputs, and the facts about the symbols in its shapes.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name of the model, a C identifier.
    pub name: String,
    /// The model's symbols in the order of the ABI's `dims`.
    pub symbols: Vec<Symbol>,
    /// The symbols whose values are found while running, each bound by one [`Op::Bind`].
    pub data_dependent: Vec<Symbol>,
    /// What is declared about them, and what follows from the graph.
    pub facts: Facts,
    /// Relations that the graph needs and that don't follow from the declarations: two inputs' dims that must be equal,
    /// an axis at least as long as its window. The artefact checks them on each call.
    pub constraints: Vec<Assumption>,
    /// The nodes in order.
    pub nodes: PrimaryMap<NodeId, Node>,
    /// All values.
    pub values: PrimaryMap<Value, ValueData>,
    /// Names and values of the inputs; input number `i` is the node `Op::Input(i)`.
    pub inputs: Vec<(String, Value)>,
    /// Names and values of the outputs.
    pub outputs: Vec<(String, Value)>,
    /// Where new nodes are said to come from, see [`Node::origin`].
    pub origin: String,
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

    /// Number of axes of `value`.
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

    /// The constant that `value` is, if it is one.
    pub fn as_constant(&self, value: Value) -> Option<&crate::tensor::Tensor> {
        match self.op(value) {
            Op::Const(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Whether `dim` depends on what is found while running.
    pub fn is_data_dependent(&self, dim: &Dim) -> bool {
        self.data_dependent.iter().any(|symbol| dim.contains(symbol))
    }

    /// Gives the functions outside of the compiler that it calls those of this process, by their C names; others stay.
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

    /// Lets all contractions of `f32` multiply so precisely, but for those that are [`Precision::Full`].
    pub fn set_precision(&mut self, wanted: Precision) {
        for node in self.nodes.values_mut() {
            if let Op::Contraction { dtype: DType::F32, precision, .. } = &mut node.op
                && *precision != Precision::Full
            {
                *precision = wanted;
            }
            node.op.regions_mut().into_iter().for_each(|region| region.set_precision(wanted));
        }
    }

    /// The symbolic elements of `value`, if they are known.
    pub fn contents(&self, value: Value) -> Option<&[Dim]> {
        self.values[value].contents.as_deref()
    }
}
