//! Fuses a contraction with the transposition of its result by blocks of rows.
//!
//! A convolution computes the channels of a pixel next to each other. If the model wants planes of pixels, another
//! kernel transposes the whole result, which is no longer in a cache by then. Instead a block of pixels is computed
//! and transposed while it is in the cache:
//!
//! ```text
//! for n, h, w, c { X[n, h, w, c] = .. }   for n { for c { strip p { Y[n, c, p] = f(X[n, p, c]) } } }
//! ⇒  for n { for block of h { for h, w, c { X = .. }  for c { strip p in block { Y = f(X) } } } }
//! ```
//!
//! `X` is accessed row by row, as in `schedule/blocks.rs`, and only by these kernels. So it shrinks to scratch memory
//! for one block.

use super::{
    blocks::{count, merged, row_major},
    epilogues::loops,
    fresh_symbols::FreshSymbols,
    neighbours::{BufferUse, REACH, may_pass},
};
use crate::{
    Result,
    kernel::{
        Access, Axis, Buffer, BufferId, Contraction, Control, InstSeq, Kernel, MemorySpace, Program, Rhs,
        Stmt, upper_bound, verify,
        walk::{self, Rewrite},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};
use symshape::{Dim, Facts, Symbol};

/// Bytes of a block: a part of a second-level cache, which also has panels of the right-hand side.
const BLOCK_BYTES: i64 = 1 << 18;

/// The fewest and the most rows of a block, if the last of their axes divides them.
const BLOCK_ROWS: (i64, i64) = (64, 256);

/// Channels that are transposed one block of rows after another: whole cache lines.
const CHANNEL_STEP: i64 = 16;

/// Fuses all such pairs, where the accesses of the fused kernel are proven to be as safe as before.
pub(super) fn fuse(program: &mut Program) -> Result<()> {
    let private = used_by_two(program);
    let mut at = 1;
    while at < program.kernels.len() {
        let fused = fused(program, &private, at);
        if !fused.is_some_and(|(first, whole, block)| replace(program, first..at, whole, block)) {
            at += 1;
        }
    }
    Ok(())
}

/// Replaces the kernels at both ends of `pair` by `whole`, if the verifier proves it. Returns whether it does.
fn replace(program: &mut Program, pair: Range<usize>, whole: Kernel, block: Block) -> bool {
    let before = program.buffers[block.buffer].clone();
    let of_block = Buffer { elems: block.elems, space: MemorySpace::Scratch, ..before.clone() };
    program.buffers[block.buffer] = of_block;
    let is_proven = verify::is_proven(program, &whole);
    if is_proven {
        program.kernels[pair.start] = whole;
        program.kernels.remove(pair.end);
    } else {
        program.buffers[block.buffer] = before;
    }
    is_proven
}

/// The buffer that shrinks to a block, and the elements of the block.
struct Block {
    buffer: BufferId,
    elems: Dim,
}

/// The position of the contraction whose result the kernel at `at` transposes, and the fusion of both. It takes the
/// place of the contraction, so that kernels that may run at the same time stay where they are.
fn fused(program: &Program, private: &BTreeSet<BufferId>, at: usize) -> Option<(usize, Kernel, Block)> {
    let kernels = &program.kernels;
    let after = &kernels[at];
    let positions = (at.saturating_sub(REACH + 1)..at).rev();
    let mut reachable = positions.take_while(|first| may_pass(&kernels[first + 1..at], after));
    reachable.find_map(|first| {
        let before = &kernels[first];
        let pair = Pair::of(program, private, before, after)?;
        let (whole, elems) = pair.join(program, before, after)?;
        Some((first, whole, Block { buffer: pair.buffer, elems }))
    })
}

/// The buffers in the arena that two kernels use.
fn used_by_two(program: &Program) -> BTreeSet<BufferId> {
    let mut users: BTreeMap<BufferId, usize> = BTreeMap::new();
    for kernel in &program.kernels {
        let BufferUse { read, written } = BufferUse::by(kernel);
        let controls = kernel.control.as_ref().map(Control::touched);
        let controlled = controls.into_iter().flat_map(|(read, written)| [read, written].concat());
        let used: BTreeSet<BufferId> = read.into_iter().chain(written).chain(controlled).collect();
        used.into_iter().for_each(|buffer| *users.entry(buffer).or_default() += 1);
    }
    let is_private = |buffer: &BufferId| matches!(program.buffers[*buffer].space, MemorySpace::Arena);
    users
        .into_iter()
        .filter(|(buffer, users)| *users == 2 && is_private(buffer))
        .map(|(buffer, _)| buffer)
        .collect()
}

/// The loops around the only innermost statement of a kernel, outermost first, and the statement.
fn nest(kernel: &Kernel) -> Option<(Vec<&Axis>, &Stmt)> {
    let mut loops = Vec::new();
    let mut body = &kernel.body[..];
    while let [Stmt::For { axis, body: inner, .. }] = body {
        loops.push(axis);
        body = inner;
    }
    let [stmt] = body else { return None };
    Some((loops, stmt))
}

/// A contraction and the kernel that transposes its result.
struct Pair<'k> {
    /// The loops around the contraction, such as the groups of channels.
    groups: Vec<&'k Axis>,
    contraction: &'k Contraction,
    /// The loops around those over channels and rows.
    outer: Vec<&'k Axis>,
    channels: &'k Axis,
    /// The strip over rows.
    strip: &'k Axis,
    code: &'k InstSeq,
    /// How many row axes each of `outer` and the strip counts as one.
    merged: Vec<usize>,
    /// The buffer that is transposed, and its elements from one row to the next.
    buffer: BufferId,
    stride: i64,
}

