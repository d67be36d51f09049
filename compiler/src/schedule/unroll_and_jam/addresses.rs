//! The addresses of neighbours.

use num_bigint::BigInt;
use std::collections::HashMap;
use symshape::{Dim, Displacement, Facts, NormalForms, Symbol};

/// A neighbour, by its distance along the outer and the inner loop.
pub(super) type Offsets = [i64; 2];

/// An old loop variable, and its value for the first neighbour of a group.
pub(super) struct OldVariable<'v> {
    pub(super) var: &'v Symbol,
    pub(super) first: Dim,
}

/// The old loop variables, in terms of the new ones.
pub(super) struct OldVariables<'v> {
    /// Those of the outer and the inner loop.
    pub(super) loops: [Option<OldVariable<'v>>; 2],
    /// That of the strip.
    pub(super) along: OldVariable<'v>,
}

/// Expressions at neighbours, simplified.
///
/// Simplifying takes long. Most expressions are at a constant distance from another one, or have a constant step along
/// a loop, and only one of them is simplified.
pub(super) struct Addresses<'a> {
    old: OldVariables<'a>,
    /// The facts inside the new loops.
    facts: &'a Facts,
    /// The normal forms inside the old loops.
    old_forms: NormalForms,
    /// The normal forms inside the new loops.
    forms: NormalForms,
    /// By the varying part: the constant of one expression, and the expression.
    simplified: HashMap<usize, (BigInt, Dim)>,
    steps: HashMap<Dim, [Option<BigInt>; 2]>,
    known: HashMap<(Dim, Offsets), Dim>,
}

impl<'a> Addresses<'a> {
    /// `old_facts` hold inside the old loops, `facts` inside the new ones.
    pub(super) fn new(old: OldVariables<'a>, old_facts: &Facts, facts: &'a Facts) -> Addresses<'a> {
        Addresses {
            old,
            facts,
            old_forms: old_facts.normal_forms(),
            forms: facts.normal_forms(),
            simplified: HashMap::new(),
            steps: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// The expression at a neighbour.
    pub(super) fn at(&mut self, dim: &Dim, offsets: Offsets) -> Dim {
        let key = (dim.clone(), offsets);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }

        let mut distance = BigInt::ZERO;
        let mut from = offsets;
        for (offset, step) in from.iter_mut().zip(self.steps(dim)) {
            if let Some(step) = step {
                distance += step * std::mem::take(offset);
            }
        }
        let at = if from == offsets {
            self.simplified(dim, offsets)
        } else {
            self.at(dim, from) + Dim::from(distance)
        };
        self.known.insert(key, at.clone());
        at
    }

    /// The steps along the outer and the inner loop that are constant.
    fn steps(&mut self, dim: &Dim) -> [Option<BigInt>; 2] {
        if let Some(steps) = self.steps.get(dim) {
            return steps.clone();
        }
        let steps = [0, 1].map(|k| self.old_forms.step(dim, self.old.loops[k].as_ref()?.var));
        self.steps.insert(dim.clone(), steps.clone());
        steps
    }

    fn simplified(&mut self, dim: &Dim, offsets: Offsets) -> Dim {
        let moved = self.moved(dim, offsets);
        let Displacement { varying, constant } = self.forms.displacement(&moved);
        let (first, simplified) =
            self.simplified.entry(varying).or_insert_with(|| (constant.clone(), self.facts.simplify(&moved)));
        &*simplified + Dim::from(constant - &*first)
    }

    fn moved(&self, dim: &Dim, offsets: Offsets) -> Dim {
        let OldVariables { loops, along } = &self.old;
        dim.substitute(&|symbol| {
            if symbol == along.var {
                return Some(along.first.clone());
            }
            let at = |(old, offset): (&Option<OldVariable>, i64)| {
                let old = old.as_ref().filter(|old| old.var == symbol)?;
                Some(&old.first + offset)
            };
            loops.iter().zip(offsets).find_map(at)
        })
    }
}
