//! The relations that addresses rely on: axes are no longer than those they address, and not negative.
//!
//! Builders of views slice within an axis, and prove it. Some operators derive the addresses in one tensor from the
//! shape of another. If both are symbolic, this cannot be proven. Then it is assumed, like equal dims, and the
//! artefact checks it. The same holds for new axes whose size is a difference. An address that is neither proven nor
//! linear in its axes, with steps of known sign, is the responsibility of its author.

use super::{Need, loads};
use crate::graph::{Coord, Graph, Op, Type, Value, axis};
use symshape::{Dim, Facts, Relation};

/// The relations between dims without which `op` would address elements outside of its operands.
pub fn reach(graph: &Graph, op: &Op, operands: &[Value]) -> Vec<Need> {
    let mut needs = Vec::new();
    match op {
        Op::View { shape, index } => within(graph, shape, index, operands[0], &mut needs),
        Op::Gather { shape, coords } => coordinates(graph, shape, coords, operands, &mut needs),
        Op::Scatter { coords, .. } => {
            coordinates(graph, graph.shape(operands[1]), coords, operands, &mut needs);
        }
        Op::Input(_)
        | Op::Const(_)
        | Op::Index { .. }
        | Op::Map(_)
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Contraction { .. }
        | Op::Sort { .. }
        | Op::Scan { .. }
        | Op::Bind { .. }
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Call { .. }
        | Op::Fail { .. } => {}
    }
    needs
}

fn coordinates(graph: &Graph, shape: &[Dim], coords: &[Coord], operands: &[Value], needs: &mut Vec<Need>) {
    for (coord, size) in coords.iter().zip(graph.shape(operands[0])) {
        if let Coord::At(at) = coord {
            fits(graph, shape, at, size, needs);
        }
    }
    for (operand, at) in loads(coords) {
        within(graph, shape, at, operands[operand], needs);
    }
}

fn within(graph: &Graph, shape: &[Dim], index: &[Dim], x: Value, needs: &mut Vec<Need>) {
    for (at, size) in index.iter().zip(graph.shape(x)) {
        fits(graph, shape, at, size, needs);
    }
}

