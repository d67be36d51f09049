//! Batches that are computed a few images at a time, by one thread or several: the bits of calls for one image, errors
//! of the whole contract.

use crate::bits::assert_same_bits;
use crate::machine;

use machine::Machine;
use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicI64, Ordering},
};
use symshape::{Declaration, Dim};
use symshape_compiler::{CompileOptions, Result, emit, graph::Graph, pipeline::Pipeline};
use symshape_runtime::{
    Context, DType, TensorRef,
    abi::{Exec, Task},
};

const MOST: usize = 6;
const ROWS: usize = 600;
const COLUMNS: usize = 700;

/// `softmax(x + shift)` along the last axis, and the largest of each row; `shift` is the same for all images.
fn graph(g: &mut Graph) -> Result<()> {
    let n = g.symbol("N", Declaration::range(0, MOST as i64))?;
    let shape: Vec<Dim> = vec![n, ROWS.into(), COLUMNS.into()];
    let x = g.input("x", DType::F32, shape.clone())?;
    let shift = g.input("shift", DType::F32, vec![COLUMNS.into()])?;
    let shift = g.broadcast_to(shift, &shape)?;
    let sum = g.add(x, shift)?;
    let y = g.softmax(sum, 2)?;
    g.output("y", y)?;
    let most = g.reduce(symshape_compiler::scalar::ReduceOp::Max, y, &[2], false)?;
    g.output("most", most)
}

#[test]
fn groups_of_images_have_the_bits_of_single_ones() {
    let mut g = Graph { name: "images".into(), ..Graph::default() };
    graph(&mut g).expect("valid");
    let lowered = Pipeline::new(&g).lower().expect("supported");
    let (model, summary) =
        emit::jit::jit(&lowered.program, &lowered.plan, &CompileOptions::default()).expect("supported");
    assert!(summary.functions.iter().any(|function| function.name.contains("run_images")));

    let mut context = Context::new(&model).expect("memory");
    let image = ROWS * COLUMNS;
    let x: Vec<f32> = (0..MOST * image).map(|at| (at * 7919 % 1013) as f32 / 100.0).collect();
    let shift: Vec<f32> = (0..COLUMNS).map(|at| (at % 17) as f32 / 8.0).collect();
    let mut run = |from: usize, count: usize| -> [Vec<f32>; 2] {
        let shape = [count, ROWS, COLUMNS];
        let x = TensorRef::new(&shape, &x[from * image..(from + count) * image]).expect("sized");
        let shift = TensorRef::new(&[COLUMNS], &shift).expect("sized");
        let outputs = context.run_views(&[x, shift]).expect("in range");
        [0, 1].map(|output| outputs.get(output).elems::<f32>().expect("floats").to_vec())
    };
    let single: Vec<[Vec<f32>; 2]> = (0..MOST).map(|at| run(at, 1)).collect();
    for count in 0..=MOST {
        let together = run(0, count);
        for output in 0..2 {
            let apart: Vec<f32> = single[..count].iter().flat_map(|one| one[output].clone()).collect();
            assert_same_bits(&together[output], &apart, format_args!("output {output} of {count} images"));
        }
    }
    let shape = [MOST + 1, ROWS, COLUMNS];
    let large = vec![0.0; (MOST + 1) * image];
    let inputs =
        [TensorRef::new(&shape, &large).expect("sized"), TensorRef::new(&[COLUMNS], &shift).expect("sized")];
    assert!(context.run_views(&inputs).is_err());
}

