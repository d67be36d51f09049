//! Weights as integers of few bits with a scale for each block.
//!
//! Element `i` is `(code[i] - zero[b]) * scale[b]` in `f32`, where `b` is the block of `i`. The difference of the
//! integers is exact, and the product is rounded once. A block has a size along each axis of the tensor; the last one
//! along an axis may be cut short.

use super::{bytes::OwnedBytes, computed::Computation};
use half::{bf16, f16};
use std::{
    cmp::Ordering,
    sync::{Arc, OnceLock},
};
use symshape_runtime::DType;

/// Integers, and the scales and zero points of their blocks.
pub struct FewBits {
    shape: Vec<usize>,
    /// Elements of a block along each axis.
    block: Vec<usize>,
    /// The number of bits that hold every code: 2, 4 or 8.
    bits: u32,
    /// One signed byte for each element, in row-major order.
    codes: Arc<[u8]>,
    /// One for each block, in row-major order.
    scales: Vec<f32>,
    /// One for each block, or `None` if all are zero.
    zeros: Option<Vec<i8>>,
    expanded: OnceLock<OwnedBytes>,
}

/// Everything but the codes, for comparisons.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scaling<'a> {
    shape: &'a [usize],
    block: &'a [usize],
    zeros: &'a Option<Vec<i8>>,
    scales: ByBits<'a>,
}

/// Floats that are ordered by their bits.
struct ByBits<'a>(&'a [f32]);

impl FewBits {
    /// Weights with these integers and zero points. All are moved by the same number so that the codes fit in as few
    /// bits as possible. `None` if the counts don't match, or if codes or zero points don't fit in 8 signed bits.
    pub fn new(
        shape: Vec<usize>,
        block: Vec<usize>,
        integers: &[i16],
        scales: Vec<f32>,
        zeros: &[i16],
    ) -> Option<FewBits> {
        let elems = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
        let is_valid = block.len() == shape.len() && block.iter().all(|block| *block > 0);
        let blocks: usize =
            shape.iter().zip(&block).map(|(dim, block)| dim.div_ceil((*block).max(1))).product();
        if !is_valid || integers.len() != elems || scales.len() != blocks || zeros.len() != blocks {
            return None;
        }

        let lo = *integers.iter().min()?;
        let hi = *integers.iter().max()?;
        let common = zeros.first().filter(|first| zeros.iter().all(|zero| zero == *first));
        let (bits, offset) = narrowest(lo, hi, common.copied())?;
        let zeros = zeros.iter().map(|zero| i8::try_from(zero.checked_sub(offset)?).ok());
        let zeros: Vec<i8> = zeros.collect::<Option<_>>()?;
        let zeros = zeros.iter().any(|zero| *zero != 0).then_some(zeros);
        let codes: Vec<u8> = integers.iter().map(|integer| (integer - offset) as i8 as u8).collect();

        Some(FewBits { shape, block, bits, codes: codes.into(), scales, zeros, expanded: OnceLock::new() })
    }

    /// The size of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements of a block along each axis.
    pub fn block(&self) -> &[usize] {
        &self.block
    }

    /// The number of bits that hold every code: 2, 4 or 8.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The number of elements.
    pub fn elems(&self) -> usize {
        self.codes.len()
    }

    /// The codes, one signed byte each.
    pub(crate) fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scale of each block.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The shortest type that holds all scales: `f16`, `bf16` or `f32`.
    pub(crate) fn scale_type(&self) -> DType {
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits();
        if self.scales.iter().all(|scale| same(f16::from_f32(*scale).to_f32(), *scale)) {
            DType::F16
        } else if self.scales.iter().all(|scale| same(bf16::from_f32(*scale).to_f32(), *scale)) {
            DType::BF16
        } else {
            DType::F32
        }
    }

    /// The zero point of each block. `None` if all are zero.
    pub(crate) fn zeros(&self) -> Option<&[i8]> {
        self.zeros.as_deref()
    }

