//! Statements: loops, branches, blocks, strips and contractions.

use super::{
    Access, BufferId, InstSeq, Local,
    few_bits::{ElementPlace, FewBitsForm, MAX_UNPACKED_COLUMNS, WIDTH},
};
use crate::{
    error::{Error, Result},
    scalar::Precision,
};
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// A loop variable and its range `0..extent`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Name of the variable, unique within its kernel.
    pub var: Symbol,
    /// Number of iterations. The loop does not run if it is zero or negative.
    pub extent: Dim,
}

impl Axis {
    /// `address` along a loop `var` over the iterations of `outer` and this one inside of it. `None` unless the address
    /// moves along `outer` by as much as along all of this one.
    pub(crate) fn merged_address(
        &self,
        facts: &Facts,
        address: &Dim,
        outer: &Axis,
        var: &Symbol,
    ) -> Option<Dim> {
        let (far, rest) = facts.linear_in(address, &outer.var)?;
        let (near, rest) = facts.linear_in(&rest, &self.var)?;
        let is_contiguous = facts.prove_eq(&far, &(&near * &self.extent)).is_yes();
        is_contiguous.then(|| facts.simplify(&(near * Dim::from(var) + rest)))
    }
}

/// The right-hand side of a contraction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rhs {
    /// An element, addressed by the column and reduction variables.
    Indexed(Access),
    /// A constant or scratch buffer, packed into panels of `width` columns. Element `(k, n)` is at
    /// `base + ((n / width) * K + k) * width + n % width`, where `k` is the row-major index over the reduction axes and
    /// `K` is their joint extent. The padding of the last panel has any value.
    Panels {
        /// The packed buffer.
        buffer: BufferId,
        /// Index of the first element of the first panel, an expression over the variables of the enclosing loops.
        base: Dim,
        /// Columns of a panel.
        width: u32,
    },
    /// A constant of `f32` as integers of few bits and scales, in panels of 16 columns. The reduction has a constant
    /// extent, and one axis unless the left-hand side is rounded.
    FewBits(FewBitsPanels),
}

/// A right-hand side of few bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FewBitsPanels {
    /// The bytes of the panels.
    pub buffer: BufferId,
    /// The first byte of the first panel, an expression over the variables of the enclosing loops.
    pub base: Dim,
    /// The form of the panels.
    pub form: FewBitsForm,
    /// Scratch memory for the elements of a tile of columns, see [`FewBitsPanels::unpacked_elems`].
    pub(crate) unpack_buffer: Option<BufferId>,
}

impl FewBitsPanels {
    /// Bytes of a panel, if the depth of the contraction is a constant and the form is valid for it.
    pub(crate) fn panel_bytes(&self, contraction: &Contraction) -> Option<i64> {
        let depth = contraction.depth().as_i64()?;
        if self.form.is_valid(depth) { self.form.panel_bytes(depth) } else { None }
    }

    /// Elements of an unpack buffer: those of the widest tile of columns that microkernels multiply.
    pub(crate) fn unpacked_elems(contraction: &Contraction) -> Dim {
        let columns = contraction.n.extent.ceil_div(WIDTH) * WIDTH;
        contraction.depth() * columns.min(MAX_UNPACKED_COLUMNS.into())
    }

    /// The place of the element of a contraction.
    ///
    /// # Errors
    /// The panels have no known size; the verifier refuses such a contraction.
    pub(crate) fn place(&self, contraction: &Contraction) -> Result<ElementPlace> {
        let row = |row: Dim, axis: &Axis| row * &axis.extent + Dim::from(&axis.var);
        let k = contraction.k.iter().fold(Dim::zero(), row);
        let column = Dim::from(&contraction.n.var);
        let panel_bytes = self.panel_bytes(contraction);
        let panel_bytes =
            panel_bytes.ok_or_else(|| Error::internal("panels of few bits of an unknown size"))?;
        Ok(self.form.place(&self.base, panel_bytes, &k, &column))
    }
}

