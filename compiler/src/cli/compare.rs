//! How far two tensors are apart, and whether that is near enough.

use crate::tensor::Tensor;
use symshape_runtime::DType;

/// What may differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    /// Relative to the wanted element.
    pub rtol: f64,
    /// Absolute.
    pub atol: f64,
}

/// The distance of two tensors of one type and shape.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Distance {
    /// Largest absolute difference; infinite where only one is finite.
    pub max_abs: f64,
    /// Largest difference in units of the last place; 0 for integers that are equal.
    pub max_ulp: u64,
    /// Elements that are too far apart.
    pub n_wrong: usize,
    /// Flat index of the first of them.
    pub first: Option<usize>,
}

/// The distance of `got` from `want` as NumPy's `allclose` sees it, with a NaN equal to a NaN; integers and bools must
/// be equal. `Err` says how type or shape differ.
pub(super) fn distance(want: &Tensor, got: &Tensor, tolerance: Tolerance) -> Result<Distance, String> {
    if want.dtype() != got.dtype() {
        return Err(format!("dtype {} where {} is wanted", got.dtype(), want.dtype()));
    }
    if want.shape() != got.shape() {
        return Err(format!("shape {:?} where {:?} is wanted", got.shape(), want.shape()));
    }
    let mut all = Distance::default();
    if want.bytes() == got.bytes() {
        return Ok(all);
    }
    for idx in 0..want.elems() {
        let (w, g) = (want.get(idx), got.get(idx));
        if w.bits() == g.bits() {
            continue;
        }
        let (abs, near) = match want.dtype().is_float() {
            true => float_distance(w.as_f64(), g.as_f64(), tolerance),
            false => ((i128::from(w.as_i64()) - i128::from(g.as_i64())).unsigned_abs() as f64, false),
        };
        all.max_abs = all.max_abs.max(abs);
        if abs > 0.0 {
            all.max_ulp = all.max_ulp.max(ulps(want.dtype(), w.bits(), g.bits()));
        }
        if !near {
            all.n_wrong += 1;
            all.first.get_or_insert(idx);
        }
    }
    Ok(all)
}

/// The absolute difference and whether it is small enough.
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

/// How many numbers of the type lie between two of them.
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

/// A distance that is too large, in words.
pub(super) fn describe(want: &Tensor, got: &Tensor, distance: &Distance) -> String {
    let idx = distance.first.unwrap_or(0);
    let value = |tensor: &Tensor| match tensor.dtype().is_float() {
        true => format!("{:e}", tensor.get(idx).as_f64()),
        false => tensor.get(idx).as_i64().to_string(),
    };
    let (wrong, all) = (distance.n_wrong, want.elems());
    let position = position(want.shape(), idx);
    format!(
        "{wrong} of {all} elements wrong, the first at {position:?}: {} where {} is wanted",
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
