//! Fuses kernels that write pieces of a tensor with the one that reads it: the planes of a padded image.
//!
//! Padding takes a kernel for each border, and one for the image. If all of them and their reader loop over the same
//! planes, one kernel pads a plane and reads it while it is in the cache, and the padded image shrinks to a plane of
//! scratch memory (`schedule/rows.rs`):
//!
//! ```text
//! for p { border(p) }   for p { image(p) }   for n { for c { reader(n, c) } }
//! ⇒  for p { border(p)  image(p)  reader(p // channels, p % channels) }
//! ```
//!
//! The borders of a plane become one strip that fills the whole plane.

use super::{neighbours::BufferUse, rows};
use crate::{
    Result,
    kernel::{
        Access, Axis, BufferId, Control, Inst, InstSeq, Kernel, MemorySpace, Program, Stmt,
        at_distance::AtDistance,
        walk::{self, Rewrite},
    },
    scalar::{Reg, Scalar},
};
use std::{cell::RefCell, convert::Infallible};
use symshape::{Dim, Symbol};

/// Fuses all runs of such kernels.
pub(super) fn fuse(program: &mut Program) -> Result<()> {
    let mut reader = 0;
    while reader < program.kernels.len() {
        if let Some((first, whole)) = fused(program, reader) {
            program.kernels.splice(first..=reader, [whole]);
            reader = first;
        }
        reader += 1;
    }
    Ok(())
}

/// The fusion of a kernel with those directly before it that write pieces of a tensor that it alone reads, and the
/// position of the first one.
fn fused(program: &Program, reader: usize) -> Option<(usize, Kernel)> {
    let kernels = &program.kernels;
    if !kernels[reader].body.iter().all(rows::is_plain) {
        return None;
    }
    let BufferUse { read, .. } = BufferUse::by(&kernels[reader]);
    let (buffer, first) =
        read.into_iter().find_map(|buffer| Some((buffer, first_piece(program, buffer, reader)?)))?;

    let mut whole = kernels[first].clone();
    for piece in &kernels[first + 1..reader] {
        rows::common_rows(program, &whole, piece)?;
        rows::join(program, &mut whole, piece.clone());
    }
    fill(program, &mut whole, buffer);
    let flows = |reader: &Kernel| {
        rows::common_rows(program, &whole, reader).is_some_and(|flows| flows.contains(&buffer))
    };
    let kernel = &kernels[reader];
    let reader = if flows(kernel) { kernel.clone() } else { merged(program, kernel).filter(flows)? };
    rows::join(program, &mut whole, reader);
    Some((first, whole))
}

/// Replaces pieces that store a constant before all others by one strip over the whole row. It takes more stores than
/// they do, but vectors instead of columns of single elements.
fn fill(program: &Program, kernel: &mut Kernel, buffer: BufferId) {
    let [Stmt::For { axis: row, body, .. }] = &mut kernel.body[..] else { return };
    let Some(constant) = body.first().and_then(|piece| stored_constant(piece, buffer)) else { return };
    let pieces = body.iter().take_while(|piece| stored_constant(piece, buffer) == Some(constant)).count();
    let Some(stride) = rows::stride_of(program, row, &body[..1], buffer) else { return };
    let elems = &program.buffers[buffer].elems;
    let is_within = program.facts.prove_le(&(&stride * &row.extent), elems).is_yes();
    if pieces < 2 || !is_within {
        return;
    }

    let Stmt::Strip { axis, .. } = &body[0] else { return };
    let axis = Axis { var: axis.var.clone(), extent: stride.clone() };
    let index = program.facts.simplify(&(stride * Dim::from(&row.var) + Dim::from(&axis.var)));
    let mut code = InstSeq::default();
    let value = code.push(Inst::Const(constant));
    code.push(Inst::Store(Access { buffer, index }, value));
    body.splice(..pieces, [Stmt::Strip { axis, code }]);
}

/// The constant of a strip that only stores it to `buffer`.
fn stored_constant(piece: &Stmt, buffer: BufferId) -> Option<Scalar> {
    let Stmt::Strip { code, .. } = piece else { return None };
    match &code.insts[..] {
        [Inst::Const(constant), Inst::Store(access, Reg(0))] if access.buffer == buffer => Some(*constant),
        _ => None,
    }
}

/// The position of the first of several kernels directly before `reader` that write `buffer`, if no other kernel uses
/// it.
fn first_piece(program: &Program, buffer: BufferId, reader: usize) -> Option<usize> {
    let kernels = &program.kernels;
    let writes = |kernel: &Kernel| BufferUse::by(kernel).written.contains(&buffer);
    let first = kernels[..reader].iter().rposition(|kernel| !writes(kernel)).map_or(0, |before| before + 1);
    let are_pieces = matches!(program.buffers[buffer].space, MemorySpace::Arena)
        && first + 1 < reader
        && kernels[first..=reader].iter().all(|kernel| kernel.control.is_none())
        && !writes(&kernels[reader]);

    let touches = |kernel: &Kernel| {
        let BufferUse { read, written } = BufferUse::by(kernel);
        let controls = kernel.control.as_ref().map(Control::touched);
        let controlled = controls.into_iter().flat_map(|(read, written)| [read, written].concat());
        read.contains(&buffer)
            || written.contains(&buffer)
            || controlled.into_iter().any(|used| used == buffer)
    };
    let mut others = kernels[..first].iter().chain(&kernels[reader + 1..]);
    (are_pieces && !others.any(touches)).then_some(first)
}

/// A kernel with its two outermost loops as one, over the iterations of both.
fn merged(program: &Program, kernel: &Kernel) -> Option<Kernel> {
    let [Stmt::For { axis: outer, parallel: true, body }] = &kernel.body[..] else { return None };
    let [Stmt::For { axis: inner, parallel: true, body }] = &body[..] else { return None };
    let facts = &program.facts;
    let extent = facts.simplify(&(&outer.extent * &inner.extent));
    let axis = Axis { var: outer.var.clone(), extent };

    let iteration = Dim::from(&axis.var);
    let [of_outer, of_inner] = [iteration.floor_div(&inner.extent), iteration.modulo(&inner.extent)];
    let value = |symbol: &Symbol| {
        let is_outer = (symbol == &outer.var).then(|| of_outer.clone());
        is_outer.or_else(|| (symbol == &inner.var).then(|| of_inner.clone()))
    };
    let known = RefCell::new(AtDistance::new(facts));
    let dim = |dim: &Dim| {
        let compute = || {
            let merged = inner.merged_address(facts, dim, outer, &axis.var);
            Ok::<_, Infallible>(merged.unwrap_or_else(|| facts.simplify(&dim.substitute(&value))))
        };
        let Ok((merged, distance)) = known.borrow_mut().get((), dim, compute);
        facts.simplify(&(merged + distance))
    };
    let body = walk::rewrite(body, &Rewrite::dims(&dim));
    Some(Kernel { body: vec![Stmt::For { axis, parallel: true, body }], ..kernel.clone() })
}
