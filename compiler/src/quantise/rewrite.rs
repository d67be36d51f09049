//! Replaces weights of a graph by rounded ones.
//!
//! A product reads a constant of few bits. A look-up reads bytes and scales at the positions that it would read floats
//! from, and multiplies them, so that the table stays packed. Its elements are the same floats.

use super::{find::Weight, weight_type::WeightType};
use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Node, Op, Type, Value},
    opt::rebuild::rebuild,
    scalar::{BinaryOp, Scalar},
    tensor::{Bytes, FewBits, Tensor},
};
use half::{bf16, f16};
use std::collections::HashMap;
use symshape::Dim;
use symshape_runtime::DType;

/// A weight, and the tensor that replaces it.
pub(super) struct Replacement<'a> {
    pub(super) weight: &'a Weight,
    pub(super) tensor: &'a Tensor,
    pub(super) to: WeightType,
}

/// Replaces weights of the outermost graph.
pub(super) fn rewrite(graph: &mut Graph, replacements: &[Replacement<'_>]) -> Result<()> {
    let by_value: HashMap<Value, &Replacement<'_>> =
        replacements.iter().map(|replacement| (replacement.weight.value, replacement)).collect();
    let mut tables: HashMap<Value, Table<'_>> = HashMap::new();
    rebuild(graph, |new, node| {
        if let Some(replacement) = node.results.first().and_then(|value| by_value.get(value)) {
            let value = new.constant(replacement.tensor.clone())?;
            tables.insert(value, Table { replacement, parts: None });
            return Ok(Some(vec![value]));
        }
        let Op::Gather { shape, coords } = &node.op else { return Ok(None) };
        let Some(table) = tables.get_mut(&node.operands[0]) else { return Ok(None) };
        let parts = match table.parts {
            Some(parts) => parts,
            None => *table.parts.insert(Parts::of(new, table.replacement)?),
        };
        let look_up =
            LookUp { shape, coords, indices: &node.operands[1..], axis: table.replacement.weight.axis };
        parts.element(new, &look_up).map(|found| Some(vec![found]))
    })
}

/// Replaces weights by inputs, which follow the inputs of the graph in this order.
pub(super) fn as_inputs(graph: &mut Graph, weights: &[&Weight]) -> Result<()> {
    let first = graph.inputs.len();
    let mut inputs: Vec<Option<Value>> = vec![None; weights.len()];
    rebuild(graph, |new, node| {
        let Some(index) = weights.iter().position(|weight| weight.value == node.results[0]) else {
            return Ok(None);
        };
        let input = u32::try_from(first + index).map_err(|_| Error::internal("too many inputs"))?;
        let ty = type_of(node)?;
        let value = new.define(Op::Input(input), Vec::new(), vec![ty], None)[0];
        inputs[index] = Some(value);
        Ok(Some(vec![value]))
    })?;

    for (index, value) in inputs.into_iter().enumerate() {
        let value = value.ok_or_else(|| Error::internal("a weight is a node"))?;
        let mut name = format!("weight {index}");
        while graph.inputs.iter().any(|(other, _)| *other == name) {
            name.insert(0, ' ');
        }
        graph.inputs.push((name, value));
    }
    Ok(())
}

/// The type of a constant.
fn type_of(node: &Node) -> Result<Type> {
    let Op::Const(tensor) = &node.op else { return Err(Error::internal("a weight is a constant")) };
    let shape = tensor.shape().iter().map(|dim| Dim::from(*dim)).collect();
    Ok(Type { dtype: tensor.dtype(), shape })
}

/// A weight, and the constants that look-ups read instead, once there is a look-up.
struct Table<'a> {
    replacement: &'a Replacement<'a>,
    parts: Option<Parts>,
}

/// The constants of a table.
#[derive(Clone, Copy)]
enum Parts {
    /// Floats of 32 or 16 bits.
    Floats(Value),
    /// Bytes of codes, and a scale for each block.
    FewBits { codes: Value, scales: Value, bits: usize, block: usize },
}

/// A `Gather` from a table.
struct LookUp<'a> {
    shape: &'a [Dim],
    coords: &'a [Coord],
    /// The operands after the table.
    indices: &'a [Value],
    /// The axis of the table that has the blocks.
    axis: usize,
}

impl LookUp<'_> {
    /// The elements of `table`, in which each `by` elements along the axis of the blocks are one.
    fn gathered(&self, new: &mut Graph, table: Value, by: usize) -> Result<Value> {
        let mut coords = self.coords.to_vec();
        coords[self.axis] = Coord::At(self.at()?.floor_div(by));
        let operands = [&[table], self.indices].concat();
        new.push(Op::Gather { shape: self.shape.to_vec(), coords }, &operands)
    }

    /// The index along the axis of the blocks.
    fn at(&self) -> Result<&Dim> {
        match &self.coords[self.axis] {
            Coord::At(at) => Ok(at),
            Coord::Load { .. } => Err(Error::internal("blocks lie along an axis that is looked up")),
        }
    }
}

