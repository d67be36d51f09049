//! Fuses kernels that loop over the same rows: softmax, layer norm and similar operators become one pass.
//!
//! Two neighbours may loop over the same number of rows and touch common buffers row by row only. Then the results
//! stay the same if both bodies run for one row before the next row begins:
//!
//! ```text
//! for r { A(r) }  for r { B(r) }   ⇒   for r { A(r) B(r) }
//! ```
//!
//! A buffer is touched *row by row* when each address is `r * stride + rest` with `0 <= rest < stride`: rows never
//! overlap, so a row of `B` never reads other rows of `A`. A buffer that only the fused kernel touches shrinks to
//! one row of scratch, which stays in the first-level cache.

use super::neighbours;
use crate::{
    Result,
    kernel::{
        Access, Axis, BufferId, Control, Kernel, MemorySpace, Program, Stmt, upper_bound,
        walk::{self, Rewrite},
    },
};
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Facts, Symbol};

/// With at least this many rows, most numbers of threads have work without the loops inside of a row.
const ENOUGH_ROWS: i64 = 16;

/// Fuses all neighbours that can be fused.
pub(super) fn fuse(program: &mut Program) -> Result<()> {
    let kernels = std::mem::take(&mut program.kernels);
    let shared = written_by_several(&kernels);

    program.kernels = neighbours::fuse(kernels, &|before, after| {
        if !may_flow(&shared, before, after) {
            return None;
        }
        let forms = [
            (before.clone(), after.clone()),
            (by_rows(before), after.clone()),
            (before.clone(), by_rows(after)),
        ];
        let (mut whole, after) =
            forms.into_iter().find(|(before, after)| can_join(program, &shared, before, after))?;
        join(program, &mut whole, after);
        Some(whole)
    });
    shrink(program);

    Ok(())
}

/// The one parallel loop that a kernel consists of, if its body has only strips and blocks in loops.
fn rows(kernel: &Kernel) -> Option<(&Axis, &[Stmt])> {
    match &kernel.body[..] {
        [Stmt::For { axis, parallel: true, body }] if body.iter().all(is_plain) => Some((axis, body)),
        _ => None,
    }
}

/// A kernel that is one strip without reductions, as a loop over rows of one element.
fn by_rows(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    if let [Stmt::Strip { axis, code }] = &kernel.body[..] {
        let body = vec![Stmt::Block(code.clone())];
        kernel.body = vec![Stmt::For { axis: axis.clone(), parallel: true, body }];
    }
    kernel
}

/// Whether the body of a parallel loop is another one, so that threads share the iterations of both.
fn is_shared_loop(body: &[Stmt]) -> bool {
    matches!(body, [Stmt::For { parallel: true, .. }])
}

pub(super) fn is_plain(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Block(_) | Stmt::Strip { .. } => true,
        Stmt::For { body, .. } => body.iter().all(is_plain),
        Stmt::Contraction(_) | Stmt::If { .. } | Stmt::While { .. } => false,
    }
}

/// How a loop over rows accesses a buffer.
struct RowAccess {
    is_read: bool,
    is_written: bool,
    /// Elements from one row to the next, if it is touched row by row.
    stride: Option<Dim>,
}

type RowAccesses = BTreeMap<BufferId, RowAccess>;

fn accesses(facts: &Facts, row: &Axis, body: &[Stmt]) -> RowAccesses {
    let mut accesses = RowAccesses::new();
    walk::accesses(body, &mut |site| {
        let mut facts = facts.clone();
        for axis in [row].into_iter().chain(site.axes) {
            facts.declare_index(&axis.var, &axis.extent);
        }

        let stride = stride(&facts, row, &site.access.index);
        let access = accesses.entry(site.access.buffer).or_insert_with(|| RowAccess {
            is_read: false,
            is_written: false,
            stride: stride.clone(),
        });

        access.is_read |= !site.is_store;
        access.is_written |= site.is_store;

        let same = access.stride.as_ref().zip(stride.as_ref());
        if !same.is_some_and(|(old, new)| facts.prove_eq(old, new).is_yes()) {
            access.stride = None;
        }
    });

    accesses
}

/// The elements of a buffer from one row to the next, if these statements of a loop over rows touch it row by row.
pub(super) fn stride_of(program: &Program, row: &Axis, body: &[Stmt], buffer: BufferId) -> Option<Dim> {
    accesses(&program.facts, row, body).remove(&buffer)?.stride
}

/// The row stride of an address that stays within its row.
fn stride(facts: &Facts, row: &Axis, address: &Dim) -> Option<Dim> {
    let (stride, rest) = facts.linear_in(address, &row.var)?;
    let inside = facts.prove_le(&Dim::zero(), &rest).is_yes() && facts.prove_lt(&rest, &stride).is_yes();
    inside.then_some(stride)
}

/// Buffers that several kernels write: each writes a piece of a larger tensor, so they never shrink to scratch.
fn written_by_several(kernels: &[Kernel]) -> BTreeSet<BufferId> {
    let mut once = BTreeSet::new();
    let mut several = BTreeSet::new();
    for kernel in kernels {
        let mut written = BTreeSet::new();
        walk::accesses(&kernel.body, &mut |site| {
            if site.is_store {
                written.insert(site.access.buffer);
            }
        });
        several.extend(written.into_iter().filter(|buffer| !once.insert(*buffer)));
    }

    several
}

/// Whether `after` reads a buffer that `before` alone writes.
fn may_flow(shared: &BTreeSet<BufferId>, before: &Kernel, after: &Kernel) -> bool {
    let mut written = BTreeSet::new();
    walk::accesses(&before.body, &mut |site| {
        if site.is_store && !shared.contains(&site.access.buffer) {
            written.insert(site.access.buffer);
        }
    });
    let mut is_read = false;
    walk::accesses(&after.body, &mut |site| {
        is_read |= !site.is_store && written.contains(&site.access.buffer);
    });
    is_read
}