    /// Blocks from one to the next along each axis.
    pub(crate) fn block_strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.shape.len()];
        for axis in (1..self.shape.len()).rev() {
            strides[axis - 1] = strides[axis] * self.shape[axis].div_ceil(self.block[axis]);
        }
        strides
    }

    /// Element `idx` in row-major order.
    ///
    /// # Panics
    /// If `idx` is not below [`FewBits::elems`].
    pub fn get(&self, idx: usize) -> f32 {
        self.element(idx, self.block_of(idx))
    }

    /// Element `idx` in row-major order, without rounding.
    pub(crate) fn exact(&self, idx: usize) -> f64 {
        let block = self.block_of(idx);
        f64::from(self.integer(idx, block)) * f64::from(self.scales[block])
    }

    /// The block of element `idx`.
    fn block_of(&self, idx: usize) -> usize {
        self.block_with(idx, &self.block_strides())
    }

    /// As [`FewBits::block_of`], with the result of [`FewBits::block_strides`].
    fn block_with(&self, idx: usize, strides: &[usize]) -> usize {
        let mut rest = idx;
        let mut block = 0;
        for (axis, stride) in strides.iter().enumerate().rev() {
            block += rest % self.shape[axis] / self.block[axis] * stride;
            rest /= self.shape[axis];
        }
        block
    }

    /// The block of each element.
    fn blocks(&self) -> Vec<u32> {
        let strides = self.block_strides();
        let row = self.row();
        let block = self.block.last().copied().unwrap_or(1);
        let mut blocks = Vec::with_capacity(self.elems());
        for first in (0..self.elems()).step_by(row) {
            let of_row = self.block_with(first, &strides) as u32;
            blocks.extend((0..row.div_ceil(block) as u32).flat_map(|at| {
                let elems = block.min(row - at as usize * block);
                std::iter::repeat_n(of_row + at, elems)
            }));
        }
        blocks
    }

    /// The tensor of this shape whose elements are those at `first` and multiples of `steps`, one for each axis, in
    /// row-major order. `None` if its elements don't form blocks.
    pub(crate) fn at_places(&self, shape: Vec<usize>, first: usize, steps: &[usize]) -> Option<FewBits> {
        let elems = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
        let last = shape
            .iter()
            .zip(steps)
            .try_fold(first, |last, (dim, step)| last.checked_add(dim.checked_sub(1)?.checked_mul(*step)?))?;
        let (inner, inner_step) = (*shape.last()?, *steps.last()?);
        if last >= self.elems() {
            return None;
        }

        let of_elements = self.blocks();
        let block_along = |(dim, step): (&usize, &usize)| {
            let of = |k: usize| of_elements[first + k * step];
            (1..*dim).find(|k| of(*k) != of(0)).unwrap_or(*dim)
        };
        let block: Vec<usize> = shape.iter().zip(steps).map(block_along).collect();
        let grid: Vec<usize> = shape.iter().zip(&block).map(|(dim, block)| dim.div_ceil(*block)).collect();
        let inner_block = *block.last()?;

        let mut blocks: Vec<Option<u32>> = vec![None; grid.iter().product()];
        let mut codes = Vec::with_capacity(elems);
        for row in 0..elems / inner {
            let mut rest = row;
            let mut place = first;
            let mut in_grid = 0;
            let mut stride = *grid.last()?;
            for axis in (0..shape.len() - 1).rev() {
                let at = rest % shape[axis];
                rest /= shape[axis];
                place += at * steps[axis];
                in_grid += at / block[axis] * stride;
                stride *= grid[axis];
            }
            for (number, begin) in (0..inner).step_by(inner_block).enumerate() {
                let places = (begin..inner.min(begin + inner_block)).map(|at| place + at * inner_step);
                let own = *blocks[in_grid + number].get_or_insert(of_elements[place + begin * inner_step]);
                if places.clone().any(|at| of_elements[at] != own) {
                    return None;
                }
                codes.extend(places.map(|at| self.codes[at]));
            }
        }

        let blocks: Vec<u32> = blocks.into_iter().collect::<Option<_>>()?;
        let scales = blocks.iter().map(|block| self.scales[*block as usize]).collect();
        let of_block = |zeros: &Vec<i8>| blocks.iter().map(|block| zeros[*block as usize]).collect();
        let zeros = self.zeros.as_ref().map(of_block);
        let bits = self.bits;
        Some(FewBits { shape, block, bits, codes: codes.into(), scales, zeros, expanded: OnceLock::new() })
    }

    /// The code of element `idx` less the zero point of this block.
    fn integer(&self, idx: usize, block: usize) -> i16 {
        let zero = self.zeros.as_ref().map_or(0, |zeros| zeros[block]);
        i16::from(self.codes[idx] as i8) - i16::from(zero)
    }

    /// Element `idx`, which is in this block.
    pub(crate) fn element(&self, idx: usize, block: usize) -> f32 {
        f32::from(self.integer(idx, block)) * self.scales[block]
    }

    /// All elements in little-endian bytes.
    pub(super) fn expanded(&self) -> &OwnedBytes {
        self.expanded.get_or_init(|| {
            let mut bytes = vec![0; 4 * self.elems()];
            self.expand_rows(0, &mut bytes);
            bytes.into()
        })
    }

    /// Elements of a row along the last axis.
    fn row(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    /// Sets `out` to the elements of adjacent rows in little-endian bytes. The first row has the index `first`.
    fn expand_rows(&self, first: usize, out: &mut [u8]) {
        let row = self.row();
        let inner_block = self.block.last().copied().unwrap_or(1);
        let strides = self.block_strides();
        for (out, first) in out.chunks_exact_mut(4 * row).zip((first * row..).step_by(row)) {
            let block = self.block_with(first, &strides);
            for (at, slot) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *slot = self.element(first + at, block + at / inner_block).to_le_bytes();
            }
        }
    }

    /// Everything but the codes.
    pub(super) fn scaling(&self) -> Scaling<'_> {
        Scaling { shape: &self.shape, block: &self.block, zeros: &self.zeros, scales: ByBits(&self.scales) }
    }
}

