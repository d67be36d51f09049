//! Compiled programs against the interpreter, at the smallest, odd and largest sizes.

use crate::machine;

use machine::{Machine, stacked};
use std::io::Write;
use symshape::Symbol;
use symshape_compiler::{
    CompileOptions,
    codegen::{self, ModuleForm, ModuleKind},
    kernel::{eval, text},
    scalar::Scalar,
    target::{Placement, Target},
    tensor::Tensor,
};
use symshape_runtime::DType;

/// Numbers between -4 and 4, small integers for integer types.
fn random_tensor(dtype: DType, shape: Vec<usize>, seed: &mut u64) -> Tensor {
    let mut next = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as i64
    };
    let elems: usize = shape.iter().product();
    let elems: Vec<Scalar> = (0..elems)
        .map(|_| match dtype {
            _ if dtype.is_float() => Scalar::from_f64(dtype, next() as f64 / (1 << 21) as f64 - 4.0),
            DType::Bool => Scalar::bool(next() & 1 == 1),
            _ => Scalar::from_i64(dtype, next() % 4),
        })
        .collect();
    Tensor::from_scalars(dtype, shape, &elems).expect("as many elements as the shape says")
}

fn close(dtype: DType, a: Scalar, b: Scalar) -> bool {
    if !dtype.is_float() {
        return a == b;
    }
    let tolerance = match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        _ => 3e-2,
    };
    let (a, b) = (a.as_f64(), b.as_f64());
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
}

/// Runs the program on the same inputs in three ways: compiled with microkernels, compiled without them, and
/// interpreted.
fn agree(source: &str, bindings: &[&[i64]]) {
    agrees(&Machine::new(source), bindings);
    agrees(&Machine::scalar(source), bindings);
}

fn agrees(machine: &Machine, bindings: &[&[i64]]) {
    let program = &machine.program;
    let mut seed = 1;
    for dims in bindings {
        let value_of =
            |symbol: &Symbol| program.symbols.iter().position(|known| known == symbol).map(|idx| dims[idx]);
        let shape = |shape: &[symshape::Dim]| -> Vec<i64> {
            shape.iter().map(|dim| dim.eval_i64(&value_of).expect("a size")).collect()
        };
        let shapes: Vec<Vec<i64>> = program.inputs.iter().map(|port| shape(&port.shape)).collect();
        assert_eq!(machine.check(&shapes).as_deref(), Ok(*dims));
        let inputs: Vec<Tensor> = program
            .inputs
            .iter()
            .zip(&shapes)
            .map(|(port, shape)| {
                let shape = shape.iter().map(|dim| *dim as usize).collect();
                random_tensor(program.buffers[port.buffer].dtype, shape, &mut seed)
            })
            .collect();
        let expected = eval::eval(program, dims, &inputs).unwrap_or_else(|error| panic!("{error}"));
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let got = machine.run(dims, &raw).expect("a run");
        for (idx, (expected, got)) in expected.iter().zip(got).enumerate() {
            assert_eq!(machine.output_shape(idx, dims), shape(&program.outputs[idx].shape));
            let shape = expected.shape().to_vec();
            let got =
                Tensor::new(expected.dtype(), shape, symshape_compiler::tensor::Bytes::Owned(got.into()))
                    .expect("as many bytes as the shape says");
            for elem in 0..expected.elems() {
                let (a, b) = (got.get(elem), expected.get(elem));
                assert!(
                    close(expected.dtype(), a, b),
                    "dims {dims:?} output {idx} [{elem}]: {a:?}, not {b:?}"
                );
            }
        }
    }
}

const SOFTMAX: &str = r#"program softmax {
  symbol N = 0..64
  symbol S = 8..512/8
  symbol H = {1, 2, 4}
  assume H divides S, "heads"
  @0 x: f32[N*S] input 0
  @1 y: f32[N*S] output 0
  @2 t: f32[S] scratch
  @3 h: f32[H] input 1
  input x[N, S] = @0
  input h[H] = @3
  output y[N, S] = @1
  kernel softmax {
    local0: f32
    local1: f32
    for n in 0..N parallel {
      strip s in 0..S {
        %0 = load @0[n*S + s]
        reduce max %0 -> local0
      }
      strip e in 0..S {
        %0 = load @0[n*S + e]
        %1 = get local0
        %2 = sub %0, %1
        %3 = exp %2
        store @2[e], %3
        reduce sum %3 -> local1
      }
      strip d in 0..S {
        %0 = load @2[d]
        %1 = get local1
        %2 = div %0, %1
        store @1[n*S + d], %2
      }
    }
  }
}
"#;

