//! Memory for a context: reserved at once, 64-byte aligned, zero until written.
//!
//! With `std`, it is an anonymous mapping. The operating system commits pages when they are first touched, so a bound
//! that is never reached costs only address space. The first touch of a page interrupts the call for longer than a
//! small model runs. So the first few megabytes and the beginnings of outputs are committed at once, and the other
//! pages are huge. Without `std`, and under Miri, the memory comes from the allocator.

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

/// The source of the memory, which decides how it is freed.
enum Source {
    #[cfg(all(feature = "std", not(miri)))]
    Mapped(#[expect(dead_code, reason = "dropping it unmaps the memory")] memmap2::MmapMut),
    #[cfg(any(not(feature = "std"), miri))]
    Heap(core::alloc::Layout),
    Lent,
}

// SAFETY: the value owns its memory exclusively, as `Vec<u8>` or `&'static mut [u8]` do.
unsafe impl Send for Arena {}
// SAFETY: `&self` only reads the memory; writes need `&mut self`.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `bytes` bytes. Pages at offset 0 and at the offsets `begins` are committed at once.
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

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The address of byte `offset`.
    pub(crate) fn at(&mut self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        // SAFETY: inside the memory or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The bytes `offset..offset + len`.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.bytes && len <= self.bytes - offset);
        // SAFETY: inside the memory, which is initialised and borrowed from `self`.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }

    /// The writable bytes `offset..offset + len`.
    pub(crate) fn slice_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.bytes && len <= self.bytes - offset);
        // SAFETY: as in `slice`; `self` is borrowed uniquely.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }
}

/// Bytes at the beginning of the arena that are committed when it is reserved.
#[cfg(all(feature = "std", not(miri), target_os = "linux"))]
const COMMIT_BYTES: usize = 8 << 20;

/// Bytes that are committed at each of the offsets `begins`, and the largest number of such offsets.
#[cfg(all(feature = "std", not(miri), target_os = "linux"))]
const BEGIN_BYTES: usize = 64 << 10;
#[cfg(all(feature = "std", not(miri), target_os = "linux"))]
const MAX_BEGINS: usize = 8;

/// Requests huge pages, and commits the first pages. Kernels that support neither ignore it.
#[cfg(all(feature = "std", not(miri)))]
fn prepare(map: &memmap2::MmapMut, begins: &[usize]) {
    #[cfg(target_os = "linux")]
    {
        let commit = |at: usize, bytes: usize| {
            let _ = map.advise_range(memmap2::Advice::PopulateWrite, at, bytes.min(map.len() - at));
        };
        let _ = map.advise(memmap2::Advice::HugePage);
        commit(0, COMMIT_BYTES);
        begins.iter().take(MAX_BEGINS).for_each(|at| commit(*at, BEGIN_BYTES));
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
            // SAFETY: `reserve` allocated it with this layout.
            Source::Heap(layout) => unsafe { alloc::alloc::dealloc(self.start.as_ptr(), *layout) },
            Source::Lent => {}
        }
    }
}
