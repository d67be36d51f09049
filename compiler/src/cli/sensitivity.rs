//! How much of a difference the model itself makes out of rounding.
//!
//! A model may amplify the last bit of its weights to any size: a normalisation whose input hardly varies divides by
//! almost nothing. No tolerance fits all models, so where a difference is too large for the usual one, the reference
//! evaluator runs once more with each float constant moved by one unit in its last place, up or down at random. That
//! is the least that arithmetic in this type can be expected to do; what compiled code does is measured by it.

use crate::{
    error::Result,
    graph::{Graph, Op, eval::eval},
    scalar::Scalar,
    tensor::Tensor,
};

/// Rounding happens in every operation, not only in the constants, and a sum of n terms is off by about √n of it: this
/// is for sums of thousands.
const ROUNDINGS: f64 = 64.0;

/// For each output how far rounding alone may move it: `want` is what the model gives with its own constants.
///
/// # Errors
/// As [`eval`].
pub(super) fn sensitivity(graph: &Graph, inputs: &[Tensor], want: &[Tensor]) -> Result<Vec<f64>> {
    let moved = eval(&perturbed(graph), inputs)?;
    Ok(want.iter().zip(&moved).map(|(want, moved)| ROUNDINGS * largest_difference(want, moved)).collect())
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    let difference = |idx: usize| (a.get(idx).as_f64() - b.get(idx).as_f64()).abs();
    match a.dtype().is_float() && a.shape() == b.shape() {
        true => (0..a.elems()).map(difference).filter(|x| x.is_finite()).fold(0.0, f64::max),
        false => 0.0,
    }
}

/// The graph with other constants, the same on each call.
fn perturbed(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let mut state = 0x9e37_79b9_u32;
    for node in graph.nodes.values_mut() {
        if let Op::Const(tensor) = &mut node.op
            && tensor.dtype().is_float()
        {
            *tensor = moved(tensor, &mut state);
        }
    }
    graph
}

fn moved(tensor: &Tensor, state: &mut u32) -> Tensor {
    let dtype = tensor.dtype();
    let mut up = || {
        // Xorshift, by Marsaglia.
        *state ^= *state << 13;
        *state ^= *state >> 17;
        *state ^= *state << 5;
        *state & 1 == 0
    };
    let elem = |idx: usize| {
        let elem = tensor.get(idx);
        let bits = if up() { elem.bits() + 1 } else { elem.bits().wrapping_sub(1) };
        let moved = Scalar::from_bits(dtype, bits);
        // Zeros and limits mean what they say.
        let ordinary = |x: f64| x.is_normal() && x.abs() < 1e30;
        if ordinary(elem.as_f64()) && ordinary(moved.as_f64()) { moved } else { elem }
    };
    let elems: Vec<Scalar> = (0..tensor.elems()).map(elem).collect();
    Tensor::from_scalars(dtype, tensor.shape().to_vec(), &elems).unwrap_or_else(|| tensor.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symshape_runtime::DType;

    #[test]
    fn a_difference_of_near_equals_is_as_sensitive_as_it_looks() {
        let mut graph = Graph::default();
        let x = graph.input("x", DType::F32, vec![2.into()]).unwrap();
        let large = graph.constant(Tensor::from_f32(vec![2], &[1024.0, 1.0]).unwrap()).unwrap();
        let y = graph.sub(x, large).unwrap();
        graph.output("y", y).unwrap();
        let inputs = [Tensor::from_f32(vec![2], &[1024.5, 1.0]).unwrap()];
        let want = eval(&graph, &inputs).unwrap();
        let found = sensitivity(&graph, &inputs, &want).unwrap();
        let last_place = f64::from(f32::EPSILON) * 1024.0;
        assert!(found[0] >= ROUNDINGS * last_place / 2.0 && found[0] <= ROUNDINGS * last_place, "{found:?}");
    }
}
