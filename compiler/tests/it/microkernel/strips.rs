//! The strip microkernel: math within its bound, reductions, tails, strides, and phases of a row loop.

use super::jit::{Compiled, address, address_mut, elements, isas};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            math::{DOUBLE_ULP, MAX_ULP},
            op::{Body, Op, StreamStep, Ty, is_computed_in_double},
            power::POWER_ULP,
            strip::{MAX_SHORT_ROW, Phase, Stream, StripKey},
        },
        vector::VectorIsa,
    },
    scalar::{BinaryOp, CompareOp, ReduceOp, UnaryOp},
};

/// The error function in double precision: its series, or the continued fraction of its complement.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let mut fraction = 0.0;
    for n in (1..80).rev() {
        fraction = f64::from(n) / 2.0 / (x.abs() + fraction);
    }
    let complement = (-x * x).exp() / std::f64::consts::PI.sqrt() / (x.abs() + fraction);
    (1.0 - complement).copysign(x)
}

pub(crate) fn strip(phases: Vec<Phase>, pointers: Vec<StreamStep>) -> StripKey {
    let streams = (0..pointers.len() as u32).map(|pointer| Stream { pointer, offset: 0 }).collect();
    StripKey {
        rows: false,
        phases,
        row_steps: vec![StreamStep::Stride; pointers.len()],
        pointers,
        streams,
        extents: 1,
        scalars: 0,
        variables: 0,
        results: Vec::new(),
        may_fail: false,
        keeps_stored: false,
        short_row: None,
        accumulators: Vec::new(),
        counts: false,
    }
}

fn unary(op: UnaryOp) -> Body {
    let mut body = Body::default();
    let x = body.push(Op::Load(0), Ty::F32).expect("supported");
    let y = body.push(Op::Unary(op, x), Ty::F32).expect("supported");
    body.push(Op::Store(1, y), Ty::F32).expect("supported");
    body
}

/// Sets a stream's address and its steps in bytes.
pub(crate) fn set(args: &mut [i64], key: &StripKey, stream: u32, address: i64, row: usize, element: usize) {
    let slot = key.pointer(stream);
    args[slot..slot + 3].copy_from_slice(&[address, row as i64, element as i64]);
}

/// The result of a loop over contiguous elements of the operands. It is stored to the stream after theirs.
pub(super) fn computed((isa, fma): (&dyn VectorIsa, bool), body: Body, operands: &[&[f32]]) -> Vec<f32> {
    let key = strip(vec![Phase::Loop { extent: 0, body }], vec![StreamStep::Unit; operands.len() + 1]);
    let mut results = vec![0f32; operands[0].len()];
    let mut args = vec![0; key.slots()];
    args[key.extent(0)] = results.len() as i64;
    for (stream, operand) in (0..).zip(operands) {
        set(&mut args, &key, stream, address(operand), 0, 4);
    }
    set(&mut args, &key, operands.len() as u32, address_mut(&mut results), 0, 4);
    Compiled::new(&MicrokernelKey::Strip(key), isa, fma).call(&mut args);
    results
}