/// An axis of an image with zeros around it, which a convolution reads through a window.
///
/// The sum has the same bits without the zeros: it begins with 0.0, and adding a zero of any sign to a sum that is not
/// -0.0 changes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Padding {
    /// The position of a term along the axis, over the row variables and the first reduction variable.
    pub position: Dim,
    /// The first position within the image.
    pub begin: Dim,
    /// The end of the positions within the image.
    pub end: Dim,
}

/// A sum of products: `for m, n { sum = Σ over k of lhs * rhs; epilogue }`. The sum visits the axes `k` in row-major
/// order. Rows and columns run in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contraction {
    /// Row axes, outermost first; never empty. Tiles are cut along the last one.
    pub m: Vec<Axis>,
    /// The column axis.
    pub n: Axis,
    /// Reduction axes, outermost first.
    pub k: Vec<Axis>,
    /// The left-hand side, addressed by the row and reduction variables.
    pub lhs: Access,
    /// The right-hand side.
    pub rhs: Rhs,
    /// Type of the sum. Both operands are converted to it.
    pub dtype: DType,
    /// Lowest precision at which `f32` may be multiplied. It is [`Precision::F32`] for all other types.
    pub precision: Precision,
    /// Where the lhs is zero along the first reduction axis, and the rhs finite. Such terms may be left out.
    pub padding: Option<Padding>,
    /// Scratch memory into which a microkernel can pack parts of the operands.
    pub(crate) pack_buffer: Option<BufferId>,
    /// The instructions that use [`Inst::Sum`](super::Inst::Sum), for each row and column; addressed by their
    /// variables.
    pub epilogue: InstSeq,
}

impl Contraction {
    /// The joint extent of the reduction axes: the number of multiplications for each row and column.
    pub fn depth(&self) -> Dim {
        self.k.iter().fold(Dim::one(), |depth, axis| depth * &axis.extent)
    }

    /// The joint extent of the row axes.
    pub fn rows(&self) -> Dim {
        self.m.iter().fold(Dim::one(), |rows, axis| rows * &axis.extent)
    }

    /// The facts inside of the contraction, from those `around` it.
    pub(crate) fn facts_inside(&self, around: &Facts) -> Facts {
        let mut facts = around.clone();
        for axis in self.m.iter().chain(&self.k).chain([&self.n]) {
            facts.declare_index(&axis.var, &axis.extent);
        }
        facts
    }

    /// The scratch memory of microkernels.
    pub(crate) fn scratch(&self) -> impl Iterator<Item = BufferId> {
        let unpack_buffer = match &self.rhs {
            Rhs::FewBits(panels) => panels.unpack_buffer,
            Rhs::Indexed(_) | Rhs::Panels { .. } => None,
        };
        self.pack_buffer.into_iter().chain(unpack_buffer)
    }

    /// Joint iterations of the row axes but the last.
    pub(crate) fn outer_rows(&self) -> Dim {
        let outer = self.m.split_last().map_or(&[][..], |(_, outer)| outer);
        outer.iter().fold(Dim::one(), |rows, axis| rows * &axis.extent)
    }
}

/// A statement of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stmt {
    /// A loop.
    For {
        /// The loop variable and its range.
        axis: Axis,
        /// Whether iterations are independent, so that they may run in parallel.
        parallel: bool,
        /// The statements of one iteration.
        body: Vec<Stmt>,
    },
    /// Scalar instructions that run once.
    Block(InstSeq),
    /// A loop over straight-line code whose iterations are independent except for reductions.
    Strip {
        /// The loop variable and its range.
        axis: Axis,
        /// The instructions of one iteration.
        code: InstSeq,
    },
    /// A sum of products.
    Contraction(Box<Contraction>),
    /// A branch.
    If {
        /// The condition, a bool variable.
        cond: Local,
        /// The statements that run if it is true.
        then: Vec<Stmt>,
        /// The statements that run if it is false.
        otherwise: Vec<Stmt>,
    },
    /// Repeats `body` while the condition is true. It is read before each iteration.
    While {
        /// The condition, a bool variable.
        cond: Local,
        /// The statements of one iteration.
        body: Vec<Stmt>,
    },
}
