//! The addresses of one access, and proofs that those of two accesses are disjoint.

use super::constant_strides::ConstantStrides;
use crate::kernel::{
    Axis, Program,
    common_element::{Example, LinearAddress},
};
use std::{
    cell::{OnceCell, RefCell},
    collections::BTreeMap,
};
use symshape::{Bounds, Dim, Facts, Symbol};

/// The addresses of one access in all iterations of the enclosing loops.
#[derive(Clone, Debug)]
pub(super) struct AccessRange {
    /// Flat index of an element.
    pub(super) index: Dim,
    /// The enclosing loops, outermost first.
    pub(super) axes: Vec<Axis>,
    /// Whether the elements are written rather than read.
    pub(super) is_store: bool,
    /// Bounds of the address modulo each divisor computed so far; those of the address itself have the key 0.
    known: RefCell<BTreeMap<i64, Bounds>>,
    /// The address, if all of its strides are constants.
    constant_strides: OnceCell<Option<ConstantStrides>>,
    /// The constant strides of the loops that exceed 1.
    steps: OnceCell<Vec<i64>>,
    /// The addresses at each example, if they are linear there.
    at_examples: OnceCell<Vec<OnceCell<Vec<LinearAddress>>>>,
}

impl AccessRange {
    pub(super) fn new(index: Dim, axes: Vec<Axis>, is_store: bool) -> AccessRange {
        AccessRange {
            index,
            axes,
            is_store,
            known: RefCell::default(),
            constant_strides: OnceCell::new(),
            steps: OnceCell::new(),
            at_examples: OnceCell::new(),
        }
    }

    /// Whether an element that both access is found at an example. All calls get the same examples.
    pub(super) fn meets(&self, other: &AccessRange, examples: &[Example], idx: usize) -> bool {
        let others = other.at_example(examples, idx);
        self.at_example(examples, idx).iter().any(|own| others.iter().any(|other| own.meets(other)))
    }

    fn at_example(&self, examples: &[Example], idx: usize) -> &[LinearAddress] {
        let all = self.at_examples.get_or_init(|| vec![OnceCell::new(); examples.len()]);
        all[idx].get_or_init(|| LinearAddress::all(&self.index, &self.axes, &examples[idx]))
    }

    pub(super) fn is_like(&self, other: &AccessRange) -> bool {
        self.index == other.index && self.axes == other.axes && self.is_store == other.is_store
    }

    /// The facts within the loops.
    fn facts(&self, program: &Program) -> Facts {
        let mut facts = program.facts.clone();
        self.axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        facts
    }

    /// The bounds of the address modulo `divisor`, or of the address itself if `divisor` is 0.
    fn bounds(&self, program: &Program, divisor: i64) -> Bounds {
        if let Some(bounds) = self.known.borrow().get(&divisor) {
            return bounds.clone();
        }
        let facts = self.facts(program);
        let term =
            if divisor == 0 { self.index.clone() } else { facts.simplify(&self.index.modulo(divisor)) };
        let bounds = facts.bounds(&term);
        self.known.borrow_mut().insert(divisor, bounds.clone());
        bounds
    }

    fn constant_strides(&self) -> Option<&ConstantStrides> {
        let constant_strides = || ConstantStrides::of(&self.index, &self.axes);
        self.constant_strides.get_or_init(constant_strides).as_ref()
    }

    fn steps(&self, program: &Program) -> &[i64] {
        self.steps.get_or_init(|| {
            let strides = strides(&self.facts(program), std::slice::from_ref(&self));
            strides.iter().filter_map(|stride| stride.as_i64()).filter(|step| *step > 1).collect()
        })
    }

    /// The same addresses, with loop variables that no other kernel uses.
    pub(super) fn renamed(&self, program: &Program) -> AccessRange {
        let rename = |symbol: &Symbol| unused(program, &format!("{}'", symbol.name()));
        let own = |symbol: &Symbol| (!program.symbols.contains(symbol)).then(|| rename(symbol).into());
        let axis = |axis: &Axis| Axis { var: rename(&axis.var), extent: axis.extent.substitute(&own) };
        AccessRange::new(self.index.substitute(&own), self.axes.iter().map(axis).collect(), self.is_store)
    }
}

/// A symbol whose name begins like this, and that the model does not use.
pub(super) fn unused(program: &Program, name: &str) -> Symbol {
    let symbol = Symbol::new(name);
    if program.all_symbols().any(|known| *known == symbol) {
        return unused(program, &format!("{name}'"));
    }
    symbol
}

/// Whether the bounds of the addresses, or of their remainders, show that they are disjoint.
pub(super) fn disjoint_by_bounds(program: &Program, a: &AccessRange, b: &AccessRange) -> bool {
    let in_integers = a.constant_strides().zip(b.constant_strides()).is_some_and(|(a, b)| a.is_disjoint(b));
    if in_integers {
        return true;
    }
    let below = |x: &Bounds, y: &Bounds| matches!((&x.hi, &y.lo), (Some(hi), Some(lo)) if hi < lo);
    let apart = |divisor: i64| {
        let x = a.bounds(program, divisor);
        let y = b.bounds(program, divisor);
        below(&x, &y) || below(&y, &x)
    };
    apart(0) || a.steps(program).iter().chain(b.steps(program)).any(|step| apart(*step))
}

/// Whether the addresses are proven to be disjoint. `b` is [renamed](AccessRange::renamed).
pub(super) fn disjoint(program: &Program, a: &AccessRange, b: &AccessRange) -> bool {
    let mut facts = program.facts.clone();
    for axis in a.axes.iter().chain(&b.axes) {
        facts.declare_index(&axis.var, &axis.extent);
    }
    let ordered = |x: &Dim, y: &Dim| facts.prove_lt(x, y).is_yes() || facts.prove_lt(y, x).is_yes();
    ordered(&a.index, &b.index)
        || strides(&facts, &[a, b]).into_iter().any(|stride| {
            let rest = |at: &Dim| facts.simplify(&at.modulo(stride.clone()));
            facts.prove_lt(&Dim::zero(), &stride).is_yes() && ordered(&rest(&a.index), &rest(&b.index))
        })
}

/// The strides of the loops over the addresses, except constants of 1 or less.
pub(super) fn strides(facts: &Facts, ranges: &[&AccessRange]) -> Vec<Dim> {
    let mut found: Vec<Dim> = Vec::new();
    for (range, axis) in ranges.iter().flat_map(|range| range.axes.iter().map(move |axis| (range, axis))) {
        if let Some((stride, _)) = facts.linear_in(&range.index, &axis.var)
            && !matches!(stride.as_i64(), Some(..=1))
            && !found.contains(&stride)
        {
            found.push(stride);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_variables_have_names_that_no_symbol_has() {
        let symbols = ["N", "any", "any'"].map(Symbol::new);
        let program = Program { symbols: symbols.to_vec(), ..Program::default() };
        assert_eq!(unused(&program, "number").name(), "number");
        assert_eq!(unused(&program, "any").name(), "any''");

        let axis = Axis { var: Symbol::new("any''"), extent: "N".parse().expect("an extent") };
        let renamed = AccessRange::new(Dim::from(&axis.var), vec![axis], true).renamed(&program);
        assert_eq!((renamed.axes[0].var.name(), renamed.axes[0].extent.to_string()), ("any'''", "N".into()));
    }
}
