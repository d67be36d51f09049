//! Addresses that are the same for groups of neighbouring iterations, as `4*(i // 4) + 2` is for groups of four.
//!
//! A vector of iterations loads all elements of its groups, and repeats one lane of each: see [`Op::Repeat`].
//!
//! [`Op::Repeat`]: super::op::Op::Repeat

use super::op::{LaneOfGroup, REPEATING_GROUPS};
use crate::kernel::at_distance::AtDistance;
use std::hash::Hash;
use symshape::{Dim, Facts, Node, Symbol};

/// An address that moves by a group with each group of iterations.
#[derive(Clone)]
pub(crate) struct RepeatedAddress {
    /// The address of the first iteration.
    pub(crate) origin: Dim,
    /// The group that contains `origin`, which begins at a multiple of its size, and the place of `origin` in it.
    pub(crate) place: LaneOfGroup,
}

impl RepeatedAddress {
    /// The form of an address in a loop over `column`, with `extent` iterations. `None` unless each group has all of
    /// its iterations, and its elements begin at a multiple of its size.
    pub(crate) fn of(facts: &Facts, address: &Dim, column: &Symbol, extent: &Dim) -> Option<RepeatedAddress> {
        let group = divisor(address, column)?;
        let size = i64::from(group);
        if !facts.divides(&size.into(), extent).is_yes() {
            return None;
        }

        let at = |lane: i64| {
            let iteration = Dim::from(column) * size + lane;
            facts.simplify(&address.substitute(&|symbol| (symbol == column).then(|| iteration.clone())))
        };
        let first = at(0);
        if (1..size).any(|lane| !facts.prove_eq(&at(lane), &first).is_yes()) {
            return None;
        }
        let (step, origin) = facts.linear_in(&first, column)?;
        if step.as_i64() != Some(size) || origin.contains(column) {
            return None;
        }
        let is_at = |lane: &u8| facts.divides(&size.into(), &(&origin - i64::from(*lane))).is_yes();
        let lane = (0..group).find(is_at)?;
        Some(RepeatedAddress { origin, place: LaneOfGroup { group, lane } })
    }

    /// This address, some elements further on.
    fn after(self, distance: &Dim) -> Option<RepeatedAddress> {
        let LaneOfGroup { group, lane } = self.place;
        let lane = (i64::from(lane) + distance.as_i64()?).rem_euclid(i64::from(group)) as u8;
        Some(RepeatedAddress { origin: self.origin + distance, place: LaneOfGroup { group, lane } })
    }

    /// The address of the first element of the first group.
    pub(crate) fn first_of_group(&self) -> Dim {
        &self.origin - i64::from(self.place.lane)
    }
}

/// The forms of addresses. Addresses of one key must be in one loop.
pub(crate) struct RepeatedAddresses<K>(AtDistance<K, RepeatedAddress>);

impl<K: Eq + Hash> RepeatedAddresses<K> {
    pub(crate) fn new(facts: &Facts) -> RepeatedAddresses<K> {
        RepeatedAddresses(AtDistance::new(facts))
    }

    /// See [`RepeatedAddress::of`].
    pub(crate) fn get(
        &mut self,
        key: K,
        facts: &Facts,
        address: &Dim,
        (column, extent): (&Symbol, &Dim),
    ) -> Option<RepeatedAddress> {
        divisor(address, column)?;
        let form = || RepeatedAddress::of(facts, address, column, extent).ok_or(());
        let (first, distance) = self.0.get(key, address, form).ok()?;
        first.after(&distance)
    }
}

/// The size of a group by which the address divides the variable.
fn divisor(address: &Dim, column: &Symbol) -> Option<u8> {
    if let Node::FloorDiv(dividend, divisor) = address.node()
        && dividend.contains(column)
        && let Some(size) = divisor.as_i64()
    {
        return REPEATING_GROUPS.into_iter().find(|group| i64::from(*group) == size);
    }
    address.node().operands().into_iter().find_map(|operand| divisor(operand, column))
}

#[cfg(test)]
mod tests {
    use super::*;
    use symshape::Declaration;

    #[test]
    fn groups_of_iterations_share_an_address() {
        let column = Symbol::new("c");
        let in_loop = |text: &str, extent: &str| {
            let mut facts = Facts::new();
            facts.declare(&Symbol::new("S"), Declaration::range(1, 24)).expect("a range");
            let extent = extent.parse().expect("an extent");
            facts.declare_index(&column, &extent);
            let address = text.parse().expect("an address");
            let address = RepeatedAddress::of(&facts, &address, &column, &extent)?;
            Some((address.place.group, address.place.lane, address.origin.to_string()))
        };
        let of = |text: &str| in_loop(text, "24");
        assert_eq!(of("4*n + 4*(c // 4) + 3"), Some((4, 3, "4*n + 3".into())));
        assert_eq!(of("8*(c // 8) + 40"), Some((8, 0, "40".into())));
        assert_eq!(of("c"), None);
        assert_eq!(of("8*(c // 4)"), None, "groups that are apart");
        assert_eq!(of("4*(c // 4) + c"), None, "addresses of one group that differ");
        assert_eq!(of("4*((c + 1) // 4)"), None, "groups that begin between two multiples");
        assert_eq!(of("n + 4*(c // 4)"), None, "an unknown place");
        assert_eq!(of("16*(c // 16)"), None, "no such permutation");
        assert_eq!(in_loop("4*(c // 4)", "4*S"), Some((4, 0, "0".into())));
        assert_eq!(in_loop("4*(c // 4)", "23"), None, "a part of a group");
        assert_eq!(in_loop("4*(c // 4)", "S"), None, "a part of a group at some sizes");
    }
}