/// Floats of every sign and exponent, and the special ones.
pub(crate) fn sweep() -> Vec<f32> {
    let mut values =
        vec![0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
    values.extend([f32::MAX, f32::MIN, 88.7, 88.8, -87.4, -103.9, -104.1, 0.625, 0.6250001, 0.92, 4.0]);
    values.extend((0..=u32::MAX).step_by(40_009).map(f32::from_bits));
    values.extend((-400_000..400_000).map(|i| i as f32 * 2.6e-4));
    values.extend((-100_000..100_000).map(|i| i as f32 * 1.1e-5));
    // Zeros and extrema of trigonometric functions, up to 10,000 and beyond.
    values.extend((-7000..7000).map(|i| (f64::from(i) * std::f64::consts::FRAC_PI_2) as f32));
    values.extend([9_999.999, 10_000.0, -9_999.999, -10_000.0, 0.5, 0.50000006, -0.50000006, 1.0000001]);
    values
}

/// Distance in units in the last place of the exact result.
pub(super) fn ulp(got: f32, exact: f64) -> f64 {
    if got.is_nan() && exact.is_nan() || f64::from(got) == exact {
        return 0.0;
    }
    let near = exact as f32;
    if got == near {
        return 0.5;
    }
    if !got.is_finite() || !near.is_finite() {
        return f64::INFINITY;
    }
    let exponent = exact.abs().log2().floor().max(-126.0);
    (f64::from(got) - exact).abs() / (exponent - 23.0).exp2()
}

#[test]
fn math_stays_within_its_bound() {
    type Exact = fn(f64) -> f64;
    let exact: [(UnaryOp, Exact); 22] = [
        (UnaryOp::Exp, f64::exp),
        (UnaryOp::Expm1, f64::exp_m1),
        (UnaryOp::Log, f64::ln),
        (UnaryOp::Log1p, f64::ln_1p),
        (UnaryOp::Tanh, f64::tanh),
        (UnaryOp::Erf, erf),
        (UnaryOp::Sin, f64::sin),
        (UnaryOp::Cos, f64::cos),
        (UnaryOp::Tan, f64::tan),
        (UnaryOp::Asin, f64::asin),
        (UnaryOp::Acos, f64::acos),
        (UnaryOp::Atan, f64::atan),
        (UnaryOp::Sinh, f64::sinh),
        (UnaryOp::Cosh, f64::cosh),
        (UnaryOp::Asinh, libm::asinh),
        (UnaryOp::Acosh, |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }),
        (UnaryOp::Atanh, f64::atanh),
        (UnaryOp::Sqrt, f64::sqrt),
        (UnaryOp::Recip, f64::recip),
        (UnaryOp::Floor, f64::floor),
        (UnaryOp::Round, f64::round_ties_even),
        (UnaryOp::Abs, f64::abs),
    ];
    let x = sweep();
    for (isa, fma) in isas() {
        for (op, exact) in exact {
            let body = unary(op);
            let y = computed((&*isa, fma), body, &[&x]);
            let errors = x.iter().zip(&y).map(|(&x, &y)| (ulp(y, exact(f64::from(x))), x, y));
            let (error, x, y) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).expect("values");
            println!("{} fma {}: {op:?} {error:.2} ulp at {x:e}", isa.name(), isa.shape().fma);
            // Functions without an approximation are exact, or rounded once.
            let bound = match op {
                UnaryOp::Floor | UnaryOp::Round | UnaryOp::Abs => 0.0,
                UnaryOp::Sqrt | UnaryOp::Recip => 0.5,
                _ if is_computed_in_double(op) => DOUBLE_ULP,
                _ => MAX_ULP,
            };
            assert!(error <= bound, "{}: {op:?}({x:e}) = {y:e}, {error} ulp off", isa.name());
        }
    }
}

#[test]
fn odd_functions_keep_the_sign_of_zero() {
    use UnaryOp::{Asin, Atan, Erf, Sin, Tanh};
    for (isa, fma) in isas() {
        for op in [Sin, Asin, Atan, Tanh, Erf] {
            let bits: Vec<u32> =
                computed((&*isa, fma), unary(op), &[&[0.0, -0.0]]).into_iter().map(f32::to_bits).collect();
            assert_eq!(bits, [0, 0x8000_0000], "{} fma {fma}: {op:?}", isa.name());
        }
    }
}

/// Vectors of an exponential are interleaved. Those of the other functions branch if a lane needs it.
#[test]
fn functions_with_branches_next_to_an_exponential() {
    let x: Vec<f32> =
        (0..203).map(|i| if i % 37 == 5 { 1e9 + 64.0 * i as f32 } else { i as f32 / 9.0 }).collect();
    let body = |function: &dyn Fn(&mut Body, u32) -> u32| {
        let mut body = Body::default();
        let x = body.push(Op::Load(0), Ty::F32).expect("supported");
        let opposite = body.push(Op::Unary(UnaryOp::Neg, x), Ty::F32).expect("supported");
        let exp = body.push(Op::Unary(UnaryOp::Exp, opposite), Ty::F32).expect("supported");
        let value = function(&mut body, x);
        let sum = body.push(Op::Binary(BinaryOp::Add, value, exp), Ty::F32).expect("supported");
        body.push(Op::Store(1, sum), Ty::F32).expect("supported");
        body
    };
    let sine = body(&|body, x| body.push(Op::Unary(UnaryOp::Sin, x), Ty::F32).expect("supported"));
    let remainder = body(&|body, x| {
        let divisor = body.push(Op::Const(0.7_f32.to_bits()), Ty::F32).expect("supported");
        body.push(Op::Binary(BinaryOp::Rem, x, divisor), Ty::F32).expect("supported")
    });

    for (isa, fma) in isas() {
        let sines = computed((&*isa, fma), sine.clone(), &[&x]);
        let rests = computed((&*isa, fma), remainder.clone(), &[&x]);
        for ((&x, sine), rest) in x.iter().zip(sines).zip(rests) {
            let (name, exp) = (isa.name(), f64::from(-x).exp());
            let expected = f64::from(x).sin() + exp;
            assert!((f64::from(sine) - expected).abs() < 1e-6, "{name}: sine at {x}: {sine}, not {expected}");
            let expected = f64::from(x % 0.7) + exp;
            assert!((f64::from(rest) - expected).abs() < 1e-6, "{name}: rest at {x}: {rest}, not {expected}");
        }
    }
}

