//! The sensitivity of a model to rounding.
//!
//! A model may amplify the last bit of a sum or of a function to any size. A normalisation whose input hardly varies
//! divides by almost nothing, and a value that is quantised at run time may become the next integer. No tolerance fits
//! all models. So if a difference exceeds the usual tolerance, the reference evaluator runs once more: it rounds each
//! sum at every step instead of once, and functions to the other side ([`Rounding::Each`]). Compiled code rounds as
//! often, in another order, so the distance between these two results measures the effect of its rounding.

use crate::{
    accuracy::distance::largest_difference,
    error::{ErrorKind, Result},
    graph::{
        Graph,
        eval::{Rounding, eval_rounding},
    },
    tensor::Tensor,
};

/// Allowed differences, as a multiple of that distance. The distance is one sample of the effect of a summation order;
/// for outputs of few elements, the sample may be small by chance.
const MARGIN: f64 = 4.0;

/// The allowed difference of each output; `want` are the outputs with sums rounded once. The difference is 0 if the
/// model refuses a rounded value, such as an index.
///
/// # Errors
/// An internal error of the evaluator.
pub(super) fn sensitivity(graph: &Graph, inputs: &[Tensor], want: &[Tensor]) -> Result<Vec<f64>> {
    let rounded = match eval_rounding(graph, inputs, Rounding::Each) {
        Err(error) if error.kind() != ErrorKind::Internal => return Ok(vec![0.0; want.len()]),
        rounded => rounded?,
    };
    Ok(want.iter().zip(&rounded).map(|(want, rounded)| MARGIN * largest_difference(want, rounded)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::ReduceOp;
    use symshape_runtime::DType;

    /// The sum of `terms`, and its sensitivity.
    fn summed(terms: &[f32]) -> crate::Result<(Vec<Tensor>, Vec<f64>)> {
        let mut graph = Graph::default();
        let x = graph.input("x", DType::F32, vec![terms.len().into()])?;
        let y = graph.reduce(ReduceOp::Sum, x, &[0], false)?;
        graph.output("y", y)?;
        let inputs = [Tensor::from_f32(vec![terms.len()], terms).expect("as many terms as the shape says")];
        let want = crate::graph::eval::eval(&graph, &inputs)?;
        let found = sensitivity(&graph, &inputs, &want)?;
        Ok((want, found))
    }

    #[test]
    fn a_sum_that_cancels_is_as_sensitive_as_its_largest_terms() -> crate::Result<()> {
        // In single precision, 2^25 + 1 is rounded to 2^25: the steps there are 4.
        let (want, found) = summed(&[33_554_432.0, 1.0, -33_554_432.0])?;
        assert_eq!((want[0].get(0).as_f64(), found), (1.0, vec![MARGIN]));
        Ok(())
    }

    #[test]
    fn a_function_may_be_rounded_to_either_side() -> crate::Result<()> {
        let mut graph = Graph::default();
        let x = graph.input("x", DType::F32, vec![1.into()])?;
        let third = graph.recip(x)?;
        let exact = graph.mul(x, x)?;
        graph.output("third", third)?;
        graph.output("exact", exact)?;
        let inputs = [Tensor::from_f32(vec![1], &[3.0]).expect("one element")];
        let want = crate::graph::eval::eval(&graph, &inputs)?;
        let step = f64::from(f32::EPSILON) / 4.0;
        assert_eq!(sensitivity(&graph, &inputs, &want)?, [MARGIN * step, 0.0]);
        Ok(())
    }

    #[test]
    fn nothing_is_allowed_where_rounding_is_refused() -> crate::Result<()> {
        let mut graph = Graph::default();
        let x = graph.input("x", DType::F32, vec![1.into()])?;

        // A third and its neighbour, times three times 2^24, are on both sides of an integer.
        let third = graph.recip(x)?;
        let large = graph.number(DType::F32, f64::from(3 << 24))?;
        let third = graph.cast(DType::F64, third)?;
        let large = graph.cast(DType::F64, large)?;
        let product = graph.mul(third, large)?;

        let first = graph.number(DType::F64, f64::from(1 << 24))?;
        let distance = graph.sub(first, product)?;
        let index = graph.cast(DType::I64, distance)?;
        let index = graph.abs(index)?;
        let y = graph.gather(x, index, 0)?;
        graph.output("y", y)?;

        let inputs = [Tensor::from_f32(vec![1], &[3.0]).expect("one element")];
        let want = crate::graph::eval::eval(&graph, &inputs)?;
        assert!(eval_rounding(&graph, &inputs, Rounding::Each).is_err(), "index 1 of one element");
        assert_eq!(sensitivity(&graph, &inputs, &want)?, [0.0]);

        Ok(())
    }

    #[test]
    fn a_sum_without_rounding_is_not_sensitive() -> crate::Result<()> {
        assert_eq!(summed(&[1.0, 2.0, 3.0])?.1, [0.0]);
        Ok(())
    }
}
