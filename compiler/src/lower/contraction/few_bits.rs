//! Packs constant operands of few bits.

use super::{
    nest::ContractionNest,
    packing::{PackedPanels, constant_buffer},
};
use crate::{
    kernel::{Axis, FewBitsForm, FewBitsPanels, Rhs, few_bits::WIDTH},
    lower::lowering::{KernelScope, Lowering, node_name},
    scalar::Precision,
    tensor::{Bytes, FewBits, Tensor},
};
use half::{bf16, f16};
use symshape::Dim;
use symshape_runtime::DType;

/// Packs an operand of few bits for the column axis `n`, where `flat` is [`PackedPanels::flat`] over the merged axes.
/// `None` if it has no few bits, if other types are multiplied, or if its blocks don't follow the reduction: it becomes
/// panels of floats then.
pub(super) fn pack(
    lowering: &mut Lowering,
    scope: &KernelScope,
    contraction: &ContractionNest,
    packing: &PackedPanels,
    n: &Axis,
    flat: &Dim,
) -> Option<Rhs> {
    let weights = packing.tensor.few_bits()?;
    let n_extent = usize::try_from(n.extent.as_i64()?).ok().filter(|extent| *extent > 0)?;
    let is_f32 = contraction.dtype == DType::F32 && contraction.operands[0].dtype == DType::F32;
    let rounds_lhs = contraction.precision == Precision::Int8;
    if !is_f32 || !rounds_lhs && contraction.precision != Precision::F32 {
        return None;
    }

    let blocks = Blocks::of(weights, packing)?;
    let depth = packing.k.len() as i64;
    let form = FewBitsForm {
        bits: weights.bits(),
        block: u32::try_from(blocks.size).ok()?,
        scale: weights.scale_type(),
        has_zeros: weights.zeros().is_some(),
        rounds_lhs,
    };
    if !form.is_valid(depth) {
        return None;
    }
    let panels = (n_extent as i64 + WIDTH - 1) / WIDTH;
    let bytes = form.panel_bytes(depth)?.checked_mul(panels)?;

    let key = (packing.form(n_extent), rounds_lhs);
    let buffer = match lowering.weights.few_bits.get(&key) {
        Some(buffer) => *buffer,
        None => {
            let packed = blocks.packed(weights, packing, n_extent, form)?;
            let name = format!("{} (packed)", node_name(lowering.graph, contraction.root));
            let buffer = constant_buffer(lowering, name, packed, (&packing.tensor, "panels of few bits"));
            lowering.weights.few_bits.insert(key, buffer);
            buffer
        }
    };
    let first = flat.substitute(&|symbol| (*symbol == n.var).then(Dim::zero));
    let base = scope.facts.simplify(&(first.floor_div(n_extent) * Dim::from(bytes)));
    Some(Rhs::FewBits(FewBitsPanels { buffer, base, form, unpack_buffer: None }))
}

/// The blocks of a contraction's weights: the block of an element is the sum of that of its column and that of its
/// reduction index.
struct Blocks {
    /// By batch and column.
    columns: Vec<usize>,
    /// The first reduction index of each block.
    k: Vec<usize>,
    /// Reduction indices of a block.
    size: usize,
}

impl Blocks {
    /// `None` if a block is no run of reduction indices.
    fn of(weights: &FewBits, packing: &PackedPanels) -> Option<Blocks> {
        let strides = weights.block_strides();
        let flat = |offset: i64| usize::try_from(offset).ok().filter(|offset| *offset < weights.elems());
        let batch_columns =
            packing.batch.iter().flat_map(|batch| packing.columns.iter().map(move |column| batch + column));
        let columns: Vec<Vec<usize>> = batch_columns
            .map(|offset| Some(coordinates(weights.shape(), flat(offset)?)))
            .collect::<Option<_>>()?;
        let k: Vec<Vec<usize>> = packing
            .k
            .iter()
            .map(|offset| Some(coordinates(weights.shape(), flat(*offset)?)))
            .collect::<Option<_>>()?;

        // Blocks add up if no sum of coordinates leaves its axis, and if all of one side begin a block.
        for (axis, size) in weights.block().iter().enumerate() {
            let largest = |side: &[Vec<usize>]| side.iter().map(|at| at[axis]).max().unwrap_or(0);
            let begins_blocks = |side: &[Vec<usize>]| side.iter().all(|at| at[axis] % size == 0);
            if largest(&columns) + largest(&k) >= weights.shape()[axis]
                || !begins_blocks(&columns) && !begins_blocks(&k)
            {
                return None;
            }
        }

        let block = |at: &Vec<usize>| -> usize {
            at.iter().zip(weights.block()).zip(&strides).map(|((at, size), stride)| at / size * stride).sum()
        };
        let by_k: Vec<usize> = k.iter().map(block).collect();
        let size = by_k.iter().position(|block| *block != by_k[0]).unwrap_or(by_k.len()).max(1);
        let follows = by_k.chunks(size).all(|block| block.iter().all(|other| *other == block[0]));
        follows.then(|| Blocks {
            columns: columns.iter().map(block).collect(),
            k: by_k.chunks(size).map(|block| block[0]).collect(),
            size,
        })
    }

