//! Accesses at equal distances, joined to one access in one more loop.
//!
//! The loads of unrolled code differ by constants: `8*i`, `8*i + 8` and `8*i + 16` have the addresses of `8*i + 8*j`
//! for `j` in 0..3. A proof about the latter replaces three.
//!
//! A loop whose iterations share addresses in groups usually reads all elements of each group, with one access for
//! each. They count as accesses of whole groups, along whose elements the loop moves.

use super::access_range::{AccessRange, unused};
use crate::kernel::{Axis, BufferId, Program, lanes::repeated::RepeatedAddresses};
use num_bigint::BigInt;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Displacement, Facts, NormalForms};

/// The smallest number of accesses that are joined.
const MIN_ACCESSES: usize = 3;

/// The accesses of a kernel.
pub(super) struct JoinedAccesses<'a> {
    program: &'a Program,
    nests: Vec<Nest>,
}

/// The accesses in some loops.
struct Nest {
    axes: Vec<Axis>,
    facts: Facts,
    forms: NormalForms,
    repeated: RepeatedAddresses<()>,
    families: BTreeMap<(BufferId, bool, usize), Family>,
}

/// Accesses at constant distances.
struct Family {
    /// The address of one of them, and the constant in it.
    first: (Dim, BigInt),
    /// The distances of all accesses from it.
    distances: BTreeSet<BigInt>,
}

impl<'a> JoinedAccesses<'a> {
    pub(super) fn new(program: &'a Program) -> JoinedAccesses<'a> {
        JoinedAccesses { program, nests: Vec::new() }
    }

    pub(super) fn add(&mut self, buffer: BufferId, address: &Dim, axes: &[Axis], is_store: bool) {
        let idx = self.nests.iter().position(|nest| nest.axes == axes).unwrap_or_else(|| {
            self.nests.push(Nest::new(self.program, axes));
            self.nests.len() - 1
        });
        let nest = &mut self.nests[idx];
        let address = nest.whole_groups(address).unwrap_or_else(|| address.clone());
        let Displacement { varying, constant } = nest.forms.displacement(&address);
        let family = nest
            .families
            .entry((buffer, is_store, varying))
            .or_insert_with(|| Family { first: (address, constant.clone()), distances: BTreeSet::new() });
        family.distances.insert(constant - &family.first.1);
    }

    /// The addresses of all accesses, each with its buffer.
    pub(super) fn ranges(self) -> Vec<(BufferId, AccessRange)> {
        let number = unused(self.program, "number");
        let mut ranges = Vec::new();
        for Nest { axes, families, .. } in self.nests {
            for ((buffer, is_store, _), Family { first: (first, _), distances }) in families {
                for (start, step, count) in progressions(&Vec::from_iter(distances)) {
                    let mut axes = axes.clone();
                    let mut index = &first + Dim::from(start);
                    if count > 1 {
                        index = index + Dim::from(&number) * Dim::from(step);
                        axes.push(Axis { var: number.clone(), extent: count.into() });
                    }
                    ranges.push((buffer, AccessRange::new(index, axes, is_store)));
                }
            }
        }
        ranges
    }
}

impl Nest {
    fn new(program: &Program, axes: &[Axis]) -> Nest {
        let mut facts = program.facts.clone();
        axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        Nest {
            axes: axes.to_vec(),
            forms: facts.normal_forms(),
            repeated: RepeatedAddresses::new(&facts),
            families: BTreeMap::new(),
            facts,
        }
    }

    /// The address along the elements of whole groups, if iterations of the innermost loop share addresses.
    fn whole_groups(&mut self, address: &Dim) -> Option<Dim> {
        let Axis { var, extent } = self.axes.last()?;
        let form = self.repeated.get((), &self.facts, address, (var, extent))?;
        Some(form.first_of_group() + Dim::from(var))
    }
}

/// The numbers, which ascend, as progressions: the first number, the distance of two, and how many there are. Short
/// progressions become single numbers.
fn progressions(numbers: &[BigInt]) -> Vec<(BigInt, BigInt, usize)> {
    let mut found = Vec::new();
    let mut rest = numbers;
    while let [first, others @ ..] = rest {
        let step = others.first().map(|second| second - first).unwrap_or_default();
        let pairs = rest.windows(2).take_while(|pair| &pair[1] - &pair[0] == step);
        let count = 1 + pairs.count();
        let count = if count < MIN_ACCESSES { 1 } else { count };
        found.push((first.clone(), step, count));
        rest = &rest[count..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_equal_distances_are_joined() {
        let joined = |numbers: &[i64]| {
            let numbers: Vec<BigInt> = numbers.iter().copied().map(BigInt::from).collect();
            let found = progressions(&numbers).into_iter();
            found.map(|(first, step, count)| format!("{first}+{step}*{count}")).collect::<Vec<_>>()
        };
        assert_eq!(joined(&[]), Vec::<String>::new());
        assert_eq!(joined(&[5]), ["5+0*1"]);
        assert_eq!(joined(&[-4, 0, 4, 8]), ["-4+4*4"]);
        assert_eq!(joined(&[0, 1, 4, 7, 10, 11]), ["0+1*1", "1+3*4", "11+0*1"]);
    }
}
