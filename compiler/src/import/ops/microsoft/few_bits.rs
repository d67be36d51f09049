//! Products with, and lookups in, weights of few bits of ONNX Runtime's domain.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis, build::shape_text},
    import::{
        node::{OnnxNode, axes::normal_axis},
        ops::{
            quant::{require_float_scales, require_shape},
            shared::arithmetic::int,
        },
    },
    scalar::{BinaryOp, CompareOp, Scalar},
    tensor::{Bytes, Tensor},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "com.microsoft" GatherBlockQuantized 1 gather_block_quantized,
    "com.microsoft" MatMulBnb4 1 matmul_bnb4,
    "com.microsoft" MatMulNBits 1 matmul_n_bits,
}

/// The 16 values of a weight in the format NF4, quantiles of the normal distribution.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The magnitudes of a weight in the format FP4. The fourth bit is the sign.
const FP4: [f32; 8] = [0.0, 0.005_208_333_3, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25];

/// The first `count` integers of `bits` bits in the bytes of the last axis of `x`. The lowest bits of a byte come
/// first.
pub(crate) fn unpacked(g: &mut Graph, x: Value, bits: i64, count: &Dim) -> Result<Value> {
    let mut shape = g.shape(x).to_vec();
    let last = shape.len() - 1;
    let each = 8 / bits;

    let mut values = x;
    if let Some(unpacked) = g.as_constant(x).and_then(|tensor| unpacked_constant(tensor, bits as u32)) {
        values = g.constant(unpacked)?;
    } else if each > 1 {
        let unsqueezed = g.unsqueeze(x, &[last + 1])?;
        let place = g.index(DType::U8, vec![each.into()], Dim::from(axis(0)) * bits)?;
        let shifted = g.binary(BinaryOp::Shr, unsqueezed, place)?;
        let mask = g.scalar(Scalar::from_i64(DType::U8, (1 << bits) - 1))?;
        let parts = g.and(shifted, mask)?;
        shape[last] = g.facts.simplify(&(&shape[last] * each));
        values = g.reshape(parts, shape)?;
    }

    g.slice(values, last, Dim::zero(), count.clone(), 1)
}

/// `x`, the `name` of the weights, in this shape. A constant stays one, so that [`unpacked`] sees its elements. `x` may
/// have its elements in one axis, or the first axis of `shape` and the elements of the others in any axes.
fn reshaped(g: &mut Graph, name: &str, x: Value, shape: &[i64]) -> Result<Value> {
    let wanted = shape.iter().try_fold(1i64, |elems, dim| elems.checked_mul(*dim));
    let wanted = wanted.ok_or_else(|| Error::invalid(format!("{name} of shape {shape:?}")))?;
    let elems = g.shape(x).iter().try_fold(1i64, |elems, dim| elems.checked_mul(dim.as_i64()?));
    if let Some(elems) = elems.filter(|elems| *elems != wanted) {
        return Err(Error::invalid(format!("the {name} have {elems} elements; {shape:?} needs {wanted}")));
    }
    let first = g.shape(x).first().and_then(Dim::as_i64);
    if g.rank(x) > 1 && first.is_some_and(|first| first != shape[0]) {
        let own = shape_text(g.shape(x));
        return Err(Error::invalid(format!("the {name} have the shape {own}; {shape:?} is needed")));
    }

    let sizes: Option<Vec<usize>> = shape.iter().map(|dim| usize::try_from(*dim).ok()).collect();
    let constant = g.as_constant(x).zip(sizes);
    match constant.and_then(|(tensor, sizes)| Tensor::new(tensor.dtype(), sizes, tensor.shared_bytes())) {
        Some(tensor) => g.constant(tensor),
        None => g.reshape(x, shape.iter().map(|dim| Dim::from(*dim)).collect::<Vec<_>>()),
    }
}

/// A constant of bytes whose last axis is unpacked. The graph's operators do the same one element at a time, which
/// takes minutes for a large model.
fn unpacked_constant(tensor: &Tensor, bits: u32) -> Option<Tensor> {
    let (last, outer) = tensor.shape().split_last()?;
    let each = 8 / bits as usize;
    if each == 1 || tensor.dtype() != DType::U8 {
        return None;
    }
    let mask = ((1u16 << bits) - 1) as u8;
    let parts =
        tensor.bytes().iter().flat_map(|byte| (0..each).map(move |at| byte >> (at as u32 * bits) & mask));
    let bytes: Vec<u8> = parts.collect();
    let shape = outer.iter().copied().chain([last * each]).collect();
    Tensor::new(DType::U8, shape, Bytes::Owned(bytes.into()))
}

