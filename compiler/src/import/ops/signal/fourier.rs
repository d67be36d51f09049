//! The fast Fourier transform of a constant length: one step for each of its factors.
//!
//! A step takes the axis as `[done, p, rest]`. It transforms the `p` parts into each other, rotates part `j` at index
//! `i` by `j·i / (p·rest)` of a circle, and leaves `[p, done, rest]`. The frequencies thus come out in order (Cooley
//! and Tukey 1965, in Stockham's arrangement). All operations are elementwise on slices. Lengths with large prime
//! factors and very large lengths are not handled here.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    scalar::Scalar,
    tensor::Tensor,
};
use std::f64::consts::TAU;
use symshape::Dim;
use symshape_runtime::DType;

/// The step of a factor has about its square in operations, all of them unrolled.
const MAX_FACTOR: i64 = 13;

/// Maximum number of points: the tables are computed at compile time.
const MAX_POINTS: i64 = 1 << 20;

/// Real and imaginary part.
pub(crate) type Pair = [Value; 2];

/// The factors of `points` in the order of their steps, if all have steps and there are not too many points.
pub(crate) fn factors(points: i64) -> Option<Vec<i64>> {
    if !(1..=MAX_POINTS).contains(&points) {
        return None;
    }

    let mut rest = points;
    let mut factors = Vec::new();
    for factor in [4, 2].into_iter().chain((3..=MAX_FACTOR).step_by(2)) {
        while rest > 1 && rest % factor == 0 {
            factors.push(factor);
            rest /= factor;
        }
    }

    (rest == 1).then_some(factors)
}

/// The transform of `x` along the axis `along`, of as many points as the product of `factors`.
///
/// With `back` it is the inverse transform, without the division by the number of points.
pub(crate) fn transformed(g: &mut Graph, x: Pair, along: usize, factors: &[i64], back: bool) -> Result<Pair> {
    let shape = g.shape(x[0]).to_vec();
    let mut done = 1;

    let mut rest = factors.iter().product::<i64>();
    let mut x = x;
    for p in factors {
        rest /= p;
        let mut split = shape.clone();
        split.splice(along..=along, [done, *p, rest].map(Dim::from));
        let x_split = [g.reshape(x[0], split.clone())?, g.reshape(x[1], split)?];
        let parts: Vec<Pair> = (0..*p).map(|j| part(g, x_split, along + 1, j)).collect::<Result<_>>()?;

        let mut parts = combined(g, &parts, back)?;
        if rest > 1 {
            let below = shape.len() - along - 1;
            for (j, part) in parts.iter_mut().enumerate().skip(1) {
                *part = turned(g, *part, j as i64, *p, rest, below, back)?;
            }
        }

        let joined = |g: &mut Graph, which: usize| -> Result<Value> {
            let parts: Vec<Value> =
                parts.iter().map(|part| g.unsqueeze(part[which], &[along])).collect::<Result<_>>()?;
            let joined = g.concat(&parts, along)?;
            g.reshape(joined, shape.clone())
        };

        x = [joined(g, 0)?, joined(g, 1)?];
        done *= p;
    }

    Ok(x)
}

fn part(g: &mut Graph, x: Pair, axis: usize, j: i64) -> Result<Pair> {
    let mut part = |x: Value| {
        let part = g.slice(x, axis, j.into(), Dim::one(), 1)?;
        g.squeeze(part, &[axis])
    };
    Ok([part(x[0])?, part(x[1])?])
}

/// `x`, rotated at index `i` of its axis `rest` by `j·i / (p·rest)` of a circle. The axis is followed by `below` axes.
fn turned(g: &mut Graph, x: Pair, j: i64, p: i64, rest: i64, below: usize, back: bool) -> Result<Pair> {
    let turns: Vec<(f64, f64)> = (0..rest).map(|i| turn(j * i, p * rest)).collect();
    let dtype = g.dtype(x[0]);

    let mut table = |elements: Vec<f64>| -> Result<Value> {
        let elements: Vec<Scalar> =
            elements.into_iter().map(|element| Scalar::from_f64(dtype, element)).collect();
        let mut shape = vec![elements.len()];
        shape.resize(1 + below, 1);
        let table = Tensor::from_scalars(dtype, shape, &elements);
        g.constant(table.ok_or_else(|| Error::internal("the elements of a table must match its shape"))?)
    };

    let cos = table(turns.iter().map(|turn| turn.0).collect())?;
    let sin = table(turns.iter().map(|turn| if back { turn.1 } else { -turn.1 }).collect())?;

    let a = g.mul(x[0], cos)?;
    let b = g.mul(x[1], sin)?;
    let re = g.sub(a, b)?;
    let a = g.mul(x[0], sin)?;
    let b = g.mul(x[1], cos)?;

    Ok([re, g.add(a, b)?])
}

