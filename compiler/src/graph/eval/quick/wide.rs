//! Loops over slices in the vectors of AVX2, on machines that have them.
//!
//! All other code of this crate is for any x86-64, which has vectors of half the length and no fused multiply-add.
//! Elements have the same bits in either form, because the compiler fuses no operations by itself.

use super::functions;

/// Defines loops: each is compiled twice, and a call runs the form for this machine.
macro_rules! loops {
    ($($(#[$meta:meta])* fn $name:ident[$($generics:tt)*]($($arg:ident: $ty:ty),*) $body:block)*) => {$(
        $(#[$meta])*
        pub(super) fn $name<$($generics)*>($($arg: $ty),*) {
            #[inline(always)]
            fn each<$($generics)*>($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            if has_avx2() {
                #[target_feature(enable = "avx2,fma")]
                fn wide<$($generics)*>($($arg: $ty),*) {
                    each($($arg),*);
                }
                // SAFETY: the machine has these features.
                return unsafe { wide($($arg),*) };
            }
            each($($arg),*);
        }
    )*};
}

loops! {
    /// Sets each element of `out` to the function of that of `x`. Only a function of a few operations is inlined.
    fn map[F: Fn(f32) -> f32](x: &[f32], out: &mut [f32], f: F) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = f(*x);
        }
    }

    /// Sets each element of `out` to the function of those of `x` and `y`.
    fn map_two[F: Fn(f32, f32) -> f32](x: &[f32], y: &[f32], out: &mut [f32], f: F) {
        for (out, (x, y)) in out.iter_mut().zip(x.iter().zip(y)) {
            *out = f(*x, *y);
        }
    }

    /// `e^x`.
    fn exp[](x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = functions::exp(*x);
        }
    }

    /// `tanh x`.
    fn tanh[](x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = functions::tanh(*x);
        }
    }

    /// `erf x`.
    fn erf[](x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = functions::erf(*x);
        }
    }

    /// Replaces each element by the sum of its parts at `bf16x3`, and sets that of `low` to its low part.
    fn split[](x: &mut [f32], low: &mut [f32]) {
        for (x, low) in x.iter_mut().zip(low) {
            (*x, *low) = functions::whole_and_low(*x);
        }
    }

    /// Combines each element of `sums` with that of `x`.
    fn combine[F: Fn(f64, f64) -> f64](sums: &mut [f64], x: &[f32], f: F) {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = f(*sum, f64::from(*x));
        }
    }
}

/// Adds each element of `x` times `weight` to that of `sums`. A step rounds once, as the fused operations of matrix
/// products do: a product of two `f32` is exact in `f64`.
pub(super) fn add_scaled(sums: &mut [f32], x: &[f32], weight: f32) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        #[target_feature(enable = "avx2,fma")]
        fn fused(sums: &mut [f32], x: &[f32], weight: f32) {
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum = weight.mul_add(*x, *sum));
        }
        // SAFETY: the machine has these features.
        return unsafe { fused(sums, x, weight) };
    }
    let weight = f64::from(weight);
    sums.iter_mut().zip(x).for_each(|(sum, x)| *sum = (f64::from(*sum) + weight * f64::from(*x)) as f32);
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_have_the_bits_of_single_elements() {
        type Loop = fn(&[f32], &mut [f32]);
        type Function = fn(f32) -> f32;
        let special = [f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, -0.0];
        let x: Vec<f32> = (0..1003).map(|k| k as f32 * 0.013 - 6.5).chain(special).collect();
        let functions: [(Loop, Function); 4] = [
            (exp, functions::exp),
            (tanh, functions::tanh),
            (erf, functions::erf),
            (|x, out| map(x, out, f32::sqrt), f32::sqrt),
        ];
        for (all, single) in functions {
            let mut out = vec![0.0; x.len()];
            all(&x, &mut out);
            let is_same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
            assert!(out.iter().zip(&x).all(|(out, x)| is_same(*out, single(*x))));
        }
    }

    #[test]
    fn a_step_of_a_scaled_sum_rounds_once() {
        // The product is 1 + 2^-11 + 2^-24; a rounded product would lose the last term.
        let x = 1.0 + 2.0_f32.powi(-12);
        let mut sums = [-1.0; 37];
        add_scaled(&mut sums, &[x; 37], x);
        assert_eq!(sums, [2.0_f32.powi(-11) + 2.0_f32.powi(-24); 37]);
    }
}
