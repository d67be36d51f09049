//! Several neighbours of a loop in one iteration, where they read the same memory.
//!
//! Windows of neighbouring outputs overlap, and all of them are multiplied with the same weights: a strip that computes
//! a few outputs side by side loads what they share once.
//!
//! ```text
//! for x in 0..E { strip c { y[x] = f(a[x], a[x + 1], w) } }
//! ⇒  for x in 0..E / 2 { strip c { y[2x] = f(a[2x], a[2x + 1], w); y[2x + 1] = f(a[2x + 1], a[2x + 2], w) } }
//!    for x in E - E % 2..E { … }
//! ```
//!
//! Every output is computed by the same instructions as before.

use super::names::Names;
use crate::{
    Result,
    kernel::{Access, Axis, BufferId, Code, Inst, Program, Stmt},
    scalar::Reg,
};
use std::collections::BTreeSet;
use symshape::{Dim, Facts, Symbol};

/// Most neighbours in one iteration: their sums, and what they read of one row of a window, fit few registers.
const MOST: i64 = 4;

/// Loads of an iteration from which on sharing is worth it.
const FEWEST_LOADS: usize = 6;

/// A shared part of the loads, of all, that is worth it.
const SHARED: (usize, usize) = (1, 4);

/// Most instructions of an iteration.
const MOST_INSTS: usize = 64;

/// Rewrites all loops that gain by it.
pub(super) fn jam(program: &mut Program) -> Result<()> {
    let mut names = Names::new(program);
    let facts = program.facts.clone();
    for kernel in &mut program.kernels {
        kernel.body = stmts(&mut names, &facts, std::mem::take(&mut kernel.body));
    }
    Ok(())
}

fn stmts(names: &mut Names, facts: &Facts, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut done = Vec::new();
    for stmt in body {
        match stmt {
            Stmt::For { axis, parallel, body } => {
                let mut facts = facts.clone();
                facts.declare_index(&axis.var, &axis.extent);
                match &body[..] {
                    [Stmt::Strip { axis: inner, code }] if gains(&facts, &axis, code) => {
                        done.extend(jammed(names, &facts, (&axis, parallel), inner, code));
                    }
                    _ => done.push(Stmt::For { axis, parallel, body: stmts(names, &facts, body) }),
                }
            }
            other => done.push(other),
        }
    }
    done
}

/// Whether neighbours along the axis share enough of what they load.
fn gains(facts: &Facts, axis: &Axis, code: &Code) -> bool {
    let mut loads = Vec::new();
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::<BufferId>::new());
    for inst in &code.insts {
        match inst {
            Inst::Load(access) => {
                read.insert(access.buffer);
                loads.push(access);
            }
            Inst::Store(access, _) => _ = written.insert(access.buffer),
            Inst::Bind(..) | Inst::Set(..) | Inst::Reduce(..) | Inst::Check(_) => return false,
            _ => {}
        }
    }
    let Some(most) = axis.extent.as_i64().filter(|extent| *extent > 1).map(|extent| extent.min(MOST)) else {
        return false;
    };
    let mut distinct: BTreeSet<(BufferId, String)> = BTreeSet::new();
    for neighbour in 0..most {
        for access in &loads {
            let at = facts.simplify(&moved(&access.at, &axis.var, &(Dim::from(&axis.var) + neighbour)));
            distinct.insert((access.buffer, at.to_string()));
        }
    }
    let all = loads.len() * most as usize;
    let shared = all - distinct.len();
    code.insts.len() <= MOST_INSTS
        && loads.len() >= FEWEST_LOADS
        && shared * SHARED.1 >= all * SHARED.0
        && read.is_disjoint(&written)
}

fn moved(dim: &Dim, var: &Symbol, to: &Dim) -> Dim {
    dim.substitute(&|symbol| (symbol == var).then(|| to.clone()))
}

/// Loops of as many neighbours as there can be, then one of those that are left.
fn jammed(
    names: &mut Names,
    facts: &Facts,
    (axis, parallel): (&Axis, bool),
    inner: &Axis,
    code: &Code,
) -> Vec<Stmt> {
    let extent = axis.extent.as_i64().unwrap_or(0);
    let (mut first, mut loops) = (0, Vec::new());
    while first < extent {
        let width = (extent - first).min(MOST);
        let count = (extent - first) / width;
        let outer = Axis { var: names.fresh(), extent: count.into() };
        let mut facts = facts.clone();
        facts.declare_index(&outer.var, &outer.extent);
        let along = names.fresh();
        let at = |neighbour: i64| Dim::from(&outer.var) * width + (first + neighbour);
        let place = |access: &Access, neighbour: i64| {
            let to = moved(&access.at, &axis.var, &at(neighbour));
            Access { buffer: access.buffer, at: facts.simplify(&moved(&to, &inner.var, &Dim::from(&along))) }
        };
        let code = side_by_side(code, width, &place, &|dim, neighbour| {
            let to = moved(dim, &axis.var, &at(neighbour));
            facts.simplify(&moved(&to, &inner.var, &Dim::from(&along)))
        });
        let strip = Stmt::Strip { axis: Axis { var: along, extent: inner.extent.clone() }, code };
        loops.push(Stmt::For { axis: outer, parallel, body: vec![strip] });
        first += count * width;
    }
    loops
}

/// The code of each neighbour, instruction by instruction, loads and constants shared.
fn side_by_side(
    code: &Code,
    width: i64,
    place: &dyn Fn(&Access, i64) -> Access,
    dim: &dyn Fn(&Dim, i64) -> Dim,
) -> Code {
    let mut joint = Code::default();
    let mut regs: Vec<Vec<Reg>> = vec![Vec::new(); width as usize];
    let mut known: Vec<(Inst, Reg)> = Vec::new();
    for inst in &code.insts {
        for (neighbour, regs) in (0..width).zip(&mut regs) {
            let new = match inst {
                Inst::Load(access) => Inst::Load(place(access, neighbour)),
                Inst::Store(access, reg) => Inst::Store(place(access, neighbour), regs[reg.0 as usize]),
                Inst::Index(dtype, of) => Inst::Index(*dtype, dim(of, neighbour)),
                other => other.with_operands(&|reg| regs[reg.0 as usize]),
            };
            let is_same = matches!(new, Inst::Load(_) | Inst::Const(_) | Inst::Index(..));
            let old = is_same.then(|| known.iter().find(|(inst, _)| *inst == new)).flatten();
            let reg = match old {
                Some((_, reg)) => *reg,
                None => {
                    let reg = joint.push(new.clone());
                    known.push((new, reg));
                    reg
                }
            };
            regs.push(reg);
        }
    }
    joint
}
