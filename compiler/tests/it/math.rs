//! Emitted scalar functions against those of Rust and libm, over dense sweeps and at special values.

use crate::machine;

use machine::Machine;
use symshape_compiler::scalar::{BinaryOp, Scalar, UnaryOp, eval};
use symshape_runtime::DType;

const SPECIAL: [f64; 22] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    -0.5,
    3.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f64::MIN_POSITIVE,
    -f64::MIN_POSITIVE,
    5e-324,
    -5e-324,
    f64::MAX,
    f64::MIN,
    1e-30,
    -1e-30,
    1e30,
    4503599627370497.5,
];

/// Numbers of all magnitudes and both signs, dense around 1.
fn sweep() -> Vec<f64> {
    let mut list = SPECIAL.to_vec();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    for scale in [1e-320, 1e-300, 1e-20, 1e-8, 1e-3, 0.1, 1.0, 2.0, 10.0, 100.0, 750.0, 1e5, 1e7, 1e16, 1e300]
    {
        for _ in 0..400 {
            list.push((random() * 2.0 - 1.0) * scale);
        }
    }
    for step in -4000..4000 {
        list.push(f64::from(step) * 0.001 + random() * 0.001);
        list.push(1.0 + f64::from(step) * 1e-7);
    }
    list
}

fn program(ty: &str, op: &str, arity: usize) -> Machine {
    let second = if arity == 2 { "%1 = load @1[i]" } else { "%1 = load @0[i]" };
    let args = if arity == 2 { "%0, %1" } else { "%0" };
    Machine::scalar(&format!(
        "program m {{
  symbol N = 0..100000
  @0 x: {ty}[N] input 0
  @1 y: {ty}[N] input 1
  @2 z: {ty}[N] output 0
  input x[N] = @0
  input y[N] = @1
  output z[N] = @2
  kernel k {{
    strip i in 0..N {{
      %0 = load @0[i]
      {second}
      %2 = {op} {args}
      store @2[i], %2
    }}
  }}
}}
"
    ))
}

/// Distance of two results in units of the last place of `dtype`; equal specials are at 0.
fn ulps(dtype: DType, got: Scalar, expected: Scalar) -> u64 {
    let (a, b) = (got.as_f64(), expected.as_f64());
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() && b.is_nan() { 0 } else { u64::MAX };
    }
    if a == 0.0 && b == 0.0 {
        return u64::from(a.is_sign_negative() != b.is_sign_negative());
    }
    let key = |s: Scalar| {
        let sign = 1u64 << (8 * dtype.size_bytes() - 1);
        let magnitude = (s.bits() & (sign - 1)) as i64;
        if s.bits() & sign != 0 { -magnitude } else { magnitude }
    };
    key(got).abs_diff(key(expected))
}

fn run(machine: &Machine, dtype: DType, x: &[Scalar], y: &[Scalar]) -> Vec<Scalar> {
    let width = dtype.size_bytes();
    let raw = |list: &[Scalar]| -> Vec<u8> {
        list.iter().flat_map(|s| s.bits().to_le_bytes()[..width].to_vec()).collect()
    };
    let outputs = machine.run(&[x.len() as i64], &[raw(x), raw(y)]).expect("a run");
    let read = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..width].copy_from_slice(bytes);
        Scalar::from_bits(dtype, u64::from_le_bytes(word))
    };
    outputs[0].chunks_exact(width).map(read).collect()
}

fn check_unary(op: UnaryOp, dtype: DType, limit: u64) -> Result<(), String> {
    let machine = program(dtype.name(), op.name(), 1);
    let x: Vec<Scalar> = sweep().into_iter().map(|x| Scalar::from_f64(dtype, x)).collect();
    let got = run(&machine, dtype, &x, &x);
    let mut worst = (0, String::new());
    for (x, got) in x.iter().zip(got) {
        let expected = eval::unary(op, *x);
        let distance = ulps(dtype, got, expected);
        if distance > worst.0 {
            let text = format!("{op:?}({:e}) = {:e}, not {:e}", x.as_f64(), got.as_f64(), expected.as_f64());
            worst = (distance, text);
        }
    }
    println!("{op:?} {dtype}: {} ulp {}", worst.0, worst.1);
    if worst.0 <= limit { Ok(()) } else { Err(format!("{dtype} {} ulp: {}", worst.0, worst.1)) }
}

