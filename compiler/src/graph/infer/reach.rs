//! The relations that addresses rely on: axes are no longer than those they address, and not negative.
//!
//! Builders of views slice within an axis, and prove it. Some operators derive the addresses in one tensor from the
//! shape of another. If both are symbolic, this cannot be proven. Then it is assumed, like equal dims, and the
//! artefact checks it. The same holds for new axes whose size is a difference. An address that is neither proven nor
//! linear in its axes, with steps of known sign, is the responsibility of its author.

use super::Requirement;
use crate::graph::{Graph, Op, Type, Value, axis};
use symshape::{Dim, Facts, Relation};

/// The relations between dims without which `op` would address elements outside of its operands.
pub(crate) fn address_requirements(graph: &Graph, op: &Op, operands: &[Value]) -> Vec<Requirement> {
    let mut requirements = Vec::new();
    let shape = match op {
        Op::View { shape, .. } | Op::Gather { shape, .. } => shape,
        Op::Scatter { .. } => graph.shape(operands[1]),
        _ => return requirements,
    };

    for address in op.addresses() {
        let size = &graph.shape(operands[address.operand])[address.axis];
        require_inside(graph, shape, address.at, size, &mut requirements);
    }
    requirements
}

/// Requires that no axis that `op` creates, other than to repeat or join those of its operands, has a negative size.
pub(crate) fn size_requirements(
    graph: &Graph,
    op: &Op,
    operands: &[Value],
    results: &[Type],
) -> Vec<Requirement> {
    if !op.creates_axes() {
        return Vec::new();
    }

    let is_new = |dim: &Dim| {
        let repeats = || operands.iter().any(|value| graph.shape(*value).contains(dim));
        dim.as_int().is_none() && !repeats()
    };
    let axes = results.iter().flat_map(|ty| ty.shape.iter().enumerate());
    axes.filter(|(_, dim)| is_new(dim))
        .map(|(k, dim)| Requirement {
            relation: Relation::le(Dim::zero(), dim),
            context: format!("axis {k} of size {dim}"),
        })
        .collect()
}

/// Requires that `at` is in `0..size` over all of `shape`.
fn require_inside(graph: &Graph, shape: &[Dim], at: &Dim, size: &Dim, requirements: &mut Vec<Requirement>) {
    // An empty shape addresses nothing.
    if shape.iter().any(|extent| extent.as_i64().is_some_and(|extent| extent < 1)) {
        return;
    }

    // The usual address is an axis of the same size.
    let axes: Vec<usize> = (0..shape.len()).filter(|k| at.contains(&axis(*k))).collect();
    if matches!(axes[..], [k] if at.as_symbol() == Some(&axis(k)) && shape[k] == *size) {
        return;
    }

    // If an axis is empty, nothing is addressed. So all axes may be assumed to have an element.
    let mut facts = graph.facts.clone();
    let mut symbolic = shape.iter().filter(|extent| extent.as_int().is_none());
    if !symbolic.all(|extent| facts.assume(Relation::le(Dim::one(), extent), "an element").is_ok()) {
        return;
    }

    axes.iter().for_each(|k| facts.declare_index(&axis(*k), &shape[*k]));
    let is_below_end = facts.prove_lt(at, size).is_yes();
    let is_not_negative = facts.prove_le(&Dim::zero(), at).is_yes();
    if is_below_end && is_not_negative {
        return;
    }

    let Some((min, max)) = address_range(&graph.facts, shape, &axes, at) else { return };
    let context = || format!("element {at} of an axis of size {size}");
    if !is_below_end {
        let end = graph.facts.simplify(&(max + 1));
        requirements.push(Requirement { relation: Relation::le(end, size), context: context() });
    }
    if !is_not_negative {
        requirements.push(Requirement { relation: Relation::le(Dim::zero(), min), context: context() });
    }
}

/// The smallest and the largest value of an address that is linear in its axes. No axis is empty.
fn address_range(facts: &Facts, shape: &[Dim], axes: &[usize], at: &Dim) -> Option<(Dim, Dim)> {
    let zero = Dim::zero();
    let mut constant = at.clone();
    let mut min = Dim::zero();
    let mut max = Dim::zero();

    for k in axes {
        let (step, rest) = facts.linear_in(&constant, &axis(*k))?;
        if axes.iter().any(|other| step.contains(&axis(*other))) {
            return None;
        }

        let last = &step * (&shape[*k] - 1);
        if facts.prove_le(&zero, &step).is_yes() {
            max = max + last;
        } else if facts.prove_le(&step, &zero).is_yes() {
            min = min + last;
        } else {
            return None;
        }
        constant = rest;
    }
    Some((facts.simplify(&(&min + &constant)), facts.simplify(&(max + constant))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use symshape::Declaration;
    use symshape_runtime::DType;

    /// The relations that a slice of an axis of size `K` requires, for `H` in 1..=8 and `K` in 1..=100.
    fn required_by_slice(start: &str, len: &str, step: i64) -> Vec<String> {
        let mut g = Graph::default();
        g.symbol("H", Declaration::range(1, 8)).expect("new");
        let k = g.symbol("K", Declaration::range(1, 100)).expect("new");
        let x = g.input("x", DType::F32, vec![k]).expect("new");
        let [start, len] = [start, len].map(|dim| dim.parse().expect("a dim"));
        g.slice(x, 0, start, len, step).expect("it may fit");
        g.constraints.iter().map(|assumed| assumed.relation.to_string()).collect()
    }

    #[test]
    fn empty_shapes_require_nothing() {
        let mut g = Graph::default();
        let a = g.symbol("A", Declaration::range(0, 7)).expect("new");
        let x = g.input("x", DType::F32, vec![a.clone(), 3.into()]).expect("new");
        g.view(x, vec![a, 2.into()], vec![Dim::zero(), axis(1).into()]).expect("it fits, or is empty");
        assert!(g.constraints.is_empty());
        g.view(x, vec![2.into()], vec![Dim::zero(), axis(0).into()]).expect("it may fit");
        assert_eq!(g.constraints[0].relation.to_string(), "1 <= A");
    }

    #[test]
    fn slices_that_may_exceed_the_axis_require_its_size() {
        assert_eq!(required_by_slice("0", "32", 2), ["63 <= K"]);
        assert_eq!(required_by_slice("1", "32", 2), ["64 <= K"]);
        assert_eq!(required_by_slice("H", "H", 1), ["2*H <= K"]);

        assert_eq!(required_by_slice("K - 4", "4", 1), ["0 <= K - 4"]);
        assert_eq!(required_by_slice("H", "4", -1), ["H + 1 <= K", "0 <= H - 3"]);
        assert_eq!(required_by_slice("64", "K - 64", 1), ["0 <= K - 64"]);
        assert_eq!(required_by_slice("H", "K - 2*H", 1), ["0 <= K - 2*H"]);

        // These are inside for all sizes.
        assert_eq!(required_by_slice("0", "K", 1), [""; 0]);
        assert_eq!(required_by_slice("K - 1", "K", -1), [""; 0]);
        assert_eq!(required_by_slice("0", "(K + 1) // 2", 2), [""; 0]);
        assert_eq!(required_by_slice("1", "K - 1", 1), [""; 0]);
        assert_eq!(required_by_slice("min(K, 64)", "max(K - 64, 0)", 1), [""; 0]);
    }
}
