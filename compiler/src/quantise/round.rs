//! Rounds a weight to another type.
//!
//! A block of integers has one scale. An element becomes the integer that is nearest to its quotient by the scale. The
//! scale is searched: a few candidates spread the range of the integers over slightly more or less than the largest
//! element, each is improved by least squares, and the one with the smallest squared error stays.

use super::weight_type::WeightType;
use crate::tensor::{FewBits, Tensor};
use half::{bf16, f16};

/// Candidates on each side of the scale that maps the largest element to the end of the range.
const CANDIDATES: i32 = 9;

/// The distance of candidates, in integers at the end of the range.
const STEP: f32 = 0.1;

/// The largest element of integers. Sums of products with larger ones may overflow.
const MAX_FLOAT: f32 = 1e30;

/// A weight of `f32` as another type.
#[derive(Clone)]
pub(super) struct Rounded {
    /// An `f32` tensor of the rounded elements.
    pub(super) tensor: Tensor,
    /// The root of the mean squared error, relative to that of the elements.
    pub(super) error: f64,
    /// Bytes of the elements and scales.
    pub(super) bytes: u64,
}

impl Rounded {
    /// The weight as it is.
    pub(super) fn same(weight: &Tensor) -> Rounded {
        Rounded { tensor: weight.clone(), error: 0.0, bytes: weight.size_bytes() as u64 }
    }
}

/// Rounds the elements of `weight`, with blocks along `axis`. `None` if an element is too large for the type; infinity
/// and NaN are, except for `f32`.
pub(super) fn rounded(weight: &Tensor, axis: usize, to: WeightType) -> Option<Rounded> {
    if to == WeightType::F32 {
        return Some(Rounded::same(weight));
    }
    let floats = weight.f32s();
    if floats.iter().any(|x| !x.is_finite()) {
        return None;
    }

    let (tensor, bytes) = match to.integers() {
        Some((bits, block)) => {
            let weights = Blocks::of(weight.shape(), axis, block).few_bits(&floats, bits)?;
            let scale_bytes = weights.scales().len() * weights.scale_type().size_bytes();
            let bytes = (floats.len() * bits as usize).div_ceil(8) + scale_bytes;
            (Tensor::from_few_bits(weights), bytes)
        }
        None if to == WeightType::Bf16 => {
            (mapped(weight, &floats, |x| bf16::from_f32(x).to_f32())?, 2 * floats.len())
        }
        None => (mapped(weight, &floats, |x| f16::from_f32(x).to_f32())?, 2 * floats.len()),
    };
    let error = relative_error(&floats, &tensor.f32s());
    Some(Rounded { tensor, error, bytes: bytes as u64 })
}

/// The root of the mean squared difference, relative to that of the elements of `want`. 0 if they are all equal.
fn relative_error(want: &[f32], got: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = want.iter().zip(got);
    let difference: f64 = pairs.map(|(want, got)| square(f64::from(*want) - f64::from(*got))).sum();
    let size: f64 = want.iter().map(|want| square(f64::from(*want))).sum();
    if difference == 0.0 { 0.0 } else { (difference / size).sqrt() }
}

/// The tensor with `round` applied to each element. `None` if a result is infinite.
fn mapped(weight: &Tensor, floats: &[f32], round: fn(f32) -> f32) -> Option<Tensor> {
    let floats: Vec<f32> = floats.iter().map(|x| round(*x)).collect();
    floats.iter().all(|x| x.is_finite()).then(|| Tensor::from_f32(weight.shape().to_vec(), &floats))?
}

/// The blocks of a tensor along one axis.
struct Blocks<'a> {
    shape: &'a [usize],
    axis: usize,
    block: usize,
    /// Elements along the axis.
    len: usize,
    /// Elements from one to the next along the axis.
    stride: usize,
}

impl Blocks<'_> {
    fn of(shape: &[usize], axis: usize, block: usize) -> Blocks<'_> {
        let len = shape[axis];
        Blocks { shape, axis, block: block.min(len), len, stride: shape[axis + 1..].iter().product() }
    }

    fn few_bits(&self, floats: &[f32], bits: u32) -> Option<FewBits> {
        let n_blocks = self.len.div_ceil(self.block);
        let half = 1i16 << (bits - 1);
        let max = floats.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        if max > MAX_FLOAT {
            return None;
        }
        let scale_type = ScaleType::for_largest(max / f32::from(half));

        let outer = self.shape[..self.axis].iter().product::<usize>();
        let mut codes = vec![0i16; floats.len()];
        let mut scales = vec![0.0; outer * n_blocks * self.stride];
        let mut block = Vec::with_capacity(self.block);
        for outer in 0..outer {
            for index in 0..n_blocks {
                let first = index * self.block;
                let end = (first + self.block).min(self.len);
                for inner in 0..self.stride {
                    let place = |k: usize| (outer * self.len + k) * self.stride + inner;
                    block.clear();
                    block.extend((first..end).map(|k| floats[place(k)]));
                    let scale = best_scale(&block, half, scale_type);
                    scales[(outer * n_blocks + index) * self.stride + inner] = scale;
                    for (k, x) in (first..end).zip(&block) {
                        codes[place(k)] = nearest(*x, reciprocal(scale), half) as i16;
                    }
                }
            }
        }

        let mut sizes = vec![1; self.shape.len()];
        sizes[self.axis] = self.block;
        let zeros = vec![0; scales.len()];
        FewBits::new(self.shape.to_vec(), sizes, &codes, scales, &zeros)
    }
}

/// The type that the scales of a weight are rounded to.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ScaleType {
    F16,
    F32,
}

