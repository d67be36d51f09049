//! The core operators: the whole vocabulary of the graph IR.
//!
//! An operator is a definition of `out[$0, $1, …]`, where `$k` is the index along axis `k` ([`axis`]).
//! There is no broadcasting and no negative axis here: the builder's sugar spells both out as [`Op::View`].
//! Only these operators have a shape rule ([`super::infer`]), an oracle ([`super::eval`]) and a lowering
//! ([`crate::lower`]); everything an ONNX file can say is composed of them.

use super::{Graph, Type};
use crate::{
    external::Callee, scalar::Body, scalar::Precision, scalar::ReduceOp, scalar::Scalar, tensor::Tensor,
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The symbol that stands for the index along axis `k` of the value being defined; it prints as `$k`.
pub fn axis(k: usize) -> Symbol {
    Symbol::new(&format!("${k}"))
}

/// A label of a contraction: a letter of Einstein's notation.
pub type Label = u8;

/// One coordinate of an element that is addressed by other tensors' values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Coord {
    /// An expression over the axes `$k`.
    At(Dim),
    /// The integer found in operand `operand` at `at`; it must lie inside the axis that it addresses.
    Load {
        /// Which operand holds it.
        operand: usize,
        /// Where, one expression over the axes `$k` for each of that operand's axes.
        at: Vec<Dim>,
    },
}

/// How a scattered value meets the one already there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScatterMode {
    /// It replaces it; of several, the last in row-major order of the updates stays.
    Assign,
    /// It is combined with it, in row-major order of the updates.
    Combine(ReduceOp),
}

/// A core operator.
#[derive(Clone, Debug)]
pub enum Op {
    /// Input number `.0` of the graph.
    Input(u32),
    /// A constant.
    Const(Tensor),
    /// `out[$k…] = expr`, as `dtype`: an expression over the axes and the model's symbols. Iota, shapes, positions.
    Index {
        /// Element type, an integer type.
        dtype: DType,
        /// Shape of the result.
        shape: Vec<Dim>,
        /// The value.
        expr: Dim,
    },
    /// `out[…] = body(in0[…], in1[…], …)`: all operands have the result's shape.
    Map(Body),
    /// `out[$k…] = in[index…]`: reshape, transpose, slice, expand, windows; copies nothing by itself.
    View {
        /// Shape of the result.
        shape: Vec<Dim>,
        /// One expression over `$k` for each axis of the operand; always inside it.
        index: Vec<Dim>,
    },
    /// The operand with `lo[k]` elements before and `hi[k]` after it along axis `k`, all equal to `value`.
    Pad {
        /// Elements before, never negative.
        lo: Vec<Dim>,
        /// Elements after, never negative.
        hi: Vec<Dim>,
        /// What they hold.
        value: Scalar,
    },
    /// The operands end to end along `axis`.
    Concat {
        /// Along which axis.
        axis: usize,
    },
    /// `out[$k…] = in0[coords…]`, where coordinates may be loaded from the other operands.
    Gather {
        /// Shape of the result.
        shape: Vec<Dim>,
        /// One coordinate for each axis of operand 0.
        coords: Vec<Coord>,
    },
    /// Operand 0 with the elements of operand 1 put at `coords` (over operand 1's axes), one after another.
    Scatter {
        /// One coordinate for each axis of operand 0.
        coords: Vec<Coord>,
        /// How a new value meets the old one.
        mode: ScatterMode,
    },
    /// Combines along `axes`, which vanish from the shape.
    Reduce {
        /// The combination.
        op: ReduceOp,
        /// Ascending, without repetition.
        axes: Vec<usize>,
    },
    /// Position of the largest (or smallest) element along `axis`, which vanishes; `i64`.
    ArgReduce {
        /// Largest or smallest: only `Max` and `Min`.
        op: ReduceOp,
        /// Along which axis.
        axis: usize,
        /// Of equal elements, the last one.
        last: bool,
    },
    /// `out[out labels] = Σ over all labels not in out of lhs[lhs labels] * rhs[rhs labels]`.
    ///
    /// A label stands for one size. Each label of `lhs` or `rhs` that `out` lacks stands in both. No label repeats
    /// within an operand. The sum runs in `dtype`, which is the result's type.
    Contraction {
        /// Labels of operand 0's axes.
        lhs: Vec<Label>,
        /// Labels of operand 1's axes.
        rhs: Vec<Label>,
        /// Labels of the result's axes.
        out: Vec<Label>,
        /// Type of the sum.
        dtype: DType,
        /// How `f32` are multiply_parts, where the sum is one.
        precision: Precision,
    },
    /// Operand sorted along `axis`, stable; results: the values, and their positions as `i64`.
    Sort {
        /// Along which axis.
        axis: usize,
        /// Largest first.
        descending: bool,
    },
    /// Running combination along `axis`: `out[k] = in[0] op … op in[k]`.
    Scan {
        /// The combination.
        op: ReduceOp,
        /// Along which axis.
        axis: usize,
        /// `out[k]` leaves `in[k]` out.
        exclusive: bool,
        /// From the end.
        reverse: bool,
    },
    /// The operand, an `i64` of rank 0, and from here on the value of `symbol`, one of [`super::Graph::found`]. A value
    /// outside `lo..=hi` ends the call with a typed error.
    Bind {
        /// Which symbol.
        symbol: Symbol,
        /// Lowest value allowed.
        lo: Dim,
        /// Highest value allowed.
        hi: Dim,
    },
    /// The outputs of `then` where operand 0, a bool of rank 0, holds, else those of `otherwise`. The other operands are
    /// the inputs of `then`, followed by those of `otherwise`.
    If {
        /// Where the condition holds.
        then: Box<Graph>,
        /// Where it doesn't; its outputs have the same types.
        otherwise: Box<Graph>,
    },
    /// Rounds of `body`, counted by `counter`, as long as there are less than operand 0 (`i64`) and operand 1 (bool) and
    /// then the body's first output hold.
    ///
    /// The body's inputs are the `carried` values, which the next operands give for the first round, and the remaining
    /// operands. Its outputs after the first are the carried values for the next round, and then what is collected: one
    /// slice a round. Results: the number of rounds, the carried values after the last one, and what was collected,
    /// with room for `most` slices, of which only those of rounds that were run are written.
    Loop {
        /// The number of the round, a symbol within `body`.
        counter: Symbol,
        /// Upper bound of the number of rounds.
        most: Dim,
        /// Number of values that each round hands to the next.
        carried: usize,
        /// What a round does.
        body: Box<Graph>,
    },
    /// What a function outside of the compiler makes of the operands. It is handed all of them, dense and row-major, and
    /// is a function of them and its constants alone.
    Call {
        /// The function.
        callee: Callee,
        /// The types of its results; not empty.
        results: Vec<Type>,
        /// Bytes of memory that it needs besides.
        scratch: Dim,
    },
    /// Zero, an `i64` of rank 0; but who gets here has left what the declared inputs allow, and the call ends with a typed
    /// error.
    Fail {
        /// What contradicts what.
        why: String,
    },
}