    /// The panels of all blocks of `n_extent` columns.
    fn packed(
        &self,
        weights: &FewBits,
        packing: &PackedPanels,
        n_extent: usize,
        form: FewBitsForm,
    ) -> Option<Tensor> {
        let n_columns = self.columns.len();
        let mut bytes = Vec::new();
        for first in (0..n_columns).step_by(n_extent) {
            for panel in (first..first + n_extent).step_by(WIDTH as usize) {
                let end = (panel + WIDTH as usize).min(first + n_extent);
                let lanes: Vec<Option<usize>> =
                    (panel..panel + WIDTH as usize).map(|column| (column < end).then_some(column)).collect();
                for (block, ks) in self.k.iter().zip(packing.k.chunks(self.size)) {
                    self.write_block(weights, packing, &lanes, *block, ks, form, &mut bytes)?;
                }
            }
        }
        let elems = bytes.len();
        Tensor::new(DType::U8, vec![elems], Bytes::Owned(bytes.into()))
    }

    /// Appends a block of the columns `lanes`, whose reduction indices have the offsets `ks`.
    fn write_block(
        &self,
        weights: &FewBits,
        packing: &PackedPanels,
        lanes: &[Option<usize>],
        block: usize,
        ks: &[i64],
        form: FewBitsForm,
        bytes: &mut Vec<u8>,
    ) -> Option<()> {
        for lane in lanes {
            let scale = lane.map_or(0.0, |column| weights.scales()[self.columns[column] + block]);
            match form.scale {
                DType::F16 => bytes.extend(f16::from_f32(scale).to_bits().to_le_bytes()),
                DType::BF16 => bytes.extend(bf16::from_f32(scale).to_bits().to_le_bytes()),
                _ => bytes.extend(scale.to_bits().to_le_bytes()),
            }
        }
        if let Some(zeros) = weights.zeros() {
            bytes.extend(
                lanes.iter().map(|lane| lane.map_or(0, |column| zeros[self.columns[column] + block] as u8)),
            );
        }

        let start = bytes.len();
        bytes.resize(start + (form.block_bytes(ks.len() as i64) - form.header_bytes()) as usize, 0);
        let codes = &mut bytes[start..];
        let group = form.group() as usize;
        let lane_bytes = (form.group_bytes() / WIDTH) as usize;
        let mask = ((1u16 << form.bits) - 1) as u8;
        let flipped = form.flipped_bits();
        for (lane, column) in lanes.iter().enumerate() {
            let Some(column) = column else { continue };
            let (batch, column) = packing.split(*column);
            for (at, k) in ks.iter().enumerate() {
                let code = *weights.codes().get(usize::try_from(batch + column + k).ok()?)?;
                let bit = at % group * form.bits as usize;
                let place = (at / group * WIDTH as usize + lane) * lane_bytes + bit / 8;
                codes[place] |= ((code ^ flipped) & mask) << (bit % 8);
            }
        }
        Some(())
    }
}

/// The index along each axis of the element with this row-major index.
fn coordinates(shape: &[usize], flat: usize) -> Vec<usize> {
    let mut rest = flat;
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|dim| {
            let inside = rest % dim;
            rest /= dim;
            inside
        })
        .collect();
    at.reverse();
    at
}