/// Bases and exponents: all pairs of special ones, and powers of all sizes.
fn powers() -> Vec<(f32, f32)> {
    let special =
        [0.0, 1.0, 2.0, 0.5, 3.0, 0.75, 1e-40, 1e10, f32::MIN_POSITIVE, 16_777_217.0, f32::INFINITY];
    let special = special.iter().flat_map(|x| [*x, -*x]).chain([f32::NAN]);
    let special: Vec<f32> =
        special.chain([f32::from_bits(0x3f80_0001), f32::from_bits(0x3f7f_ffff)]).collect();
    let mut pairs: Vec<_> = special.iter().flat_map(|&x| special.iter().map(move |&y| (x, y))).collect();
    for (idx, bits) in (0..f32::INFINITY.to_bits()).step_by(20_011).enumerate() {
        let x = f32::from_bits(bits);
        let log = f64::from(x).log2();
        let power = ((idx % 307) as f64 - 153.0) * 0.987;
        pairs.extend([(x, (power / log) as f32), (x, -0.75), (x, 2.2), (-x, (idx % 9) as f32 - 4.0)]);
    }
    let near = (0..=200_000).map(|idx| f32::from_bits(0x3f00_0000 + idx * 0xc7));
    pairs.extend(near.enumerate().map(|(idx, x)| {
        let power = (idx % 251) as f64 - 125.0;
        (x, (power / f64::from(x).log2()) as f32)
    }));
    pairs
}

#[test]
fn powers_stay_within_their_bound() {
    let (x, exponents): (Vec<f32>, Vec<f32>) = powers().into_iter().unzip();
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let (base, exponent) = (push(Op::Load(0), Ty::F32), push(Op::Load(1), Ty::F32));
    let power = push(Op::Binary(BinaryOp::Pow, base, exponent), Ty::F32);
    push(Op::Store(2, power), Ty::F32);
    for (isa, fma) in isas() {
        let y = computed((&*isa, fma), body.clone(), &[&x, &exponents]);
        let mut most = 0.0_f64;
        for ((&x, &exponent), &y) in x.iter().zip(&exponents).zip(&y) {
            let exact = f64::from(x).powf(f64::from(exponent));
            let (error, same_sign) =
                (ulp(y, exact), y.is_nan() || y.is_sign_negative() == exact.is_sign_negative());
            let name = isa.name();
            assert!(
                error <= POWER_ULP && same_sign,
                "{name}: {x:e} to the {exponent:e} = {y:e}, {error} ulp off"
            );
            most = most.max(error);
        }
        println!("{} fma {}: power {most:.2} ulp", isa.name(), isa.shape().fma);
    }
}

#[test]
fn powers_with_a_constant_exponent_stay_within_their_bound() {
    let x = sweep();
    for (isa, fma) in isas() {
        for exponent in [2.0_f32, 3.0, 1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 0.75, -0.75, 1.25] {
            let mut body = Body::default();
            let base = body.push(Op::Load(0), Ty::F32).expect("supported");
            let constant = body.push(Op::Const(exponent.to_bits()), Ty::F32).expect("supported");
            let power = body.push(Op::Binary(BinaryOp::Pow, base, constant), Ty::F32).expect("supported");
            body.push(Op::Store(1, power), Ty::F32).expect("supported");
            for (&x, y) in x.iter().zip(computed((&*isa, fma), body, &[&x])) {
                let exact = f64::from(x).powf(f64::from(exponent));
                let same_sign = y.is_nan() || y.is_sign_negative() == exact.is_sign_negative();
                let error = ulp(y, exact);
                let name = isa.name();
                assert!(
                    error <= POWER_ULP && same_sign,
                    "{name}: {x:e} to the {exponent} = {y:e}, {error} ulp off"
                );
            }
        }
    }
}