#[test]
fn functions_of_one_number() {
    use UnaryOp::*;
    let ops = [
        Exp, Expm1, Log, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh, Acosh, Atanh, Erf,
        Floor, Ceil, Round, Trunc, Sqrt, Recip, Neg, Abs, Sign,
    ];
    let mut wrong = Vec::new();
    for op in ops {
        // Half an ulp for each rounding, plus the last place of a double in units of a single.
        wrong.extend(check_unary(op, DType::F32, 1).err());
        wrong.extend(check_unary(op, DType::F16, 1).err());
        wrong.extend(check_unary(op, DType::BF16, 1).err());
        wrong.extend(check_unary(op, DType::F64, 4).err());
    }
    wrong.extend(check_unary(RoundBf16, DType::F32, 0).err());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn check_binary(op: BinaryOp, dtype: DType, limit: u64) -> Result<(), String> {
    let machine = program(dtype.name(), op.name(), 2);
    let list = sweep();
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for a in SPECIAL {
        for b in SPECIAL {
            x.push(Scalar::from_f64(dtype, a));
            y.push(Scalar::from_f64(dtype, b));
        }
    }
    for idx in 0..list.len() {
        x.push(Scalar::from_f64(dtype, list[idx]));
        y.push(Scalar::from_f64(dtype, list[(idx * 7919 + 13) % list.len()]));
        x.push(Scalar::from_f64(dtype, list[idx].abs()));
        y.push(Scalar::from_f64(dtype, (list[(idx * 31 + 5) % list.len()] * 4.0).round() * 0.25));
    }
    let got = run(&machine, dtype, &x, &y);
    let mut worst = (0, String::new());
    for ((x, y), got) in x.iter().zip(&y).zip(got) {
        let expected = eval::binary(op, *x, *y);
        let distance = ulps(dtype, got, expected);
        if distance > worst.0 {
            let (a, b) = (x.as_f64(), y.as_f64());
            let text = format!("{op:?}({a:e}, {b:e}) = {:e}, not {:e}", got.as_f64(), expected.as_f64());
            worst = (distance, text);
        }
    }
    println!("{op:?} {dtype}: {} ulp {}", worst.0, worst.1);
    if worst.0 <= limit { Ok(()) } else { Err(format!("{dtype} {} ulp: {}", worst.0, worst.1)) }
}

#[test]
fn functions_of_two_numbers() {
    use BinaryOp::*;
    let mut wrong = Vec::new();
    for (op, limit) in
        [(Pow, 1), (Atan2, 2), (Rem, 0), (Mod, 0), (Add, 0), (Sub, 0), (Mul, 0), (Div, 0), (Min, 0), (Max, 0)]
    {
        wrong.extend(check_binary(op, DType::F64, limit).err());
        wrong.extend(check_binary(op, DType::F32, limit.min(1)).err());
        wrong.extend(check_binary(op, DType::F16, 1).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn functions_of_two_integers() {
    use BinaryOp::*;
    let mut wrong = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_int()) {
        let width = 8 * dtype.size_bytes() as u32;
        let edge: Vec<i64> =
            vec![0, 1, 2, 3, 7, 8, 31, 63, 64, -1, -2, -3, -8, i64::MIN, i64::MAX, 1 << (width - 1)];
        let edge: Vec<Scalar> = edge.into_iter().map(|x| Scalar::from_bits(dtype, x as u64)).collect();
        let pairs: Vec<(Scalar, Scalar)> =
            edge.iter().flat_map(|a| edge.iter().map(move |b| (*a, *b))).collect();
        let (x, y): (Vec<Scalar>, Vec<Scalar>) = pairs.into_iter().unzip();
        for op in [Add, Sub, Mul, Div, Rem, Mod, Pow, Min, Max, And, Or, Xor, Shl, Shr] {
            let got = run(&program(dtype.name(), op.name(), 2), dtype, &x, &y);
            for ((x, y), got) in x.iter().zip(&y).zip(got) {
                let expected = eval::binary(op, *x, *y);
                if got != expected {
                    wrong.push(format!("{dtype} {op:?}({x:?}, {y:?}) = {got:?}, not {expected:?}"));
                }
            }
        }
        for op in [UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Sign, UnaryOp::Not] {
            let got = run(&program(dtype.name(), op.name(), 1), dtype, &x, &x);
            let expected = x.iter().map(|x| eval::unary(op, *x));
            wrong.extend(
                x.iter()
                    .zip(got)
                    .zip(expected)
                    .filter(|((_, got), expected)| got != expected)
                    .map(|it| format!("{op:?} {it:?}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn casts_between_all_types() {
    let mut wrong = Vec::new();
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        2.5,
        -2.5,
        127.0,
        128.0,
        255.0,
        256.0,
        -129.0,
        32768.5,
        65504.0,
        65519.0,
        65520.0,
        65536.0,
        -32769.0,
        6e-8,
        5.9e-8,
        2.9e-8,
        3e-8,
        1e-7,
        6.1e-5,
        1.0009765625,
        1.00048828125,
        1.00390625,
        1.01171875,
        2147483648.0,
        -2147483649.0,
        4294967296.0,
        9.3e18,
        -9.3e18,
        1.9e19,
        3.5e38,
        1e300,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        16777217.0,
        9007199254740993.0,
        1e-45,
        1e-310,
    ];
    for from in DType::ALL {
        let mut x: Vec<Scalar> = numbers.iter().map(|x| Scalar::from_f64(from, *x)).collect();
        if from.is_int() {
            x.extend(
                [i64::MIN, i64::MAX, -1, 0x1234_5678_9abc_def1].map(|x| Scalar::from_bits(from, x as u64)),
            );
        }
        for to in DType::ALL {
            let machine = Machine::scalar(&format!(
                "program c {{
  symbol N = 0..1000
  @0 x: {from}[N] input 0
  @1 y: {to}[N] output 0
  input x[N] = @0
  output y[N] = @1
  kernel k {{
    strip i in 0..N {{
      %0 = load @0[i]
      %1 = cast {to} %0
      store @1[i], %1
    }}
  }}
}}
"
            ));
            let width = from.size_bytes();
            let raw: Vec<u8> = x.iter().flat_map(|s| s.bits().to_le_bytes()[..width].to_vec()).collect();
            let output = machine.run(&[x.len() as i64], &[raw]).expect("a run").remove(0);
            for (x, bytes) in x.iter().zip(output.chunks_exact(to.size_bytes())) {
                let mut word = [0; 8];
                word[..to.size_bytes()].copy_from_slice(bytes);
                let (got, expected) = (Scalar::from_bits(to, u64::from_le_bytes(word)), eval::cast(to, *x));
                let both_nan = to.is_float() && got.as_f64().is_nan() && expected.as_f64().is_nan();
                if got != expected && !both_nan {
                    wrong.push(format!("{x:?} to {to}: {got:?}, not {expected:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
