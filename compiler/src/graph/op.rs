//! The core operators: the complete vocabulary of the graph IR.
//!
//! An operator defines `out[$0, $1, …]`, where `$k` is the index along axis `k` ([`axis`]). Operators neither
//! broadcast nor accept negative axes. The builder's convenience methods express both as [`Op::View`]. Each operator
//! has a shape rule ([`super::infer`]), an evaluation rule ([`super::eval`]) and a lowering ([`crate::lower`]). All
//! ONNX operators are composed of them.

use super::{Graph, Node, Type};
use crate::{
    external::Callee,
    scalar::{Body, Precision, ReduceOp, Scalar},
    tensor::{ByContent, Tensor},
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The symbol of the index along axis `k` of the value being defined. It prints as `$k`.
pub fn axis(k: usize) -> Symbol {
    Symbol::new(&format!("${k}"))
}

/// A label of a contraction: a letter of Einstein's notation.
pub type Label = u8;

/// One coordinate of an element whose address may depend on other tensors' values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Coord {
    /// An expression over the axes `$k`.
    At(Dim),
    /// The integer loaded from operand `operand` at `at`. It must be inside the axis that it addresses.
    Load {
        /// The position of the operand that is loaded from.
        operand: usize,
        /// One expression over the axes `$k` for each axis of that operand.
        at: Vec<Dim>,
    },
}

impl Coord {
    /// The operand that the coordinate is loaded from, and its index there. `None` unless it is loaded.
    pub(crate) fn as_load(&self) -> Option<(usize, &[Dim])> {
        match self {
            Coord::At(_) => None,
            Coord::Load { operand, at } => Some((*operand, at)),
        }
    }
}

/// An expression that addresses one axis of an operand.
pub(crate) struct Address<'o> {
    /// The position of the operand.
    pub(crate) operand: usize,
    /// The addressed axis of that operand.
    pub(crate) axis: usize,
    /// The index along that axis, over the axes `$k` of the space that [`Op::addresses`] is called for.
    pub(crate) at: &'o Dim,
}

/// How a scattered value is combined with the existing element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScatterMode {
    /// It replaces the element. Of several values, the last in row-major order of the updates stays.
    Assign,
    /// It is reduced into the element, in row-major order of the updates.
    Combine(ReduceOp),
}

