//! Constant right factors as tiles of bytes and of bf16 want them, packed when compiling.

use crate::{
    codegen::{microkernel::contraction::PANEL, vector::vcode::TILE_ROWS},
    scalar::precision,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// The numbers of a tensor of 8 or 16 bits.
fn numbers(tensor: &Tensor) -> Vec<i16> {
    let bytes = tensor.bytes();
    match tensor.dtype() {
        DType::I8 => bytes.iter().map(|byte| i16::from(*byte as i8)).collect(),
        DType::U8 => bytes.iter().map(|byte| i16::from(*byte)).collect(),
        _ => bytes.chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]])).collect(),
    }
}

/// Panels of numbers as panels of pairs of 16-bit numbers.
pub(super) fn pairs(tensor: &Tensor, depth: usize) -> Vec<u8> {
    let all = numbers(tensor);
    let nothing = [0; PANEL];
    let mut bytes = Vec::with_capacity(2 * all.len() + 2 * all.len() / depth.max(1));
    for panel in all.chunks_exact((depth * PANEL).max(1)) {
        for two in panel.chunks(2 * PANEL) {
            let (first, second) = two.split_at(PANEL);
            let second = if second.is_empty() { &nothing } else { second };
            for (x, y) in first.iter().zip(second) {
                bytes.extend(x.to_le_bytes().into_iter().chain(y.to_le_bytes()));
            }
        }
    }
    bytes
}

/// Panels of numbers as panels of four bytes, each behind a row that takes off again what adding `shift` to each number
/// of the left factor adds; `rows` rows follow, the last ones zero.
pub(super) fn quads(tensor: &Tensor, depth: usize, rows: usize, shift: i32) -> Vec<u8> {
    let all = numbers(tensor);
    let mut bytes = Vec::with_capacity(all.len() + 8 * all.len() / depth.max(1));
    for panel in all.chunks_exact((depth * PANEL).max(1)) {
        let number = |k: usize, column: usize| panel.get(k * PANEL + column).copied().unwrap_or(0);
        for column in 0..PANEL {
            let sum: i32 = (0..depth).map(|k| i32::from(number(k, column))).sum();
            bytes.extend(sum.wrapping_mul(-shift).to_le_bytes());
        }
        for first in (0..4 * rows).step_by(4) {
            for column in 0..PANEL {
                bytes.extend((first..first + 4).map(|k| number(k, column) as u8));
            }
        }
    }
    bytes
}

/// Panels of `f32` as panels for tile registers: for each row of a register along the reduction 16 rows of pairs of high
/// bf16, a pair for each column, and then, with `low`, as many of low ones. Each run of the numbers of a column is filled up
/// with zeros to whole registers.
pub(super) fn bf16(tensor: &Tensor, (depth, run): (usize, usize), low: bool) -> Vec<u8> {
    let numbers: Vec<f32> = tensor
        .bytes()
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
        .collect();
    let mut bytes =
        Vec::with_capacity(4 * numbers.len() + 128 * PANEL * numbers.len() / (depth * PANEL).max(1));
    for panel in numbers.chunks_exact((depth * PANEL).max(1)) {
        for (begin, first) in (0..depth)
            .step_by(run)
            .flat_map(|begin| (0..run).step_by(2 * TILE_ROWS).map(move |first| (begin, first)))
        {
            let number = |k: usize, column: usize| match k < run {
                true => panel.get((begin + k) * PANEL + column).copied().unwrap_or(0.0),
                false => 0.0,
            };
            for part in [precision::high, precision::low].into_iter().take(1 + usize::from(low)) {
                for pair in 0..TILE_ROWS {
                    for column in 0..PANEL {
                        let both =
                            [0, 1].map(|of| part(number(first + 2 * pair + of, column)).to_bits() >> 16);
                        bytes.extend(both.iter().flat_map(|bits| (*bits as u16).to_le_bytes()));
                    }
                }
            }
        }
    }
    bytes
}