/// All comparisons come before the first use of one of them.
#[test]
fn more_masks_than_mask_registers() {
    const LIMITS: u32 = 12;
    let x: Vec<f32> = (0..37).map(|idx| idx as f32 / 2.0 - 2.0).collect();
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let value = push(Op::Load(0), Ty::F32);
    let truths: Vec<u32> = (0..LIMITS)
        .map(|limit| {
            let limit = push(Op::Const((limit as f32).to_bits()), Ty::F32);
            push(Op::Compare(CompareOp::Lt, limit, value), Ty::Bool)
        })
        .collect();
    let one = push(Op::Const(1f32.to_bits()), Ty::F32);
    let mut sum = push(Op::Const(0), Ty::F32);
    for truth in truths {
        let more = push(Op::Binary(BinaryOp::Add, sum, one), Ty::F32);
        sum = push(Op::Select(truth, more, sum), Ty::F32);
    }
    push(Op::Store(1, sum), Ty::F32);
    for (isa, fma) in isas() {
        let y = computed((&*isa, fma), body.clone(), &[&x]);
        let below = |x: f32| (0..LIMITS).filter(|limit| (*limit as f32) < x).count() as f32;
        for (x, y) in x.iter().zip(&y) {
            assert_eq!(*y, below(*x), "{}: limits below {x}", isa.name());
        }
    }
}

/// Zeros keep the signs that the scalar semantics give them.
#[test]
fn minimum_and_maximum_know_nan_and_signed_zeros() {
    let special = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let pairs: Vec<(f32, f32)> = special.iter().flat_map(|&x| special.iter().map(move |&y| (x, y))).collect();
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let scalar = |op: BinaryOp, x: f32, y: f32| match (op, x.is_nan() || y.is_nan(), x == y) {
        (_, true, _) => f32::NAN,
        (BinaryOp::Max, _, true) => {
            if x.is_sign_positive() {
                x
            } else {
                y
            }
        }
        (_, _, true) => {
            if x.is_sign_negative() {
                x
            } else {
                y
            }
        }
        (BinaryOp::Max, ..) => x.max(y),
        _ => x.min(y),
    };
    for (isa, fma) in isas() {
        for op in [BinaryOp::Min, BinaryOp::Max] {
            for constant in [None, Some(0.0f32), Some(-0.0), Some(1.0)] {
                let mut body = Body::default();
                let left = body.push(Op::Load(0), Ty::F32).expect("supported");
                let right = match constant {
                    None => body.push(Op::Load(1), Ty::F32),
                    Some(value) => body.push(Op::Const(value.to_bits()), Ty::F32),
                };
                let z =
                    body.push(Op::Binary(op, left, right.expect("supported")), Ty::F32).expect("supported");
                body.push(Op::Store(2, z), Ty::F32).expect("supported");
                let z = computed((&*isa, fma), body, &[&x, &y]);
                for i in 0..x.len() {
                    let expected = scalar(op, x[i], constant.unwrap_or(y[i]));
                    let same = z[i].to_bits() == expected.to_bits() || z[i].is_nan() && expected.is_nan();
                    assert!(same, "{op:?}({}, {}) = {}", x[i], constant.unwrap_or(y[i]), z[i]);
                }
            }
        }
    }
}

