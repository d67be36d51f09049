//! Splits strips where a minimum or maximum in an address changes from one operand to another.
//!
//! ```text
//! strip i in 0..W + 6 { y[i] = x[min(max(i - 3, 0), W - 1)] }
//! ⇒  strip i in 0..3 { y[i] = x[0] }  strip i in 0..W { y[i + 3] = x[i] }
//!    strip i in 0..3 { y[W + i + 3] = x[W - 1] }
//! ```
//!
//! Addresses that clamp or mirror, as those of padding do, gather each element. The addresses of the parts are linear,
//! and the long part reads consecutive elements.

use super::fresh_symbols::FreshSymbols;
use crate::{
    Result,
    kernel::{Axis, Inst, InstSeq, Program, Stmt, hoist, walk::Rewrite},
};
use num_traits::Signed;
use symshape::{Dim, Facts, Node, Symbol};

/// Most places where a strip is split.
const MAX_PLACES: usize = 3;

/// Splits all such strips.
pub(super) fn split(program: &mut Program) -> Result<()> {
    let symbols = FreshSymbols::for_one_kernel(program);
    let facts = program.facts.clone();
    for kernel in &mut program.kernels {
        let mut symbols = symbols.outside_of(&kernel.body);
        let body = std::mem::take(&mut kernel.body);
        kernel.body = in_stmts(&mut symbols, &facts, &mut Vec::new(), body);
    }
    Ok(())
}

/// `vars` are the variables of the loops around the statements.
fn in_stmts(symbols: &mut FreshSymbols, facts: &Facts, vars: &mut Vec<Symbol>, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut done = Vec::with_capacity(body.len());
    for stmt in body {
        match stmt {
            Stmt::For { axis, parallel, body } => {
                let mut inner = facts.clone();
                inner.declare_index(&axis.var, &axis.extent);
                vars.push(axis.var.clone());
                let body = in_stmts(symbols, &inner, vars, body);
                vars.pop();
                done.push(Stmt::For { axis, parallel, body });
            }
            Stmt::Strip { axis, code } => match parts(symbols, facts, vars, &axis, &code) {
                Some(parts) => done.extend(parts),
                None => done.push(Stmt::Strip { axis, code }),
            },
            other => done.push(other),
        }
    }
    done
}

/// The parts of a strip in which all addresses are linear. `None` if they are already, or if there are none that are
/// the same in all iterations of the loops over `vars`: rows of one microkernel have strips of the same length.
fn parts(
    symbols: &mut FreshSymbols,
    facts: &Facts,
    vars: &[Symbol],
    axis: &Axis,
    code: &InstSeq,
) -> Option<Vec<Stmt>> {
    if code.insts.iter().any(|inst| matches!(inst, Inst::Reduce(..) | Inst::Bind(..) | Inst::Check(_))) {
        return None;
    }
    let is_linear = |dim: &&Dim| facts.linear_in(dim, &axis.var).is_some();
    let mut places = Places { facts, axis, sorted: Vec::new() };
    for dim in dims(code).filter(|dim| has_clamp(dim, &axis.var) && !is_linear(dim)) {
        places.add_all(dim)?;
    }
    let moves = |place: &Dim| vars.iter().any(|var| place.contains(var));
    if places.sorted.is_empty() || places.sorted.iter().any(moves) {
        return None;
    }

    let ends = places.sorted.iter().chain([&axis.extent]);
    let starts = [Dim::zero()];
    let starts = starts.iter().chain(&places.sorted);
    starts.zip(ends).map(|(start, end)| part(&symbols.fresh(), facts, axis, code, [start, end])).collect()
}

/// Whether an expression has a minimum or maximum that contains `var`.
fn has_clamp(dim: &Dim, var: &Symbol) -> bool {
    let node = dim.node();
    dim.contains(var)
        && (matches!(node, Node::Min(_) | Node::Max(_))
            || node.operands().into_iter().any(|operand| has_clamp(operand, var)))
}

