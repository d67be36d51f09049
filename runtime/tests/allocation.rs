//! Calls and refusals allocate nothing, at old and new sizes.

#[allow(dead_code, reason = "this program uses only a part of it")]
#[path = "it/fake.rs"]
mod fake;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};
use symshape_runtime::{Context, TensorMut, TensorRef};

struct Counting;

thread_local! {
    // Calls on the test's thread: the harness allocates on its threads.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn calls_and_refusals_allocate_nothing() {
    let model = fake::model();
    let mut context = Context::new(&model).unwrap();
    let (x, y) = (vec![1f32; 65 * 8], vec![1f32; 65]);
    let (mut z, mut rows) = (vec![0f32; 64 * 8], [0i64]);
    let before = CALLS.get();
    for (n, s) in [(1, 2), (64, 8), (33, 4), (65, 8), (7, 3), (2, 2)] {
        let (x_shape, y_shape) = ([n, s], [n]);
        let inputs =
            [TensorRef::new(&x_shape, &x[..n * s]).unwrap(), TensorRef::new(&y_shape, &y[..n]).unwrap()];
        let is_allowed = n <= 64 && s != 3;
        assert_eq!(context.run_views(&inputs).is_ok(), is_allowed);
        let outputs = &mut [TensorMut::new(&mut z), TensorMut::new(&mut rows)];
        assert_eq!(context.run(&inputs, outputs).is_ok(), is_allowed);
    }
    assert_eq!(CALLS.get(), before);
}
