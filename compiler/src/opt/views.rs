//! Simplifies movement: views of views are merged, views that move nothing are removed, and other movement becomes a
//! view where it can.
//!
//! A view is a substitution. `view g (view f x)` has the index map `f` with the expressions of `g` in place of its
//! axes, simplified under the facts of the outer shape. Transposes next to a contraction become its labels.

use super::rebuild_by_uses::rebuild_by_uses;
use crate::{
    error::Result,
    graph::{Coord, Graph, Label, Node, Op, Value, axis},
};
use cranelift_entity::SecondaryMap;
use symshape::{Dim, Symbol};

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn views(graph: &mut Graph) -> Result<()> {
    rebuild_by_uses(graph, |new, node, used| match &node.op {
        Op::View { shape, index } => {
            view(new, node.operands[0], shape.clone(), index.clone(), used).map(Some)
        }
        Op::Gather { shape, coords } => gather(new, node, shape, coords),
        Op::Contraction { .. } => contraction(new, node),
        Op::Concat { axis } => concat(new, node, *axis),
        _ => Ok(None),
    })
}

/// `index` with the axes replaced by these expressions.
pub(crate) fn compose(index: &[Dim], by: &[Dim]) -> Vec<Dim> {
    let value_of = |symbol: &Symbol| (0..by.len()).find(|k| axis(*k) == *symbol).map(|k| by[k].clone());
    index.iter().map(|expr| expr.substitute(&value_of)).collect()
}

fn view(
    new: &mut Graph,
    x: Value,
    shape: Vec<Dim>,
    index: Vec<Dim>,
    used: &SecondaryMap<Value, u32>,
) -> Result<Value> {
    let mut x = x;
    let mut index = index;
    while let Op::View { shape: between, index: inner } = new.op(x) {
        // A mirrored or clamped index is computed once per element of the inner view rather than of the outer one.
        let more = || !new.facts.prove_le(&elems(&shape), &elems(between)).is_yes();
        if new.op(x).folds() && more() {
            break;
        }
        index = compose(inner, &index);
        x = new.operands(x)[0];
    }

    let facts = new.index_facts(&shape);
    let index: Vec<Dim> = index
        .iter()
        .zip(new.shape(x))
        // An axis of size 1 has only one index.
        .map(|(expr, dim)| if dim.as_i64() == Some(1) { Dim::zero() } else { facts.simplify(expr) })
        .collect();

    if moves_nothing(new, x, &shape, &index) {
        return Ok(x);
    }
    if let Some(relabelled) = transposed_contract(new, x, &shape, &index, used)? {
        return Ok(relabelled);
    }
    if let Op::Index { dtype, expr, .. } = new.op(x) {
        let dtype = *dtype;
        let expr = compose(std::slice::from_ref(expr), &index).remove(0);
        return new.index(dtype, shape, expr);
    }
    new.view(x, shape, index)
}

fn elems(shape: &[Dim]) -> Dim {
    Dim::product(shape.iter().cloned())
}

fn moves_nothing(graph: &Graph, x: Value, shape: &[Dim], index: &[Dim]) -> bool {
    let one = |dim: &Dim| dim.as_i64() == Some(1);
    graph.shape(x) == shape
        && index.iter().enumerate().all(|(k, expr)| *expr == Dim::from(axis(k)) || one(&shape[k]))
}

/// If the view is a transpose, `perm[k]` is the axis of the view that shows axis `k` of the operand `x`.
fn permutation(graph: &Graph, x: Value, shape: &[Dim], index: &[Dim]) -> Option<Vec<usize>> {
    let perm: Vec<usize> = index
        .iter()
        .map(|expr| (0..shape.len()).find(|k| *expr == Dim::from(axis(*k))))
        .collect::<Option<_>>()?;
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    let whole = perm.iter().zip(graph.shape(x)).all(|(k, dim)| shape[*k] == *dim);
    (whole && sorted == (0..shape.len()).collect::<Vec<_>>()).then_some(perm)
}