#[test]
fn softmax_with_scratch_steps_and_value_sets() {
    agree(SOFTMAX, &[&[0, 8, 1], &[1, 8, 2], &[7, 24, 4], &[64, 512, 4]]);
}

/// A contraction with packed panels, two sum axes and an epilogue, for each type.
#[test]
fn contractions_of_all_types() {
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
        let weights: Vec<String> = (0..16 * 6)
            .map(|i| match dtype.is_float() {
                true => format!("{}.0", i % 5),
                false => format!("{}", i % 5),
            })
            .collect();
        agree(
            &format!(
                "program dense {{
  symbol M = 0..33
  @0 a: {dtype}[M*6] input 0
  @1 w: {dtype}[96] const [96] {}
  @2 y: {dtype}[11*M] output 0
  @3 b: {dtype}[11] input 1
  input a[M, 6] = @0
  input b[11] = @3
  output y[M, 11] = @2
  kernel dense {{
    contraction {dtype} {{
      m m in 0..M
      n n in 0..11
      k k in 0..2
      k l in 0..3
      lhs @0[6*m + 3*k + l]
      rhs panels @1[0] width 8
      %0 = sum
      %1 = load @3[n]
      %2 = add %0, %1
      store @2[11*m + n], %2
    }}
  }}
}}
",
                weights.join(", ")
            ),
            &[&[0], &[1], &[5], &[33]],
        );
    }
}

#[test]
fn contraction_with_batch_and_transposed_factor() {
    agree(
        "program batched {
  symbol B = 1..4
  symbol M = 1..9
  symbol K = 1..10
  @0 a: f32[B*M*K] input 0
  @1 b: f32[B*7*K] input 1
  @2 y: f32[B*M*7] output 0
  input a[B, M, K] = @0
  input b[B, 7, K] = @1
  output y[B, M, 7] = @2
  kernel batched {
    for i in 0..B parallel {
      contraction f32 {
        m m in 0..M
        n n in 0..7
        k k in 0..K
        lhs @0[i*M*K + m*K + k]
        rhs @1[i*7*K + n*K + k]
        %0 = sum
        store @2[i*M*7 + m*7 + n], %0
      }
    }
  }
}
",
        &[&[1, 1, 1], &[2, 3, 5], &[4, 9, 10]],
    );
}

/// Gather with checked indices, a branch, and a loop with a condition.
const CONTROL: &str = r#"program control {
  symbol N = 0..16
  symbol M = 1..8
  @0 idx: i64[N] input 0
  @1 x: f32[M*3] input 1
  @2 y: f32[N*3] output 0
  @3 c: i32[N] output 1
  input idx[N] = @0
  input x[M, 3] = @1
  output y[N, 3] = @2
  output c[N] = @3
  kernel gather {
    for n in 0..N parallel {
      block {
        %0 = load @0[n]
        check 0 <= %0 < M, "Gather `g`, axis 0"
        bind p = %0
      }
      strip i in 0..3 {
        %0 = load @1[3*p + i]
        %1 = index i32 (n*3 + i)//2 - 7
        %2 = cast f32 %1
        %3 = add %0, %2
        store @2[3*n + i], %3
      }
    }
  }
  kernel collatz {
    local0: bool
    local1: i32
    local2: i32
    local3: bool
    for n in 0..N {
      block {
        %0 = index i32 n + 1
        set local1, %0
        %2 = const i32 0
        set local2, %2
        %4 = const i32 1
        %5 = ne %0, %4
        set local0, %5
      }
      while local0 {
        block {
          %0 = get local1
          %1 = const i32 2
          %2 = mod %0, %1
          %3 = const i32 0
          %4 = eq %2, %3
          set local3, %4
        }
        if local3 {
          block {
            %0 = get local1
            %1 = const i32 2
            %2 = div %0, %1
            set local1, %2
          }
        } else {
          block {
            %0 = get local1
            %1 = const i32 3
            %2 = mul %0, %1
            %3 = const i32 1
            %4 = add %2, %3
            set local1, %4
          }
        }
        block {
          %0 = get local2
          %1 = const i32 1
          %2 = add %0, %1
          set local2, %2
          %4 = get local1
          %5 = ne %4, %1
          set local0, %5
        }
      }
      block {
        %0 = get local2
        store @3[n], %0
      }
    }
  }
}
"#;