#[test]
fn reductions_of_every_length() {
    for (isa, fma) in isas() {
        for n in 0..70 {
            let x = elements(n, 5);
            let mut body = Body::default();
            let value = body.push(Op::Load(0), Ty::F32).expect("supported");
            for (var, op) in
                [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max].into_iter().enumerate()
            {
                body.push(Op::Reduce(op, value, var as u32), Ty::F32).expect("supported");
            }
            let phases = vec![Phase::Loop { extent: 0, body }];
            let key =
                StripKey { variables: 4, results: vec![0, 1, 2, 3], ..strip(phases, vec![StreamStep::Unit]) };
            let mut args = vec![0; key.slots()];
            args[key.extent(0)] = n as i64;
            set(&mut args, &key, 0, address(&x), 0, 4);
            let results: Vec<usize> = (0..4).map(|result| key.result(result)).collect();
            Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);
            let got = results.map_to_floats(&args);
            let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
            let product: f64 = x.iter().map(|&x| f64::from(x)).product();
            assert!((f64::from(got[0]) - sum).abs() < 1e-5, "sum of {n}: {} for {sum}", got[0]);
            assert!((f64::from(got[1]) - product).abs() < 1e-5 * product.abs(), "product of {n}");
            assert_eq!(got[2], x.iter().copied().fold(f32::INFINITY, f32::min), "minimum of {n}");
            assert_eq!(got[3], x.iter().copied().fold(f32::NEG_INFINITY, f32::max), "maximum of {n}");
        }
    }
}

/// Reads 32-bit results from an argument block.
trait MapToFloats {
    fn map_to_floats(&self, args: &[i64]) -> Vec<f32>;
}

impl MapToFloats for Vec<usize> {
    fn map_to_floats(&self, args: &[i64]) -> Vec<f32> {
        self.iter().map(|&slot| f32::from_bits(args[slot] as u32)).collect()
    }
}

#[test]
fn strided_streams_of_every_length() {
    for (isa, fma) in isas() {
        for n in 0..40 {
            let x = elements(3 * n + 1, 9);
            let mut body = Body::default();
            let value = body.push(Op::Load(0), Ty::F32).expect("supported");
            let scale = body.push(Op::Load(1), Ty::F32).expect("supported");
            let product = body.push(Op::Binary(BinaryOp::Mul, value, scale), Ty::F32).expect("supported");
            body.push(Op::Store(2, product), Ty::F32).expect("supported");
            let streams = vec![StreamStep::Stride, StreamStep::Fixed, StreamStep::Stride];
            let key = strip(vec![Phase::Loop { extent: 0, body }], streams);
            let mut y = vec![f32::NAN; 2 * n + 1];
            let mut args = vec![0; key.slots()];
            args[key.extent(0)] = n as i64;
            set(&mut args, &key, 0, address(&x), 0, 12);
            set(&mut args, &key, 1, address(&[3f32]), 0, 0);
            set(&mut args, &key, 2, address_mut(&mut y), 0, 8);
            Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);
            for i in 0..n {
                assert_eq!(y[2 * i], x[3 * i] * 3.0);
                assert!(y[2 * i + 1].is_nan());
            }
        }
    }
}

#[test]
fn every_second_element_of_every_length() {
    for (isa, fma) in isas() {
        for n in 0..40 {
            // The last element that is read ends the slice.
            let x = elements(2 * n + 1, 9);
            let mut body = Body::default();
            let even = body.push(Op::Load(0), Ty::F32).expect("supported");
            let odd = body.push(Op::Load(1), Ty::F32).expect("supported");
            let next = body.push(Op::Load(2), Ty::F32).expect("supported");
            let sum = body.push(Op::Binary(BinaryOp::Add, even, odd), Ty::F32).expect("supported");
            let difference = body.push(Op::Binary(BinaryOp::Sub, sum, next), Ty::F32).expect("supported");
            body.push(Op::Store(3, difference), Ty::F32).expect("supported");
            for stored in [StreamStep::Unit, StreamStep::Alternate, StreamStep::Stride] {
                let pointers = vec![StreamStep::Alternate, stored];
                let mut key = strip(vec![Phase::Loop { extent: 0, body: body.clone() }], pointers);
                let stream = |pointer, offset| Stream { pointer, offset };
                key.streams = vec![stream(0, 0), stream(0, 4), stream(0, 8), stream(1, 0)];
                let step = match stored {
                    StreamStep::Unit => 1,
                    StreamStep::Alternate => 2,
                    _ => 3,
                };
                let mut y = vec![f32::NAN; step * n + 1];
                let mut args = vec![0; key.slots()];
                args[key.extent(0)] = n as i64;
                set(&mut args, &key, 0, address(&x), 0, 8);
                set(&mut args, &key, 1, address_mut(&mut y), 0, 4 * step);
                Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);
                for i in 0..n {
                    assert_eq!(
                        y[step * i],
                        x[2 * i] + x[2 * i + 1] - x[2 * i + 2],
                        "{stored:?}, {n} elements"
                    );
                    assert!(y[step * i + 1..step * (i + 1)].iter().all(|other| other.is_nan()));
                }
                assert!(y[step * n].is_nan());
            }
        }
    }
}