/// `A·Bᵀ + bias`. The rows of `B`, `[N, K]`, are packed integers of `bits` bits in blocks of `block_size`. Each block
/// has a scale (input 2) and a zero point (input 3). Zero points are packed alike or floats, by default half of the
/// range. The bias (input 5) is optional.
///
/// Limits: no `g_idx` and no `weight_prepacked`; `accuracy_level` has no effect; `--activations int8`
/// rounds activations.
///
/// `MatMulNBits([[1, 2]], u8[[[57, 136, 136, 136, 136, 136, 136, 136]]], [10]; K=2, N=1, bits=4, block_size=16) = [[-90]]`
fn matmul_n_bits(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let b = n.input(1)?;
    let scales = n.input(2)?;

    let need = |name: &str| n.int(name)?.ok_or_else(|| Error::invalid(format!("MatMulNBits needs `{name}`")));
    let k = need("K")?;
    let columns = need("N")?;
    let bits = n.int_or("bits", 4)?;
    let block = need("block_size")?;

    n.int_or("accuracy_level", 0)?;
    if n.optional(4).is_some() || n.int_or("weight_prepacked", 0)? != 0 {
        return Err(Error::unsupported("MatMulNBits with g_idx, or with weights in the layout of a GPU"));
    }

    let fits = [2, 4, 8].contains(&bits) && block > 0 && block <= 1 << 20 && k > 0 && columns > 0;
    if !fits || block % (8 / bits) != 0 || g.dtype(b) != DType::U8 || k > 1 << 31 {
        return Err(Error::invalid(format!("{columns} x {k} elements of {bits} bits in blocks of {block}")));
    }

    require_float_scales(g, scales)?;
    let blocks = (k + block - 1) / block;
    let b = reshaped(g, "weights", b, &[columns, blocks, block * bits / 8])?;
    let integers = unpacked(g, b, bits, &block.into())?;
    let dtype = g.dtype(scales);
    let integers = g.cast(dtype, integers)?;

    let zero = match n.optional(3) {
        None => g.number(dtype, f64::from(1 << (bits - 1)))?,
        Some(zero) if g.dtype(zero).is_float() => {
            let zero = g.cast(dtype, zero)?;
            reshaped(g, "zero points", zero, &[columns, blocks, 1])?
        }
        Some(zero) if g.dtype(zero) != DType::U8 => {
            return Err(Error::invalid(format!("zero points of type {}; packed ones are u8", g.dtype(zero))));
        }
        Some(zero) => {
            let bytes = (blocks * bits + 7) / 8;
            let zero = reshaped(g, "zero points", zero, &[columns, bytes])?;
            let zero = unpacked(g, zero, bits, &blocks.into())?;
            let zero = g.cast(dtype, zero)?;
            g.unsqueeze(zero, &[2])?
        }
    };

    let centred = g.sub(integers, zero)?;
    let scales = reshaped(g, "scales", scales, &[columns, blocks, 1])?;
    let weights = g.mul(centred, scales)?;
    let weights = g.reshape(weights, vec![columns.into(), (blocks * block).into()])?;
    let weights = g.slice(weights, 1, Dim::zero(), k.into(), 1)?;
    let weights = g.cast(g.dtype(a), weights)?;

    let width = g.shape(a).last().cloned().unwrap_or(Dim::one());
    g.require(Relation::eq(width, k), "K of MatMulNBits")?;
    let turned = g.transpose(weights, &[1, 0])?;
    let y = g.matmul(a, turned)?;

    match n.optional(5) {
        Some(bias) => g.add(y, bias),
        None => Ok(y),
    }
}

