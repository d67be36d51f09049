//! Scans and arg-reductions across memory: strips along the axis that is nearest in memory.
//!
//! The state of each row, a sum or the best element so far, is in scratch memory. A step of the operator is one strip
//! over many rows. Each row combines its elements in the same order as a scalar loop.

use super::{
    lowering::{KernelScope, Lowering},
    nest::{AxisRole, Nest, exprs_of, loops, step, strip, with_exprs},
};
use crate::{
    Error, Result,
    kernel::{Access, Axis, Buffer, BufferId, Inst, InstSeq, MemorySpace, Stmt},
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The rows that are combined at once. Their state stays in the first-level cache.
const MAX_ROWS: i64 = 1024;

/// With fewer rows, strips are too short.
const MIN_ROWS: i64 = 8;

/// An operator whose rows are combined step by step. The codes of a row use its state at index `slot`.
pub(super) struct RowWise {
    /// Starts a row.
    pub(super) start: InstSeq,
    /// One step.
    pub(super) step: InstSeq,
    /// Finishes a row.
    pub(super) finish: InstSeq,
    /// The index of a row's state.
    pub(super) slot: Symbol,
}

/// Whether rows are nearer to each other in memory than the elements of a row: whether the load in `code` that moves
/// along `steps` moves by less along one of the axes `rows`, which is long enough for strips.
pub(super) fn is_across(scope: &KernelScope, rows: &[Axis], steps: &Axis, code: &InstSeq) -> bool {
    let loads = code.insts.iter().filter_map(|inst| match inst {
        Inst::Load(access) if access.index.contains(&steps.var) => Some(&access.index),
        _ => None,
    });
    let mut loads = loads.peekable();
    let is_short = |axis: &Axis| axis.extent.as_i64().is_some_and(|extent| extent < MIN_ROWS);
    let moves_less = |address: &Dim, axis: &Axis| {
        let near = step(&scope.facts, address, axis);
        near != 0 && near < step(&scope.facts, address, steps)
    };
    let is_near = |address: &Dim| rows.iter().any(|axis| !is_short(axis) && moves_less(address, axis));
    loads.peek().is_some() && loads.all(is_near)
}

/// Scratch memory for the state of the rows that are combined at once.
pub(super) fn state(lowering: &mut Lowering, name: &str, dtype: DType) -> BufferId {
    lowering.program.buffers.push(Buffer {
        name: name.to_string(),
        dtype,
        elems: MAX_ROWS.into(),
        space: MemorySpace::Scratch,
    })
}

/// The element of the state of a row.
pub(super) fn element(buffer: BufferId, slot: &Symbol) -> Access {
    Access { buffer, index: Dim::from(slot) }
}

/// The loops of the operator over these rows and steps. The order of the rows is that of `address`.
pub(super) fn lower(
    scope: &mut KernelScope,
    rows: Vec<Axis>,
    steps: Axis,
    codes: &RowWise,
    address: &Dim,
) -> Result<Vec<Stmt>> {
    let parts = [&codes.start, &codes.step, &codes.finish];
    let exprs: Vec<Vec<Dim>> = parts.iter().map(|code| exprs_of(code)).collect();
    let mut nest = Nest::new(rows, vec![steps.clone()], exprs.concat());
    nest.order_by(&scope.facts, AxisRole::Kept, address);
    nest.merge(scope);

    let mut outer = nest.axes(AxisRole::Kept);
    let inner = outer.pop().ok_or_else(|| Error::internal("there is one row"))?;
    let is_divided = inner.extent.as_i64().is_none_or(|extent| extent > MAX_ROWS);
    let (first, len) = if is_divided {
        let chunk = scope.fresh("i");
        let n_chunks = scope.facts.simplify(&inner.extent.ceil_div(MAX_ROWS));
        scope.facts.declare_index(&chunk, &n_chunks);
        let first = Dim::from(&chunk) * MAX_ROWS;
        outer.push(Axis { var: chunk, extent: n_chunks });
        let len = Dim::min(&(&inner.extent - &first), Dim::from(MAX_ROWS));
        (first, len)
    } else {
        (Dim::zero(), inner.extent.clone())
    };

    let mut rest = &nest.exprs[..];
    let mut strips = Vec::new();
    for (code, exprs) in parts.into_iter().zip(exprs) {
        let (own, others) = rest.split_at(exprs.len());
        rest = others;
        let var = scope.fresh("i");
        scope.facts.declare_index(&var, &len);
        let at = scope.facts.simplify(&(&first + Dim::from(&var)));
        let value_of = |symbol: &Symbol| match symbol {
            symbol if *symbol == inner.var => Some(at.clone()),
            symbol if *symbol == codes.slot => Some(Dim::from(&var)),
            _ => None,
        };
        let own: Vec<Dim> =
            own.iter().map(|expr| scope.facts.simplify(&expr.substitute(&value_of))).collect();
        strips.push(strip(scope, Axis { var, extent: len.clone() }, with_exprs(code, &own)));
    }

    let finish = strips.pop().unwrap_or_default();
    let each = loops(&[steps], false, strips.pop().unwrap_or_default());
    let start = strips.pop().unwrap_or_default();
    Ok(loops(&outer, true, [start, each, finish].concat()))
}
