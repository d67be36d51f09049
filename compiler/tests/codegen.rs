//! Compiled programs against what they should compute, at small, odd and largest sizes.

mod machine;

use machine::Machine;

const AFFINE: &str = r#"program affine {
  symbol N = 0..64
  @0 x: f32[N*3] input 0
  @1 y: f32[N*3] output 0
  @2 t: f32[N*3] arena
  @3 w: f32[3] const [3] 1.0, 2.0, 3.0
  input x[N, 3] = @0
  output y[N, 3] = @1
  kernel scale {
    for n in 0..N parallel {
      strip i in 0..3 {
        %0 = load @0[3*n + i]
        %1 = load @3[i]
        %2 = mul %0, %1
        store @2[3*n + i], %2
      }
    }
  }
  kernel shift {
    for n in 0..N parallel {
      strip i in 0..3 {
        %0 = load @2[3*n + i]
        %1 = const f32 1.0
        %2 = add %0, %1
        store @1[3*n + i], %2
      }
    }
  }
}
"#;

#[test]
fn two_kernels_through_the_arena() {
    let machine = Machine::new(AFFINE);
    for n in [0i64, 1, 2, 7, 64] {
        let x: Vec<f32> = (0..3 * n).map(|i| i as f32).collect();
        let expected: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * (i % 3 + 1) as f32 + 1.0).collect();
        assert_eq!(machine.check(&[vec![n, 3]]), Ok(vec![n]));
        assert_eq!(machine.output_shape(0, &[n]), [n, 3]);
        assert_eq!(machine.arena_bytes(&[n]) as i64, (12 * n + 63) / 64 * 64);
        assert_eq!(machine.run_f32(&[n], &[x]), expected);
    }
}
