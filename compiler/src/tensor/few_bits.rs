//! Weights as integers of few bits with a scale for each block.
//!
//! Element `i` is `(code[i] - zero[b]) * scale[b]` in `f32`, where `b` is the block of `i`. The difference of the
//! integers is exact, and the product is rounded once. A block has a size along each axis of the tensor; the last one
//! along an axis may be cut short.

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
    expanded: OnceLock<Arc<[u8]>>,
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
        let mut rest = idx;
        let mut block = 0;
        for (axis, stride) in self.block_strides().iter().enumerate().rev() {
            block += rest % self.shape[axis] / self.block[axis] * stride;
            rest /= self.shape[axis];
        }
        self.element(idx, block)
    }

    /// Element `idx`, which is in this block.
    pub(crate) fn element(&self, idx: usize, block: usize) -> f32 {
        let zero = self.zeros.as_ref().map_or(0, |zeros| zeros[block]);
        f32::from(i16::from(self.codes[idx] as i8) - i16::from(zero)) * self.scales[block]
    }

    /// All elements in little-endian bytes.
    pub(super) fn expanded(&self) -> &Arc<[u8]> {
        self.expanded.get_or_init(|| {
            let strides = self.block_strides();
            let mut bytes = Vec::with_capacity(4 * self.elems());
            let mut index = vec![0; self.shape.len()];
            for idx in 0..self.elems() {
                let block = index.iter().zip(&self.block).zip(&strides);
                let block: usize = block.map(|((at, size), stride)| at / size * stride).sum();
                bytes.extend_from_slice(&self.element(idx, block).to_le_bytes());
                for (at, dim) in index.iter_mut().zip(&self.shape).rev() {
                    *at += 1;
                    if *at < *dim {
                        break;
                    }
                    *at = 0;
                }
            }
            bytes.into()
        })
    }

    /// Everything but the codes.
    pub(super) fn scaling(&self) -> Scaling<'_> {
        Scaling { shape: &self.shape, block: &self.block, zeros: &self.zeros, scales: ByBits(&self.scales) }
    }
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
