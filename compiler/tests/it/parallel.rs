//! Kernels over the threads of a host: the same bits as without, and errors come through.

use crate::{machine, models, networks, tensors};

use machine::Machine;
use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};
use symshape_compiler::{CompileOptions, pipeline::Pipeline};
use symshape_runtime::{
    Context, TensorRef,
    abi::{Exec, Task},
};

const ROWS: &str = r#"program rows {
  symbol N = 0..64
  @0 x: f32[N*3000] input 0
  @1 y: f32[N*3000] output 0
  @2 p: i64[N] input 1
  input x[N, 3000] = @0
  input p[N] = @2
  output y[N, 3000] = @1
  kernel rows {
    local0: f32
    for n in 0..N parallel {
      block {
        %0 = load @2[n]
        check 0 <= %0 < N, "row"
        bind r = %0
      }
      strip s in 0..3000 {
        %0 = load @0[r*3000 + s]
        reduce sum %0 -> local0
      }
      strip d in 0..3000 {
        %0 = load @0[r*3000 + d]
        %1 = get local0
        %2 = div %0, %1
        store @1[n*3000 + d], %2
      }
    }
  }
}
"#;

type ParallelFor = unsafe extern "C" fn(*mut c_void, i64, Task, *mut c_void);

/// Addresses that cross threads.
struct Shared(*mut c_void);
// SAFETY: the shares of one `parallel_for` may run at once.
unsafe impl Send for Shared {}

/// Runs a share on each of some threads; `host` counts the calls.
unsafe extern "C" fn on_threads<const THREADS: u32>(
    host: *mut c_void,
    count: i64,
    task: Task,
    data: *mut c_void,
) {
    // SAFETY: the tests pass a counter.
    unsafe { &*host.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for worker in 0..THREADS {
            let data = Shared(data);
            scope.spawn(move || {
                let data = data;
                let [begin, end] = [worker, worker + 1].map(|at| count * i64::from(at) / i64::from(THREADS));
                // SAFETY: the ranges are disjoint and cover the count, worker ids are below the number of threads.
                unsafe { task(data.0, begin, end, worker) }
            });
        }
    });
}

/// Every split of a kernel among threads, in one kernel and in several: rows or columns of a contraction with one row
/// axis or several, joint iterations of two loops with scratch memory, columns inside of a loop, and elements of a
/// strip. One strip belongs to no step of `N`, or each thread would take whole steps.
const WAYS: &str = r#"program ways {
  symbol N = 0..64
  workers 3
  @0 x: f32[N*9*96] input 0
  @1 b: f32[96*640] input 1
  @2 c: f32[N*9*640] arena
  @3 w: f32[N*7*640] arena
  @4 t: f32[643] scratch
  @5 s: f32[N*7*640] arena
  @6 y: f32[N*7*640] output 0
  @7 z: f32[N*9*640] output 1
  @8 v: f32[640] arena
  @9 u: f32[9*96] scratch
  @10 q: f32[4*9*640] scratch
  @11 o: f32[N*7*640] output 2
  input x[N, 9, 96] = @0
  input b[96, 640] = @1
  output y[N, 7, 640] = @6
  output z[N, 9, 640] = @7
  output o[N, 7, 640] = @11
  kernel product {
    contraction f32 {
      m m in 0..9*N
      n j in 0..640
      k k in 0..96
      lhs @0[96*m + k]
      rhs @1[640*k + j]
      %0 = sum
      store @2[640*m + j], %0
    }
  }
  kernel windows {
    contraction f32 {
      m n in 0..N
      m h in 0..7
      n j in 0..640
      k u in 0..3
      k k in 0..96
      lhs @0[864*n + 96*h + 96*u + k]
      rhs @1[640*k + j]
      %0 = sum
      store @3[4480*n + 640*h + j], %0
    }
  }
  kernel rows {
    for n in 0..N parallel {
      for h in 0..7 parallel {
        strip i in 0..640 {
          %0 = load @3[4480*n + 640*h + i]
          %1 = exp %0
          store @4[i], %1
        }
        strip j in 0..640 {
          %0 = load @4[j]
          %1 = load @2[5760*n + 640*h + j]
          %2 = mul %0, %1
          store @5[4480*n + 640*h + j], %2
        }
      }
    }
  }
  kernel columns {
    for n in 0..N parallel {
      for h in 0..9 {
        strip i in 0..96 {
          %0 = load @0[864*n + 96*h + i]
          %1 = tanh %0
          store @9[96*h + i], %1
        }
      }
      for p in 0..4 {
        contraction f32 {
          m r in 0..9
          n j in 0..640
          k k in 0..96
          lhs @9[96*r + k]
          rhs @1[640*k + j]
          %0 = sum
          store @10[5760*p + 640*r + j], %0
        }
      }
      for g in 0..7 {
        strip l in 0..640 {
          %0 = load @10[640*g + l]
          %1 = load @10[640*g + l + 13440]
          %2 = mul %0, %1
          store @11[4480*n + 640*g + l], %2
        }
      }
    }
  }
  kernel flat {
    strip l in 0..640 {
      %0 = load @1[l]
      store @8[l], %0
    }
    strip i in 0..4480*N {
      %0 = load @5[i]
      %1 = tanh %0
      store @6[i], %1
    }
    strip k in 0..5760*N {
      %0 = load @2[k]
      %1 = tanh %0
      store @7[k], %1
    }
  }
}
"#;

