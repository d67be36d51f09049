//! Memory for a context: reserved at once, 64-byte aligned, zero until written.
//!
//! With `std` it is an anonymous mapping: the operating system commits pages as they are first touched, so a bound that
//! is never reached costs address space only. The first few megabytes and the beginnings of outputs are committed at once
//! and the rest comes in huge pages, because each touch of a new page interrupts the call for longer than a small model
//! runs. Elsewhere (and under Miri) it comes from the allocator.

use crate::OpenError;
use core::ptr::NonNull;

/// Every arena begins at a multiple of this.
pub(crate) const ALIGN_BYTES: usize = 64;

/// Owned or lent memory.
pub(crate) struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    source: Source,
}

/// Where the memory comes from, hence how it is given back.
enum Source {
    #[cfg(all(feature = "std", not(miri)))]
    Mapped(#[expect(dead_code, reason = "held to unmap it in the end")] memmap2::MmapMut),
    #[cfg(any(not(feature = "std"), miri))]
    Heap(core::alloc::Layout),
    Lent,
}

// SAFETY: the memory is this value's alone, as that of a `Vec<u8>` or `&'static mut [u8]`.
unsafe impl Send for Arena {}
// SAFETY: it is only reached through `&mut self` or, to be read, `&self`.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `bytes` bytes; those at offset 0 and at `begins` will be written first.
    #[cfg(all(feature = "std", not(miri)))]
    pub(crate) fn reserve(bytes: usize, begins: &[usize]) -> Result<Arena, OpenError> {
        let mut options = memmap2::MmapOptions::new();
        let map = options.len(bytes.max(ALIGN_BYTES)).no_reserve_swap().map_anon();
        let mut map = map.map_err(|_| OpenError::Reserve { bytes })?;
        prepare(&map, begins);
        let start = NonNull::from(&mut map[..]).cast();
        Ok(Arena { start, bytes, source: Source::Mapped(map) })
    }

    /// Reserves `bytes` bytes.
    #[cfg(any(not(feature = "std"), miri))]
    pub(crate) fn reserve(bytes: usize, _begins: &[usize]) -> Result<Arena, OpenError> {
        let layout = core::alloc::Layout::from_size_align(bytes.max(ALIGN_BYTES), ALIGN_BYTES)
            .map_err(|_| OpenError::Reserve { bytes })?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc::alloc::alloc_zeroed(layout) });
        Ok(Arena { start: start.ok_or(OpenError::Reserve { bytes })?, bytes, source: Source::Heap(layout) })
    }

    /// The aligned part of `memory`.
    pub(crate) fn lent(memory: &'static mut [u8]) -> Arena {
        let skip = memory.as_ptr().align_offset(ALIGN_BYTES).min(memory.len());
        let memory = &mut memory[skip..];
        Arena { bytes: memory.len(), start: NonNull::from(memory).cast(), source: Source::Lent }
    }

    /// Its size.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Where byte `offset` is.
    pub(crate) fn at(&mut self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        // SAFETY: inside the memory or just behind it.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The bytes `offset..offset + len`.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.bytes && len <= self.bytes - offset);
        // SAFETY: inside the memory, which was zero at first and is borrowed from `self`.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }

    /// The bytes `offset..offset + len`, to be written.
    pub(crate) fn slice_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.bytes && len <= self.bytes - offset);
        // SAFETY: as in `slice`; `self` is borrowed uniquely.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }
}

/// Bytes that are committed when the arena is made, whether they are needed or not.
#[cfg(all(feature = "std", not(miri), target_os = "linux"))]
const COMMIT_BYTES: usize = 8 << 20;

/// Bytes that are committed then at each of the places that are written first, and of how many places.
#[cfg(all(feature = "std", not(miri), target_os = "linux"))]
const BEGIN_BYTES: usize = 64 << 10;
#[cfg(all(feature = "std", not(miri), target_os = "linux"))]
const MOST_BEGINS: usize = 8;

/// Asks for huge pages, and for the first pages now. A kernel that knows neither serves all the same.
#[cfg(all(feature = "std", not(miri)))]
fn prepare(map: &memmap2::MmapMut, begins: &[usize]) {
    #[cfg(target_os = "linux")]
    {
        let commit = |at: usize, bytes: usize| {
            let _ = map.advise_range(memmap2::Advice::PopulateWrite, at, bytes.min(map.len() - at));
        };
        let _ = map.advise(memmap2::Advice::HugePage);
        commit(0, COMMIT_BYTES);
        begins.iter().take(MOST_BEGINS).for_each(|at| commit(*at, BEGIN_BYTES));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (map, begins);
}

impl Drop for Arena {
    fn drop(&mut self) {
        match &self.source {
            #[cfg(all(feature = "std", not(miri)))]
            Source::Mapped(_) => {}
            #[cfg(any(not(feature = "std"), miri))]
            // SAFETY: allocated in `reserve` with this layout.
            Source::Heap(layout) => unsafe { alloc::alloc::dealloc(self.start.as_ptr(), *layout) },
            Source::Lent => {}
        }
    }
}
