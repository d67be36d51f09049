//! Proofs about many accesses at once.
//!
//! The accesses of unrolled code are often at constant distances from each other. If the first and the last of them are
//! within the buffer, so are those between.

use super::checker::{Checker, Scope};
use crate::kernel::{Access, Inst, InstSeq};
use num_bigint::BigInt;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Displacement};

/// An access at a constant distance from others: the constant, and the instruction's position.
type Neighbour<'c> = (BigInt, usize, &'c Access);

impl Checker<'_> {
    /// The positions of instructions whose accesses are within their buffers because others are. Facts must not change
    /// within the code.
    pub(super) fn proven_by_neighbours(&self, code: &InstSeq, scope: &Scope) -> BTreeSet<usize> {
        let changes_facts = |inst: &Inst| matches!(inst, Inst::Bind(..) | Inst::Check(_));
        if scope.idle || code.insts.iter().any(changes_facts) {
            return BTreeSet::new();
        }

        let mut forms = scope.facts.normal_forms();
        let mut groups: BTreeMap<_, Vec<Neighbour<'_>>> = BTreeMap::new();
        for (idx, inst) in code.insts.iter().enumerate() {
            let (Inst::Load(access) | Inst::Store(access, _)) = inst else { continue };
            let Displacement { varying, constant } = forms.displacement(&access.index);
            groups.entry((access.buffer, varying)).or_default().push((constant, idx, access));
        }

        let proven =
            groups.into_values().filter(|group| group.len() > 1 && self.ends_are_within(group, scope));
        proven.flatten().map(|(_, idx, _)| idx).collect()
    }

    /// Whether the first and the last access of a group are proven to be within the buffer.
    fn ends_are_within(&self, group: &[Neighbour<'_>], scope: &Scope) -> bool {
        let by_constant = |a: &&Neighbour<'_>, b: &&Neighbour<'_>| a.0.cmp(&b.0);
        let ends = [group.iter().min_by(by_constant), group.iter().max_by(by_constant)];
        let [Some((_, _, first)), Some((_, _, last))] = ends else { return false };
        let elems = &self.program.buffers[last.buffer].elems;
        let [first, last] = [first, last].map(|access| scope.facts.simplify(&access.index));
        scope.facts.prove_le(&Dim::zero(), &first).is_yes() && scope.facts.prove_lt(&last, elems).is_yes()
    }
}
