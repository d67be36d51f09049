//! The operands of products with rounded activations.

use super::{index::strides, rounding::Rounding};
use crate::{
    error::{Error, Result},
    graph::Label,
    scalar::activations::RoundedBlock,
    tensor::{Bytes, FewBits, Tensor},
};
use symshape_runtime::DType;

/// The operands of a contraction of [`Precision::Int8`](crate::scalar::Precision::Int8) in `f64`: the activations
/// rounded, and the weights without rounding.
pub(super) fn operands(
    labels: [&[Label]; 2],
    out: &[Label],
    operands: &[Tensor],
    rounding: Rounding,
) -> Result<[Tensor; 2]> {
    let sides = [0, 1].into_iter().find(|side| operands[*side].few_bits().is_some());
    let side = sides.ok_or_else(|| Error::invalid("no operand has few bits"))?;
    let weights = operands[side].few_bits().ok_or_else(|| Error::internal("found before"))?;
    let mut reduced = labels[side].iter().filter(|label| !out.contains(label));
    let (Some(label), None) = (reduced.next(), reduced.next()) else {
        return Err(Error::invalid("rounded activations need one reduction axis"));
    };

    let position = |side: usize| labels[side].iter().position(|other| other == label);
    let (Some(of_weights), Some(axis)) = (position(side), position(1 - side)) else {
        return Err(Error::invalid("a reduction axis of one operand"));
    };
    let activations = rounded(&operands[1 - side], axis, weights.block()[of_weights], rounding)?;
    let weights = unrounded(weights)?;
    Ok(if side == 0 { [weights, activations] } else { [activations, weights] })
}

/// The elements, rounded in blocks of `block` elements along `axis`.
fn rounded(x: &Tensor, axis: usize, block: usize, rounding: Rounding) -> Result<Tensor> {
    let depth = x.shape()[axis];
    let step = strides(x.shape())[axis];
    let mut values = vec![0.0; x.elems()];
    let is_first = |idx: &usize| (idx / step).is_multiple_of(depth);
    for row in (0..x.elems()).filter(is_first) {
        for first in (0..depth).step_by(block) {
            let places = (first..depth.min(first + block)).map(|k| row + k * step);
            let elements: Vec<f32> = places.clone().map(|at| x.get(at).as_f64() as f32).collect();
            let rounded = match rounding {
                Rounding::Last | Rounding::Quick => RoundedBlock::of(&elements),
                Rounding::Each => RoundedBlock::of_to_other_side(&elements),
            };
            for (at, value) in places.zip(rounded.values()) {
                values[at] = value;
            }
        }
    }
    tensor(x.shape(), values.into_iter())
}

/// The weights with products of integers and scales that are not rounded.
fn unrounded(weights: &FewBits) -> Result<Tensor> {
    tensor(weights.shape(), (0..weights.elems()).map(|idx| weights.exact(idx)))
}

fn tensor(shape: &[usize], elems: impl Iterator<Item = f64>) -> Result<Tensor> {
    let bytes: Vec<u8> = elems.flat_map(f64::to_le_bytes).collect();
    Tensor::new(DType::F64, shape.to_vec(), Bytes::Owned(bytes.into()))
        .ok_or_else(|| Error::internal("an element each"))
}