/// The sides of an image that depend on the call: `tanh(softmax(x) + shift)`.
fn symbolic_sides() -> Result<Graph> {
    let mut g = Graph { name: "sides".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, MOST as i64))?;
    let h = g.symbol("H", Declaration::range(1, 700))?;
    let w = g.symbol("W", Declaration::range(1, 700))?;
    let shape: Vec<Dim> = vec![n, h, w];
    let x = g.input("x", DType::F32, shape)?;
    let y = g.softmax(x, 2)?;
    let y = g.softmax(y, 1)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn blocks_of_images_of_every_size_have_the_bits_of_single_ones() {
    let g = symbolic_sides().expect("valid");
    let lowered = Pipeline::new(&g).lower().expect("supported");
    let (model, summary) =
        emit::jit::jit(&lowered.program, &lowered.plan, &CompileOptions::default()).expect("supported");
    assert!(summary.functions.iter().any(|function| function.name.contains("run_images")));

    let mut context = Context::new(&model).expect("memory");
    for (rows, columns) in [(1, 1), (2, 1), (33, 57), (699, 700), (700, 699), (700, 700)] {
        let image = rows * columns;
        let x: Vec<f32> = (0..MOST * image).map(|at| (at * 7919 % 1013) as f32 / 100.0).collect();
        let mut run = |from: usize, count: usize| -> Vec<f32> {
            let shape = [count, rows, columns];
            let x = TensorRef::new(&shape, &x[from * image..(from + count) * image]).expect("sized");
            context.run_views(&[x]).expect("in range").get(0).elems::<f32>().expect("floats").to_vec()
        };
        let single: Vec<f32> = (0..MOST).flat_map(|at| run(at, 1)).collect();
        for count in 1..=MOST {
            assert_same_bits(
                &run(0, count),
                &single[..count * image],
                format_args!("{count} images of {rows}x{columns}"),
            );
        }
    }
    for shape in [[MOST + 1, 1, 1], [1, 701, 1], [MOST, 1, 701]] {
        let x = vec![0.0; shape.iter().product()];
        assert!(context.run_views(&[TensorRef::new(&shape, &x).expect("sized")]).is_err(), "{shape:?}");
    }
}

/// The loop over images is inside of one over groups, as in a convolution with groups.
const GROUPS: &str = r#"program groups {
  symbol N = 0..4
  @0 x: f32[N*600000] input 0
  @1 y: f32[N*600000] output 0
  input x[N, 600000] = @0
  output y[N, 600000] = @1
  kernel groups {
    for g in 0..3 parallel {
      for n in 0..N parallel {
        strip i in 0..200000 {
          %0 = load @0[600000*n + 200000*g + i]
          %1 = tanh %0
          store @1[600000*n + 200000*g + i], %1
        }
      }
    }
  }
}
"#;

#[test]
fn images_inside_of_groups_are_blocked() {
    let machine = Machine::new(GROUPS);
    assert!(machine.summary.functions.iter().any(|function| function.name.contains("run_images")));
    let x: Vec<f32> = (0..4 * 600_000_i64).map(|at| (at * 7919 % 1013) as f32 / 500.0 - 1.0).collect();
    let single: Vec<f32> =
        (0..4).flat_map(|at| machine.run_f32(&[1], &[x[at * 600_000..][..600_000].to_vec()])).collect();
    for n in 0..=4 {
        let together = machine.run_f32(&[n as i64], &[x[..n * 600_000].to_vec()]);
        assert_same_bits(&together, &single[..n * 600_000], format_args!("N = {n}"));
    }
}

/// Two steps with a tensor between them; the second has scratch memory for each of three workers.
const STEPS: &str = r#"program steps {
  symbol N = 0..16
  workers 3
  @0 x: f32[N*3000] input 0
  @1 t: f32[N*3000] arena
  @2 s: f32[300] scratch
  @3 y: f32[N*3000] output 0
  input x[N, 3000] = @0
  output y[N, 3000] = @3
  kernel first {
    strip i in 0..3000*N {
      %0 = load @0[i]
      %1 = tanh %0
      store @1[i], %1
    }
  }
  kernel second {
    for n in 0..N parallel {
      for h in 0..10 parallel {
        strip i in 0..300 {
          %0 = load @1[3000*n + 300*h + i]
          %1 = exp %0
          store @2[i], %1
        }
        strip j in 0..300 {
          %0 = load @2[j]
          %1 = tanh %0
          store @3[3000*n + 300*h + j], %1
        }
      }
    }
  }
}
"#;