#[test]
fn every_way_of_sharing_gives_the_same_bits() {
    for machine in [Machine::new(WAYS), Machine::scalar(WAYS)] {
        for n in [0, 1, 2, 3, 13, 64] {
            let numbers = |count: i64| -> Vec<u8> {
                (0..count).flat_map(|i| ((i * 7919 % 1013) as f32 / 1013.0 - 0.5).to_le_bytes()).collect()
            };
            let inputs = [numbers(n * 9 * 96), numbers(96 * 640)];
            let expected = machine.run(&[n], &inputs).expect("a run");
            let hosts: [ParallelFor; 3] = [on_threads::<2>, on_threads::<3>, on_threads::<4>];
            for (threads, host) in (2..).zip(hosts) {
                let calls = AtomicUsize::new(0);
                let exec = Exec { threads, parallel_for: Some(host), ..exec(&calls) };
                assert_eq!(machine.run_with(&[n], &inputs, &exec), Ok(expected.clone()), "N = {n}");
                let most = if calls.load(Ordering::Relaxed) >= 4 { 2 } else { 0 };
                assert!(n >= most, "{calls:?} calls for N = {n}");
                assert!(n < 64 || calls.into_inner() >= 4, "N = {n} is shared");
            }
        }
    }
}

/// A host of four threads that counts its calls.
pub(crate) fn exec(calls: &AtomicUsize) -> Exec {
    let host = ptr::from_ref(calls).cast_mut().cast();
    Exec { host, threads: 4, policy: 0, parallel_for: Some(on_threads::<4>), error: ptr::null_mut() }
}

fn inputs(n: i64, row: impl Fn(i64) -> i64) -> Vec<Vec<u8>> {
    let x = (0..n * 3000).flat_map(|i| ((i % 17) as f32 + 0.5).to_le_bytes()).collect();
    vec![x, (0..n).flat_map(|i| row(i).to_le_bytes()).collect()]
}

#[test]
fn threads_change_no_bit() {
    let machine = Machine::new(ROWS);
    for n in [0, 1, 2, 16, 64] {
        let calls = AtomicUsize::new(0);
        let inputs = inputs(n, |i| n - 1 - i);
        let expected = machine.run(&[n], &inputs).expect("a run");
        assert_eq!(machine.run_with(&[n], &inputs, &exec(&calls)), Ok(expected));
        // Too little work, or a single iteration, is not worth a thread.
        assert_eq!(calls.into_inner(), usize::from(n >= 16), "N = {n}");
    }
}

#[test]
fn an_error_in_a_thread_ends_the_call() {
    let machine = Machine::new(ROWS);
    let calls = AtomicUsize::new(0);
    let result = machine.run_with(&[64], &inputs(64, |i| i * 2), &exec(&calls));
    assert_eq!((result, calls.into_inner()), (Err(5), 1));
}

/// More threads than any machine of the tests has cores.
#[test]
fn networks_on_64_threads_have_the_bits_of_one() {
    for (name, network) in networks::NETWORKS.iter().filter(|(name, _)| ["mlp", "minilm"].contains(name)) {
        let graph = network().unwrap_or_else(|error| panic!("{name}: {error}"));
        let options = CompileOptions::default().threads(64);
        let model =
            Pipeline::new(&graph).options(options).lower().expect("supported").jit().expect("supported");
        let mut one = Context::new(&model).expect("memory");
        let mut many = Context::new(&model).expect("memory");
        many.set_threads(64).expect("threads");
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let refs: Vec<TensorRef<'_>> = inputs.iter().map(tensors::as_ref).collect();
            let expected = one.run_views(&refs).expect("in range");
            for _ in 0..3 {
                let outputs = many.run_views(&refs).expect("in range");
                for idx in 0..expected.len() {
                    assert!(outputs.get(idx).bytes() == expected.get(idx).bytes(), "{name} at {dims:?}");
                }
            }
        }
    }
}