/// Cosine and sine of `k/n` of a circle. They are exact at quarters, and mirrored angles have equal absolute values.
pub(crate) fn turn(k: i64, n: i64) -> (f64, f64) {
    let k = k.rem_euclid(n);
    let angle = |part: i64, of: i64| TAU * part as f64 / of as f64;

    let eighths = 8 * k;
    if eighths <= n {
        (angle(k, n).cos(), angle(k, n).sin())
    } else if eighths <= 3 * n {
        (angle(n - 4 * k, 4 * n).sin(), angle(n - 4 * k, 4 * n).cos())
    } else if eighths < 5 * n {
        (-angle(n - 2 * k, 2 * n).cos(), angle(n - 2 * k, 2 * n).sin())
    } else if eighths < 7 * n {
        (angle(4 * k - 3 * n, 4 * n).sin(), -angle(4 * k - 3 * n, 4 * n).cos())
    } else {
        (angle(n - k, n).cos(), -angle(n - k, n).sin())
    }
}

/// The transform of as many points as there are `parts`.
fn combined(g: &mut Graph, parts: &[Pair], back: bool) -> Result<Vec<Pair>> {
    match parts {
        [a, b] => Ok(vec![sum(g, *a, *b)?, difference(g, *a, *b)?]),
        [a, b, c, d] => {
            let even = sum(g, *a, *c)?;
            let odd = sum(g, *b, *d)?;
            let across = difference(g, *a, *c)?;
            let aside = difference(g, *b, *d)?;
            let [second, fourth] = either_side(g, across, aside, back)?;
            Ok(vec![sum(g, even, odd)?, second, difference(g, even, odd)?, fourth])
        }
        _ => odd(g, parts, back),
    }
}

/// [`combined`] for an odd number of parts. Part `k` and its mirror image share their multiplications.
fn odd(g: &mut Graph, parts: &[Pair], back: bool) -> Result<Vec<Pair>> {
    let p = parts.len();
    let half = parts.len() / 2;

    let mut sums = Vec::new();
    let mut differences = Vec::new();
    for k in 1..=half {
        sums.push(sum(g, parts[k], parts[p - k])?);
        differences.push(difference(g, parts[k], parts[p - k])?);
    }

    let mut all = parts[0];
    for part in &sums {
        all = sum(g, all, *part)?;
    }

    let mut out = vec![all; p];
    for u in 1..=half {
        let turns: Vec<(f64, f64)> = (1..=half).map(|k| turn((u * k) as i64, p as i64)).collect();
        let mut along = parts[0];

        let mut aside = None;
        for ((sums, differences), (cos, sin)) in sums.iter().zip(&differences).zip(turns) {
            let scaled = [scale(g, sums[0], cos)?, scale(g, sums[1], cos)?];
            along = sum(g, along, scaled)?;
            let scaled = [scale(g, differences[0], sin)?, scale(g, differences[1], sin)?];
            aside = Some(match aside {
                None => scaled,
                Some(aside) => sum(g, aside, scaled)?,
            });
        }

        if let Some(aside) = aside {
            [out[u], out[p - u]] = either_side(g, along, aside, back)?;
        }
    }

    Ok(out)
}

fn sum(g: &mut Graph, a: Pair, b: Pair) -> Result<Pair> {
    Ok([g.add(a[0], b[0])?, g.add(a[1], b[1])?])
}

fn difference(g: &mut Graph, a: Pair, b: Pair) -> Result<Pair> {
    Ok([g.sub(a[0], b[0])?, g.sub(a[1], b[1])?])
}

