//! Computes several neighbouring iterations of one or two loops in one iteration, if they read the same memory or store
//! neighbouring elements.
//!
//! Windows of neighbouring outputs overlap, and all of them are multiplied with the same weights. A strip that
//! computes a few outputs in one iteration loads shared elements once, and its independent accumulators hide
//! latencies.
//!
//! ```text
//! for x in 0..E { strip c { y[x] = f(a[x], a[x + 1], w) } }
//! ⇒  for x in 0..E / 2 { strip c { y[2x] = f(a[2x], a[2x + 1], w); y[2x + 1] = f(a[2x + 1], a[2x + 2], w) } }
//!    for x in E - E % 2..E { … }
//! ```
//!
//! Neighbours alternate step by step. A step is, for example, an addition with the loads and multiplications that it
//! depends on. If a neighbour reads an element that another one reads a few steps later, the neighbour is delayed by
//! that number of steps. Then all of them use an element as soon as it is loaded, which takes few registers. Every
//! output is computed by the same instructions as before.
//!
//! A strip that stores each third element, as a channel of an image, becomes one that stores three channels.

mod addresses;

use super::fresh_symbols::FreshSymbols;
use crate::{
    Result,
    kernel::{
        Access, Axis, BufferId, Inst, InstSeq, Program, Stmt,
        lanes::op::{GROUP_BYTES, GROUP_STREAMS},
        walk::Rewrite,
    },
    scalar::{BinaryOp, Reg},
};
use addresses::{Addresses, Offsets, OldVariable, OldVariables};
use num_traits::ToPrimitive;
use std::collections::BTreeSet;
use symshape::{Dim, Facts, Symbol};

/// The largest number of neighbours along the outer and the inner loop. Their accumulators fit into few registers, and
/// are enough to hide the latency of an instruction.
const MAX_NEIGHBOURS: [i64; 2] = [2, 4];

/// As [`MAX_NEIGHBOURS`], along an inner loop with at least [`MIN_INSTS_OF_MANY`] instructions in an iteration, whose
/// iterations access memory at constant distances. The neighbours then share the registers that hold addresses. Calls
/// gain no time from more neighbours in short iterations, whose code takes longer to compile.
const MANY_NEIGHBOURS: i64 = 8;

/// See [`MANY_NEIGHBOURS`].
const MIN_INSTS_OF_MANY: usize = 128;

/// The sizes of groups of the iterations that fill no group of the chosen size.
const SMALLER_GROUPS: [i64; 2] = [4, 1];

/// The smallest number of loads in an iteration for which sharing pays.
const MIN_LOADS: usize = 6;

/// The smallest ratio of shared loads to all loads for which sharing pays.
const MIN_SHARED: (usize, usize) = (1, 4);

/// The largest number of instructions in an iteration.
const MAX_INSTS: usize = 256;

/// The largest number of stores in an iteration. With more, it computes neighbours already, as the tiles of Winograd's
/// filtering do.
const MAX_STORES: usize = 3;

/// As [`MAX_INSTS`], with neighbours along both loops.
const MAX_INSTS_OF_BOTH_LOOPS: usize = 64;

/// As [`MAX_INSTS`], with channels whose elements are stored together.
const MAX_INSTS_OF_CHANNELS: usize = 64;

/// The largest delay of a neighbour, as a ratio of the number of steps.
const MAX_DELAY: (usize, usize) = (1, 3);

/// Rewrites all loops for which it pays.
pub(super) fn unroll_and_jam(program: &mut Program) -> Result<()> {
    let symbols = FreshSymbols::for_one_kernel(program);
    let facts = program.facts.clone();
    let buffers = std::mem::take(&mut program.buffers);
    let is_grouped = |buffer: BufferId| GROUP_BYTES.contains(&buffers[buffer].dtype.size_bytes());
    for kernel in &mut program.kernels {
        // Kernels of equal layers get equal symbols, so that the facts remember answers about their addresses.
        let mut symbols = symbols.outside_of(&kernel.body);
        kernel.body = stmts(&mut symbols, &facts, &is_grouped, std::mem::take(&mut kernel.body));
    }
    program.buffers = buffers;
    Ok(())
}