/// A core operator.
#[derive(Clone, Debug)]
pub enum Op {
    /// Input `.0` of the graph.
    Input(u32),
    /// A constant.
    Const(Tensor),
    /// `out[$k…] = expr`, as `dtype`: an expression over the axes and the model's symbols, such as iota, shapes,
    /// positions.
    Index {
        /// The element type, an integer type.
        dtype: DType,
        /// The shape of the result.
        shape: Vec<Dim>,
        /// The value of an element.
        expr: Dim,
    },
    /// `out[…] = body(in0[…], in1[…], …)`. All operands have the shape of the result.
    Map(Body),
    /// `out[$k…] = in[index…]`: reshape, transpose, slice, expand, windows. It implies no copy.
    View {
        /// The shape of the result.
        shape: Vec<Dim>,
        /// One expression over `$k` for each axis of the operand. Its value is always inside the axis.
        index: Vec<Dim>,
    },
    /// The operand with `lo[k]` elements before and `hi[k]` after it along axis `k`, all equal to `value`.
    Pad {
        /// Elements before, never negative.
        lo: Vec<Dim>,
        /// Elements after, never negative.
        hi: Vec<Dim>,
        /// The value of the added elements.
        value: Scalar,
    },
    /// The operands concatenated along `axis`.
    Concat {
        /// The axis of concatenation.
        axis: usize,
    },
    /// `out[$k…] = in0[coords…]`, where coordinates may be loaded from the other operands.
    Gather {
        /// The shape of the result.
        shape: Vec<Dim>,
        /// One coordinate for each axis of operand 0.
        coords: Vec<Coord>,
    },
    /// Operand 0 with the elements of operand 1 written to `coords` (over operand 1's axes), one after another.
    Scatter {
        /// One coordinate for each axis of operand 0.
        coords: Vec<Coord>,
        /// How a new value is combined with the existing element.
        mode: ScatterMode,
    },
    /// A reduction along `axes`, which are removed from the shape.
    Reduce {
        /// The operation.
        op: ReduceOp,
        /// The reduced axes, ascending and without repetition.
        axes: Vec<usize>,
    },
    /// The position of the largest (or smallest) element along `axis`, which is removed. The result is `i64`.
    ArgReduce {
        /// `Max` or `Min`.
        op: ReduceOp,
        /// The reduced axis.
        axis: usize,
        /// Whether the last of equal elements is chosen, rather than the first.
        last: bool,
    },
    /// `out[out labels] = Σ over all labels not in out of lhs[lhs labels] * rhs[rhs labels]`.
    ///
    /// A label has one size. Each label of `lhs` or `rhs` that `out` lacks occurs in both. No label repeats within an
    /// operand. The sum is computed in `dtype`, which is the result's type.
    Contraction {
        /// The labels of operand 0's axes.
        lhs: Vec<Label>,
        /// The labels of operand 1's axes.
        rhs: Vec<Label>,
        /// The labels of the result's axes.
        out: Vec<Label>,
        /// The type of the sum.
        dtype: DType,
        /// The precision of the multiplications, if the sum is `f32`.
        precision: Precision,
    },
    /// The operand sorted along `axis`, stable, or its first elements. The results are the values, and their positions
    /// as `i64`. NaN is larger than all other values, and zeros are equal.
    ///
    /// A second operand of rank 0 is a bound: elements that are not larger than it in a descending sort, or not smaller
    /// in an ascending one, are left out, and so is NaN. The results end with the bound and position 0 in their places.
    /// A bounded sort has no `first`.
    Sort {
        /// The sorted axis.
        axis: usize,
        /// Whether the largest element comes first.
        descending: bool,
        /// The number of elements that the results keep along `axis`; `None` for all.
        first: Option<Dim>,
    },
    /// A prefix reduction along `axis`: `out[k] = in[0] op … op in[k]`.
    Scan {
        /// The operation.
        op: ReduceOp,
        /// The scanned axis.
        axis: usize,
        /// Whether `out[k]` excludes `in[k]`.
        exclusive: bool,
        /// Whether the scan starts at the end.
        reverse: bool,
    },
    /// Returns the operand, an `i64` of rank 0, and gives `symbol` its value. The symbol is one of
    /// [`super::Graph::data_dependent`]. A value outside `lo..=hi` ends the call with a typed error.
    Bind {
        /// The symbol that is bound.
        symbol: Symbol,
        /// The smallest allowed value.
        lo: Dim,
        /// The largest allowed value.
        hi: Dim,
    },
    /// The outputs of `then` if operand 0, a bool of rank 0, is true, otherwise those of `otherwise`. The other
    /// operands are the inputs of `then`, followed by those of `otherwise`.
    If {
        /// The graph that runs if the condition is true.
        then: Box<Graph>,
        /// The graph that runs if the condition is false. Its outputs have the same types.
        otherwise: Box<Graph>,
    },
    /// Iterations of `body`, counted by `counter`. They continue while the count is below operand 0 (`i64`) and the
    /// condition holds: operand 1 (bool) before the first iteration, and then the first output of the body.
    ///
    /// The inputs of the body are the `carried` values, whose initial values are the next operands, and the remaining
    /// operands. The outputs after the first are the carried values for the next iteration, followed by the collected
    /// values, one slice per iteration. The results are the number of iterations, the final carried values, and the
    /// collected tensors. These have space for `max_iterations` slices, of which only those of completed iterations
    /// are written.
    Loop {
        /// The index of the iteration, a symbol within `body`.
        counter: Symbol,
        /// An upper bound of the number of iterations.
        max_iterations: Dim,
        /// The number of values that each iteration passes to the next.
        carried: usize,
        /// The graph of one iteration.
        body: Box<Graph>,
    },
    /// A call of an external function. It receives all operands, dense and row-major, and its results depend only on
    /// them and on its constants.
    Call {
        /// The function and its constants.
        callee: Callee,
        /// The types of the results; not empty.
        results: Vec<Type>,
        /// The size of the scratch memory that the function needs, in bytes.
        scratch: Dim,
    },
    /// Ends the call with a typed error, because the inputs violate the declared contract. Its result has the type
    /// `i64` and rank 0.
    Fail {
        /// The contradiction, for the message.
        why: String,
    },
}