/// `A·Bᵀ` for a matrix `B` of `N` rows and `K` columns of 4 bits each, in the formats of bitsandbytes. Input 1 holds
/// them row by row, the first of two in the high bits of a byte. `quant_type` is 0 for FP4 and 1 for NF4. Each
/// `block_size` elements are multiplied with an element of input 2. With `transB=0` the result is `A·B`.
///
/// `MatMulBnb4([[1, 2]], u8[247], [10]; K=2, N=1, block_size=16, quant_type=1) = [[10]]`
fn matmul_bnb4(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let bytes = n.input(1)?;
    let scales = n.input(2)?;
    let need = |name: &str| n.int(name)?.ok_or_else(|| Error::invalid(format!("MatMulBnb4 needs `{name}`")));
    let k = need("K")?;
    let columns = need("N")?;
    let block = need("block_size")?;
    let values: Vec<f32> = match need("quant_type")? {
        0 => FP4.iter().copied().chain(FP4.iter().map(|value| -value)).collect(),
        1 => NF4.to_vec(),
        other => return Err(Error::invalid(format!("unknown quant_type {other}"))),
    };
    let is_turned = n.flag("transB", true)?;
    n.int_or("training_mode", 0)?;

    let elems = k.checked_mul(columns).filter(|elems| (1..1 << 40).contains(elems) && k > 0);
    let elems = elems.filter(|_| block > 0 && block <= 1 << 30 && g.dtype(bytes) == DType::U8);
    let elems = elems
        .ok_or_else(|| Error::invalid(format!("{columns} x {k} elements of 4 bits in blocks of {block}")))?;

    let bytes = g.reshape(bytes, vec![((elems + 1) / 2).into(), Dim::one()])?;
    let place = g.index(DType::U8, vec![2.into()], Dim::from(4) - Dim::from(axis(0)) * 4)?;
    let shifted = g.binary(BinaryOp::Shr, bytes, place)?;
    let mask = g.scalar(Scalar::from_i64(DType::U8, 15))?;
    let codes = g.and(shifted, mask)?;
    let codes = g.reshape(codes, vec![(elems + elems % 2).into()])?;
    let codes = g.cast(DType::I32, codes)?;

    let table = Tensor::from_f32(vec![16], &values).ok_or_else(|| Error::internal("16 values"))?;
    let table = g.constant(table)?;
    let values = g.gather(table, codes, 0)?;
    let values = g.slice(values, 0, Dim::zero(), elems.into(), 1)?;
    let values = g.cast(g.dtype(a), values)?;

    let blocks = (elems + block - 1) / block;
    let scales = g.reshape(scales, vec![blocks.into()])?;
    let scales = g.view(scales, vec![elems.into()], vec![Dim::from(axis(0)).floor_div(block)])?;
    let scales = g.cast(g.dtype(a), scales)?;
    let weights = g.mul(values, scales)?;
    let mut weights = g.reshape(weights, vec![columns.into(), k.into()])?;
    if is_turned {
        weights = g.transpose(weights, &[1, 0])?;
    }

    let width = g.shape(a).last().cloned().unwrap_or(Dim::one());
    g.require(Relation::eq(width, if is_turned { k } else { columns }), "columns of MatMulBnb4")?;
    g.matmul(a, weights)
}

/// A table of quantised elements, with their scales and zero points.
struct QuantisedTable {
    data: Value,
    scales: Value,
    zeros: Option<Value>,
    /// The axis that is divided into blocks, each with a scale and a zero point.
    axis: usize,
    block: i64,
    /// Bits of an element if several share a byte along the last axis.
    packed_bits: Option<i64>,
    /// The zero point without `zeros`.
    zero: i64,
}

impl QuantisedTable {
    /// Requires a scale for each block, and as many zero points.
    fn require_shapes(&self, g: &mut Graph) -> Result<()> {
        let last = g.rank(self.data) - 1;
        let mut wanted = g.shape(self.data).to_vec();
        if let Some(bits) = self.packed_bits {
            wanted[last] = g.facts.simplify(&(&wanted[last] * (8 / bits)));
        }
        wanted[self.axis] = wanted[self.axis].ceil_div(self.block);
        require_shape(g, ("scales", self.scales), &wanted, " for the table")?;
        if let Some(bits) = self.packed_bits {
            wanted[last] = (&wanted[last] * bits).ceil_div(8);
        }
        self.zeros.map_or(Ok(()), |zeros| require_shape(g, ("zero points", zeros), &wanted, " for the table"))
    }

    /// The numbers of the table.
    fn dequantised(&self, g: &mut Graph) -> Result<Value> {
        let mut data = self.data;
        let mut zeros = self.zeros;
        if let Some(bits) = self.packed_bits {
            let last = g.rank(data) - 1;
            let count = g.facts.simplify(&(&g.shape(data)[last] * (8 / bits)));
            data = unpacked(g, data, bits, &count)?;
            if let Some(packed) = zeros {
                let blocks = g.shape(self.scales)[last].clone();
                zeros = Some(unpacked(g, packed, bits, &blocks)?);
            }
        }

        let shape = g.shape(data).to_vec();
        let by_block = |g: &mut Graph, x: Value| -> Result<Value> {
            let blocks = shape[self.axis].ceil_div(self.block);
            g.require(Relation::eq(g.shape(x)[self.axis].clone(), &blocks), "blocks of the table")?;
            let mut index: Vec<Dim> = (0..shape.len()).map(|k| axis(k).into()).collect();
            index[self.axis] = index[self.axis].floor_div(self.block);
            g.view(x, shape.clone(), index)
        };

        let dtype = g.dtype(self.scales);
        let values = g.cast(dtype, data)?;
        let zero = match zeros {
            Some(zeros) => {
                let zeros = by_block(g, zeros)?;
                g.cast(dtype, zeros)?
            }
            None => g.number(dtype, self.zero as f64)?,
        };
        let centred = g.sub(values, zero)?;
        let scales = by_block(g, self.scales)?;
        g.mul(centred, scales)
    }