/// `is_grouped` tells whether neighbouring elements of a buffer can be stored together.
fn stmts(
    symbols: &mut FreshSymbols,
    facts: &Facts,
    is_grouped: &dyn Fn(BufferId) -> bool,
    body: Vec<Stmt>,
) -> Vec<Stmt> {
    body.into_iter()
        .flat_map(|stmt| match stmt {
            Stmt::For { axis, parallel, body } => looped(symbols, facts, is_grouped, axis, parallel, body),
            other => vec![other],
        })
        .collect()
}

/// Rewrites one loop.
fn looped(
    symbols: &mut FreshSymbols,
    facts: &Facts,
    is_grouped: &dyn Fn(BufferId) -> bool,
    axis: Axis,
    parallel: bool,
    body: Vec<Stmt>,
) -> Vec<Stmt> {
    let nest = Nest::of(&axis, parallel, &body);
    if let Some(shape) = nest.as_ref().and_then(|nest| nest.shape(facts, is_grouped)) {
        return nest.expect("it has a shape").jammed(symbols, facts, shape);
    }
    let mut facts = facts.clone();
    facts.declare_index(&axis.var, &axis.extent);
    let was_one = body.len() == 1;
    let body = stmts(symbols, &facts, is_grouped, body);
    if !(parallel && was_one) {
        return vec![Stmt::For { axis, parallel, body }];
    }

    // Each statement gets a loop, so that threads can share each together with the loop inside of it.
    body.into_iter()
        .enumerate()
        .map(|(k, stmt)| {
            let var = if k == 0 { axis.var.clone() } else { symbols.fresh() };
            let stmt = renamed(&stmt, &axis.var, &var);
            Stmt::For { axis: Axis { var, extent: axis.extent.clone() }, parallel, body: vec![stmt] }
        })
        .collect()
}

/// The statement with another variable of a loop around it.
pub(super) fn renamed(stmt: &Stmt, from: &Symbol, to: &Symbol) -> Stmt {
    Rewrite::dims(&|dim| replaced(dim, from, &Dim::from(to))).stmt(stmt)
}

fn replaced(dim: &Dim, var: &Symbol, to: &Dim) -> Dim {
    dim.substitute(&|symbol| (symbol == var).then(|| to.clone()))
}

