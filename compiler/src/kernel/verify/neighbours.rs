//! Proofs about many accesses at once.
//!
//! The accesses of unrolled code are often at constant distances from each other. If the first and the last of them are
//! within the buffer, so are those between.

use super::checker::{Checker, Scope};
use crate::kernel::{Access, Inst, InstSeq};
use num_bigint::BigInt;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Displacement, Relation};

/// With fewer accesses, each one is proven alone.
const MIN_NEIGHBOURS: usize = 2;

/// An access at a constant distance from others: the constant, and the instruction's position.
type Neighbour<'c> = (BigInt, usize, &'c Access);

impl Checker<'_> {
    /// The positions of instructions whose accesses are within their buffers because others are. Facts must not change
    /// within the code.
    pub(super) fn proven_by_neighbours(&self, code: &InstSeq, scope: &Scope) -> BTreeSet<usize> {
        let changes_facts = |inst: &Inst| matches!(inst, Inst::Bind(..) | Inst::Check(_));
        if scope.idle || code.insts.len() < MIN_NEIGHBOURS || code.insts.iter().any(changes_facts) {
            return BTreeSet::new();
        }

        let mut forms = scope.facts.normal_forms();
        let mut groups: BTreeMap<_, Vec<Neighbour<'_>>> = BTreeMap::new();
        for (idx, inst) in code.insts.iter().enumerate() {
            let (Inst::Load(access) | Inst::Store(access, _)) = inst else { continue };
            let Displacement { varying, constant } = forms.displacement(&access.index);
            groups.entry((access.buffer, varying)).or_default().push((constant, idx, access));
        }

        let large = groups.into_values().filter(|group| group.len() >= MIN_NEIGHBOURS);
        let proven = large.filter(|group| self.ends_are_within(group, scope));
        proven.flatten().map(|(_, idx, _)| idx).collect()
    }

    /// Whether the first and the last access of a group are proven to be within the buffer.
    fn ends_are_within(&self, group: &[Neighbour<'_>], scope: &Scope) -> bool {
        let constant = |neighbour: &&Neighbour<'_>| neighbour.0.clone();
        let (Some((_, _, first)), Some((_, _, last))) =
            (group.iter().min_by_key(constant), group.iter().max_by_key(constant))
        else {
            return false;
        };
        let elems = &self.program.buffers[last.buffer].elems;
        let [first, last] = [first, last].map(|access| scope.facts.simplify(&access.index));
        let is_proven = |relation: Relation| scope.facts.prove(&relation).is_yes();
        is_proven(Relation::le(Dim::zero(), &first)) && is_proven(Relation::lt(&last, elems))
    }
}