/// A row of a long filter with stride two: neighbours share their loads, in whatever order the code loads them.
#[test]
fn neighbours_in_a_long_filter_with_stride_two() {
    const WIDTH: usize = 21;
    let ascending: Vec<usize> = (0..WIDTH).collect();
    let descending: Vec<usize> = ascending.iter().rev().copied().collect();
    // More pairs wait for their second stream than are kept.
    let even_then_odd: Vec<usize> = (0..WIDTH).step_by(2).chain((1..WIDTH).step_by(2)).collect();
    for (isa, fma) in isas() {
        for order in [&ascending, &descending, &even_then_odd] {
            let mut body = Body::default();
            let mut push = |op| body.push(op, Ty::F32).expect("supported");
            let loaded: Vec<u32> = order.iter().map(|&tap| push(Op::Load(tap as u32))).collect();
            let sum = loaded.iter().copied().reduce(|sum, x| push(Op::Binary(BinaryOp::Sub, x, sum)));
            push(Op::Store(WIDTH as u32, sum.expect("there are taps")));
            let pointers = vec![StreamStep::Alternate, StreamStep::Unit];
            let mut key = strip(vec![Phase::Loop { extent: 0, body }], pointers);
            let taps = (0..WIDTH as i32).map(|tap| Stream { pointer: 0, offset: 4 * tap });
            key.streams = taps.chain([Stream { pointer: 1, offset: 0 }]).collect();

            let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
            for n in 0..40 {
                // The last element that is read ends the slice.
                let x: Vec<f32> = (0..2 * n + WIDTH - 2).map(|idx| (idx * 37 % 64) as f32).collect();
                let mut y = vec![f32::NAN; n];
                let mut args = vec![0; key.slots()];
                args[key.extent(0)] = n as i64;
                set(&mut args, &key, 0, address(&x), 0, 8);
                set(&mut args, &key, 1, address_mut(&mut y), 0, 4);
                compiled.call(&mut args);
                for (i, y) in y.iter().enumerate() {
                    let exact = order.iter().map(|tap| x[2 * i + tap]).reduce(|sum, x| x - sum);
                    assert_eq!(Some(*y), exact, "{}: {n} elements, {i}, in order {order:?}", isa.name());
                }
            }
        }
    }
}

/// `softmax` by rows: maximum, exponentials and their sum, quotient.
fn softmax() -> StripKey {
    let mut largest = Body::default();
    let x = largest.push(Op::Load(0), Ty::F32).expect("supported");
    largest.push(Op::Reduce(ReduceOp::Max, x, 0), Ty::F32).expect("supported");
    let mut powers = Body::default();
    let x = powers.push(Op::Load(0), Ty::F32).expect("supported");
    let top = powers.push(Op::Get(0), Ty::F32).expect("supported");
    let x = powers.push(Op::Binary(BinaryOp::Sub, x, top), Ty::F32).expect("supported");
    let x = powers.push(Op::Unary(UnaryOp::Exp, x), Ty::F32).expect("supported");
    powers.push(Op::Store(1, x), Ty::F32).expect("supported");
    powers.push(Op::Reduce(ReduceOp::Sum, x, 1), Ty::F32).expect("supported");
    let mut inverse = Body::default();
    let sum = inverse.push(Op::Get(1), Ty::F32).expect("supported");
    let sum = inverse.push(Op::Unary(UnaryOp::Recip, sum), Ty::F32).expect("supported");
    inverse.push(Op::Set(1, sum), Ty::F32).expect("supported");
    let mut scaled = Body::default();
    let x = scaled.push(Op::Load(1), Ty::F32).expect("supported");
    let factor = scaled.push(Op::Get(1), Ty::F32).expect("supported");
    let x = scaled.push(Op::Binary(BinaryOp::Mul, x, factor), Ty::F32).expect("supported");
    scaled.push(Op::Store(1, x), Ty::F32).expect("supported");
    let looped = |body| Phase::Loop { extent: 0, body };
    let phases = vec![looped(largest), looped(powers), Phase::Scalar(inverse), looped(scaled)];
    StripKey { rows: true, variables: 2, ..strip(phases, vec![StreamStep::Unit; 2]) }
}

