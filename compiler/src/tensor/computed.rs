//! Bytes that are computed from other constants whenever they are read.
//!
//! Packed weights are as large as the model. Their bytes are computed when they are written, a few at a time, so they
//! take no memory before.

use std::{
    borrow::Cow,
    ops::Range,
    sync::{Arc, OnceLock},
};

/// A computation of bytes. It has the same result every time.
pub(crate) trait Computation: Send + Sync {
    /// The number of all bytes.
    fn len(&self) -> usize;

    /// The number of bytes of a unit. All bytes are units one after another.
    fn unit_bytes(&self) -> usize;

    /// Computes all bytes of adjacent units. The first one has the index `unit`.
    fn compute(&self, unit: usize, out: &mut [u8]);

    /// The first bytes, without the work for all others. There is at least one, unless there are no bytes at all.
    fn head(&self) -> Vec<u8>;

    /// Tells the system that the constants are not needed soon, if they are in a mapped file.
    fn release(&self);
}

/// Shared immutable bytes that are computed.
#[derive(Clone)]
pub struct ComputedBytes(Arc<Shared>);

struct Shared {
    computation: Box<dyn Computation>,
    head: OnceLock<Vec<u8>>,
    /// All bytes, if a caller needed them in memory.
    all: OnceLock<Vec<u8>>,
}

