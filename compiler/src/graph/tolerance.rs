//! Compares results with those of the evaluator up to rounding, for tests of random graphs.
//!
//! Code may sum in another order than the evaluator, and its functions are off by some units in the last place. The
//! effect on a result depends on its intermediate values: a difference of large values consists mostly of their
//! errors. So a result may be off by a fraction of itself, plus some roundings of the largest intermediate value.

use super::{Graph, Op, Value, eval};
use crate::tensor::Tensor;
use symshape_runtime::DType;

/// Elements beyond this magnitude, infinities and NaN compare as equal: whether a sum overflows depends on its order.
const HUGE: f64 = 1e30;

/// The allowed error as a fraction of the largest intermediate value: eight roundings.
const ROUNDINGS: f64 = 8.0 / (1 << 24) as f64;

/// How the results of one call of a graph are compared.
pub struct RoundingTolerance {
    /// The largest float below the huge ones, of all values that the graph computes.
    largest: f64,
}

impl RoundingTolerance {
    /// A comparison for the results on these inputs.
    pub fn of(graph: &Graph, inputs: &[Tensor]) -> RoundingTolerance {
        // The shapes of other values need the data-dependent sizes.
        let counts =
            |value: &Value| graph.dtype(*value).is_float() || matches!(graph.op(*value), Op::Bind { .. });
        let values: Vec<Value> =
            graph.nodes.values().flat_map(|node| node.results.clone()).filter(counts).collect();

        // A node that no output depends on may fail. Then only the results themselves give a scale.
        let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
        let tensors = eval::bind(graph, &shapes)
            .and_then(|binding| eval::values(graph, &binding, inputs, &values))
            .unwrap_or_default();
        let floats = tensors.iter().filter(|tensor| tensor.dtype().is_float());
        let all = floats.flat_map(|tensor| (0..tensor.elems()).map(|elem| tensor.get(elem).as_f64()));

        RoundingTolerance { largest: all.map(f64::abs).filter(|x| *x <= HUGE).fold(0.0, f64::max) }
    }

    /// Compares `found` with `wanted`.
    ///
    /// # Errors
    /// The first element outside the tolerance, or another difference.
    pub fn check(&self, expected: &Tensor, actual: &Tensor) -> Result<(), String> {
        if (expected.dtype(), expected.shape()) != (actual.dtype(), actual.shape()) {
            return Err(format!("{actual} and {expected} differ in type or shape"));
        }

        let is_huge = |x: f64| !x.is_finite() || x.abs() > HUGE;
        for elem in 0..expected.elems() {
            let got = actual.get(elem);
            let want = expected.get(elem);
            let x = got.as_f64();
            let y = want.as_f64();
            let allowed = self.tolerance(expected.dtype(), y);
            if !(x == y || (is_huge(x) && is_huge(y)) || (x - y).abs() <= allowed) {
                return Err(format!("[{elem}]: {got}, not {want} within {allowed:e}"));
            }
        }

        Ok(())
    }

    fn tolerance(&self, dtype: DType, expected: f64) -> f64 {
        let share = match dtype {
            dtype if !dtype.is_float() => return 0.0,
            DType::F16 | DType::BF16 => 2e-2,
            _ => 1e-4,
        };
        share * (1.0 + expected.abs()) + ROUNDINGS * self.largest
    }
}
