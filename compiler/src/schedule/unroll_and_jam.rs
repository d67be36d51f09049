//! Several neighbours of one loop or two in one iteration, where they read the same memory.
//!
//! Windows of neighbouring outputs overlap, and all of them are multiplied with the same weights: a strip that computes
//! a few outputs side by side loads what they share once, and has as many independent sums to keep the machine busy.
//!
//! ```text
//! for x in 0..E { strip c { y[x] = f(a[x], a[x + 1], w) } }
//! ⇒  for x in 0..E / 2 { strip c { y[2x] = f(a[2x], a[2x + 1], w); y[2x + 1] = f(a[2x + 1], a[2x + 2], w) } }
//!    for x in E - E % 2..E { … }
//! ```
//!
//! Neighbours alternate step by step, a step being an addition, say, with what leads to it. Where a neighbour reads a
//! little later what another one reads, it is held back by so much: then an element is used by all as soon as it was
//! loaded, and few registers are taken. Every output is computed by the same instructions as before.

use super::fresh_symbols::FreshSymbols;
use crate::{
    Result,
    kernel::{Access, Axis, BufferId, Inst, InstSeq, Program, Stmt, walk::Rewrite},
    scalar::{BinaryOp, Reg},
};
use num_traits::ToPrimitive;
use std::collections::BTreeSet;
use symshape::{Dim, Facts, Symbol};

/// Most neighbours along the outer loop and along the inner one: with these their sums fit few registers, and are enough
/// to hide the latency of an instruction.
const MOST: [i64; 2] = [2, 4];

/// Loads of an iteration from which on sharing is worth it.
const FEWEST_LOADS: usize = 6;

/// A shared part of the loads, of all, that is worth it.
const SHARED: (usize, usize) = (1, 4);

/// Most instructions of an iteration, and most where there are neighbours along both loops.
const MOST_INSTS: usize = 256;
const MOST_INSTS_TWICE: usize = 64;

/// A part of the steps that neighbours may be held back by.
const MOST_DELAY: (usize, usize) = (1, 3);

/// Rewrites all loops that gain by it.
pub(super) fn unroll_and_jam(program: &mut Program) -> Result<()> {
    let mut symbols = FreshSymbols::new(program);
    let facts = program.facts.clone();
    for kernel in &mut program.kernels {
        kernel.body = stmts(&mut symbols, &facts, std::mem::take(&mut kernel.body));
    }
    Ok(())
}

fn stmts(symbols: &mut FreshSymbols, facts: &Facts, body: Vec<Stmt>) -> Vec<Stmt> {
    body.into_iter()
        .flat_map(|stmt| match stmt {
            Stmt::For { axis, parallel, body } => looped(symbols, facts, axis, parallel, body),
            other => vec![other],
        })
        .collect()
}

/// A loop, or those that it becomes.
fn looped(
    symbols: &mut FreshSymbols,
    facts: &Facts,
    axis: Axis,
    parallel: bool,
    body: Vec<Stmt>,
) -> Vec<Stmt> {
    let nest = Nest::of(&axis, parallel, &body);
    if let Some(shape) = nest.as_ref().and_then(|nest| nest.shape(facts)) {
        return nest.expect("it has a shape").jammed(symbols, facts, shape);
    }
    let mut facts = facts.clone();
    facts.declare_index(&axis.var, &axis.extent);
    let was_one = body.len() == 1;
    let body = stmts(symbols, &facts, body);
    if !(parallel && was_one) {
        return vec![Stmt::For { axis, parallel, body }];
    }
    // Loops of their own, so that each can be divided among threads along with the loop inside of it.
    let apart = body.into_iter().enumerate();
    apart
        .map(|(number, stmt)| {
            let var = if number == 0 { axis.var.clone() } else { symbols.fresh() };
            let stmt = renamed(&stmt, &axis.var, &var);
            Stmt::For { axis: Axis { var, extent: axis.extent.clone() }, parallel, body: vec![stmt] }
        })
        .collect()
}

fn renamed(stmt: &Stmt, from: &Symbol, to: &Symbol) -> Stmt {
    let by = Rewrite {
        dim: &|dim| moved(dim, from, &Dim::from(to)),
        access: &|access| access,
        symbol: &Symbol::clone,
        local: &|local| local,
    };
    by.stmt(stmt)
}