impl ComputedBytes {
    /// The bytes of this computation.
    pub(super) fn new(computation: impl Computation + 'static) -> ComputedBytes {
        let computation = Box::new(computation);
        ComputedBytes(Arc::new(Shared { computation, head: OnceLock::new(), all: OnceLock::new() }))
    }

    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.0.computation.len()
    }

    /// The first bytes, see [`Computation::head`].
    pub(super) fn head(&self) -> &[u8] {
        self.0.head.get_or_init(|| self.0.computation.head())
    }

    /// All bytes. They stay in memory from the first call on.
    pub(super) fn in_memory(&self) -> &[u8] {
        self.0.all.get_or_init(|| self.computed())
    }

    /// All bytes. Nothing stays in memory.
    pub(super) fn read(&self) -> Cow<'_, [u8]> {
        match self.0.all.get() {
            Some(all) => Cow::Borrowed(all),
            None => Cow::Owned(self.computed()),
        }
    }

    /// The number of bytes that are computed at once, at least 1.
    pub(super) fn unit_bytes(&self) -> usize {
        self.0.computation.unit_bytes().max(1)
    }

    /// Some of the bytes. Nothing stays in memory.
    pub(super) fn read_part(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        if let Some(all) = self.0.all.get() {
            return Cow::Borrowed(&all[range]);
        }
        let unit_bytes = self.unit_bytes();
        let first_unit = range.start / unit_bytes;
        let begin = first_unit * unit_bytes;
        let end = range.end.next_multiple_of(unit_bytes).min(self.len());
        let mut bytes = vec![0; end.saturating_sub(begin)];
        if !bytes.is_empty() {
            self.0.computation.compute(first_unit, &mut bytes);
        }
        bytes.truncate(range.end - begin);
        bytes.drain(..range.start - begin);
        Cow::Owned(bytes)
    }

    fn computed(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        if !bytes.is_empty() {
            self.0.computation.compute(0, &mut bytes);
        }
        self.0.computation.release();
        bytes
    }

    /// Calls `visit` with chunks of at most `max_bytes`, or of one unit if that is larger, until an error.
    pub(super) fn visit<E>(
        &self,
        max_bytes: usize,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(all) = self.0.all.get() {
            return all.chunks(max_bytes).try_for_each(visit);
        }
        let computation = &self.0.computation;
        let unit_bytes = self.unit_bytes();
        let n_units = (max_bytes / unit_bytes).max(1);
        let mut buffer = vec![0; self.len().min(n_units * unit_bytes)];
        let mut done = 0;
        let mut result = Ok(());
        while done < self.len() && result.is_ok() {
            let chunk = &mut buffer[..(self.len() - done).min(n_units * unit_bytes)];
            computation.compute(done / unit_bytes, chunk);
            result = visit(chunk);
            done += chunk.len();
        }
        computation.release();
        result
    }

    /// See [`Computation::release`].
    pub(super) fn release(&self) {
        self.0.computation.release();
    }

    /// Whether both are the same computation in memory.
    pub(super) fn is(&self, other: &ComputedBytes) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{ByContent, Bytes, Tensor};
    use std::{cell::Cell, cmp::Ordering};
    use symshape_runtime::DType;

    /// Units of six bytes that count up from a first value.
    struct Counting {
        first: u8,
        units: usize,
    }

    impl Computation for Counting {
        fn len(&self) -> usize {
            self.units * self.unit_bytes()
        }

        fn unit_bytes(&self) -> usize {
            6
        }

        fn compute(&self, unit: usize, out: &mut [u8]) {
            assert_eq!(out.len() % 6, 0, "whole units");
            out.iter_mut().zip(unit * 6..).for_each(|(slot, at)| *slot = self.first.wrapping_add(at as u8));
        }

        fn head(&self) -> Vec<u8> {
            (0..self.len().min(2)).map(|at| self.first.wrapping_add(at as u8)).collect()
        }

        fn release(&self) {}
    }

    fn chunks(bytes: &Bytes, chunk_bytes: usize) -> Vec<Vec<u8>> {
        let mut chunks = Vec::new();
        let visited = bytes.visit(chunk_bytes, &mut |chunk| {
            chunks.push(chunk.to_vec());
            Ok::<(), ()>(())
        });
        assert!(visited.is_ok());
        chunks
    }

    #[test]
    fn chunks_of_computed_bytes_are_whole_units() {
        let bytes = Bytes::Computed(ComputedBytes::new(Counting { first: 7, units: 5 }));
        let all: Vec<u8> = (7..37).collect();
        for (chunk_bytes, count) in [(1, 5), (6, 5), (17, 3), (24, 2), (1000, 1)] {
            let chunks = chunks(&bytes, chunk_bytes);
            assert_eq!(chunks.len(), count, "chunks of {chunk_bytes}");
            assert_eq!(chunks.concat(), all, "chunks of {chunk_bytes}");
        }
        for begin in 0..all.len() {
            for end in begin..=all.len() {
                assert_eq!(*bytes.read_part(begin..end), all[begin..end], "bytes {begin}..{end}");
            }
        }
        assert_eq!(*bytes.read(), all);
        assert_eq!(bytes[..], all);
        assert_eq!(chunks(&bytes, 1000), [all]);
        assert!(chunks(&Bytes::Computed(ComputedBytes::new(Counting { first: 0, units: 0 })), 8).is_empty());
    }

    #[test]
    fn parts_are_checked_up_to_the_first_other_one() {
        let tensor = Tensor::computed(DType::U8, Counting { first: 0, units: 4 }).expect("bytes");
        for part_bytes in [2, 3, 6, 12, 24] {
            let ascends = |part: &[u8]| part.len() == part_bytes && part.is_sorted();
            assert!(tensor.all_parts(part_bytes, ascends), "parts of {part_bytes}");
            assert!(!tensor.all_parts(part_bytes, |part| !part.contains(&23)), "parts of {part_bytes}");
        }
        assert!(!tensor.all_parts(7, |_| true), "bytes are left over");
        let calls = Cell::new(0);
        let is_first = |part: &[u8]| {
            calls.set(calls.get() + 1);
            part[0] == 0
        };
        assert!(!tensor.all_parts(6, is_first));
        assert_eq!(calls.get(), 2);
    }

    #[test]
    fn a_visit_ends_at_an_error() {
        let bytes = Bytes::Computed(ComputedBytes::new(Counting { first: 0, units: 5 }));
        let mut count = 0;
        let visited = bytes.visit(12, &mut |_| {
            count += 1;
            if count == 2 { Err("two") } else { Ok(()) }
        });
        assert_eq!((visited, count), (Err("two"), 2));
    }

    #[test]
    fn computed_bytes_are_ordered_by_contents() {
        let computed = |first, units| Tensor::computed(DType::U8, Counting { first, units }).expect("bytes");
        let owned = |bytes: &[u8]| {
            ByContent(Tensor::new(DType::U8, vec![bytes.len()], Bytes::Owned(bytes.into())).expect("bytes"))
        };
        let a = computed(1, 2);
        let same = ByContent(a.clone());
        let a = ByContent(a);
        assert_eq!(a.cmp(&same), Ordering::Equal);
        assert_eq!(a.cmp(&ByContent(computed(1, 2))), Ordering::Equal);
        assert_eq!(a.cmp(&ByContent(computed(2, 2))), Ordering::Less);
        assert_eq!(a.cmp(&ByContent(computed(1, 3))), Ordering::Less);
        assert_eq!(a.cmp(&owned(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])), Ordering::Equal);
        assert_eq!(owned(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13]).cmp(&a), Ordering::Greater);
        assert_eq!(a.cmp(&owned(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13])), Ordering::Less);
    }
}