impl ScaleType {
    /// `f16` if it holds scales up to `largest` with all its bits, and those of much smaller blocks with most.
    fn for_largest(largest: f32) -> ScaleType {
        let fits = (f16::MIN_POSITIVE.to_f32() * 16.0..f16::MAX.to_f32() / 2.0).contains(&largest);
        if fits { ScaleType::F16 } else { ScaleType::F32 }
    }

    fn round(self, scale: f32) -> f32 {
        match self {
            ScaleType::F16 => f16::from_f32(scale).to_f32(),
            ScaleType::F32 => scale,
        }
    }
}

/// The scale of a block. 0 for a block of zeros.
///
/// For the integers `q` of a candidate, the scale `Σxq / Σq²` has the smallest squared error, `Σx² - (Σxq)² / Σq²`.
fn best_scale(block: &[f32], half: i16, scale_type: ScaleType) -> f32 {
    let largest = block.iter().copied().fold(0.0f32, |max, x| if x.abs() > max.abs() { x } else { max });
    let end = f32::from(half);
    let mut scale = 0.0;
    let mut most_explained = 0.0;
    for candidate in -CANDIDATES..=CANDIDATES {
        // The end of the range that has one integer more takes the largest element.
        let inverse = (STEP * candidate as f32 - end) / largest;
        if !inverse.is_finite() {
            continue;
        }
        let mut products = 0.0f32;
        let mut squares = 0.0f32;
        for x in block {
            let code = nearest(*x, inverse, half);
            products += x * code;
            squares += code * code;
        }
        let explained = f64::from(products) * f64::from(products) / f64::from(squares);
        if explained > most_explained {
            most_explained = explained;
            scale = products / squares;
        }
    }
    scale_type.round(scale)
}

/// The integer nearest to `x * inverse` within `-half..half`.
fn nearest(x: f32, inverse: f32, half: i16) -> f32 {
    // The sum has no bits for fractions, so it rounds to an integer.
    const NO_FRACTION: f32 = 12_582_912.0;
    let end = f32::from(half);
    ((x * inverse).clamp(-end, end - 1.0) + NO_FRACTION) - NO_FRACTION
}

/// `1 / scale`, or 0 for a scale that no finite number divides by.
fn reciprocal(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::next;

    /// Floats in -1..1, with a larger one in some blocks.
    fn floats(count: usize) -> Vec<f32> {
        let mut state = 7;
        let float = |idx: usize| {
            let x = (next(&mut state) >> 40) as f32 / (1 << 23) as f32 - 1.0;
            if idx.is_multiple_of(97) { 5.0 * x } else { x }
        };
        (0..count).map(float).collect()
    }

    #[test]
    fn integers_are_nearest_for_their_scale() {
        let shape = [6, 75, 3];
        let floats = floats(shape.iter().product());
        for (axis, bits) in [(0, 4), (1, 4), (1, 8), (2, 8)] {
            let weights = Blocks::of(&shape, axis, 16).few_bits(&floats, bits).expect("finite");
            assert_eq!(weights.bits(), bits);
            let half = 1 << (bits - 1);
            let scales = Blocks::of(&shape, axis, 16);
            for (idx, x) in floats.iter().enumerate() {
                let at = idx / scales.stride % shape[axis] / scales.block;
                let outer = idx / scales.stride / shape[axis];
                let n_blocks = shape[axis].div_ceil(scales.block);
                let scale = weights.scales()[(outer * n_blocks + at) * scales.stride + idx % scales.stride];
                let error = |code: i32| (f64::from(*x) - f64::from(code as f32 * scale)).abs();
                let best = (-half..half).map(error).fold(f64::INFINITY, f64::min);
                let got = (f64::from(*x) - f64::from(weights.get(idx))).abs();
                assert!(
                    got <= best * (1.0 + 1e-5) + 1e-7,
                    "axis {axis} [{idx}]: {x} became {}",
                    weights.get(idx)
                );
            }
        }
    }

    #[test]
    fn searched_scales_are_better_than_those_of_the_largest_element() {
        let floats = floats(32 * 200);
        let simple = |block: &[f32]| block.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 8.0;
        let mut error_of_simple = 0.0;
        let mut error_of_searched = 0.0;
        for block in floats.chunks(32) {
            let error = |scale: f32| -> f64 {
                let square = |x: f64| x * x;
                block.iter().map(|x| square(f64::from(x - nearest(*x, reciprocal(scale), 8) * scale))).sum()
            };
            error_of_simple += error(simple(block));
            error_of_searched += error(best_scale(block, 8, ScaleType::F16));
        }
        assert!(error_of_searched < 0.9 * error_of_simple, "{error_of_searched}, not {error_of_simple}");
    }

    #[test]
    fn blocks_of_zeros_and_extreme_elements_are_rounded_or_refused() {
        let types = [
            WeightType::Int4 { block: 16 },
            WeightType::Int8 { block: 16 },
            WeightType::F16,
            WeightType::Bf16,
        ];
        let of = |floats: &[f32], to| rounded(&Tensor::from_f32(vec![2, 32], floats).expect("all"), 1, to);
        for to in types {
            let zeros = of(&[0.0; 64], to).expect("zeros are finite");
            assert_eq!(zeros.error, 0.0, "{to}");
            for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut floats = [1.0; 64];
                floats[40] = x;
                assert!(of(&floats, to).is_none(), "{to} of {x}");
            }
            for x in [1e-40, 1e-30, 1e-4, 3e4] {
                let rounded = of(&[x; 64], to).expect("finite");
                assert!(rounded.tensor.f32s().iter().all(|y| y.is_finite() && *y <= 1.01 * x), "{to} of {x}");
            }
        }
        assert!(of(&[1e38; 64], WeightType::F16).is_none());
        assert!(of(&[f32::MAX; 64], WeightType::Int4 { block: 16 }).is_none());
    }
}