    /// The table of the slices along axis `k` at the positions `at`.
    fn gathered(&self, g: &mut Graph, at: Value, k: usize) -> Result<QuantisedTable> {
        let mut gather = |x: Value| g.gather(x, at, k);
        let data = gather(self.data)?;
        let scales = gather(self.scales)?;
        let zeros = self.zeros.map(&mut gather).transpose()?;
        let axis = if self.axis > k { self.axis + g.rank(at) - 1 } else { self.axis };
        Ok(QuantisedTable { data, scales, zeros, axis, ..*self })
    }
}

/// `Gather` along `gather_axis` from a table of integers, followed by `(x - zero_point) * scale`. Scales (input 2) and
/// zero points (input 3) have one element per `block_size` elements along `quantize_axis`. The table has 4-bit
/// integers, or bytes that hold integers of `bits` bits along the last axis. Zero points are stored alike. Without
/// them, they are 0, or in the second case half of the range. A position out of range gives zeros.
///
/// Limits: no tables of 8-bit or 4-bit floats.
///
/// `GatherBlockQuantized(u8[[1, 2], [128, 138]], i64[1, 5], [[10], [0.5]]; bits=8, block_size=16) = [[0, 5], [0, 0]]`
fn gather_block_quantized(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let data = n.input(0)?;
    let at = n.input(1)?;
    let scales = n.input(2)?;
    let zeros = n.optional(3);
    let rank = g.rank(data);
    let gather_axis = normal_axis(n.int_or("gather_axis", 0)?, rank)?;
    let axis = normal_axis(n.int_or("quantize_axis", 1)?, rank)?;
    let block = n.int_or("block_size", 128)?;
    let bits = n.int_or("bits", 4)?;

    let is_float = n.storage_type(0).is_some_and(|storage_type| storage_type.range().is_none());
    n.storage_type(3);
    let is_packed = n.storage_type(0).is_none();
    if is_float || (is_packed && g.dtype(data) != DType::U8) {
        return Err(Error::unsupported(
            "GatherBlockQuantized from a table that has no integers of 8 bits or less",
        ));
    }
    require_float_scales(g, scales)?;
    if let Some(zeros) = zeros.filter(|zeros| g.dtype(*zeros) != g.dtype(data)) {
        let (zeros, table) = (g.dtype(zeros), g.dtype(data));
        return Err(Error::invalid(format!("zero points of type {zeros} for a table of type {table}")));
    }
    let is_bad = !(1..=1 << 30).contains(&block) || g.rank(scales) != rank;
    if is_bad || zeros.is_some_and(|zeros| g.rank(zeros) != rank) || ![2, 4, 8].contains(&bits) {
        return Err(Error::invalid(format!(
            "a table of {bits} bits in blocks of {block}, or scales of another rank"
        )));
    }
    if is_packed && gather_axis + 1 == rank {
        return Err(Error::unsupported("GatherBlockQuantized along the axis of packed elements"));
    }
    if is_packed && bits < 8 && zeros.is_some() && axis + 1 != rank {
        return Err(Error::unsupported("packed zero points along another axis than packed elements"));
    }

    let zero = if is_packed { 1 << (bits - 1) } else { 0 };
    let packed_bits = (is_packed && bits < 8).then_some(bits);
    let table = QuantisedTable { data, scales, zeros, axis, block, packed_bits, zero };
    table.require_shapes(g)?;

    // A position out of range reads the first slice, which is then replaced.
    let size = g.shape(data)[gather_axis].clone();
    let at = g.cast(DType::I64, at)?;
    let zero = int(g, 0)?;
    let len = g.dim(DType::I64, size)?;
    let is_negative = g.compare(CompareOp::Lt, at, zero)?;
    let shifted = g.add(at, len)?;
    let at = g.select(is_negative, shifted, at)?;
    let from_start = g.compare(CompareOp::Ge, at, zero)?;
    let before_end = g.compare(CompareOp::Lt, at, len)?;
    let is_inside = g.and(from_start, before_end)?;
    let at = g.select(is_inside, at, zero)?;

    // If the gathered axis has the blocks, slices of one block have the same scale.
    let found = if gather_axis == axis {
        let all = table.dequantised(g)?;
        g.gather(all, at, gather_axis)?
    } else {
        table.gathered(g, at, gather_axis)?.dequantised(g)?
    };

    let trailing: Vec<usize> = (g.rank(at)..g.rank(at) + rank - 1 - gather_axis).collect();
    let is_inside = g.unsqueeze(is_inside, &trailing)?;
    let nothing = g.number(g.dtype(found), 0.0)?;
    g.select(is_inside, found, nothing)
}
