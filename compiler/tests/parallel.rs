//! Kernels over the threads of a host: the same bits as without, and errors come through.

mod machine;

use machine::Machine;
use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};
use symshape_runtime::abi::{Exec, Task};

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

/// Addresses that cross threads.
struct Shared(*mut c_void);
// SAFETY: the pieces of one `parallel_for` may run at once, that is what it is for.
unsafe impl Send for Shared {}

/// Four threads, each with a piece of its own; `host` counts the calls.
unsafe extern "C" fn four_threads(host: *mut c_void, count: i64, task: Task, data: *mut c_void) {
    // SAFETY: the tests pass a counter.
    unsafe { &*host.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for worker in 0..4u32 {
            let data = Shared(data);
            scope.spawn(move || {
                let data = data;
                let (begin, end) = (count * i64::from(worker) / 4, count * i64::from(worker + 1) / 4);
                // SAFETY: the ranges are disjoint and cover the count, worker ids are below four.
                unsafe { task(data.0, begin, end, worker) }
            });
        }
    });
}

fn exec(calls: &AtomicUsize) -> Exec {
    let host = ptr::from_ref(calls).cast_mut().cast();
    Exec { host, threads: 4, parallel_for: Some(four_threads), error: ptr::null_mut() }
}

fn inputs(n: i64, row: impl Fn(i64) -> i64) -> Vec<Vec<u8>> {
    let x = (0..n * 3000).flat_map(|i| ((i % 17) as f32 + 0.5).to_le_bytes()).collect();
    vec![x, (0..n).flat_map(|i| row(i).to_le_bytes()).collect()]
}

#[test]
fn threads_change_no_bit() {
    let machine = Machine::new(ROWS);
    for n in [0, 1, 2, 7, 64] {
        let calls = AtomicUsize::new(0);
        let inputs = inputs(n, |i| n - 1 - i);
        let expected = machine.run(&[n], &inputs).expect("a run");
        assert_eq!(machine.run_with(&[n], &inputs, &exec(&calls)), Ok(expected));
        // Too little work, or a single iteration, is not worth a thread.
        assert_eq!(calls.into_inner(), usize::from(n >= 7), "N = {n}");
    }
}

#[test]
fn an_error_in_a_thread_ends_the_call() {
    let machine = Machine::new(ROWS);
    let calls = AtomicUsize::new(0);
    let result = machine.run_with(&[64], &inputs(64, |i| i * 2), &exec(&calls));
    assert_eq!((result, calls.into_inner()), (Err(5), 1));
}
