//! Kernels as text: printing and reading are each other's inverse, and no text makes the reader or verifier panic.

use proptest::prelude::*;
use symshape_compiler::{
    kernel::{Program, eval, text, verify},
    tensor::Tensor,
};

const SOFTMAX: &str = r#"program softmax {
  symbol N = 1..64
  symbol S = 8..512/8
  symbol H = {1, 2, 4}
  assume H divides S, "heads"
  @0 x: f32[N*S] input 0
  @1 "y, twice": f32[N*S] output 0
  @2 t: f32[S] scratch
  @3: f32[6] const [2, 3] 0.5, -0.0, inf, 0x7fc00001, 1e-40, 3.0
  @4 zeros: i64[100] const [10, 10] all 0
  input x[N, S] = @0
  output y[N, S] = @1
  kernel softmax {
    local0: f32
    local1: f32
    for n in 0..N parallel {
      strip s in 0..S {
        %0 = load @0[N*0 + n*S + s]
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

const EVERYTHING: &str = r#"program everything {
  symbol M = 0..
  @0 a: f32[12*M] input 0
  @1 b: f32[32] const [32] all 1.0
  @2 c: f32[8*M] output 0
  @3 i: i64[M] input 1
  input a[M, 12] = @0
  input i[M] = @3
  output c[M, 8] = @2
  kernel "dense + rélu" {
    local0: bool
    contraction f32 {
      m r in 0..M
      n j in 0..8
      k k in 0..4
      lhs @0[12*r + k]
      rhs panels @1[0] width 8
      %0 = sum
      %1 = const f32 0.0
      %2 = max %0, %1
      store @2[8*r + j], %2
    }
    for m in 0..M {
      block {
        %0 = load @3[m]
        check 0 <= %0 < min(M, 7), "axis 0"
        bind p = %0
        %3 = index i64 2*p + 1
        %4 = cast f32 %3
        %5 = const f32 1.5
        %6 = lt %4, %5
        set local0, %6
        %8 = select %6, %4, %5
        store @2[8*m], %8
      }
      if local0 {
        block {
          %0 = get local0
          %1 = not %0
          set local0, %1
        }
      } else {
        while local0 {
        }
      }
    }
  }
}
"#;

fn read(text: &str) -> Program {
    text::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn texts_round_trip() {
    for text in [SOFTMAX.replace("N*0 + ", ""), EVERYTHING.to_string()] {
        assert_eq!(read(&text).to_string(), text);
    }
}

#[test]
fn well_formed_programs_verify() {
    for text in [SOFTMAX, EVERYTHING] {
        verify::verify(&read(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

const DEVICE: &str = r#"program device {
  symbol N = 1..8
  device npu 4096
  @0 x: f32[N] input 0
  @1 y: f32[N] output 0
  @2 inside: f32[N] device 0
  input x[N] = @0
  output y[N] = @1
  call [npu] npu_load (@0[0] as [N]) -> (@2[0] as [N]), "load"
  call [npu] npu_store (@2[0] as [N]) -> (@1[0] as [N]), "store"
}
"#;

#[test]
fn the_memory_of_a_device_is_its_own() {
    let program = read(DEVICE);
    assert_eq!(program.to_string(), DEVICE);
    verify::verify(&program).expect("well-formed");
    for (from, to, expected) in [
        ("device 0", "device 1", "there is no device 1"),
        ("[npu] npu_store", "[dsp] npu_store", "@2 is in the memory of npu"),
        ("[npu] npu_load", "npu_load", "@2 is in the memory of npu"),
    ] {
        let message = broken(DEVICE, from, to);
        assert!(message.contains(expected), "{message}");
    }
}

/// A kernel that threads share, with a place for the index of its stores.
const SHARED: &str = r#"program shared {
  symbol N = 1..8
  symbol S = 1..32
  @0 x: f32[1] input 0
  @1 y: f32[8*N*S] output 0
  input x[1] = @0
  output y[8*N*S] = @1
  kernel shared {
    for p in 0..N parallel {
      for t in 0..S {
        strip r in 0..4 {
          %0 = load @0[0]
          store @1[INDEX], %0
        }
      }
    }
  }
}
"#;

#[test]
fn iterations_are_independent_if_their_windows_are() {
    for (index, is_proven) in [
        ("4*(p*S + t) + r", true),
        // One window a row, in rows of all windows and in wider ones.
        ("4*(t*N + p) + r", true),
        ("t*(4*N + 3) + 4*p + r", true),
        // Windows that overlap, in each row and over its end.
        ("t*(4*N + 3) + 3*p + r", false),
        ("t*(4*N - 1) + 4*p + r", false),
        // The width of a window changes within the loop: that of p = 1, t = 4 is that of p = 2, t = 0.
        ("p*(t + 4) + r", false),
    ] {
        let unproven = verify::verify(&read(&SHARED.replace("INDEX", index))).expect("well-formed");
        let is_independent = !unproven.iter().any(|rule| rule.what.ends_with("are independent"));
        assert_eq!(is_independent, is_proven, "{index}: {unproven:?}");
    }
}

/// Replaces the first `from` by `to` in `text`, reads and verifies, and returns the error.
fn broken(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    let text = text.replacen(from, to, 1);
    let error = text::parse(&text).and_then(|program| verify::verify(&program));
    error.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn errors_are_located() {
    let cases = [
        ("f32[N*S] input 0", "f31[N*S] input 0", "line 6, column 9: expected an element type"),
        ("symbol N = 1..64", "symbol N = 64..1", "line 2, column 19: N has no value: 64..=1"),
        ("load @0[N*0", "load @9[N*0", "line 18, column 20: expected the number of a buffer declared above"),
        ("%2 = sub %0, %1", "%2 = sub %0, %7", "line 24, column 23: expected a register defined above"),
        ("n*S + s]", "n*S + ]", "line 18, column 33: unexpected end"),
        ("0.5, -0.0", "0.5", "line 9, column 59: 6 elements expected, 5 found"),
        ("kernel softmax {", "kernel softmax", "line 13, column 17: expected `{`"),
        ("store @2[e]", "store @0[e]", "kernel softmax: for n: strip e: instruction 4: @0 is read only"),
        ("strip e", "strip s", "kernel softmax: for n: strip s: s is introduced twice"),
        ("exp %2", "isnan %2", "kernel softmax: for n: strip e: instruction 4: bool is stored as f32"),
        (
            "load @2[d]",
            "load @2[e]",
            "kernel softmax: for n: strip d: instruction 0: symbol e is not in scope in `e`",
        ),
        (
            "local1: f32",
            "local1: i32",
            "kernel softmax: for n: strip e: instruction 5: local1 has another type",
        ),
        (
            "y[N, S] = @1",
            "y[N, S] = @2",
            "buffer @1 y, twice: it is not the memory of the port that it names",
        ),
        ("@2 t: f32[S]", "@2 t: f32[n]", "buffer @2 t: symbol n is not in scope in `n`"),
    ];
    let found: Vec<String> = cases.iter().map(|(from, to, _)| broken(SOFTMAX, from, to)).collect();
    let expected: Vec<String> = cases.iter().map(|(.., expected)| expected.to_string()).collect();
    assert_eq!(found, expected, "{found:#?}");
}

proptest! {
    #[test]
    fn no_text_panics(at in 0..EVERYTHING.len(), len in 0..40usize, junk in "[ -~\n]{0,6}") {
        for text in [SOFTMAX, EVERYTHING] {
            let at = text.floor_char_boundary(at.min(text.len()));
            let end = text.floor_char_boundary((at + len).min(text.len()));
            let text = format!("{}{junk}{}", &text[..at], &text[end..]);
            if let Ok(program) = text::parse(&text) {
                verify::verify(&program).ok();
            }
        }
    }
}

fn run(text: &str, dims: &[i64], inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    eval::eval(&read(text), dims, inputs).map_err(|error| error.to_string())
}

fn f32s(tensor: &Tensor) -> Vec<f64> {
    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64()).collect()
}

#[test]
fn softmax_runs_at_every_size() {
    for (n, s) in [(0, 8), (1, 8), (3, 16)] {
        let elems: Vec<f32> = (0..n * s).map(|idx| (idx % 5) as f32).collect();
        let x = Tensor::from_f32(vec![n, s], &elems).expect("the shape fits");
        let y = run(SOFTMAX, &[n as i64, s as i64, 1], &[x]).expect("it runs").remove(0);
        assert_eq!(y.shape(), [n, s]);
        for row in f32s(&y).chunks(s) {
            assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        }
    }
}

#[test]
fn contractions_read_panels() {
    let a: Vec<f32> = (0..24).map(|idx| idx as f32 - 6.0).collect();
    let a = Tensor::from_f32(vec![2, 12], &a).expect("the shape fits");
    let i = Tensor::from_i64(vec![2], &[1, 0]).expect("the shape fits");
    let c = run(EVERYTHING, &[2], &[a, i]).expect("it runs").remove(0);
    let mut expected = vec![0.0; 8];
    expected.extend([30.0; 8]);
    (expected[0], expected[8]) = (1.5, 1.0);
    assert_eq!(f32s(&c), expected);
}

#[test]
fn what_a_machine_lets_pass_is_an_error() {
    let x = || vec![Tensor::from_f32(vec![1, 8], &[1.0; 8]).expect("the shape fits")];
    let cases = [
        (
            "load @0[N*0 + n*S + s]",
            "load @0[n*S + s + 1]",
            "kernel softmax: n = 0: s = 7: instruction 0: load @0[n*S + s + 1]: element 8 of 8",
        ),
        (
            "load @2[d]",
            "load @1[d]",
            "kernel softmax: n = 0: d = 0: instruction 0: load @1[d]: element 0 was never written",
        ),
        ("store @1[n*S + d]", "store @1[n*S]", "output y: element 1 was never written"),
        (
            "n*S + e",
            "n//(N - 1) + e",
            "kernel softmax: n = 0: e = 0: instruction 0: `n//(N - 1) + e` has no value in 64 bits here",
        ),
    ];
    let found: Vec<String> = cases
        .iter()
        .map(|(from, to, _)| run(&SOFTMAX.replacen(from, to, 1), &[1, 8, 1], &x()).err().unwrap_or_default())
        .collect();
    let expected: Vec<String> = cases.iter().map(|(.., expected)| expected.to_string()).collect();
    assert_eq!(found, expected, "{found:#?}");
}

#[test]
fn checks_end_the_call() {
    let a = Tensor::from_f32(vec![1, 12], &[0.0; 12]).expect("the shape fits");
    let i = Tensor::from_i64(vec![1], &[1]).expect("the shape fits");
    let error = run(EVERYTHING, &[1], &[a, i]).expect_err("1 is not an index into one element");
    assert_eq!(error, "kernel dense + rélu: m = 0: instruction 1: axis 0: 1 is not in 0..1");
}

#[test]
fn nothing_is_touched_in_a_loop_that_never_runs() {
    let source = |extent: i64| {
        format!(
            "program idle {{\n  @0 x: f32[0] input 0\n  @1 y: f32[0] output 0\n  input x[0] = @0\n  output y[0] = @1\n  \
             kernel copy {{\n    strip i in 0..{extent} {{\n      %0 = load @0[i]\n      store @1[i], %0\n    }}\n  }}\n}}\n"
        )
    };
    let verified = |extent| verify::verify(&text::parse(&source(extent)).expect("a program"));
    assert_eq!(verified(0).map(|unproven| unproven.len()), Ok(0));
    assert!(verified(1).is_err());
}
