//! Comparisons that the bounds of indices decide. Importers let indices count from the end if they are negative, and
//! compare each with zero, positions included.

use crate::{
    graph::{Graph, Op, Value},
    scalar::{Body, CompareOp, Scalar, Step},
};
use num_traits::ToPrimitive;
use symshape_runtime::DType;

/// The smallest and the largest value of an integer.
type Range = (i64, i64);

/// `body`, whose parameters are `operands`, with constants in place of the comparisons that are the same for all
/// elements.
pub(super) fn decide(graph: &Graph, mut body: Body, operands: &[Value]) -> Body {
    let mut ranges: Vec<Option<Range>> = operands.iter().map(|value| index_range(graph, *value)).collect();
    for step in &mut body.steps {
        let range = match step {
            Step::Const(number) if number.dtype() == DType::I64 => Some((number.as_i64(), number.as_i64())),
            Step::Compare(op, x, y) => {
                let both = ranges[x.0 as usize].zip(ranges[y.0 as usize]);
                if let Some(holds) = both.and_then(|(x, y)| decided(*op, x, y)) {
                    *step = Step::Const(Scalar::bool(holds));
                }
                None
            }
            _ => None,
        };
        ranges.push(range);
    }
    body
}

/// The range of the elements of a tensor of indices.
fn index_range(graph: &Graph, value: Value) -> Option<Range> {
    let Op::Index { dtype: DType::I64, shape, expr } = graph.op(value) else { return None };
    let bounds = graph.index_facts(shape).bounds(expr);
    Some((bounds.lo?.to_i64()?, bounds.hi?.to_i64()?))
}

/// The result of a comparison, if it is the same for all values in these ranges.
fn decided(op: CompareOp, x: Range, y: Range) -> Option<bool> {
    let is_less = |x: Range, y: Range| match () {
        () if x.1 < y.0 => Some(true),
        () if x.0 >= y.1 => Some(false),
        () => None,
    };
    match op {
        CompareOp::Lt => is_less(x, y),
        CompareOp::Gt => is_less(y, x),
        CompareOp::Ge => is_less(x, y).map(|less| !less),
        CompareOp::Le => is_less(y, x).map(|greater| !greater),
        CompareOp::Eq | CompareOp::Ne => {
            let is_equal =
                if x.1 < y.0 || y.1 < x.0 { Some(false) } else { (x.0 == x.1 && x == y).then_some(true) };
            is_equal.map(|equal| equal == (op == CompareOp::Eq))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_holds_for_all_values_of_the_ranges() {
        let ranges: Vec<Range> = (-2..3).flat_map(|lo| (lo..3).map(move |hi| (lo, hi))).collect();
        let ops = [CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge, CompareOp::Eq, CompareOp::Ne];
        let holds = |op, x: i64, y: i64| match op {
            CompareOp::Lt => x < y,
            CompareOp::Le => x <= y,
            CompareOp::Gt => x > y,
            CompareOp::Ge => x >= y,
            CompareOp::Eq => x == y,
            CompareOp::Ne => x != y,
        };
        for op in ops {
            for x in &ranges {
                for y in &ranges {
                    let mut results = (x.0..=x.1).flat_map(|x| (y.0..=y.1).map(move |y| holds(op, x, y)));
                    let first = results.next().expect("ranges are not empty");
                    let expected = results.all(|other| other == first).then_some(first);
                    assert_eq!(decided(op, *x, *y), expected, "{op:?} {x:?} {y:?}");
                }
            }
        }
    }
}