/// Whether two kernels can be fused, and a buffer between them may become scratch.
fn can_join(program: &Program, shared: &BTreeSet<BufferId>, before: &Kernel, after: &Kernel) -> bool {
    let flows = |written: &BTreeSet<BufferId>| written.iter().any(|buffer| !shared.contains(buffer));
    common_rows(program, before, after).as_ref().is_some_and(flows)
}

/// The buffers that `before` writes and `after` reads, if both loop over the same rows and access all common buffers
/// row by row, so that their loops can be fused.
pub(super) fn common_rows(program: &Program, before: &Kernel, after: &Kernel) -> Option<BTreeSet<BufferId>> {
    let ((row, body), (next_row, next_body)) = rows(before).zip(rows(after))?;
    if !program.facts.prove_eq(&row.extent, &next_row.extent).is_yes() {
        return None;
    }
    // Threads share the rows of the fused kernel alone.
    let has_inner_loop = [body, next_body].iter().any(|body| is_shared_loop(body));
    if has_inner_loop && program.facts.bounds(&row.extent).lo.is_none_or(|lo| lo < ENOUGH_ROWS.into()) {
        return None;
    }

    let first = accesses(&program.facts, row, body);
    let second = accesses(&program.facts, next_row, next_body);
    // Copies to the state stay last: a call that fails before has not changed it.
    if second.iter().any(|(buffer, access)| access.is_written && program.is_overwritten(*buffer)) {
        return None;
    }
    let mut flows = BTreeSet::new();
    for (buffer, access) in &first {
        let Some(next) = second.get(buffer) else { continue };
        if !access.is_written && !next.is_written {
            continue;
        }
        let strides = access.stride.as_ref().zip(next.stride.as_ref());
        if !strides.is_some_and(|(old, new)| program.facts.prove_eq(old, new).is_yes()) {
            return None;
        }
        if access.is_written && next.is_read {
            flows.insert(*buffer);
        }
    }
    Some(flows)
}

/// Appends the rows of `after` to those of `before`.
pub(super) fn join(program: &Program, before: &mut Kernel, after: Kernel) {
    let mut taken: BTreeSet<Symbol> = program.all_symbols().cloned().collect();
    walk::symbols(&before.body, &mut |symbol| _ = taken.insert(symbol.clone()));
    let [Stmt::For { axis: next_row, body: next_body, .. }] = &after.body[..] else { return };
    let [Stmt::For { axis: row, body, .. }] = &mut before.body[..] else { return };

    let mut names: BTreeMap<Symbol, Symbol> = BTreeMap::from([(next_row.var.clone(), row.var.clone())]);
    walk::symbols(next_body, &mut |symbol| {
        let fresh = (0..).map(|n| Symbol::new(&format!("i{n}"))).find(|name| !taken.contains(name));
        let fresh = fresh.unwrap_or_else(|| symbol.clone());
        taken.insert(fresh.clone());
        names.insert(symbol.clone(), fresh);
    });

    let shift = before.locals.len();
    for dtype in after.locals.values() {
        before.locals.push(*dtype);
    }
    body.extend(walk::rewrite(
        next_body,
        &Rewrite {
            dim: &|dim| dim.substitute(&|symbol| names.get(symbol).map(Dim::from)),
            access: &|access| access,
            symbol: &|symbol| names.get(symbol).unwrap_or(symbol).clone(),
            local: &|local| local.after(shift),
        },
    ));
    if !before.name.ends_with(&after.name) {
        before.name = format!("{}, {}", before.name, after.name);
    }
}

/// Turns arena buffers that one kernel accesses row by row, and no other accesses, into scratch of one row.
fn shrink(program: &mut Program) {
    let mut users: BTreeMap<BufferId, usize> = BTreeMap::new();
    for kernel in &program.kernels {
        let mut used = BTreeSet::new();
        walk::accesses(&kernel.body, &mut |site| _ = used.insert(site.access.buffer));
        if let Some((read, written)) = kernel.control.as_ref().map(Control::touched) {
            used.extend(read.into_iter().chain(written));
        }
        used.into_iter().for_each(|buffer| *users.entry(buffer).or_default() += 1);
    }

    for kernel in &mut program.kernels {
        let Some((row, body)) = rows(kernel) else { continue };
        let mut rows_elems = BTreeMap::new();
        for (buffer, access) in accesses(&program.facts, row, body) {
            let is_own =
                matches!(program.buffers[buffer].space, MemorySpace::Arena) && users.get(&buffer) == Some(&1);
            if let (true, Some(stride)) = (is_own, access.stride)
                && let Some(elems) = upper_bound(&program.facts, &program.data_dependent, &stride)
            {
                rows_elems.insert(buffer, elems);
            }
        }

        let row = row.var.clone();
        let facts = &program.facts;
        let body = walk::rewrite(
            &kernel.body,
            &Rewrite {
                dim: &Dim::clone,
                access: &|access| {
                    if rows_elems.contains_key(&access.buffer) {
                        Access { index: without_row(facts, &access.index, &row), ..access }
                    } else {
                        access
                    }
                },
                symbol: &Symbol::clone,
                local: &|local| local,
            },
        );
        kernel.body = body;

        for (buffer, elems) in rows_elems {
            program.buffers[buffer].elems = elems;
            program.buffers[buffer].space = MemorySpace::Scratch;
        }
    }
}

fn without_row(facts: &Facts, address: &Dim, row: &Symbol) -> Dim {
    facts.simplify(&address.substitute(&|symbol| (symbol == row).then(Dim::zero)))
}
