//! Constant folding. The evaluator computes nodes that depend only on constants, as long as the result is no larger
//! than the operands.
//!
//! A view of a constant costs nothing at run time, and folding it would copy the constant. It is folded only when it
//! is small or the last use of its source. External functions are not called here. Values whose contents are known
//! integers count as constants. Views of weights of few bits are not folded: their elements would become floats.

use super::rebuild::{rebuild, uses};
use crate::{
    error::Result,
    graph::{
        Graph, Node, Op, Value,
        eval::{Binding, values},
    },
    scalar::Scalar,
    tensor::Tensor,
};
use cranelift_entity::SecondaryMap;
use symshape::Dim;

/// Results up to this size are folded, whatever the size of the operands.
pub(crate) const SMALL_BYTES: usize = 4096;

/// Larger results are left to run time, so that folding does not dominate the compile time.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// Runs the pass.
///
/// # Errors
/// None. An error of the evaluator (an index out of bounds) is left for run time to report.
pub(crate) fn fold(graph: &mut Graph) -> Result<()> {
    let uses = uses(graph);
    let by_result: SecondaryMap<Value, u32> = uses;

    // Whether a value of the new graph depends only on constants.
    let mut fixed: SecondaryMap<Value, bool> = SecondaryMap::new();

    // The number of uses that the counterpart of each value of the new graph had.
    let mut used: SecondaryMap<Value, u32> = SecondaryMap::new();

    rebuild(graph, |new, node| {
        let is_fixed = !matches!(node.op, Op::Index { .. } | Op::Call { .. })
            && !node.op.acts()
            && node.operands.iter().all(|value| fixed[*value]);

        let results = new.push_multi(node.op.clone(), &node.operands)?;
        let folded = match known(new, results[0]) {
            Some(tensor) if !matches!(node.op, Op::Const(_)) => Some(tensor),
            _ if is_fixed && results.len() == 1 => computed(new, node, results[0], &used),
            _ => None,
        };

        let results = match folded {
            Some(tensor) => vec![new.constant(tensor)?],
            None => results,
        };

        for (old, result) in node.results.iter().zip(&results) {
            fixed[*result] = is_fixed || matches!(new.op(*result), Op::Const(_));
            used[*result] += by_result[*old];
        }

        Ok(Some(results))
    })?;
    super::dead::dead(graph)
}

/// The tensor of contents that are all known integers.
fn known(graph: &Graph, value: Value) -> Option<Tensor> {
    let elems: Vec<i64> = graph.contents(value)?.iter().map(Dim::as_i64).collect::<Option<_>>()?;
    let elems: Vec<Scalar> =
        elems.into_iter().map(|elem| Scalar::from_i64(graph.dtype(value), elem)).collect();
    Tensor::from_scalars(graph.dtype(value), fixed_shape(graph, value)?, &elems)
}

fn fixed_shape(graph: &Graph, value: Value) -> Option<Vec<usize>> {
    graph.shape(value).iter().map(|dim| usize::try_from(dim.as_i64()?).ok()).collect()
}

fn computed(graph: &Graph, node: &Node, value: Value, used: &SecondaryMap<Value, u32>) -> Option<Tensor> {
    let bytes = bytes_of(graph, value)?;
    let worth = match &node.op {
        Op::Const(_) => false,
        _ if bytes > MAX_BYTES => false,
        _ if bytes <= SMALL_BYTES => true,
        Op::View { .. } if is_few_bits(graph, node.operands[0]) => false,
        Op::View { .. } => used[node.operands[0]] <= 1 && bytes <= bytes_of(graph, node.operands[0])?,
        // An operand that is a view counts as its source.
        _ => bytes <= node.operands.iter().filter_map(|operand| bytes_of(graph, *operand)).sum(),
    };

    if !worth || is_spread(graph, value) {
        return None;
    }

    values(graph, &Binding::new(), &[], &[value]).ok()?.pop()
}

/// Whether a value is a constant of few bits, or a view of one.
fn is_few_bits(graph: &Graph, value: Value) -> bool {
    graph.viewed_constant(value).is_some_and(|tensor| tensor.few_bits().is_some())
}

fn bytes_of(graph: &Graph, value: Value) -> Option<usize> {
    let elems = fixed_shape(graph, value)?.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
    elems.checked_mul(graph.dtype(value).size_bytes())
}

/// Whether the value repeats one element. As a view it can be inlined into its users as a constant.
fn is_spread(graph: &Graph, value: Value) -> bool {
    match graph.op(value) {
        Op::View { .. } => {
            let from = graph.operands(value)[0];
            let elems = |value| bytes_of(graph, value).map(|bytes| bytes / graph.dtype(value).size_bytes());
            elems(from) == Some(1) && elems(value) != Some(1)
        }
        _ => false,
    }
}