fn moved(dim: &Dim, var: &Symbol, to: &Dim) -> Dim {
    dim.substitute(&|symbol| (symbol == var).then(|| to.clone()))
}

/// A strip in one loop, or in two.
struct Nest<'a> {
    outer: Option<(&'a Axis, bool)>,
    inner: (&'a Axis, bool),
    along: &'a Axis,
    code: &'a InstSeq,
}

/// A neighbour, by its distance along the outer and the inner loop.
type Offsets = [i64; 2];

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

    /// How many neighbours along both loops to compute side by side, if that is worth it.
    fn shape(&self, facts: &Facts) -> Option<Offsets> {
        if !self.is_free() || self.code.insts.len() > MOST_INSTS {
            return None;
        }
        let most = |axis: &Axis, most: i64| match facts.bounds(&axis.extent).hi.and_then(|hi| hi.to_i64()) {
            Some(hi) => hi.clamp(1, most),
            None => most,
        };
        let columns = most(self.inner.0, MOST[1]);
        let rows = match self.outer {
            Some((axis, _)) if self.code.insts.len() <= MOST_INSTS_TWICE => most(axis, MOST[0]),
            _ => 1,
        };
        let [_, loads] = self.loads(facts, [1, 1], None);
        let [distinct, all] = self.loads(facts, [1, columns], None);
        if loads < FEWEST_LOADS || (all - distinct) * SHARED.1 < all * SHARED.0 {
            return None;
        }
        // Windows must overlap: what does not move at all is shared by any two iterations.
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

    /// Whether iterations leave nothing behind but what they store, and read nothing of it.
    fn is_free(&self) -> bool {
        let (mut read, mut written) = (BTreeSet::<BufferId>::new(), BTreeSet::new());
        for inst in &self.code.insts {
            match inst {
                Inst::Load(access) => _ = read.insert(access.buffer),
                Inst::Store(access, _) => _ = written.insert(access.buffer),
                Inst::Bind(..) | Inst::Set(..) | Inst::Reduce(..) | Inst::Check(_) => return false,
                _ => {}
            }
        }
        read.is_disjoint(&written)
    }

    /// How many different elements neighbours load, and how many elements: of all loads, or of those that move with a
    /// loop.
    fn loads(&self, facts: &Facts, shape: Offsets, moving: Option<&Symbol>) -> [usize; 2] {
        let facts = self.declared(facts);
        let loads = self.code.insts.iter().filter_map(|inst| match inst {
            Inst::Load(access) if moving.is_none_or(|var| access.index.contains(var)) => Some(access),
            _ => None,
        });
        let (mut distinct, mut all) = (BTreeSet::<(BufferId, String)>::new(), 0);
        for access in loads {
            for offsets in neighbours(shape) {
                let at = facts.simplify(&self.shifted(&access.index, offsets));
                distinct.insert((access.buffer, at.to_string()));
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
                dim = moved(&dim, &axis.var, &(Dim::from(&axis.var) + by));
            }
        }
        dim
    }

    fn axes(&self) -> [Option<&'a Axis>; 2] {
        [self.outer.map(|(axis, _)| axis), Some(self.inner.0)]
    }

    /// Loops of as many neighbours as there can be, then those of what is left.
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
        most: i64,
        height: i64,
        row: &Dim,
    ) -> Vec<Stmt> {
        let (axis, parallel) = self.inner;
        let mut loops = Vec::new();
        for (first, extent, width) in runs(facts, &axis.extent, most) {
            let inner = Axis { var: symbols.fresh(), extent };
            let mut facts = facts.clone();
            facts.declare_index(&inner.var, &inner.extent);
            let along = Axis { var: symbols.fresh(), extent: self.along.extent.clone() };
            let column = Dim::from(&inner.var) * width + first;
            let at = |dim: &Dim, offsets: Offsets| {
                let mut to = moved(dim, &axis.var, &(&column + offsets[1]));
                if let Some((outer, _)) = self.outer {
                    to = moved(&to, &outer.var, &(row + offsets[0]));
                }
                facts.simplify(&moved(&to, &self.along.var, &Dim::from(&along.var)))
            };
            let code = side_by_side(self.code, [height, width], &at);
            loops.push(Stmt::For { axis: inner, parallel, body: vec![Stmt::Strip { axis: along, code }] });
        }
        loops
    }
}

