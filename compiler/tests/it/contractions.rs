//! Contractions and strips as compiled code, against sums that are written out, at every number of rows.

use crate::bits::assert_same_bits;
use crate::{machine, parallel};

use machine::Machine;
use std::{fmt::Write, sync::atomic::AtomicUsize};
use symshape::Declaration;
use symshape_compiler::{graph::Graph, pipeline::Pipeline, tensor::Tensor};
use symshape_runtime::{DType, abi::Exec};

/// Pseudo-random elements in -2..2 with a given number of bits, the same in every run.
fn random(count: usize, seed: u64, bits: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> (64 - bits)) as f32 / (1_u64 << (bits - 2)) as f32 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

/// Numbers of few bits, so that the texts of constants stay short.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    random(count, seed, 8)
}

/// Values whose products with [`numbers`] are exact, but whose sums are not. Such a sum has the bits of the definition
/// in one order only, with fused multiply-add and without.
fn inputs(count: usize, seed: u64) -> Vec<f32> {
    random(count, seed, 16)
}

fn list(values: &[f32]) -> String {
    let mut text = String::new();
    for (idx, value) in values.iter().enumerate() {
        let comma = if idx == 0 { "" } else { ", " };
        write!(text, "{comma}{value:?}").expect("strings take everything");
    }
    text
}

/// A matrix of `k` rows and `n` columns as panels of `width` columns, the last one filled up with zeros.
fn panels(k: usize, n: usize, width: usize, b: &[f32]) -> Vec<f32> {
    let mut panels = vec![0.0; n.div_ceil(width) * k * width];
    for depth in 0..k {
        for column in 0..n {
            panels[(column / width * k + depth) * width + column % width] = b[depth * n + column];
        }
    }
    panels
}

/// `y[r, j] = max(Σ a[r, k] b[k, j] + bias[j], 0)`, B packed.
fn dense(k: usize, n: usize, width: usize, b: &[f32], bias: &[f32]) -> String {
    let packed = panels(k, n, width, b);
    format!(
        r#"program dense {{
  symbol M = 0..64
  @0 a: f32[{k}*M] input 0
  @1 b: f32[{elems}] const [{elems}] {packed}
  @2 c: f32[{n}*M] output 0
  @3 bias: f32[{n}] const [{n}] {bias}
  input a[M, {k}] = @0
  output c[M, {n}] = @2
  kernel dense {{
    contraction f32 {{
      m r in 0..M
      n j in 0..{n}
      k k in 0..{k}
      lhs @0[{k}*r + k]
      rhs panels @1[0] width {width}
      %0 = sum
      %1 = load @3[j]
      %2 = add %0, %1
      %3 = const f32 0.0
      %4 = max %2, %3
      store @2[{n}*r + j], %4
    }}
  }}
}}
"#,
        elems = packed.len(),
        packed = list(&packed),
        bias = list(bias),
    )
}

/// Compares a layer with its definition at every number of rows.
fn check_dense(k: usize, n: usize, width: usize) {
    let (b, bias) = (numbers(k * n, 3), numbers(n, 4));
    let machine = Machine::new(&dense(k, n, width, &b, &bias));
    let a = inputs(64 * k, 5);
    let mut rows: Option<Vec<f32>> = None;
    for m in (0..=64).rev() {
        let y = machine.run_f32(&[m as i64], &[a[..m * k].to_vec()]);
        match &rows {
            // The same bits whatever the number of rows.
            Some(all) => assert_same_bits(&y, &all[..y.len()], format_args!("{k}x{n}, M = {m}")),
            None => {
                for (idx, y) in y.iter().enumerate() {
                    let (row, column) = (idx / n, idx % n);
                    let sum: f32 = (0..k).map(|depth| a[row * k + depth] * b[depth * n + column]).sum();
                    let expected = (sum + bias[column]).max(0.0);
                    assert_eq!(*y, expected, "{k}x{n}, row {row} column {column}");
                }
            }
        }
        rows.get_or_insert(y);
    }
}

#[test]
fn dense_layers_at_every_number_of_rows() {
    for (k, n, width) in [(37, 40, 32), (5, 16, 16), (64, 100, 32), (3, 7, 32), (16, 130, 16)] {
        check_dense(k, n, width);
    }
}

/// Columns that are one vector, several, or not all of a vector, after tiles of each width.
#[test]
fn rests_of_columns_at_every_number_of_rows() {
    for n in [1, 4, 8, 9, 15, 17, 24, 25, 31, 32, 33, 40, 47, 48, 56, 63, 65, 72, 95, 112, 127, 129, 531, 600]
    {
        check_dense(11, n, 16);
    }
}

