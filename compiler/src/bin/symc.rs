//! The command line `symc`, see [`symshape_compiler::cli`]. This file only adds an allocator that counts its calls.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The system's allocator. From the first call of [`heap_calls`] on it counts every call that allocates.
struct CountingAllocator;

/// Whether calls are counted. Without a reader they are not, because threads that allocate at the same time compete for
/// the counter's cache line.
static COUNTS: AtomicBool = AtomicBool::new(false);
static HEAP_CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if COUNTS.load(Ordering::Relaxed) {
        HEAP_CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The number of calls that allocated since the first call of this function.
fn heap_calls() -> u64 {
    COUNTS.store(true, Ordering::Relaxed);
    HEAP_CALLS.load(Ordering::Relaxed)
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    symshape_compiler::cli::main(heap_calls)
}