/// First index, number and size of groups of `most` among `extent`, and of what is left: one group where its size is
/// known, else single iterations.
fn runs(facts: &Facts, extent: &Dim, most: i64) -> Vec<(Dim, Dim, i64)> {
    let whole = facts.simplify(&extent.floor_div(most));
    let rest = facts.simplify(&(extent - &whole * most));
    let first = &whole * most;
    let mut runs = vec![(Dim::zero(), whole, most)];
    match rest.as_i64() {
        Some(0) => {}
        Some(rest) => runs.push((first, Dim::one(), rest)),
        None => runs.push((first, rest, 1)),
    }
    runs.retain(|(_, count, _)| count.as_i64() != Some(0));
    runs
}

/// All neighbours of a group.
fn neighbours([rows, columns]: Offsets) -> impl Iterator<Item = Offsets> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| [row, column]))
}

/// The code of each neighbour, instruction by instruction, loads and constants shared.
fn side_by_side(code: &InstSeq, shape: Offsets, at: &dyn Fn(&Dim, Offsets) -> Dim) -> InstSeq {
    let neighbours: Vec<Offsets> = neighbours(shape).collect();
    let steps = steps(code);
    let delays = [0, 1].map(|axis| delay(code, &steps, shape, axis, at));
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
        let access =
            |access: &Access| Access { index: at(&access.index, neighbours[neighbour]), ..access.clone() };
        let new = match &code.insts[idx] {
            Inst::Load(from) => Inst::Load(access(from)),
            Inst::Store(to, reg) => Inst::Store(access(to), of(*reg)),
            Inst::Index(dtype, dim) => Inst::Index(*dtype, at(dim, neighbours[neighbour])),
            other => other.with_operands(&of),
        };
        let is_same = matches!(new, Inst::Load(_) | Inst::Const(_) | Inst::Index(..));
        let old = is_same.then(|| known.iter().find(|(inst, _)| *inst == new)).flatten();
        let reg = match old {
            Some((_, reg)) => *reg,
            None => {
                let reg = joint.push(new.clone());
                if is_same {
                    known.push((new, reg));
                }
                reg
            }
        };
        regs[neighbour][idx] = reg;
    }
    joint
}

/// The step that each instruction belongs to: one ends with each instruction that does more than load or multiply.
fn steps(code: &InstSeq) -> Vec<usize> {
    let mut step = 0;
    let number = |inst: &Inst| {
        let this = step;
        let leads = matches!(
            inst,
            Inst::Load(_) | Inst::Const(_) | Inst::Index(..) | Inst::Get(_) | Inst::Binary(BinaryOp::Mul, ..)
        );
        step += usize::from(!leads);
        this
    };
    code.insts.iter().map(number).collect()
}

/// After how many steps a neighbour along this axis reads what the one before it reads, if all of them can be held back
/// by so much.
fn delay(
    code: &InstSeq,
    steps: &[usize],
    shape: Offsets,
    axis: usize,
    at: &dyn Fn(&Dim, Offsets) -> Dim,
) -> usize {
    if shape[axis] < 2 {
        return 0;
    }
    let mut next = [0; 2];
    next[axis] = 1;
    let loads = |offsets: Offsets| -> Vec<(usize, BufferId, Dim)> {
        let load = |(idx, inst): (usize, &Inst)| match inst {
            Inst::Load(access) => Some((steps[idx], access.buffer, at(&access.index, offsets))),
            _ => None,
        };
        code.insts.iter().enumerate().filter_map(load).collect()
    };
    let (here, there) = (loads([0; 2]), loads(next));
    let later = there.iter().filter_map(|(step, buffer, dim)| {
        let same = here.iter().find(|(_, other, at)| other == buffer && at == dim)?;
        same.0.checked_sub(*step)
    });
    let delay = later.max().unwrap_or(0);
    let n_steps = steps.last().map_or(0, |last| last + 1);
    let fits = delay * (shape[axis] as usize - 1) * MOST_DELAY.1 <= n_steps * MOST_DELAY.0;
    if fits { delay } else { 0 }
}
