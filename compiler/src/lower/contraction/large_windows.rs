//! Sums over large windows, such as those of depthwise convolutions: several strips, each for a part of a window.
//!
//! A strip adds the terms of a part in registers. Neighbouring results are computed part by part, so that they share
//! the loads of a part, and a part's elements and weights stay in the first-level cache. The sums of a block of
//! neighbours are in scratch memory in between.
//!
//! ```text
//! for x in 0..W { strip c { y[x][c] = Σ terms of the window } }
//! ⇒  for b in 0..W / 16 {
//!        for x in 0..16 { strip c { even[x][c] = Σ terms of the first part } }
//!        for x in 0..16 { strip c { odd[x][c] = even[x][c] + Σ terms of the second part } }
//!        for x in 0..16 { strip c { y[16·b + x][c] = odd[x][c] + Σ terms of the last part } }
//!    }
//!    … and the remaining results in the same way
//! ```
//!
//! Strips read sums from one buffer and write them to another, so that iterations over `x` are independent.

use super::{
    nest::ContractionNest,
    terms::{add_terms, points_of, take_addend},
};
use crate::{
    Error, Result,
    graph::Value,
    kernel::{Access, Axis, Buffer, BufferId, Inst, InstSeq, Kernel, MemorySpace, Stmt},
    lower::{
        lowering::{KernelScope, Lowering, node_name},
        nest::{AxisRole, append, loops, renamed, with_exprs},
        windows::MAX_WINDOW,
    },
    scalar::Scalar,
};
use symshape::Dim;

/// The largest number of terms of a window, which bounds the number of strips.
const MAX_TERMS: i64 = 2048;

/// The largest number of terms of a part. The code of a strip must not be too long for neighbours to share loads.
const MAX_PART: i64 = 60;

/// The numbers of neighbouring results in a block.
const BLOCK: std::ops::RangeInclusive<i64> = 4..=16;

/// The largest size of the sums of a block in bytes, as far as blocks have more than the smallest number of results.
const BLOCK_BYTES: i64 = 16 << 10;

/// The points of the reduction, in parts that consist of whole rows where rows are short. The result is `None` if the
/// window is small enough for one strip, is too large, or has symbolic sizes or no constant weights.
pub(super) fn parts(contraction: &ContractionNest, reduced: &[Axis]) -> Option<Vec<Vec<Vec<i64>>>> {
    let has_weights = contraction.operands.iter().any(|operand| operand.constant.is_some());
    let extents: Vec<i64> = reduced.iter().map(|axis| axis.extent.as_i64()).collect::<Option<_>>()?;
    let terms = extents.iter().try_fold(1i64, |terms, extent| terms.checked_mul(*extent))?;
    let has_neighbours = contraction.nest.axes(AxisRole::Kept).len() > 1;
    if !has_weights || !has_neighbours || !(MAX_WINDOW + 1..=MAX_TERMS).contains(&terms) {
        return None;
    }

    let unit = extents.last().copied().filter(|row| *row <= MAX_PART).unwrap_or(1);
    let units = terms / unit;
    let ceil_div = |n: i64, by: i64| (n + by - 1) / by;
    let count = ceil_div(units, MAX_PART / unit);
    let size = usize::try_from(ceil_div(units, count) * unit).ok()?;
    Some(points_of(reduced).chunks(size).map(<[_]>::to_vec).collect())
}