/// The iterations from one place to the next, if their addresses are linear.
fn part(var: &Symbol, facts: &Facts, axis: &Axis, code: &InstSeq, [start, end]: [&Dim; 2]) -> Option<Stmt> {
    let extent = facts.simplify(&(end - start));
    let mut inner = facts.clone();
    inner.declare_index(var, &extent);
    let moved = start + Dim::from(var);
    let moved_dim =
        |dim: &Dim| inner.simplify(&dim.substitute(&|symbol| (*symbol == axis.var).then(|| moved.clone())));
    let code = Rewrite::dims(&moved_dim).code(code);
    let are_linear = dims(&code).all(|dim| inner.linear_in(dim, var).is_some());
    are_linear.then(|| Stmt::Strip { axis: Axis { var: var.clone(), extent }, code })
}

/// The addresses and index expressions of a code.
fn dims(code: &InstSeq) -> impl Iterator<Item = &Dim> {
    code.insts.iter().flat_map(hoist::dims)
}

/// The iterations at which minima and maxima of a strip change, in ascending order. They are within the strip.
struct Places<'a> {
    facts: &'a Facts,
    axis: &'a Axis,
    sorted: Vec<Dim>,
}

impl Places<'_> {
    /// Adds the places of all minima and maxima of an expression. `None` if one is unknown, or if there are too many.
    fn add_all(&mut self, dim: &Dim) -> Option<()> {
        if !dim.contains(&self.axis.var) {
            return Some(());
        }
        if let Node::Min(list) | Node::Max(list) = dim.node() {
            let values: Vec<Vec<&Dim>> = list.iter().map(|operand| self.values(operand)).collect();
            for (idx, first) in values.iter().enumerate() {
                for second in values[idx + 1..].iter().flatten() {
                    first.iter().try_for_each(|value| self.add(value, second))?;
                }
            }
        }
        dim.node().operands().into_iter().try_for_each(|operand| self.add_all(operand))
    }

    /// The expressions of which a minimum or maximum that moves along the strip has one as its value.
    fn values<'d>(&self, dim: &'d Dim) -> Vec<&'d Dim> {
        match dim.node() {
            Node::Min(list) | Node::Max(list) if dim.contains(&self.axis.var) => {
                list.iter().flat_map(|operand| self.values(operand)).collect()
            }
            _ => vec![dim],
        }
    }

    /// Adds the place from which on the smaller operand is the larger one.
    fn add(&mut self, a: &Dim, b: &Dim) -> Option<()> {
        let (slope, rest) = self.facts.linear_in(&(a - b), &self.axis.var)?;
        let slope = slope.as_int()?;
        let place = match slope.sign() {
            num_bigint::Sign::Plus => (-rest).ceil_div(slope.clone()),
            num_bigint::Sign::Minus => rest.ceil_div(slope.abs()),
            num_bigint::Sign::NoSign => return Some(()),
        };
        let place = self.facts.simplify(&place);
        if self.is_ordered(&place, &Dim::zero()) || self.is_ordered(&self.axis.extent, &place) {
            return Some(());
        }
        if !self.is_ordered(&Dim::zero(), &place) || !self.is_ordered(&place, &self.axis.extent) {
            return None;
        }
        self.insert(place)
    }

    fn insert(&mut self, place: Dim) -> Option<()> {
        let mut at = self.sorted.len();
        while at > 0 && !self.is_ordered(&self.sorted[at - 1], &place) {
            if !self.is_ordered(&place, &self.sorted[at - 1]) {
                return None;
            }
            at -= 1;
        }
        if at == 0 || !self.is_ordered(&place, &self.sorted[at - 1]) {
            self.sorted.insert(at, place);
        }
        (self.sorted.len() <= MAX_PLACES).then_some(())
    }

    fn is_ordered(&self, a: &Dim, b: &Dim) -> bool {
        self.facts.prove_le(a, b).is_yes()
    }
}