#[test]
fn gather_branches_and_loops() {
    let machine = Machine::new(CONTROL);
    for (n, m) in [(0i64, 1i64), (1, 1), (5, 3), (16, 8)] {
        let idx: Vec<i64> = (0..n).map(|i| (i * 5) % m).collect();
        let x: Vec<f32> = (0..3 * m).map(|i| i as f32).collect();
        let idx_tensor = Tensor::from_i64(vec![n as usize], &idx).expect("indices");
        let x_tensor = Tensor::from_f32(vec![m as usize, 3], &x).expect("numbers");
        let inputs = [idx_tensor, x_tensor];
        let expected =
            eval::eval(&machine.program, &[n, m], &inputs).unwrap_or_else(|error| panic!("{error}"));
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let got = machine.run(&[n, m], &raw).expect("a run");
        for (expected, got) in expected.iter().zip(got) {
            assert_eq!(expected.bytes(), got);
        }
    }
}

#[test]
fn an_index_out_of_range_is_named() {
    let machine = Machine::new(CONTROL);
    let idx: Vec<u8> = [0i64, 3, -7].iter().flat_map(|x| x.to_le_bytes()).collect();
    let refusal = machine.run(&[3, 2], &[idx, vec![0; 24]]).expect_err("3 is no row of 2");
    assert_eq!((refusal.code, refusal.numbers), (5, [3, 0, 1]));
    assert_eq!(refusal.tensor, "Gather `g`, axis 0");
}

/// Every kind of index arithmetic, with positive and negative operands, and divisors that can be zero.
#[test]
fn index_arithmetic() {
    let dims = [
        "i//4",
        "i % 4",
        "(i - 9)//4",
        "(i - 9) % 4",
        "i//3",
        "i % 3",
        "(i - 9)//3",
        "(i - 9) % 3",
        "i//(N + 1)",
        "(i - 9)//(N + 1)",
        "(i - 9) % (N + 1)",
        "(i - 9)//(2 - N)",
        "(i - 9) % (2 - N)",
        "min(i, N, 3)",
        "max(i - 4, N)",
        "i*N + 2*i - 5",
        "(i*N + j)//N",
        "(i*N + j) % N",
        "-i//2",
        "(7*i + 3*j) // 5 % 3",
    ];
    for dim in dims {
        // A divisor of zero is an error in the interpreter and undefined in code: `2 - N` is kept away from it.
        let lo = if dim.contains("2 - N") { 3 } else { 0 };
        agree(
            &format!(
                "program index {{
  symbol N = {lo}..8
  @0 x: f32[N] input 0
  @1 y: i64[20*N] output 0
  input x[N] = @0
  output y[20, N] = @1
  kernel k {{
    for i in 0..20 {{
      strip j in 0..N {{
        %0 = index i64 {dim}
        store @1[i*N + j], %0
      }}
    }}
  }}
}}
"
            ),
            &[&[lo], &[lo + 1], &[5], &[8]],
        );
    }
}

/// A program with mathematics, an error path, scratch and large frames: nothing may be left to a library.
#[test]
fn objects_import_nothing() {
    for (name, source) in [("softmax", SOFTMAX), ("control", CONTROL)] {
        for level in ["x86-64-v2", "x86-64-v3"] {
            let program = text::parse(source).expect("a program");
            let target = Target::parse(Some("x86_64-unknown-linux-gnu"), Some(level)).expect("a target");
            let isa = target.isa(Placement::Object).expect("an ISA");
            let libcalls = cranelift_module::default_libcall_names();
            let builder = cranelift_object::ObjectBuilder::new(isa, name, libcalls).expect("a builder");
            let mut module = cranelift_object::ObjectModule::new(builder);
            codegen::generate(
                &program,
                &stacked(&program),
                &ModuleForm::new(ModuleKind::Object),
                &CompileOptions::default(),
                &mut module,
            )
            .unwrap_or_else(|error| panic!("{error}"));
            let bytes = module.finish().emit().expect("an object");
            let file = object::File::parse(&*bytes).expect("an object");
            use object::{Object, ObjectSymbol};
            let missing: Vec<&str> = file
                .symbols()
                .filter(|symbol| symbol.is_undefined())
                .map(|symbol| symbol.name().expect("a name"))
                .filter(|name| !name.is_empty())
                .collect();
            assert!(missing.is_empty(), "{name} {level}: {missing:?}");
            if let Ok(folder) = std::env::var("SYMSHAPE_KEEP_OBJECTS") {
                let path = std::path::Path::new(&folder).join(format!("{name}-{level}.o"));
                std::fs::File::create(path)
                    .and_then(|mut file| file.write_all(&bytes))
                    .expect("a folder to write");
            }
        }
    }
}