/// `a - ib` and `a + ib` forwards, in the opposite order `back`.
fn either_side(g: &mut Graph, a: Pair, b: Pair, back: bool) -> Result<[Pair; 2]> {
    let left = [g.sub(a[0], b[1])?, g.add(a[1], b[0])?];
    let right = [g.add(a[0], b[1])?, g.sub(a[1], b[0])?];
    Ok(if back { [left, right] } else { [right, left] })
}

fn scale(g: &mut Graph, x: Value, factor: f64) -> Result<Value> {
    let factor = g.number(g.dtype(x), factor)?;
    g.mul(x, factor)
}

/// The type in which a signal of type `dtype` is transformed.
///
/// Forwards it is double precision. Backwards it is single precision, unless the signal has double precision. These are
/// the types of ONNX's reference evaluator, since rounding errors show where the result should be 0.
pub(crate) fn working_type(dtype: DType, back: bool) -> DType {
    if back && dtype != DType::F64 { DType::F32 } else { DType::F64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::eval::eval;

    /// Elements between -1 and 1 without a pattern.
    fn signal(count: i64) -> Vec<f64> {
        (0..count).map(|k| ((k * k * 37 + k * 11) % 101) as f64 / 50.0 - 1.0).collect()
    }

    /// The transform of two rows through the steps.
    fn fast(points: i64, factors: &[i64], back: bool) -> [Vec<f64>; 2] {
        let mut g = Graph::default();
        let elements: Vec<Scalar> =
            signal(4 * points).into_iter().map(|x| Scalar::from_f64(DType::F64, x)).collect();
        let mut parts = elements.chunks(2 * points as usize).map(|part| {
            let tensor = Tensor::from_scalars(DType::F64, vec![2, points as usize], part).expect("it fits");
            g.constant(tensor).expect("a constant")
        });

        let x = [0, 1].map(|_| parts.next().expect("two parts"));
        drop(parts);
        let y = transformed(&mut g, x, 1, factors, back).expect("it is composed");
        g.output("re", y[0]).expect("one");
        g.output("im", y[1]).expect("another");
        let out = eval(&g, &[]).expect("it is evaluated");

        [0, 1].map(|k| (0..out[k].elems()).map(|i| out[k].get(i).as_f64()).collect())
    }

    #[test]
    fn fast_transforms_match_the_definition() {
        for points in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 35, 60, 64, 143] {
            let factors = factors(points).expect("small factors");
            assert_eq!(factors.iter().product::<i64>(), points);
            let elements = signal(4 * points);

            for back in [false, true] {
                let found = fast(points, &factors, back);
                for (row, k) in (0..2).flat_map(|row| (0..points).map(move |k| (row, k))) {
                    let mut re = 0.0;
                    let mut im = 0.0;
                    for j in 0..points {
                        let at = (row * points + j) as usize;
                        let a = elements[at];
                        let b = elements[at + 2 * points as usize];
                        let (cos, sin) = turn(k * j, points);
                        let sin = if back { sin } else { -sin };
                        (re, im) = (re + a * cos - b * sin, im + a * sin + b * cos);
                    }

                    let at = (row * points + k) as usize;
                    let off = (found[0][at] - re).abs().max((found[1][at] - im).abs());
                    assert!(
                        off < 1e-12 * points as f64,
                        "{points} points, back {back}, row {row}, {k}: {off}"
                    );
                }
            }
        }
        assert_eq!(factors(34), None);
    }

    #[test]
    fn turns_are_exact_at_quarters_and_mirrored() {
        assert_eq!([0, 1, 2, 3].map(|k| turn(k, 4)), [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)]);
        for (k, n) in (1..40).flat_map(|n| (0..n).map(move |k| (k, n))) {
            let (cos, sin) = turn(k, n);
            assert_eq!(turn(-k, n), (cos, -sin));
            let angle = TAU * k as f64 / n as f64;
            assert!((cos - angle.cos()).abs() < 4e-15 && (sin - angle.sin()).abs() < 4e-15, "{k}/{n}");
        }
    }
}