/// Replaces a transpose of a contraction without other uses by the contraction with its result's labels reordered.
fn transposed_contract(
    new: &mut Graph,
    x: Value,
    shape: &[Dim],
    index: &[Dim],
    used: &SecondaryMap<Value, u32>,
) -> Result<Option<Value>> {
    let (Op::Contraction { lhs, rhs, out, dtype, precision }, 1) = (new.op(x).clone(), used[x]) else {
        return Ok(None);
    };
    let Some(perm) = permutation(new, x, shape, index) else { return Ok(None) };
    let mut labels: Vec<Label> = out.clone();
    for (from, to) in perm.iter().enumerate() {
        labels[*to] = out[from];
    }
    let operands = new.operands(x).to_vec();
    new.push(Op::Contraction { lhs, rhs, out: labels, dtype, precision }, &operands).map(Some)
}

/// Moves transposes of a contraction's operands into the order of their labels.
fn contraction(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let Op::Contraction { lhs, rhs, out, dtype, precision } = &node.op else { return Ok(None) };
    let mut changed = false;

    let mut operands = node.operands.clone();
    let mut labels = [lhs.clone(), rhs.clone()];
    for (operand, labels) in operands.iter_mut().zip(&mut labels) {
        let Op::View { shape, index } = new.op(*operand) else { continue };
        let Some(perm) = permutation(new, new.operands(*operand)[0], shape, index) else { continue };
        *labels = perm.iter().map(|k| labels[*k]).collect();
        *operand = new.operands(*operand)[0];
        changed = true;
    }

    let [lhs, rhs] = labels;
    let op = Op::Contraction { lhs, rhs, out: out.clone(), dtype: *dtype, precision: *precision };
    if changed { new.push(op, &operands).map(Some) } else { Ok(None) }
}

/// Replaces a gather by a view, if its coordinates are each one known index or if it has none.
fn gather(new: &mut Graph, node: &Node, shape: &[Dim], coords: &[Coord]) -> Result<Option<Value>> {
    let mut index = Vec::new();
    for coord in coords {
        match coord {
            Coord::At(expr) => index.push(expr.clone()),
            Coord::Load { operand, at } => match known_coord(new, node.operands[*operand], at) {
                Some(expr) => index.push(expr),
                None => return Ok(None),
            },
        }
    }

    let x = node.operands[0];
    let facts = new.index_facts(shape);
    let inside = |(expr, dim): (&Dim, &Dim)| {
        facts.prove_le(&Dim::zero(), expr).is_yes() && facts.prove_lt(expr, dim).is_yes()
    };

    // Otherwise the compiled code must check the index and report it, which a view would not do.
    if !index.iter().zip(new.shape(x)).all(inside) {
        return Ok(None);
    }
    view(new, x, shape.to_vec(), index, &SecondaryMap::new()).map(Some)
}

/// The elements of `value` at `at` as an index expression: one known element, or a formula for all of them.
fn known_coord(graph: &Graph, value: Value, at: &[Dim]) -> Option<Dim> {
    if let Op::Index { expr, .. } = graph.op(value) {
        return Some(compose(std::slice::from_ref(expr), at).remove(0));
    }
    match graph.contents(value)? {
        [one] => Some(one.clone()),
        list if at.len() == 1 => {
            // Equally spaced indices are a slice.
            let step = list.get(1)? - list.first()?;
            let spaced =
                |(i, elem): (usize, &Dim)| *elem == graph.facts.simplify(&(&list[0] + &step * i as i64));
            list.iter().enumerate().all(spaced).then(|| &list[0] + &at[0] * &step)
        }
        _ => None,
    }
}

/// Drops the empty operands of a concatenation.
fn concat(new: &mut Graph, node: &Node, axis: usize) -> Result<Option<Value>> {
    let full: Vec<Value> =
        node.operands.iter().copied().filter(|value| new.shape(*value)[axis].as_i64() != Some(0)).collect();
    if full.is_empty() || full.len() == node.operands.len() {
        return Ok(None);
    }
    new.concat(&full, axis).map(Some)
}