#[test]
fn softmax_is_one_strip() {
    check_softmax(&[(1, 1), (3, 7), (5, 33), (2, 128), (0, 4)], &|_| softmax());
}

#[test]
fn short_rows_keep_stored_elements_in_registers() {
    let lengths = [1, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, MAX_SHORT_ROW as usize];
    let short = |n| StripKey { keeps_stored: true, short_row: Some(n as u32), ..softmax() };
    check_softmax(&lengths.map(|n| (3, n)), &short);
}

/// Compares softmax of rows, by the strip for their length, with double precision.
fn check_softmax(sizes: &[(usize, usize)], key: &dyn Fn(usize) -> StripKey) {
    for (isa, fma) in isas() {
        for &(rows, n) in sizes {
            let key = key(n);
            let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
            let x = elements(rows * n, 21);
            // Nothing is stored behind the last row.
            let mut y = vec![0f32; rows * n + 16];
            let mut args = vec![0; key.slots()];
            args[StripKey::ROWS] = rows as i64;
            args[key.extent(0)] = n as i64;
            set(&mut args, &key, 0, address(&x), 4 * n, 4);
            set(&mut args, &key, 1, address_mut(&mut y), 4 * n, 4);
            compiled.call(&mut args);
            for row in 0..rows {
                let powers: Vec<f64> = x[row * n..][..n].iter().map(|&x| f64::from(x).exp()).collect();
                let sum: f64 = powers.iter().sum();
                for (i, power) in powers.iter().enumerate() {
                    let off = f64::from(y[row * n + i]) * sum / power - 1.0;
                    assert!(off.abs() < 4.0 * f64::from(f32::EPSILON), "{} {n}: {off:e}", isa.name());
                }
            }
            assert!(y[rows * n..].iter().all(|y| *y == 0.0), "{} {n}", isa.name());
        }
    }
}

#[test]
fn taps_are_held_down_the_rows() {
    // y[r, c] = x[r, c] * w[0, c] + x[r, c + 1] * w[1, c] + …
    const TAPS: usize = 9;
    let mut body = Body::default();
    let mut push = |op| body.push(op, Ty::F32).expect("supported");
    let mut sum = None;
    for tap in 0..TAPS as u32 {
        let (x, w) = (push(Op::Load(tap)), push(Op::Load(TAPS as u32 + tap)));
        let product = push(Op::Binary(BinaryOp::Mul, x, w));
        sum = Some(sum.map_or(product, |sum| push(Op::Binary(BinaryOp::Add, sum, product))));
    }
    push(Op::Store(2 * TAPS as u32, sum.expect("there are taps")));
    for (isa, fma) in isas() {
        for columns in [1, 7, 8, 16, 33] {
            for rows in [0, 1, 5] {
                let width = columns + TAPS;
                let (x, w) = (elements(rows * width + 1, 5), elements(TAPS * columns, 9));
                let mut y = vec![f32::NAN; rows * columns + 1];
                let phases = vec![Phase::Loop { extent: 0, body: body.clone() }];
                let mut key = strip(phases, vec![StreamStep::Unit; 3]);
                let stream = |pointer, elems: usize| Stream { pointer, offset: 4 * elems as i32 };
                key.streams = (0..TAPS).map(|tap| stream(0, tap)).collect();
                key.streams.extend((0..TAPS).map(|tap| stream(1, tap * columns)));
                key.streams.push(stream(2, 0));
                (key.rows, key.row_steps) =
                    (true, vec![StreamStep::Stride, StreamStep::Fixed, StreamStep::Stride]);
                let mut args = vec![0; key.slots()];
                args[StripKey::ROWS] = rows as i64;
                args[key.extent(0)] = columns as i64;
                set(&mut args, &key, 0, address(&x), 4 * width, 4);
                set(&mut args, &key, 1, address(&w), 0, 4);
                set(&mut args, &key, 2, address_mut(&mut y), 4 * columns, 4);
                Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);
                for (at, got) in y[..rows * columns].iter().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let factors = |tap: usize| (x[row * width + column + tap], w[tap * columns + column]);
                    let first = factors(0).0 * factors(0).1;
                    let expected = (1..TAPS).map(factors).fold(first, |sum, (x, w)| {
                        if isa.shape().fma { x.mul_add(w, sum) } else { x * w + sum }
                    });
                    assert_eq!(got.to_bits(), expected.to_bits(), "{} {row}, {column}", isa.name());
                }
                assert!(y[rows * columns].is_nan(), "wrote after the last row");
            }
        }
    }
}