impl<'k> Pair<'k> {
    /// `None` if the two kernels are not such a pair.
    fn of(
        program: &Program,
        private: &BTreeSet<BufferId>,
        before: &'k Kernel,
        after: &'k Kernel,
    ) -> Option<Pair<'k>> {
        let (groups, Stmt::Contraction(contraction)) = nest(before)? else { return None };
        let (mut outer, Stmt::Strip { axis: strip, code }) = nest(after)? else { return None };
        let channels = outer.pop()?;
        if !matches!(contraction.rhs, Rhs::Panels { .. }) || !code.only_stores() {
            return None;
        }

        let (first, second) = (BufferUse::by(before), BufferUse::by(after));
        let mut flows = first.written.intersection(&second.read);
        let buffer = *flows.next().filter(|buffer| private.contains(buffer))?;
        let is_apart = flows.next().is_none()
            && !first.read.contains(&buffer)
            && second.written.is_disjoint(&first.read)
            && second.written.is_disjoint(&first.written)
            && !second.written.iter().any(|buffer| program.is_overwritten(*buffer));
        if !is_apart {
            return None;
        }

        let rows: Vec<Axis> = outer.iter().chain([&strip]).map(|axis| (*axis).clone()).collect();
        let merged = merged(&program.facts, &contraction.m, &rows)?;
        let stride =
            (program.facts.simplify(&contraction.n.extent) * count(groups.iter().copied())).as_i64()?;
        let pair = Pair { groups, contraction, outer, channels, strip, code, merged, buffer, stride };
        pair.accesses_by_rows(program, before, after).then_some(pair)
    }

    /// Whether both kernels access the buffer row by row, the second one with the channels of a row in its loop.
    fn accesses_by_rows(&self, program: &Program, before: &Kernel, after: &Kernel) -> bool {
        let computed = row_major(self.contraction.m.iter().map(|axis| (&axis.extent, Dim::from(&axis.var))));
        let rows = self.outer.iter().chain([&self.strip]);
        let transposed = row_major(rows.map(|axis| (&axis.extent, Dim::from(&axis.var))));
        let mut are_by_rows = self.stride > 1;
        for (kernel, row) in [(before, computed), (after, transposed)] {
            walk::accesses(&kernel.body, &mut |site| {
                if site.access.buffer == self.buffer {
                    let mut facts = program.facts.clone();
                    site.axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
                    let rest = facts.simplify(&(&site.access.index - &row * self.stride));
                    are_by_rows &= self.is_within_row(&facts, &rest);
                }
            });
        }
        are_by_rows
    }

    /// Whether `rest` is a place within each row.
    fn is_within_row(&self, facts: &Facts, rest: &Dim) -> bool {
        let rows = self.contraction.m.iter().chain(self.outer.iter().copied()).chain([self.strip]);
        !rows.into_iter().any(|axis| rest.contains(&axis.var))
            && facts.prove_le(&Dim::zero(), rest).is_yes()
            && facts.prove_lt(rest, &self.stride.into()).is_yes()
    }

    /// The fused kernel, and the elements of a block.
    fn join(&self, program: &Program, before: &Kernel, after: &Kernel) -> Option<(Kernel, Dim)> {
        let symbols = FreshSymbols::for_one_kernel(program);
        let mut symbols = symbols.outside_of(&before.body).outside_of(&after.body);
        let m = &self.contraction.m;
        let n_inner = self.merged.last()? - 1;
        let (leading, inner) = m.split_at(m.len() - n_inner);
        let (divided, leading) = leading.split_last()?;
        let inner_rows = count(inner);

        let (fewest, most) = BLOCK_ROWS;
        let rows = Dim::from((BLOCK_BYTES / 4 / self.stride).clamp(fewest, most));
        let steps = if inner.is_empty() { rows } else { (rows + (&inner_rows - 1)).floor_div(&inner_rows) };
        let steps = program.facts.simplify(&steps);
        let block = Axis {
            var: symbols.fresh(),
            extent: program.facts.simplify(&(&divided.extent + (&steps - 1)).floor_div(&steps)),
        };
        let start = Dim::from(&block.var) * &steps;
        let mut facts = program.facts.clone();
        leading.iter().chain([&block]).for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        let extent = facts.simplify(&(&divided.extent - &start).min(steps.clone()));
        let step = Axis { var: symbols.fresh(), extent: extent.clone() };

        // From the place of a row among all rows to that within the block.
        let first_row = leading.iter().map(|axis| (&axis.extent, Dim::from(&axis.var)));
        let first_row = row_major(first_row.chain([(&divided.extent, start.clone())])) * &inner_rows;
        let shift = -first_row * self.stride;

        let computed = BTreeMap::from([(divided.var.clone(), &start + Dim::from(&step.var))]);
        let product = Contraction { m: [&[step], inner].concat(), ..self.contraction.clone() };
        let product = self.rewritten(&facts, &computed, &shift, 0, &[Stmt::Contraction(Box::new(product))]);
        let groups: Vec<Axis> = self.groups.iter().copied().cloned().collect();
        let product = loops(&groups, false, product);

        let mut transposed = BTreeMap::new();
        let mut at = 0;
        for (axis, len) in self.outer.iter().zip(&self.merged) {
            let merged = leading[at..at + len].iter().map(|axis| (&axis.extent, Dim::from(&axis.var)));
            transposed.insert(axis.var.clone(), row_major(merged));
            at += len;
        }
        let pixel = Axis { var: symbols.fresh(), extent: facts.simplify(&(&extent * &inner_rows)) };
        // The strip begins with its own part of the row axes that it counts as one.
        transposed.insert(self.strip.var.clone(), &start * &inner_rows + Dim::from(&pixel.var));
        let channel_block =
            Axis { var: symbols.fresh(), extent: self.channels.extent.ceil_div(CHANNEL_STEP) };
        let first_channel = Dim::from(&channel_block.var) * CHANNEL_STEP;
        let channel = Axis {
            var: symbols.fresh(),
            extent: Dim::min(&(&self.channels.extent - &first_channel), CHANNEL_STEP),
        };
        transposed.insert(self.channels.var.clone(), first_channel + Dim::from(&channel.var));
        facts.declare_index(&channel_block.var, &channel_block.extent);
        let strip = Stmt::Strip { axis: pixel, code: self.code.clone() };
        let strip = self.rewritten(&facts, &transposed, &shift, before.locals.len(), &[strip]);

        let body = [product, loops(&[channel_block, channel], false, strip)].concat();
        let mut whole = before.clone();
        whole.body = loops(&[leading, &[block]].concat(), true, body);
        after.locals.values().for_each(|dtype| _ = whole.locals.push(*dtype));
        whole.name = format!("{}, {}", before.name, after.name);

        let elems =
            upper_bound(&program.facts, &program.data_dependent, &(steps * inner_rows * self.stride))?;
        Some((whole, elems))
    }

    /// Statements with other values of the row variables, which access the block.
    fn rewritten(
        &self,
        facts: &Facts,
        values: &BTreeMap<Symbol, Dim>,
        shift: &Dim,
        first_local: usize,
        body: &[Stmt],
    ) -> Vec<Stmt> {
        let by = Rewrite {
            dim: &|dim| dim.substitute(&|symbol| values.get(symbol).cloned()),
            access: &|access| {
                let index = if access.buffer == self.buffer { access.index + shift } else { access.index };
                Access { index: facts.simplify(&index), ..access }
            },
            symbol: &Symbol::clone,
            local: &|local| local.after(first_local),
        };
        walk::rewrite(body, &by)
    }
}
