//! Distances between outputs.

use crate::tensor::Tensor;
use symshape_runtime::DType;

/// The largest finite magnitude in a tensor of floats. 0 for other types.
pub(crate) fn largest(tensor: &Tensor) -> f64 {
    if tensor.dtype() == DType::F32 {
        let elems = tensor.f32s();
        return elems.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f32::max).into();
    }
    if !tensor.dtype().is_float() {
        return 0.0;
    }
    let finite = (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64().abs()).filter(|x| x.is_finite());
    finite.fold(0.0, f64::max)
}

/// The largest finite difference of two float tensors of one shape. 0 for other tensors.
pub(crate) fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    if !a.dtype().is_float() || a.shape() != b.shape() {
        return 0.0;
    }
    if let [DType::F32, DType::F32] = [a.dtype(), b.dtype()] {
        let [a, b] = [a.f32s(), b.f32s()];
        let differences = a.iter().zip(&*b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
        return differences.filter(|x| x.is_finite()).fold(0.0, f64::max);
    }
    let difference = |idx: usize| (a.get(idx).as_f64() - b.get(idx).as_f64()).abs();
    (0..a.elems()).map(difference).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The largest difference of two lists of tensors, each relative to the largest element of the tensor in `want`.
pub(crate) fn max_relative_difference(want: &[Tensor], got: &[Tensor]) -> f64 {
    let of = |(want, got)| match largest(want) {
        0.0 => 0.0,
        magnitude => largest_difference(want, got) / magnitude,
    };
    want.iter().zip(got).map(of).fold(0.0, f64::max)
}

/// As [`max_relative_difference`], but infinite if the number of tensors, a shape, an integer or a bool differs, or if
/// an element is finite or NaN in only one of the lists.
pub(crate) fn max_error(want: &[Tensor], got: &[Tensor]) -> f64 {
    let alike = |(want, got): (&Tensor, &Tensor)| {
        let is_float = want.dtype().is_float();
        let is_alike = |idx: usize| {
            let want = want.get(idx);
            let got = got.get(idx);
            let x = want.as_f64();
            let y = got.as_f64();
            want == got || is_float && (x.is_finite() && y.is_finite() || x.is_nan() && y.is_nan())
        };
        let is_alike_f32 =
            |(x, y): (&f32, &f32)| x == y || x.is_finite() && y.is_finite() || x.is_nan() && y.is_nan();
        if want.shape() != got.shape() {
            return false;
        }
        match [want.dtype(), got.dtype()] {
            [DType::F32, DType::F32] => want.f32s().iter().zip(&*got.f32s()).all(is_alike_f32),
            _ => (0..want.elems()).all(is_alike),
        }
    };

    let all = want.len() == got.len() && want.iter().zip(got).all(alike);
    if all { max_relative_difference(want, got) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_or_infinity_in_one_tensor_only_is_an_infinite_error() {
        let error = |want: f32, got: f32| {
            let tensor = |x: f32| Tensor::from_f32(vec![2], &[-4.0, x]).expect("two elements");
            max_error(&[tensor(want)], &[tensor(got)])
        };

        assert_eq!(error(1.0, 1.5), 0.125);
        assert_eq!(error(f32::NAN, f32::NAN), 0.0);
        assert_eq!(error(f32::INFINITY, f32::INFINITY), 0.0);

        for (want, got) in
            [(1.0, f32::NAN), (f32::NAN, 1.0), (1.0, f32::INFINITY), (f32::INFINITY, f32::NEG_INFINITY)]
        {
            assert_eq!(error(want, got), f64::INFINITY, "{want} and {got}");
        }
    }

    #[test]
    fn different_integers_are_an_infinite_error() {
        let tensor = |x: i64| [Tensor::from_i64(vec![1], &[x]).expect("one element")];
        assert_eq!(max_error(&tensor(7), &tensor(7)), 0.0);
        assert_eq!(max_error(&tensor(7), &tensor(8)), f64::INFINITY);
        assert_eq!(max_error(&tensor(7), &[]), f64::INFINITY);
    }
}