/// A strip in one loop, or in two.
struct Nest<'a> {
    outer: Option<(&'a Axis, bool)>,
    inner: (&'a Axis, bool),
    along: &'a Axis,
    code: &'a InstSeq,
}

impl<'a> Nest<'a> {
    fn of(axis: &'a Axis, parallel: bool, body: &'a [Stmt]) -> Option<Nest<'a>> {
        match body {
            [Stmt::Strip { axis: along, code }] => {
                Some(Nest { outer: None, inner: (axis, parallel), along, code })
            }
            [Stmt::For { axis: inner, parallel: too, body }] => match &body[..] {
                [Stmt::Strip { axis: along, code }] if !inner.extent.contains(&axis.var) => {
                    Some(Nest { outer: Some((axis, parallel)), inner: (inner, *too), along, code })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The number of neighbours along both loops to compute in one iteration, if that pays.
    fn shape(&self, facts: &Facts, is_grouped: &dyn Fn(BufferId) -> bool) -> Option<Offsets> {
        if !self.is_free() || self.code.insts.len() > MAX_INSTS || self.stores() > MAX_STORES {
            return None;
        }
        if let Some(channels) = self.channels(facts, is_grouped) {
            return Some([1, channels]);
        }
        let at_most = |axis: &Axis, max: i64| match facts.bounds(&axis.extent).hi.and_then(|hi| hi.to_i64()) {
            Some(hi) => hi.clamp(1, max),
            None => max,
        };
        let has_many = self.code.insts.len() >= MIN_INSTS_OF_MANY && self.is_regular(facts);
        let most = if has_many { MANY_NEIGHBOURS } else { MAX_NEIGHBOURS[1] };
        let columns = at_most(self.inner.0, most);
        let rows = match self.outer {
            Some((axis, _)) if self.code.insts.len() <= MAX_INSTS_OF_BOTH_LOOPS => {
                at_most(axis, MAX_NEIGHBOURS[0])
            }
            _ => 1,
        };

        let [_, loads] = self.loads(facts, [1, 1], None);
        let [distinct, all] = self.loads(facts, [1, columns], None);
        if loads < MIN_LOADS || (all - distinct) * MIN_SHARED.1 < all * MIN_SHARED.0 {
            return None;
        }

        // Windows must overlap. Elements that do not move with a loop don't count: any iterations share them.
        let overlap = |shape: Offsets, axis: &Axis| {
            let [distinct, all] = self.loads(facts, shape, Some(&axis.var));
            distinct < all
        };
        let rows = match self.outer {
            Some((axis, _)) if rows > 1 && overlap([rows, 1], axis) => rows,
            _ => 1,
        };
        (columns > 1 && overlap([1, columns], self.inner.0)).then_some([rows, columns])
    }

    /// The number of iterations of the inner loop, if they store neighbouring elements, and the strip fills the
    /// distance between two elements with them.
    fn channels(&self, facts: &Facts, is_grouped: &dyn Fn(BufferId) -> bool) -> Option<i64> {
        let channels = self.inner.0.extent.as_i64()?;
        let is_group = usize::try_from(channels).is_ok_and(|channels| GROUP_STREAMS.contains(&channels));
        if !is_group || self.code.insts.len() > MAX_INSTS_OF_CHANNELS {
            return None;
        }
        let mut stores = self.code.insts.iter().filter_map(|inst| match inst {
            Inst::Store(access, _) => Some(access),
            _ => None,
        });
        let (Some(access), None) = (stores.next(), stores.next()) else { return None };
        if !is_grouped(access.buffer) {
            return None;
        }

        let mut facts = self.declared(facts);
        facts.declare_index(&self.along.var, &self.along.extent);
        let mut forms = facts.normal_forms();
        let mut step = |axis: &Axis| {
            let next = replaced(&access.index, &axis.var, &(Dim::from(&axis.var) + 1));
            forms.difference(&next, &access.index)?.to_i64()
        };
        (step(self.inner.0) == Some(1) && step(self.along) == Some(channels)).then_some(channels)
    }

    /// The number of stores in an iteration.
    fn stores(&self) -> usize {
        self.code.insts.iter().filter(|inst| matches!(inst, Inst::Store(..))).count()
    }

    /// Whether iterations are independent: they only store, and read no buffer that they store to.
    fn is_free(&self) -> bool {
        let is_free =
            |inst: &Inst| !matches!(inst, Inst::Bind(..) | Inst::Set(..) | Inst::Reduce(..) | Inst::Check(_));
        self.code.insts.iter().all(is_free) && self.code.stores_elsewhere()
    }

    /// Whether iterations of the inner loop access memory at constant distances.
    fn is_regular(&self, facts: &Facts) -> bool {
        let mut forms = self.declared(facts).normal_forms();
        self.code.accesses().all(|(access, _)| {
            forms.difference(&self.shifted(&access.index, [0, 1]), &access.index).is_some()
        })
    }

    /// The number of distinct elements that neighbours load, and the number of loads. With `moving`, only loads that
    /// move with this variable count.
    fn loads(&self, facts: &Facts, shape: Offsets, moving: Option<&Symbol>) -> [usize; 2] {
        let mut forms = self.declared(facts).normal_forms();
        let loads = self.code.insts.iter().filter_map(|inst| match inst {
            Inst::Load(access) if moving.is_none_or(|var| access.index.contains(var)) => Some(access),
            _ => None,
        });

        let mut distinct = BTreeSet::<(BufferId, usize)>::new();
        let mut all = 0;
        for access in loads {
            for offsets in neighbours(shape) {
                let at = forms.id(&self.shifted(&access.index, offsets));
                distinct.insert((access.buffer, at));
                all += 1;
            }
        }

        [distinct.len(), all]
    }

    fn declared(&self, facts: &Facts) -> Facts {
        let mut facts = facts.clone();
        for (axis, _) in self.outer.into_iter().chain([self.inner]) {
            facts.declare_index(&axis.var, &axis.extent);
        }
        facts
    }

    /// An expression at a neighbour.
    fn shifted(&self, dim: &Dim, offsets: Offsets) -> Dim {
        let mut dim = dim.clone();
        for (axis, by) in self.axes().into_iter().zip(offsets) {
            if let (Some(axis), true) = (axis, by != 0) {
                dim = replaced(&dim, &axis.var, &(Dim::from(&axis.var) + by));
            }
        }
        dim
    }

    fn axes(&self) -> [Option<&'a Axis>; 2] {
        [self.outer.map(|(axis, _)| axis), Some(self.inner.0)]
    }

    /// Loops over full groups of neighbours, followed by loops over the remaining iterations.
    fn jammed(&self, symbols: &mut FreshSymbols, facts: &Facts, [rows, columns]: Offsets) -> Vec<Stmt> {
        let Some((outer, parallel)) = self.outer else {
            return self.columns(symbols, facts, columns, 1, &Dim::zero());
        };

        let mut loops = Vec::new();
        for (first, extent, height) in runs(facts, &outer.extent, rows) {
            let axis = Axis { var: symbols.fresh(), extent };
            let mut facts = facts.clone();
            facts.declare_index(&axis.var, &axis.extent);
            let row = Dim::from(&axis.var) * height + first;
            let body = self.columns(symbols, &facts, columns, height, &row);
            loops.push(Stmt::For { axis, parallel, body });
        }

        loops
    }

    /// The loops along the inner axis, for `height` rows from `row` on.
    fn columns(
        &self,
        symbols: &mut FreshSymbols,
        facts: &Facts,
        max_width: i64,
        height: i64,
        row: &Dim,
    ) -> Vec<Stmt> {
        let (axis, parallel) = self.inner;
        let mut loops = Vec::new();
        let runs = runs(facts, &axis.extent, max_width);
        // The strip of the only group replaces the loop, so that the outer loop is one over rows.
        let is_one_group =
            self.outer.is_some() && matches!(&runs[..], [(_, count, _)] if count.as_i64() == Some(1));
        for (first, extent, width) in runs {
            let inner = Axis { var: symbols.fresh(), extent };
            let mut inside = facts.clone();
            inside.declare_index(&inner.var, &inner.extent);
            let along = Axis { var: symbols.fresh(), extent: self.along.extent.clone() };
            let column = if is_one_group { first } else { Dim::from(&inner.var) * width + first };
            let outer = self.outer.map(|(axis, _)| OldVariable { var: &axis.var, first: row.clone() });
            let old = OldVariables {
                loops: [outer, Some(OldVariable { var: &axis.var, first: column })],
                along: OldVariable { var: &self.along.var, first: Dim::from(&along.var) },
            };
            let mut addresses = Addresses::new(old, &self.declared(facts), &inside);
            let mut at = |dim: &Dim, offsets| addresses.at(dim, offsets);
            let code = interleaved(self.code, [height, width], &mut at);
            let strip = Stmt::Strip { axis: along, code };
            loops.push(if is_one_group {
                strip
            } else {
                Stmt::For { axis: inner, parallel, body: vec![strip] }
            });
        }

        loops
    }
}

/// The first index, the number and the size of the groups of `size` iterations in `extent`, and of the remaining
/// iterations. These form one group if their number is known, otherwise groups of [`SMALLER_GROUPS`].
fn runs(facts: &Facts, extent: &Dim, size: i64) -> Vec<(Dim, Dim, i64)> {
    let sizes = SMALLER_GROUPS.iter().copied().filter(|smaller| *smaller < size);
    let mut runs = Vec::new();
    let mut first = Dim::zero();
    let mut rest = extent.clone();
    for size in std::iter::once(size).chain(sizes) {
        let count = facts.simplify(&rest.floor_div(size));
        let next = facts.simplify(&(&first + &count * size));
        rest = facts.simplify(&(extent - &next));
        runs.push((std::mem::replace(&mut first, next), count, size));
        if let Some(rest) = rest.as_i64() {
            runs.push((first, Dim::one(), rest));
            break;
        }
    }
    runs.retain(|(_, count, size)| count.as_i64() != Some(0) && *size > 0);
    runs
}

/// All neighbours of a group.
fn neighbours([rows, columns]: Offsets) -> impl Iterator<Item = Offsets> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| [row, column]))
}

/// The code of all neighbours, interleaved. Loads and constants are shared.
fn interleaved(code: &InstSeq, shape: Offsets, at: &mut dyn FnMut(&Dim, Offsets) -> Dim) -> InstSeq {
    let neighbours: Vec<Offsets> = neighbours(shape).collect();
    let steps = steps(code);
    let delays = [0, 1].map(|axis| delay(code, &steps, shape, axis, &mut *at));
    let mut order: Vec<(usize, usize, usize)> = Vec::new();
    for (neighbour, offsets) in neighbours.iter().enumerate() {
        let delay = delays[0] * offsets[0] as usize + delays[1] * offsets[1] as usize;
        order.extend(steps.iter().enumerate().map(|(idx, step)| (step + delay, neighbour, idx)));
    }
    order.sort_unstable();

    let mut joint = InstSeq::default();
    let mut regs = vec![vec![Reg(0); code.insts.len()]; neighbours.len()];
    let mut known: Vec<(Inst, Reg)> = Vec::new();
    for (_, neighbour, idx) in order {
        let of = |reg: Reg| regs[neighbour][reg.0 as usize];
        let mut access =
            |access: &Access| Access { index: at(&access.index, neighbours[neighbour]), ..access.clone() };
        let new = match &code.insts[idx] {
            Inst::Load(from) => Inst::Load(access(from)),
            Inst::Store(to, reg) => Inst::Store(access(to), of(*reg)),
            Inst::Index(dtype, dim) => Inst::Index(*dtype, at(dim, neighbours[neighbour])),
            other => other.with_operands(&of),
        };

        let is_shareable = matches!(new, Inst::Load(_) | Inst::Const(_) | Inst::Index(..));
        let old = is_shareable.then(|| known.iter().find(|(inst, _)| *inst == new)).flatten();
        let reg = match old {
            Some((_, reg)) => *reg,
            None => {
                let reg = joint.push(new.clone());
                if is_shareable {
                    known.push((new, reg));
                }
                reg
            }
        };
        regs[neighbour][idx] = reg;
    }
    joint
}

/// The step of each instruction. A step ends with each instruction that is not a load, a constant or a multiplication.
fn steps(code: &InstSeq) -> Vec<usize> {
    let mut step = 0;
    let step_of = |inst: &Inst| {
        let current = step;
        let continues = matches!(
            inst,
            Inst::Load(_) | Inst::Const(_) | Inst::Index(..) | Inst::Get(_) | Inst::Binary(BinaryOp::Mul, ..)
        );
        step += usize::from(!continues);
        current
    };
    code.insts.iter().map(step_of).collect()
}

/// The number of steps after which a neighbour along this axis reads an element of the neighbour before it. Zero if the
/// neighbours can't be delayed by that much.
fn delay(
    code: &InstSeq,
    steps: &[usize],
    shape: Offsets,
    axis: usize,
    at: &mut dyn FnMut(&Dim, Offsets) -> Dim,
) -> usize {
    if shape[axis] < 2 {
        return 0;
    }
    let mut next = [0; 2];
    next[axis] = 1;
    let mut loads = |offsets: Offsets| -> Vec<(usize, BufferId, Dim)> {
        let load = |(idx, inst): (usize, &Inst)| match inst {
            Inst::Load(access) => Some((steps[idx], access.buffer, at(&access.index, offsets))),
            _ => None,
        };
        code.insts.iter().enumerate().filter_map(load).collect()
    };

    let here = loads([0; 2]);
    let there = loads(next);
    let later = there.iter().filter_map(|(step, buffer, dim)| {
        let same = here.iter().find(|(_, other, at)| other == buffer && at == dim)?;
        same.0.checked_sub(*step)
    });

    let delay = later.max().unwrap_or(0);
    let n_steps = steps.last().map_or(0, |last| last + 1);
    let fits = delay * (shape[axis] as usize - 1) * MAX_DELAY.1 <= n_steps * MAX_DELAY.0;
    if fits { delay } else { 0 }
}