/// Emits the strips of the parts for blocks of neighbouring results.
pub(super) fn lower(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    buffers: [BufferId; 2],
    sum: Value,
    contraction: ContractionNest,
    parts: &[Vec<Vec<i64>>],
) -> Result<()> {
    let mut kept = contraction.nest.axes(AxisRole::Kept);
    let inner = kept.pop().ok_or_else(|| Error::internal("the batch has no axis"))?;
    let along = kept.pop().ok_or_else(|| Error::internal("results have no neighbours"))?;

    let pitch = lowering.upper_bound_elems(&scope.facts.simplify(&inner.extent))?;
    let block = block_size(&pitch, contraction.dtype.size_bytes());
    let mut sums = || {
        lowering.program.buffers.push(Buffer {
            name: format!("{} (sums)", node_name(lowering.graph, sum)),
            dtype: contraction.dtype,
            elems: &pitch * block,
            space: MemorySpace::Scratch,
        })
    };
    let sums = [sums(), sums()];
    let root = contraction.root;
    let blocks = Blocks { contraction, buffers, sums, pitch, along, inner, parts };

    let count = scope.facts.simplify(&blocks.along.extent.floor_div(block));
    let first = scope.facts.simplify(&(&count * block));
    let rest = scope.facts.simplify(&(&blocks.along.extent - &first));
    let mut body = Vec::new();
    if count.as_i64() != Some(0) {
        let var = scope.fresh("i");
        scope.facts.declare_index(&var, &count);
        let first = Dim::from(&var) * block;
        kept.push(Axis { var, extent: count });
        body.extend(loops(&kept, true, blocks.block(scope, &first, &Dim::from(block))));
        kept.pop();
    }
    if rest.as_i64() != Some(0) {
        let nest = loops(&kept, true, blocks.block(scope, &first, &rest));
        body.extend(nest.iter().map(|stmt| renamed(scope, stmt)));
    }
    lowering.push(root, "products", Kernel::default(), body);
    Ok(())
}

/// The number of results in a block whose sums are `pitch` elements apart.
fn block_size(pitch: &Dim, bytes: usize) -> i64 {
    let fitting = pitch.as_i64().and_then(|pitch| BLOCK_BYTES.checked_div(pitch.checked_mul(bytes as i64)?));
    let fitting = fitting.unwrap_or(0).clamp(*BLOCK.start(), *BLOCK.end());
    fitting - fitting % BLOCK.start()
}

struct Blocks<'a> {
    contraction: ContractionNest,
    /// The operands.
    buffers: [BufferId; 2],
    /// The sums before and after a part, in turn.
    sums: [BufferId; 2],
    /// The distance of the sums of neighbours.
    pitch: Dim,
    along: Axis,
    inner: Axis,
    parts: &'a [Vec<Vec<i64>>],
}

impl Blocks<'_> {
    /// The loops over `size` neighbours from `first` on, one for each part.
    fn block(&self, scope: &mut KernelScope, first: &Dim, size: &Dim) -> Vec<Stmt> {
        let axis = Axis { var: scope.fresh("i"), extent: size.clone() };
        scope.facts.declare_index(&axis.var, size);
        let at = first + Dim::from(&axis.var);
        let moved = |expr: &Dim| {
            let moved = expr.substitute(&|symbol| (*symbol == self.along.var).then(|| at.clone()));
            scope.facts.simplify(&moved)
        };
        let exprs: Vec<Dim> = self.contraction.nest.exprs.iter().map(moved).collect();
        let strips: Vec<InstSeq> =
            (0..self.parts.len()).map(|part| self.strip(scope, &exprs, part, &axis)).collect();
        let nest = |code| {
            let strip = Stmt::Strip { axis: self.inner.clone(), code };
            Stmt::For { axis: axis.clone(), parallel: false, body: vec![strip] }
        };
        strips.into_iter().map(|code| renamed(scope, &nest(code))).collect()
    }

    /// The code of one part, for the neighbour that `axis` tells.
    fn strip(&self, scope: &KernelScope, exprs: &[Dim], part: usize, axis: &Axis) -> InstSeq {
        let sum = |part: usize| Access {
            buffer: self.sums[part % 2],
            index: &self.pitch * Dim::from(&axis.var) + Dim::from(&self.inner.var),
        };
        let mut epilogue = with_exprs(&self.contraction.epilogue, &exprs[2..]);
        let addend = take_addend(&mut epilogue);
        let mut code = InstSeq::default();
        let start = if part == 0 { addend } else { Some(Inst::Load(sum(part - 1))) };
        let start = start.map(|inst| code.push(inst));

        let reduced = self.contraction.nest.axes(AxisRole::Reduced);
        let terms = (&reduced[..], &self.parts[part][..]);
        let total = add_terms(scope, &self.contraction, self.buffers, exprs, terms, &mut code, start);
        let total =
            total.unwrap_or_else(|| code.push(Inst::Const(Scalar::from_i64(self.contraction.dtype, 0))));
        if part + 1 == self.parts.len() {
            append(&mut code, &epilogue, total);
        } else {
            code.push(Inst::Store(sum(part), total));
        }
        code
    }
}
