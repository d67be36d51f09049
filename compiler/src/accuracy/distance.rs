//! How far results are from others.

use crate::tensor::Tensor;

/// The largest magnitude of a tensor of floats; 0 of others.
pub(crate) fn largest(tensor: &Tensor) -> f64 {
    if !tensor.dtype().is_float() {
        return 0.0;
    }
    let finite = (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64().abs()).filter(|x| x.is_finite());
    finite.fold(0.0, f64::max)
}

/// The largest difference of two tensors of floats where it is a number; 0 of others.
pub(crate) fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    let difference = |idx: usize| (a.get(idx).as_f64() - b.get(idx).as_f64()).abs();
    match a.dtype().is_float() && a.shape() == b.shape() {
        true => (0..a.elems()).map(difference).filter(|x| x.is_finite()).fold(0.0, f64::max),
        false => 0.0,
    }
}

/// The largest difference of two lists of tensors, relative to the largest element of each of the first.
pub(crate) fn relative(want: &[Tensor], got: &[Tensor]) -> f64 {
    let of = |(want, got)| match largest(want) {
        0.0 => 0.0,
        most => largest_difference(want, got) / most,
    };
    want.iter().zip(got).map(of).fold(0.0, f64::max)
}

/// As [`relative`]; infinite where a shape differs, an element that is no float, or what is finite or a number in one list
/// alone.
pub(crate) fn part(want: &[Tensor], got: &[Tensor]) -> f64 {
    let alike = |(want, got): (&Tensor, &Tensor)| {
        let is_float = want.dtype().is_float();
        let is_alike = |idx: usize| {
            let (want, got) = (want.get(idx), got.get(idx));
            let (x, y) = (want.as_f64(), got.as_f64());
            want == got || is_float && (x.is_finite() && y.is_finite() || x.is_nan() && y.is_nan())
        };
        want.shape() == got.shape() && (0..want.elems()).all(is_alike)
    };
    let all = want.len() == got.len() && want.iter().zip(got).all(alike);
    if all { relative(want, got) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_number_in_one_alone_is_infinitely_far() {
        let part = |want: f32, got: f32| {
            let tensor = |x: f32| Tensor::from_f32(vec![2], &[-4.0, x]).expect("two elements");
            part(&[tensor(want)], &[tensor(got)])
        };
        assert_eq!(part(1.0, 1.5), 0.125);
        assert_eq!(part(f32::NAN, f32::NAN), 0.0);
        assert_eq!(part(f32::INFINITY, f32::INFINITY), 0.0);
        for (want, got) in
            [(1.0, f32::NAN), (f32::NAN, 1.0), (1.0, f32::INFINITY), (f32::INFINITY, f32::NEG_INFINITY)]
        {
            assert_eq!(part(want, got), f64::INFINITY, "{want} and {got}");
        }
    }

    #[test]
    fn integers_are_equal_or_infinitely_far() {
        let tensor = |x: i64| [Tensor::from_i64(vec![1], &[x]).expect("one element")];
        assert_eq!(part(&tensor(7), &tensor(7)), 0.0);
        assert_eq!(part(&tensor(7), &tensor(8)), f64::INFINITY);
        assert_eq!(part(&tensor(7), &[]), f64::INFINITY);
    }
}