/// `c[r, j] = Σ a[r, k] b[k, j]`, where both are inputs.
fn product(k: usize, n: usize) -> String {
    format!(
        r#"program product {{
  symbol M = 1..16
  workers 4
  @0 a: f32[{k}*M] input 0
  @1 b: f32[{elems}] input 1
  @2 c: f32[{n}*M] output 0
  input a[M, {k}] = @0
  input b[{k}, {n}] = @1
  output c[M, {n}] = @2
  kernel product {{
    contraction f32 {{
      m r in 0..M
      n j in 0..{n}
      k k in 0..{k}
      lhs @0[{k}*r + k]
      rhs @1[{n}*k + j]
      %0 = sum
      store @2[{n}*r + j], %0
    }}
  }}
}}
"#,
        elems = k * n,
    )
}

/// Threads divide the columns of few rows at whole panels, so the shares have other rests than all columns.
#[test]
fn threads_share_columns_with_a_rest() {
    let bytes = |values: Vec<f32>| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
    for (k, n) in [(1400, 89), (2000, 55), (300, 531), (300, 600)] {
        let machine = Machine::new(&product(k, n));
        for m in [1, 2, 5, 13] {
            let inputs = [bytes(inputs(m * k, 5)), bytes(numbers(k * n, 3))];
            let alone = machine.run(&[m as i64], &inputs).expect("a run");
            for threads in [2, 3, 4] {
                let calls = AtomicUsize::new(0);
                let exec = Exec { threads, ..parallel::exec(&calls) };
                let shared = machine.run_with(&[m as i64], &inputs, &exec);
                assert!(shared == Ok(alone.clone()), "{k}x{n}, M = {m}, {threads} threads");
                assert!(m < 13 || calls.into_inner() > 0, "{k}x{n}, M = {m} is shared");
            }
        }
    }
}

/// `c[r, j] = Σ a[r, k] / 2 + bias[j]`, deep enough to be cut in parts where there are many rows.
fn deep(k: usize, bias: &[f32]) -> String {
    format!(
        r#"program deep {{
  symbol M = 0..40
  @0 a: f32[{k}*M] input 0
  @1 b: f32[{elems}] const [{elems}] all 0.5
  @2 c: f32[20*M] output 0
  @3 bias: f32[20] const [20] {bias}
  input a[M, {k}] = @0
  output c[M, 20] = @2
  kernel deep {{
    contraction f32 {{
      m r in 0..M
      n j in 0..20
      k k in 0..{k}
      lhs @0[{k}*r + k]
      rhs panels @1[0] width 16
      %0 = sum
      %1 = load @3[j]
      %2 = add %0, %1
      store @2[20*r + j], %2
    }}
  }}
}}
"#,
        elems = 2 * k * 16,
        bias = list(bias),
    )
}

#[test]
fn deep_reductions_have_the_same_bits_for_few_rows_and_many() {
    // Rows whole pages apart, in three parts, and others, in three and a smaller last one.
    for k in [1024, 3100] {
        let bias = numbers(20, 4);
        let machine = Machine::new(&deep(k, &bias));
        let a = inputs(40 * k, 6);
        let mut all: Option<Vec<f32>> = None;
        for m in (0..=40).rev() {
            let y = machine.run_f32(&[m as i64], &[a[..m * k].to_vec()]);
            let Some(all) = &all else {
                for (idx, y) in y.iter().enumerate() {
                    let (row, column) = (idx / 20, idx % 20);
                    let sum: f32 = a[row * k..][..k].iter().map(|x| x / 2.0).sum();
                    assert_eq!(*y, sum + bias[column], "K = {k}");
                }
                all = Some(y);
                continue;
            };
            assert_same_bits(&y, &all[..y.len()], format_args!("K = {k}, M = {m}"));
        }
    }
}

/// A 3 by 3 convolution of stride 2 over channels-last pixels without padding; B read as rows, C transposed.
const CONVOLUTION: &str = r#"program convolution {
  symbol N = 0..5
  @0 x: f32[N*9*11*4] input 0
  @1 w: f32[3*3*4*6] input 1
  @2 y: f32[N*6*4*5] output 0
  input x[N, 9, 11, 4] = @0
  input w[3, 3, 4, 6] = @1
  output y[N, 6, 4, 5] = @2
  kernel conv {
    contraction f32 {
      m n in 0..N
      m i in 0..4
      m j in 0..5
      n o in 0..6
      k u in 0..3
      k c in 0..12
      lhs @0[396*n + 88*i + 8*j + 44*u + c]
      rhs @1[72*u + 6*c + o]
      %0 = sum
      store @2[120*n + 20*o + 5*i + j], %0
    }
  }
}
"#;

