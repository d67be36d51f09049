//! The distance of two tensors, and whether it is within a tolerance.

use crate::tensor::Tensor;
use symshape_runtime::DType;

/// The largest allowed difference of an element: `atol + rtol * |want|`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    /// Relative to the expected element.
    pub rtol: f64,
    /// Absolute, in the unit of the elements.
    pub atol: f64,
}

/// The distance of two tensors of one type and shape.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Distance {
    /// Largest absolute difference; infinite if only one element is finite.
    pub max_abs: f64,
    /// Largest difference in units of the last place; 0 for integers and bools.
    pub max_ulp: u64,
    /// Number of elements out of tolerance.
    pub n_wrong: usize,
    /// Flat index of the first element out of tolerance.
    pub first: Option<usize>,
}

/// The distance of `got` from `want` by the rule of NumPy's `allclose`, with NaN equal to NaN; integers and bools must
/// be equal. `Err` says how the types or shapes differ.
pub(super) fn distance(want: &Tensor, got: &Tensor, tolerance: Tolerance) -> Result<Distance, String> {
    if want.dtype() != got.dtype() {
        return Err(format!("dtype {} instead of {}", got.dtype(), want.dtype()));
    }
    if want.shape() != got.shape() {
        return Err(format!("shape {:?} instead of {:?}", got.shape(), want.shape()));
    }

    let mut all = Distance::default();
    if want.bytes() == got.bytes() {
        return Ok(all);
    }

    for idx in 0..want.elems() {
        let w = want.get(idx);
        let g = got.get(idx);
        if w.bits() == g.bits() {
            continue;
        }

        let (abs, is_near) = if want.dtype().is_float() {
            float_distance(w.as_f64(), g.as_f64(), tolerance)
        } else {
            ((i128::from(w.as_i64()) - i128::from(g.as_i64())).unsigned_abs() as f64, false)
        };
        all.max_abs = all.max_abs.max(abs);
        if abs > 0.0 {
            all.max_ulp = all.max_ulp.max(ulps(want.dtype(), w.bits(), g.bits()));
        }
        if !is_near {
            all.n_wrong += 1;
            all.first.get_or_insert(idx);
        }
    }
    Ok(all)
}

/// The absolute difference, and whether it is within the tolerance.
fn float_distance(want: f64, got: f64, tolerance: Tolerance) -> (f64, bool) {
    if want == got || want.is_nan() && got.is_nan() {
        return (0.0, true);
    }
    if !want.is_finite() || !got.is_finite() {
        return (f64::INFINITY, false);
    }
    let abs = (want - got).abs();
    (abs, abs <= tolerance.atol + tolerance.rtol * want.abs())
}

/// The distance of two elements in units of the last place.
fn ulps(dtype: DType, a: u64, b: u64) -> u64 {
    if !dtype.is_float() {
        return 0;
    }
    let sign = 1_u64 << (8 * dtype.size_bytes() - 1);
    let rank = |bits: u64| {
        let magnitude = i128::from(bits & (sign - 1));
        if bits & sign == 0 { magnitude } else { -magnitude }
    };
    u64::try_from((rank(a) - rank(b)).unsigned_abs()).unwrap_or(u64::MAX)
}

/// Describes a distance that is out of tolerance.
pub(super) fn describe(want: &Tensor, got: &Tensor, distance: &Distance) -> String {
    let idx = distance.first.unwrap_or(0);
    let value = |tensor: &Tensor| {
        let elem = tensor.get(idx);
        if tensor.dtype().is_float() { format!("{:e}", elem.as_f64()) } else { elem.as_i64().to_string() }
    };

    format!(
        "{} of {} elements differ, the first at {:?}: {} instead of {}",
        distance.n_wrong,
        want.elems(),
        position(want.shape(), idx),
        value(got),
        value(want)
    )
}

/// The coordinates of a flat index.
fn position(shape: &[usize], mut idx: usize) -> Vec<usize> {
    let mut position = vec![0; shape.len()];
    for (at, dim) in position.iter_mut().zip(shape).rev() {
        *at = idx % dim.max(&1);
        idx /= dim.max(&1);
    }
    position
}