/// Requires that no axis that `op` creates, other than to repeat or join those of its operands, has a negative size.
pub fn extents(graph: &Graph, op: &Op, operands: &[Value], results: &[Type]) -> Vec<Need> {
    match op {
        Op::Index { .. }
        | Op::View { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::Loop { .. }
        | Op::Call { .. } => {}
        // The results of a branch are created, and checked, within it.
        Op::If { .. }
        | Op::Input(_)
        | Op::Const(_)
        | Op::Map(_)
        | Op::Concat { .. }
        | Op::Scatter { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Contraction { .. }
        | Op::Sort { .. }
        | Op::Scan { .. }
        | Op::Bind { .. }
        | Op::Fail { .. } => return Vec::new(),
    }
    let is_new = |dim: &Dim| {
        let repeats = || operands.iter().any(|value| graph.shape(*value).contains(dim));
        dim.as_int().is_none() && !repeats()
    };
    let axes = results.iter().flat_map(|ty| ty.shape.iter().enumerate());
    axes.filter(|(_, dim)| is_new(dim))
        .map(|(k, dim)| Need {
            relation: Relation::le(Dim::zero(), dim),
            what: format!("axis {k} of size {dim}"),
        })
        .collect()
}

/// Requires that `at` is in `0..size` over all of `shape`.
fn fits(graph: &Graph, shape: &[Dim], at: &Dim, size: &Dim, needs: &mut Vec<Need>) {
    // An empty shape addresses nothing.
    if shape.iter().any(|extent| extent.as_i64() == Some(0)) {
        return;
    }
    let axes: Vec<usize> = (0..shape.len()).filter(|k| at.contains(&axis(*k))).collect();
    // The usual address is an axis of the same size.
    if matches!(axes[..], [k] if at.as_symbol() == Some(&axis(k)) && shape[k] == *size) {
        return;
    }
    let mut facts = graph.facts.clone();
    // If an axis is empty, nothing is addressed. So all axes may be assumed to have an element.
    if !shape.iter().all(|extent| facts.assume(Relation::le(Dim::one(), extent), "an element").is_ok()) {
        return;
    }
    axes.iter().for_each(|k| facts.declare_index(&axis(*k), &shape[*k]));
    let (below, above) = (facts.prove_lt(at, size).is_yes(), facts.prove_le(&Dim::zero(), at).is_yes());
    if below && above {
        return;
    }
    let Some((least, most)) = ends(&graph.facts, shape, &axes, at) else { return };
    let what = || format!("element {at} of an axis of size {size}");
    if !below {
        let end = graph.facts.simplify(&(most + 1));
        needs.push(Need { relation: Relation::le(end, size), what: what() });
    }
    if !above {
        needs.push(Need { relation: Relation::le(Dim::zero(), least), what: what() });
    }
}

/// The smallest and the largest value of an address that is linear in its axes, none of which is empty.
fn ends(facts: &Facts, shape: &[Dim], axes: &[usize], at: &Dim) -> Option<(Dim, Dim)> {
    let zero = Dim::zero();
    let mut rest = at.clone();
    let (mut least, mut most) = (Dim::zero(), Dim::zero());
    for k in axes {
        let (step, left) = facts.linear_in(&rest, &axis(*k))?;
        if axes.iter().any(|other| step.contains(&axis(*other))) {
            return None;
        }
        let far = &step * (&shape[*k] - 1);
        if facts.prove_le(&zero, &step).is_yes() {
            most = most + far;
        } else if facts.prove_le(&step, &zero).is_yes() {
            least = least + far;
        } else {
            return None;
        }
        rest = left;
    }
    Some((facts.simplify(&(&least + &rest)), facts.simplify(&(most + rest))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use symshape::Declaration;
    use symshape_runtime::DType;

    /// The relations that a slice of an axis of size `K` relies on, for `H` in 1..=8 and `K` in 1..=100.
    fn relied_on(start: &str, len: &str, step: i64) -> Vec<String> {
        let mut g = Graph::default();
        g.symbol("H", Declaration::range(1, 8)).expect("new");
        let k = g.symbol("K", Declaration::range(1, 100)).expect("new");
        let x = g.input("x", DType::F32, vec![k]).expect("new");
        let [start, len] = [start, len].map(|dim| dim.parse().expect("a dim"));
        g.slice(x, 0, start, len, step).expect("it may fit");
        g.constraints.iter().map(|assumed| assumed.relation.to_string()).collect()
    }

    #[test]
    fn what_has_no_elements_relies_on_nothing() {
        let mut g = Graph::default();
        let a = g.symbol("A", Declaration::range(0, 7)).expect("new");
        let x = g.input("x", DType::F32, vec![a.clone(), 3.into()]).expect("new");
        g.view(x, vec![a, 2.into()], vec![Dim::zero(), axis(1).into()]).expect("it fits, or is empty");
        assert!(g.constraints.is_empty());
        g.view(x, vec![2.into()], vec![Dim::zero(), axis(0).into()]).expect("it may fit");
        assert_eq!(g.constraints[0].relation.to_string(), "1 <= A");
    }

    #[test]
    fn slices_that_may_reach_too_far_rely_on_the_axis() {
        assert_eq!(relied_on("0", "32", 2), ["63 <= K"]);
        assert_eq!(relied_on("1", "32", 2), ["64 <= K"]);
        assert_eq!(relied_on("H", "H", 1), ["2*H <= K"]);
        assert_eq!(relied_on("K - 4", "4", 1), ["0 <= K - 4"]);
        assert_eq!(relied_on("H", "4", -1), ["H + 1 <= K", "0 <= H - 3"]);
        assert_eq!(relied_on("64", "K - 64", 1), ["0 <= K - 64"]);
        assert_eq!(relied_on("H", "K - 2*H", 1), ["0 <= K - 2*H"]);
        // These are inside for all sizes.
        assert_eq!(relied_on("0", "K", 1), [""; 0]);
        assert_eq!(relied_on("K - 1", "K", -1), [""; 0]);
        assert_eq!(relied_on("0", "(K + 1) // 2", 2), [""; 0]);
        assert_eq!(relied_on("1", "K - 1", 1), [""; 0]);
        assert_eq!(relied_on("min(K, 64)", "max(K - 64, 0)", 1), [""; 0]);
    }
}
