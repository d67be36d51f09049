//! The system's allocator, which counts its calls.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

struct Counting;

static ALL_CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// The calls of this thread so far. The harness of tests allocates on other threads.
pub(crate) fn calls() -> usize {
    CALLS.get()
}

/// The calls of all threads so far.
pub(crate) fn all_calls() -> usize {
    ALL_CALLS.load(Ordering::Relaxed)
}

fn count() {
    CALLS.set(CALLS.get() + 1);
    ALL_CALLS.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
