//! Values that are known at import time.

use crate::{
    error::Result,
    graph::{Graph, Op, Value, eval, infer::MAX_CONTENTS},
    tensor::Tensor,
};
use std::collections::HashSet;
use symshape::Dim;

/// Maximum number of elements in the computation of a constant.
const MAX_ELEMS: i64 = 1 << 16;

/// Maximum number of values in the computation of a constant. Many values are checked, and those of a long chain depend
/// on each other.
const MAX_STEPS: usize = 256;

/// The tensor that `value` equals in every call, if it depends on neither inputs nor symbols and is cheap to compute.
pub(crate) fn value_of(g: &Graph, value: Value) -> Result<Option<Tensor>> {
    if let Op::Const(tensor) = g.op(value) {
        return Ok(Some(tensor.clone()));
    }
    if !is_known(g, value) {
        return Ok(None);
    }
    let mut found = eval::values(g, &eval::Binding::new(), &[], &[value])?;
    Ok(found.pop())
}

/// `value`, or an equal constant if it may be a shape: a few integers computed from constants.
///
/// Contents don't follow all such computations, for example the cast of a square root.
pub(crate) fn resolved(g: &mut Graph, value: Value) -> Result<Value> {
    let count =
        |g: &Graph| g.shape(value).iter().try_fold(1_i64, |product, dim| product.checked_mul(dim.as_i64()?));
    if !g.dtype(value).is_int() || g.rank(value) > 1 || g.contents(value).is_some() {
        return Ok(value);
    }
    if count(g).is_none_or(|count| count > MAX_CONTENTS as i64) {
        return Ok(value);
    }

    // An error of the computation is reported where the value is used.
    match value_of(g, value).ok().flatten() {
        Some(tensor) => g.constant(tensor),
        None => Ok(value),
    }
}

/// Whether `value` depends only on constants, and on few of them.
fn is_known(g: &Graph, value: Value) -> bool {
    let mut met = HashSet::from([value]);
    let mut open = vec![value];

    let mut budget = MAX_ELEMS;
    while let Some(value) = open.pop() {
        let elems = g.shape(value).iter().try_fold(1_i64, |product, dim| product.checked_mul(dim.as_i64()?));
        match elems.and_then(|elems| budget.checked_sub(elems.max(1))).filter(|left| *left >= 0) {
            Some(left) => budget = left,
            None => return false,
        }

        if depends_on_symbols(g, g.op(value)) {
            return false;
        }

        open.extend(g.operands(value).iter().filter(|operand| met.insert(**operand)));
        if met.len() > MAX_STEPS {
            return false;
        }
    }

    true
}

fn depends_on_symbols(g: &Graph, op: &Op) -> bool {
    let has_symbol = |dims: &[Dim]| {
        dims.iter().any(|dim| g.symbols.iter().chain(&g.data_dependent).any(|symbol| dim.contains(symbol)))
    };
    match op {
        Op::Input(_) => true,
        Op::Index { expr, .. } => has_symbol(std::slice::from_ref(expr)),
        Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Call { .. } | Op::Fail { .. } => true,
        Op::View { index, .. } => has_symbol(index),
        Op::Sort { first, .. } => has_symbol(first.as_slice()),
        Op::Pad { lo, hi, .. } => has_symbol(lo) || has_symbol(hi),
        Op::Gather { coords, .. } | Op::Scatter { coords, .. } => coords.iter().any(|coord| match coord {
            crate::graph::Coord::At(dim) => has_symbol(std::slice::from_ref(dim)),
            crate::graph::Coord::Load { at, .. } => has_symbol(at),
        }),
        Op::Const(_)
        | Op::Map(_)
        | Op::Concat { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Contraction { .. }
        | Op::Scan { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chains_are_not_constants() {
        let mut g = Graph::default();
        let one = g.number(symshape_runtime::DType::F32, 1.0).expect("a scalar");
        let mut sum = one;
        for step in 1..2 * MAX_STEPS {
            sum = g.add(sum, one).expect("the types match");
            let value = value_of(&g, sum).expect("scalars can be added").map(|sum| sum.get(0).as_f64());
            // The first value and all sums.
            assert_eq!(value, (step < MAX_STEPS).then_some(step as f64 + 1.0));
        }
    }
}