/// Runs the shares of a task one after another, the last share first; `host` gets the sum of the counts.
unsafe extern "C" fn one_by_one(host: *mut c_void, count: i64, task: Task, data: *mut c_void) {
    // SAFETY: the test passes a counter.
    unsafe { &*host.cast::<AtomicI64>() }.fetch_add(count, Ordering::Relaxed);
    for share in (0..count).rev() {
        // SAFETY: the ranges are disjoint and cover the count.
        unsafe { task(data, share, share + 1, 0) };
    }
}

#[test]
fn threads_take_images_of_their_own() {
    let machine = Machine::new(STEPS);
    assert!(machine.summary.functions.iter().any(|function| function.name.contains("share_images")));
    for n in 0..=16_i64 {
        let x =
            (0..n * 3000).flat_map(|at| ((at * 7919 % 1013) as f32 / 500.0 - 1.0).to_le_bytes()).collect();
        let inputs = [x];
        let alone = machine.run(&[n], &inputs).expect("a run");
        for threads in [2, 3, 4, 7] {
            let handed = AtomicI64::new(0);
            let exec = Exec {
                host: ptr::from_ref(&handed).cast_mut().cast(),
                threads,
                policy: 0,
                parallel_for: Some(one_by_one),
                error: ptr::null_mut(),
            };
            assert_eq!(
                machine.run_with(&[n], &inputs, &exec),
                Ok(alone.clone()),
                "N = {n}, {threads} threads"
            );
            // Whole blocks of images, as many for each thread, and nothing else where no image is left over.
            let even = n >= 12 && n % i64::from(threads) == 0;
            let blocks = handed.into_inner();
            let is_even = blocks % i64::from(threads) == 0 && (i64::from(threads)..=n).contains(&blocks);
            assert!(!even || is_even, "N = {n}, {threads} threads: {blocks} blocks");
        }
    }
}

#[test]
fn threads_take_blocks_of_others() {
    let machine = Machine::new(&GROUPS.replace("0..4", "0..7"));
    assert!(machine.summary.functions.iter().any(|function| function.name.contains("share_images")));
    let x: Vec<u8> =
        (0..7 * 600_000_i64).flat_map(|at| ((at * 7919 % 1013) as f32 / 500.0 - 1.0).to_le_bytes()).collect();
    for n in [1, 2, 3, 6, 7_i64] {
        let inputs = [x[..n as usize * 2_400_000].to_vec()];
        let alone = machine.run(&[n], &inputs).expect("a run");
        for threads in [2, 3] {
            let handed = AtomicI64::new(0);
            let mut exec = Exec {
                host: ptr::from_ref(&handed).cast_mut().cast(),
                threads,
                policy: 0,
                parallel_for: Some(one_by_one),
                error: ptr::null_mut(),
            };
            assert!(
                machine.run_with(&[n], &inputs, &exec) == Ok(alone.clone()),
                "N = {n}, {threads} threads"
            );
            // A block has one image, and threads have the same number of blocks.
            let even = n % i64::from(threads) == 0;
            assert!(!even || handed.load(Ordering::Relaxed) == n, "N = {n}, {threads} threads");
            if threads == 2 {
                exec.parallel_for = Some(at_once);
                assert!(machine.run_with(&[n], &inputs, &exec) == Ok(alone.clone()), "N = {n} at once");
            }
        }
    }
}

/// Runs the shares on two threads: the second one takes all but the first share.
unsafe extern "C" fn at_once(_: *mut c_void, count: i64, task: Task, data: *mut c_void) {
    struct Shared(*mut c_void);
    // SAFETY: the shares of one `parallel_for` may run at once.
    unsafe impl Send for Shared {}
    let shared = Shared(data);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let shared = shared;
            // SAFETY: the ranges are disjoint and cover the count, and each worker runs one of them.
            unsafe { task(shared.0, 1.min(count), count, 1) }
        });
        // SAFETY: as above.
        unsafe { task(data, 0, 1.min(count), 0) };
    });
}