impl Parts {
    /// The constants of a table in `new`.
    fn of(new: &mut Graph, replacement: &Replacement<'_>) -> Result<Parts> {
        let Replacement { weight, tensor, to } = replacement;
        let complete =
            |tensor: Option<Tensor>| tensor.ok_or_else(|| Error::internal("all elements have a place"));
        if let Some(weights) = tensor.few_bits() {
            if weights.zeros().is_some() {
                return Err(Error::internal("rounded weights have no zero points"));
            }
            let codes = complete(packed_codes(weights, weight.axis))?;
            let scales = complete(scales(weights))?;
            return Ok(Parts::FewBits {
                codes: new.constant(codes)?,
                scales: new.constant(scales)?,
                bits: weights.bits() as usize,
                block: weights.block()[weight.axis],
            });
        }
        let floats = match to {
            WeightType::F16 => complete(halves(tensor, DType::F16))?,
            WeightType::Bf16 => complete(halves(tensor, DType::BF16))?,
            _ => (*tensor).clone(),
        };
        Ok(Parts::Floats(new.constant(floats)?))
    }

    /// The value of a look-up.
    fn element(self, new: &mut Graph, look_up: &LookUp<'_>) -> Result<Value> {
        let (codes, scales, bits, block) = match self {
            Parts::FewBits { codes, scales, bits, block } => (codes, scales, bits, block),
            Parts::Floats(floats) => {
                let found = look_up.gathered(new, floats, 1)?;
                return new.cast(DType::F32, found);
            }
        };
        let per_byte = 8 / bits;
        let mut codes = look_up.gathered(new, codes, per_byte)?;
        if per_byte > 1 {
            let bit = look_up.at()?.modulo(per_byte) * bits as i64;
            let bit = new.index(DType::U8, look_up.shape.to_vec(), bit)?;
            codes = new.binary(BinaryOp::Shr, codes, bit)?;
            let mask = new.scalar(Scalar::from_i64(DType::U8, (1 << bits) - 1))?;
            codes = new.and(codes, mask)?;
        }
        let codes = if bits == 8 {
            let codes = new.bits(DType::I8, codes)?;
            new.cast(DType::F32, codes)?
        } else {
            let codes = new.cast(DType::F32, codes)?;
            let half = new.number(DType::F32, f64::from(1 << (bits - 1)))?;
            new.sub(codes, half)?
        };
        let scales = look_up.gathered(new, scales, block)?;
        let scales = new.cast(DType::F32, scales)?;
        new.mul(codes, scales)
    }
}

/// Floats in 16 bits, which they are equal to.
fn halves(tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    let bits = |x: f32| match dtype {
        DType::BF16 => bf16::from_f32(x).to_bits(),
        _ => f16::from_f32(x).to_bits(),
    };
    let bytes: Vec<u8> = tensor.f32s().iter().flat_map(|x| bits(*x).to_le_bytes()).collect();
    Tensor::new(dtype, tensor.shape().to_vec(), Bytes::Owned(bytes.into()))
}

/// Codes as panels of few bits have them, so that both can be one constant ([`crate::kernel::few_bits`]). Those of 8
/// bits are signed. Those of fewer are higher by half of their range, and share bytes along `axis`, the first in the
/// lowest bits.
fn packed_codes(weights: &FewBits, axis: usize) -> Option<Tensor> {
    let bits = weights.bits() as usize;
    let per_byte = 8 / bits;
    let shape = weights.shape();
    let stride: usize = shape[axis + 1..].iter().product();
    let len = shape[axis];
    let n_bytes = len.div_ceil(per_byte);

    let half = if bits == 8 { 0 } else { 1u8 << (bits - 1) };
    let mask = ((1u16 << bits) - 1) as u8;
    let mut bytes = vec![0; weights.elems() / len.max(1) * n_bytes];
    for (idx, code) in weights.codes().iter().enumerate() {
        let inner = idx % stride;
        let at = idx / stride % len;
        let outer = idx / stride / len;
        let place = (outer * n_bytes + at / per_byte) * stride + inner;
        bytes[place] |= (code.wrapping_add(half) & mask) << (at % per_byte * bits);
    }

    let mut shape = shape.to_vec();
    shape[axis] = n_bytes;
    Tensor::new(DType::U8, shape, Bytes::Owned(bytes.into()))
}

/// The scale of each block.
fn scales(weights: &FewBits) -> Option<Tensor> {
    let grid = weights.shape().iter().zip(weights.block()).map(|(dim, block)| dim.div_ceil(*block));
    let scales = Tensor::from_f32(grid.collect(), weights.scales())?;
    match weights.scale_type() {
        DType::F32 => Some(scales),
        dtype => halves(&scales, dtype),
    }
}