#[test]
fn strided_columns_are_read_in_squares() {
    // y[r, c] = x[c, r + 1] + z[r, c]
    let mut body = Body::default();
    let mut push = |op| body.push(op, Ty::F32).expect("supported");
    let (x, z) = (push(Op::Load(0)), push(Op::Load(1)));
    let sum = push(Op::Binary(BinaryOp::Add, x, z));
    push(Op::Store(2, sum));
    let sizes = || (0..20).chain([31, 32, 33, 50]);
    for (isa, fma) in isas() {
        let phases = vec![Phase::Loop { extent: 0, body: body.clone() }];
        let mut key = strip(phases, vec![StreamStep::Stride, StreamStep::Unit, StreamStep::Unit]);
        key.streams[0].offset = 4;
        (key.rows, key.row_steps) = (true, vec![StreamStep::Unit, StreamStep::Stride, StreamStep::Stride]);
        let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
        for (rows, columns) in sizes().flat_map(|rows| sizes().map(move |columns| (rows, columns))) {
            // The memory ends with the last element that is read.
            let (x, z) = (elements(columns * (rows + 1), 5), elements(rows * columns, 9));
            let mut y = vec![f32::NAN; rows * columns + 1];
            let mut args = vec![0; key.slots()];
            args[StripKey::ROWS] = rows as i64;
            args[key.extent(0)] = columns as i64;
            set(&mut args, &key, 0, address(&x), 4, 4 * (rows + 1));
            set(&mut args, &key, 1, address(&z), 4 * columns, 4);
            set(&mut args, &key, 2, address_mut(&mut y), 4 * columns, 4);
            compiled.call(&mut args);
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let wanted = x[column * (rows + 1) + row + 1] + z[row * columns + column];
                assert_eq!(y[row * columns + column], wanted, "{rows} rows, {columns} columns");
            }
            assert!(y[rows * columns].is_nan());
        }
    }
}

#[test]
fn strided_columns_of_16_bits_are_read_in_squares() {
    // y[r, c] = x[c, r + 1]
    let sizes = || (0..20).chain([31, 32, 33, 50]);
    for (ty, bits) in [(Ty::F16, 0x3c00_u16), (Ty::Bf16, 0x3f80)] {
        let mut body = Body::default();
        let x = body.push(Op::Load(0), ty).expect("supported");
        let x = body.push(Op::Cast(x), Ty::F32).expect("supported");
        body.push(Op::Store(1, x), Ty::F32).expect("supported");
        for (isa, fma) in isas() {
            let phases = vec![Phase::Loop { extent: 0, body: body.clone() }];
            let mut key = strip(phases, vec![StreamStep::Stride, StreamStep::Unit]);
            key.streams[0].offset = 2;
            (key.rows, key.row_steps) = (true, vec![StreamStep::Unit, StreamStep::Stride]);
            let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
            for (rows, columns) in sizes().flat_map(|rows| sizes().map(move |columns| (rows, columns))) {
                // Floats from 1 up, with different bits. The memory ends with the last element that is read.
                let x: Vec<u16> = (0..columns * (rows + 1)).map(|at| bits + at as u16 % 1000).collect();
                let mut y = vec![f32::NAN; rows * columns + 1];
                let mut args = vec![0; key.slots()];
                args[StripKey::ROWS] = rows as i64;
                args[key.extent(0)] = columns as i64;
                set(&mut args, &key, 0, address(&x), 2, 2 * (rows + 1));
                set(&mut args, &key, 1, address_mut(&mut y), 4 * columns, 4);
                compiled.call(&mut args);
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    let stored = x[column * (rows + 1) + row + 1];
                    let wanted = match ty {
                        Ty::F16 => half::f16::from_bits(stored).to_f32(),
                        _ => half::bf16::from_bits(stored).to_f32(),
                    };
                    assert_eq!(y[row * columns + column], wanted, "{ty:?} {rows} rows, {columns} columns");
                }
                assert!(y[rows * columns].is_nan());
            }
        }
    }
}