impl Op {
    /// The graphs inside, with the position of the operand that is each one's first input.
    pub fn regions(&self) -> Vec<(usize, &Graph)> {
        match self {
            Op::If { then, otherwise } => vec![(1, then), (1 + then.inputs.len(), otherwise)],
            Op::Loop { body, .. } => vec![(2, body)],
            _ => Vec::new(),
        }
    }

    /// The graphs inside.
    pub fn regions_mut(&mut self) -> Vec<&mut Graph> {
        match self {
            Op::If { then, otherwise } => vec![then, otherwise],
            Op::Loop { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    /// Whether it must run even if nobody reads its results: it ends the call or gives a symbol its value.
    pub fn acts(&self) -> bool {
        match self {
            Op::Bind { .. } | Op::Fail { .. } => true,
            _ => self.regions().iter().any(|(_, graph)| graph.nodes.values().any(|node| node.op.acts())),
        }
    }

    /// Whether it is a view that mirrors or clamps: indices that are the least or largest of some that move.
    pub fn folds(&self) -> bool {
        fn inside(dim: &Dim, rank: usize) -> bool {
            let moves = || (0..rank).any(|k| dim.contains(&axis(k)));
            match dim.node() {
                symshape::Node::Min(_) | symshape::Node::Max(_) => moves(),
                other => other.operands().into_iter().any(|operand| inside(operand, rank)),
            }
        }
        matches!(self, Op::View { shape, index } if index.iter().any(|dim| inside(dim, shape.len())))
    }

    /// The operator's name in the textual IR.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input(_) => "input",
            Op::Const(_) => "const",
            Op::Index { .. } => "index",
            Op::Map(_) => "map",
            Op::View { .. } => "view",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::Gather { .. } => "gather",
            Op::Scatter { .. } => "scatter",
            Op::Reduce { .. } => "reduce",
            Op::ArgReduce { .. } => "argreduce",
            Op::Contraction { .. } => "contraction",
            Op::Sort { .. } => "sort",
            Op::Scan { .. } => "scan",
            Op::Bind { .. } => "bind",
            Op::If { .. } => "if",
            Op::Loop { .. } => "loop",
            Op::Call { .. } => "call",
            Op::Fail { .. } => "fail",
        }
    }
}