#[test]
fn convolutions_with_several_row_axes() {
    let machine = Machine::new(CONVOLUTION);
    let w = numbers(216, 9);
    for n in 0..=5usize {
        let x = inputs(n * 396, 8);
        let y = machine.run_f32(&[n as i64], &[x.clone(), w.clone()]);
        for (idx, y) in y.iter().enumerate() {
            let (image, o, i, j) = (idx / 120, idx / 20 % 6, idx / 5 % 4, idx % 5);
            let mut sum = 0f32;
            for u in 0..3 {
                for c in 0..12 {
                    sum += x[396 * image + 88 * i + 8 * j + 44 * u + c] * w[72 * u + 6 * c + o];
                }
            }
            assert_eq!(*y, sum, "{image}, {o}, {i}, {j}");
        }
    }
}

/// `p = softmax(q kᵀ * 0.5)`, the right factor of the contraction being columns far apart.
const ATTENTION: &str = r#"program attention {
  symbol S = 1..40
  @0 q: f32[S*8] input 0
  @1 k: f32[S*8] input 1
  @2 p: f32[S*S] output 0
  input q[S, 8] = @0
  input k[S, 8] = @1
  output p[S, S] = @2
  kernel scores {
    contraction f32 {
      m i in 0..S
      n j in 0..S
      k d in 0..8
      lhs @0[8*i + d]
      rhs @1[8*j + d]
      %0 = sum
      %1 = const f32 0.5
      %2 = mul %0, %1
      store @2[S*i + j], %2
    }
  }
  kernel softmax {
    local0: f32
    local1: f32
    for n in 0..S parallel {
      strip s in 0..S {
        %0 = load @2[n*S + s]
        reduce max %0 -> local0
      }
      strip e in 0..S {
        %0 = load @2[n*S + e]
        %1 = get local0
        %2 = sub %0, %1
        %3 = exp %2
        store @2[n*S + e], %3
        reduce sum %3 -> local1
      }
      strip d in 0..S {
        %0 = load @2[n*S + d]
        %1 = get local1
        %2 = div %0, %1
        store @2[n*S + d], %2
      }
    }
  }
}
"#;

/// `c[i, h, w, j] = max(Σ a[i, h, w, k] b[k, j], 0)` of images with more rows than a block has, into the middle of
/// others with borders: one loop over rows of A where `joint`, else one for each axis.
fn pixels(size: usize, k: usize, n: usize, joint: bool, b: &[f32]) -> String {
    let panels = panels(k, n, 16, b);
    let (inside, whole) = (size * size, (size + 2) * (size + 2));
    let (rows, left, right) = match joint {
        true => (format!("m r in 0..{inside}*N"), format!("{k}*r + k"), format!("{n}*r + j")),
        false => (
            format!("m i in 0..N\n      m h in 0..{size}\n      m w in 0..{size}"),
            format!("{}*i + {}*h + {k}*w + k", inside * k, size * k),
            format!("{}*i + {}*h + {n}*w + j + {}", whole * n, (size + 2) * n, (size + 3) * n),
        ),
    };
    let elems = if joint { inside * n } else { whole * n };
    format!(
        r#"program pixels {{
  symbol N = 1..2
  @0 a: f32[{from}*N] input 0
  @1 b: f32[{count}] const [{count}] {panels}
  @2 c: f32[{elems}*N] output 0
  input a[N, {from}] = @0
  output c[N, {elems}] = @2
  kernel pixels {{
    contraction f32 {{
      {rows}
      n j in 0..{n}
      k k in 0..{k}
      lhs @0[{left}]
      rhs panels @1[0] width 16
      %0 = sum
      %1 = const f32 0.0
      %2 = max %0, %1
      store @2[{right}], %2
    }}
  }}
}}
"#,
        from = inside * k,
        count = panels.len(),
        panels = list(&panels),
    )
}

#[test]
fn rows_of_several_blocks() {
    let (size, k, n) = (57, 72, 48);
    let b = numbers(k * n, 3);
    let a = inputs(2 * size * size * k, 5);
    for joint in [true, false] {
        let machine = Machine::new(&pixels(size, k, n, joint, &b));
        for images in [1, 2] {
            let c = machine.run_f32(&[images as i64], &[a[..images * size * size * k].to_vec()]);
            for pixel in 0..images * size * size {
                let (image, h, w) = (pixel / (size * size), pixel / size % size, pixel % size);
                let to = if joint { pixel } else { (image * (size + 2) + h + 1) * (size + 2) + w + 1 };
                for column in [0, 17, n - 1] {
                    let sum: f32 = (0..k).map(|depth| a[pixel * k + depth] * b[depth * n + column]).sum();
                    assert_eq!(
                        c[to * n + column],
                        sum.max(0.0),
                        "pixel {pixel} column {column}, joint {joint}"
                    );
                }
            }
        }
    }
}