/// The elements in little-endian bytes, which are computed by rows.
pub(super) struct Expansion(pub(super) Arc<FewBits>);

impl Computation for Expansion {
    fn len(&self) -> usize {
        4 * self.0.elems()
    }

    fn unit_bytes(&self) -> usize {
        4 * self.0.row()
    }

    fn compute(&self, unit: usize, out: &mut [u8]) {
        self.0.expand_rows(unit, out);
    }

    fn head(&self) -> Vec<u8> {
        let mut row = vec![0; self.unit_bytes().min(self.len())];
        self.compute(0, &mut row);
        row
    }

    fn release(&self) {}
}

/// The number of bits of the codes of integers from `lo` to `hi`, and the offset between integers and codes. With the
/// offset `zero`, if it is one of the narrowest, no block has a zero point.
fn narrowest(lo: i16, hi: i16, zero: Option<i16>) -> Option<(u32, i16)> {
    let fits = |bits: u32, offset: i16| {
        let half = 1 << (bits - 1);
        let codes = -half..half;
        [lo, hi].iter().all(|end| codes.contains(&(i32::from(*end) - i32::from(offset))))
    };
    // Signed integers are codes already; those of unsigned integers are lower by half of the range.
    let forms = [2, 4, 8].into_iter().flat_map(|bits| {
        let offsets = zero.into_iter().chain([0, 1 << (bits - 1)]);
        offsets.map(move |offset| (bits, offset))
    });
    forms.into_iter().find(|(bits, offset)| fits(*bits, *offset))
}

impl Ord for ByBits<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.iter().map(|x| x.to_bits()).cmp(other.0.iter().map(|x| x.to_bits()))
    }
}

impl PartialOrd for ByBits<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByBits<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByBits<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn expanded_elements_are_single_elements() {
        let cases =
            [(vec![], vec![]), (vec![7], vec![3]), (vec![3, 5], vec![2, 4]), (vec![2, 3, 4], vec![1, 2, 4])];
        for (shape, block) in cases {
            let elems: usize = shape.iter().product();
            let blocks: usize =
                shape.iter().zip(&block).map(|(dim, block): (&usize, &usize)| dim.div_ceil(*block)).product();
            let integers: Vec<i16> = (0..elems as i16).map(|idx| idx * 11 % 200 - 100).collect();
            let scales = (0..blocks).map(|block| 0.1 + block as f32).collect();
            let zeros: Vec<i16> = (0..blocks as i16).map(|block| block - 2).collect();
            let weights =
                FewBits::new(shape, block, &integers, scales, &zeros).expect("as many as the shape has");
            let expected: Vec<u8> = (0..elems).flat_map(|idx| weights.get(idx).to_le_bytes()).collect();

            let tensor = Tensor::from_few_bits(weights);
            let written = tensor.written_bytes();
            assert_eq!(written.len(), expected.len());
            let mut rows = Vec::new();
            let visited = written.visit(1, &mut |row| {
                rows.extend_from_slice(row);
                Ok::<(), ()>(())
            });
            assert_eq!((visited, rows), (Ok(()), expected.clone()));
            assert!(expected.starts_with(written.read_part(0..4).as_ref()));
            assert_eq!(tensor.bytes(), expected);
        }
    }
}
