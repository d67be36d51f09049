//! Memory next to pages without access.

use region::{Allocation, Protection, page};

/// The side of a buffer that is next to a page without access. Next to the other side are bytes that must not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    Before,
    After,
}

/// A buffer of a call, in whole pages between two pages without access.
pub(crate) struct Guarded {
    pages: Allocation,
    /// From the first page.
    start: usize,
    len: usize,
}

impl Guarded {
    const VALUE: u8 = 0x5a;

    /// A buffer of `len` bytes at a multiple of `align`.
    pub(crate) fn new(guard: Guard, len: usize, align: usize) -> Guarded {
        let page = page::size();
        let inner = page::ceil(len.max(1) as *const u8) as usize;
        let mut pages = region::alloc(inner + 2 * page, Protection::READ_WRITE).expect("memory");
        let first = pages.as_mut_ptr::<u8>();
        // SAFETY: the allocation has `inner + 2 * page` bytes, which nothing else uses.
        unsafe {
            first.write_bytes(Guarded::VALUE, inner + 2 * page);
            region::protect(first, page, Protection::NONE).expect("the first page");
            region::protect(first.add(page + inner), page, Protection::NONE).expect("the last page");
        }

        let start = match guard {
            Guard::Before => page,
            Guard::After => (page + inner - len) / align * align,
        };
        Guarded { pages, start, len }
    }

    /// A copy of these bytes.
    pub(crate) fn of(guard: Guard, bytes: &[u8], align: usize) -> Guarded {
        let mut buffer = Guarded::new(guard, bytes.len(), align);
        // SAFETY: the buffer has as many bytes, and is new.
        unsafe { buffer.as_mut_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        buffer
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr::<u8>().wrapping_add(self.start)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are between the pages without access, and were written.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr::<u8>().add(self.start), self.len) }
    }

    /// Whether the bytes around the buffer are unchanged.
    pub(crate) fn is_whole(&self) -> bool {
        let page = page::size();
        // SAFETY: all bytes but those of the first and the last page are readable.
        let inner = unsafe {
            std::slice::from_raw_parts(self.pages.as_ptr::<u8>().add(page), self.pages.len() - 2 * page)
        };
        let (before, rest) = inner.split_at(self.start - page);
        before.iter().chain(&rest[self.len..]).all(|byte| *byte == Guarded::VALUE)
    }
}