#[test]
fn attention_scores() {
    let machine = Machine::new(ATTENTION);
    for s in 1..=40usize {
        let (q, k) = (numbers(8 * s, 1), numbers(8 * s, 2));
        let p = machine.run_f32(&[s as i64], &[q.clone(), k.clone()]);
        for i in 0..s {
            let score = |j: usize| (0..8).map(|d| q[8 * i + d] * k[8 * j + d]).sum::<f32>() * 0.5;
            let sum: f32 = (0..s).map(|j| score(j).exp()).sum();
            for j in 0..s {
                let expected = score(j).exp() / sum;
                assert!((p[s * i + j] - expected).abs() < 1e-5, "{} for {expected}", p[s * i + j]);
            }
        }
    }
}

/// `y[N, M, K] = q[N, M, depth] · keys[N, K, depth]`.
fn products_with_keys(depth: usize) -> symshape_compiler::Result<Graph> {
    let mut g = Graph { name: "keys".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 3))?;
    let m = g.symbol("M", Declaration::range(1, 9))?;
    let k = g.symbol("K", Declaration::range(1, 50))?;
    let q = g.input("q", DType::F32, vec![n.clone(), m, depth.into()])?;
    let keys = g.input("keys", DType::F32, vec![n, k, depth.into()])?;
    let turned = g.transpose(keys, &[0, 2, 1])?;
    let y = g.matmul(q, turned)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn keys_are_transposed_in_squares() {
    // Depths of no, one and several squares, with a rest and without.
    for depth in [1, 2, 15, 16, 17, 64] {
        let program = Pipeline::new(&products_with_keys(depth).expect("a valid graph")).lower();
        let program = program.expect("supported").program;
        let is_packed = program.buffers.values().any(|buffer| buffer.name == "panels of keys");
        assert_eq!(is_packed, depth > 1, "{depth}");
        let machine = Machine::compile(program, false);
        for (n, m, k) in
            [(1, 1, 1), (2, 2, 2), (3, 9, 15), (1, 8, 16), (2, 1, 17), (1, 3, 33), (3, 9, 49), (3, 9, 50)]
        {
            let q = random(n * m * depth, 7, 10);
            let keys = random(n * k * depth, 8, 14);
            let y = machine.run_f32(&[n as i64, m as i64, k as i64], &[q.clone(), keys.clone()]);
            for (idx, y) in y.iter().enumerate() {
                let (row, key) = (idx / k, idx / (m * k) * k + idx % k);
                let products = (0..depth).map(|at| q[row * depth + at] * keys[key * depth + at]);
                assert_eq!(*y, products.sum::<f32>(), "{idx} of {n}, {m}, {k} at depth {depth}");
            }
        }
    }
}

/// `y[M, n] = max(x[M, 0..depth] * w, 0)` of rows of `row` numbers.
fn paged(row: usize, depth: usize, w: &[f32]) -> symshape_compiler::Result<Graph> {
    let mut g = Graph { name: "paged".into(), ..Graph::default() };
    let m = g.symbol("M", Declaration::range(1, 50))?;
    let x = g.input("x", DType::F32, vec![m, row.into()])?;
    let x = g.slice(x, 1, 0.into(), depth.into(), 1)?;
    let w = g.constant(Tensor::from_f32(vec![depth, w.len() / depth], w).expect("a size"))?;
    let y = g.matmul(x, w)?;
    let y = g.relu(y)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn rows_that_are_pages_apart_are_copied() {
    // The row in memory, its part that is multiplied, and columns; blocks of all rows and of a few.
    for (row, depth, n, copied) in
        [(1024, 1024, 130, true), (1024, 701, 128, true), (2048, 2048, 144, true), (1024, 1024, 40, false)]
    {
        // Tile registers would multiply numbers of 8 bits.
        let w = random(depth * n, 5, 10);
        let g = paged(row, depth, &w).expect("a valid graph");
        let program = Pipeline::new(&g).lower().expect("supported").program;
        let has_room = program.buffers.values().any(|buffer| buffer.name.starts_with("rows of "));
        assert_eq!(has_room, copied, "{depth} by {n}");
        let machine = Machine::compile(program, false);
        let all = random(50 * row, 6, 14);
        let mut rows: Option<Vec<f32>> = None;
        for m in (1..=50).rev() {
            let x = &all[..m * row];
            let y = machine.run_f32(&[m as i64], &[x.to_vec()]);
            match &rows {
                Some(all) => assert_same_bits(&y, &all[..y.len()], format_args!("M = {m}")),
                None => {
                    for (idx, y) in y.iter().enumerate() {
                        let (at, column) = (idx / n * row, idx % n);
                        let sum: f32 = (0..depth).map(|k| x[at + k] * w[k * n + column]).sum();
                        assert_eq!(*y, sum.max(0.0), "{idx}");
                    }
                }
            }
            rows.get_or_insert(y);
        }
    }
}
