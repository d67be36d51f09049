//! The addresses of neighbours.

use crate::kernel::at_distance::AtDistance;
use num_bigint::BigInt;
use std::{collections::HashMap, convert::Infallible};
use symshape::{Dim, Facts, NormalForms, Symbol};

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
    simplified: AtDistance<(), Dim>,
    /// The normal forms inside the old loops.
    old_forms: NormalForms,
    steps: HashMap<Dim, [Option<BigInt>; 2]>,
    known: HashMap<(Dim, Offsets), Dim>,
}

impl<'a> Addresses<'a> {
    /// `old_facts` hold inside the old loops, `facts` inside the new ones.
    pub(super) fn new(old: OldVariables<'a>, old_facts: &Facts, facts: &'a Facts) -> Addresses<'a> {
        Addresses {
            old,
            facts,
            simplified: AtDistance::new(facts),
            old_forms: old_facts.normal_forms(),
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
        let simplify = || Ok::<_, Infallible>(self.facts.simplify(&moved));
        let Ok((simplified, distance)) = self.simplified.get((), &moved, simplify);
        simplified + distance
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