impl Op {
    /// Whether both operators compute the same from equal operands. Constants are compared by their elements.
    pub(crate) fn is_same(&self, other: &Op) -> bool {
        match (self, other) {
            (Op::Const(a), Op::Const(b)) => {
                a.shape() == b.shape() && ByContent(a.clone()) == ByContent(b.clone())
            }
            (Op::Const(_), _) | (_, Op::Const(_)) => false,
            // The debug output of other operators is complete, but for the elements of constants in nested graphs.
            _ => {
                let same_node = |(a, b): (&Node, &Node)| a.op.is_same(&b.op);
                let regions = || self.regions().into_iter().zip(other.regions());
                format!("{self:?}") == format!("{other:?}")
                    && regions().all(|((_, a), (_, b))| a.nodes.values().zip(b.nodes.values()).all(same_node))
            }
        }
    }

    /// The nested graphs, each with the position of the operand that is its first input.
    pub fn regions(&self) -> Vec<(usize, &Graph)> {
        match self {
            Op::If { then, otherwise } => vec![(1, then), (1 + then.inputs.len(), otherwise)],
            Op::Loop { body, .. } => vec![(2, body)],
            _ => Vec::new(),
        }
    }

    /// The nested graphs.
    pub fn regions_mut(&mut self) -> Vec<&mut Graph> {
        match self {
            Op::If { then, otherwise } => vec![then, otherwise],
            Op::Loop { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    /// The expressions that address elements of operands: one for each axis of operand 0 that is not loaded, followed
    /// by those of the loads. They range over the axes of the result, and those of `Scatter` over the axes of operand
    /// 1.
    pub(crate) fn addresses(&self) -> Vec<Address<'_>> {
        let coords = match self {
            Op::View { index, .. } => {
                let address = |(axis, at)| Address { operand: 0, axis, at };
                return index.iter().enumerate().map(address).collect();
            }
            Op::Gather { coords, .. } | Op::Scatter { coords, .. } => coords,
            _ => return Vec::new(),
        };

        let direct = coords.iter().enumerate().filter_map(|(axis, coord)| match coord {
            Coord::At(at) => Some(Address { operand: 0, axis, at }),
            Coord::Load { .. } => None,
        });
        let loaded = coords.iter().filter_map(Coord::as_load).flat_map(|(operand, index)| {
            index.iter().enumerate().map(move |(axis, at)| Address { operand, axis, at })
        });
        direct.chain(loaded).collect()
    }

    /// The sizes among the attributes: dims over the model's symbols alone.
    pub(crate) fn sizes_mut(&mut self) -> Vec<&mut Dim> {
        match self {
            Op::Index { shape, .. } | Op::View { shape, .. } | Op::Gather { shape, .. } => {
                shape.iter_mut().collect()
            }
            Op::Pad { lo, hi, .. } => lo.iter_mut().chain(hi).collect(),
            Op::Call { results, scratch, .. } => {
                let dims = results.iter_mut().flat_map(|ty| &mut ty.shape);
                dims.chain([scratch]).collect()
            }
            Op::Sort { first, .. } => first.iter_mut().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether axes of the results can have sizes that attributes define. Other results only repeat or join axes of
    /// the operands. The results of a branch are created, and checked, within it.
    pub(crate) fn creates_axes(&self) -> bool {
        matches!(
            self,
            Op::Index { .. }
                | Op::View { .. }
                | Op::Pad { .. }
                | Op::Gather { .. }
                | Op::Loop { .. }
                | Op::Call { .. }
                | Op::Sort { first: Some(_), .. }
        )
    }

    /// Whether it only computes elements of its results from those of its operands: it is neither a source, nor control
    /// flow, nor a call.
    pub(crate) fn is_computation(&self) -> bool {
        let is_source = matches!(self, Op::Input(_) | Op::Const(_));
        let is_control = matches!(self, Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Fail { .. });
        !is_source && !is_control && !matches!(self, Op::Call { .. })
    }

    /// Whether it must run even if its results are unused, because it ends the call or gives a symbol its value.
    pub fn acts(&self) -> bool {
        match self {
            Op::Bind { .. } | Op::Fail { .. } => true,
            _ => self.regions().iter().any(|(_, graph)| graph.nodes.values().any(|node| node.op.acts())),
        }
    }

    /// Whether it is a view that mirrors or clamps: its index contains a minimum or maximum that depends on an axis.
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
