//! The bytes of constants: on the heap, in a mapped file, or computed when they are read.

use super::computed::{Computation, ComputedBytes};
use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    ops::{Deref, Range},
    sync::Arc,
};
use symshape_runtime::FileMap;
use zerocopy::IntoBytes;

/// Shared immutable bytes.
#[derive(Clone)]
pub enum Bytes {
    /// Bytes on the heap.
    Owned(OwnedBytes),
    /// A part of a mapped file.
    Mapped(Arc<FileMap>, Range<usize>),
    /// Bytes that are computed from other constants. Dereferencing computes all of them and keeps them in memory.
    Computed(ComputedBytes),
}

/// Shared immutable bytes on the heap. Those of a vector are not copied.
#[derive(Clone)]
pub struct OwnedBytes(Shared);

#[derive(Clone)]
enum Shared {
    Bytes(Arc<Vec<u8>>),
    /// Only on little-endian machines.
    Floats(Arc<Vec<f32>>),
}

impl From<Vec<u8>> for OwnedBytes {
    fn from(bytes: Vec<u8>) -> OwnedBytes {
        OwnedBytes(Shared::Bytes(Arc::new(bytes)))
    }
}

impl OwnedBytes {
    /// The bytes of these elements, which are not copied.
    pub(super) fn of_floats(floats: Vec<f32>) -> OwnedBytes {
        if cfg!(target_endian = "little") {
            OwnedBytes(Shared::Floats(Arc::new(floats)))
        } else {
            floats.into_iter().flat_map(f32::to_le_bytes).collect()
        }
    }
}

impl From<&[u8]> for OwnedBytes {
    fn from(bytes: &[u8]) -> OwnedBytes {
        bytes.to_vec().into()
    }
}

impl FromIterator<u8> for OwnedBytes {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> OwnedBytes {
        bytes.into_iter().collect::<Vec<u8>>().into()
    }
}

impl Deref for OwnedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Shared::Bytes(bytes) => bytes,
            Shared::Floats(floats) => floats.as_bytes(),
        }
    }
}

impl Bytes {
    /// Their number. None is computed.
    pub fn len(&self) -> usize {
        match self {
            Bytes::Owned(bytes) => bytes.len(),
            Bytes::Mapped(_, range) => range.len(),
            Bytes::Computed(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes. A caller that reads them once does not keep computed bytes in memory.
    pub(crate) fn read(&self) -> Cow<'_, [u8]> {
        match self {
            Bytes::Computed(bytes) => bytes.read(),
            _ => Cow::Borrowed(self),
        }
    }

    /// Bytes that are computed when they are read.
    pub(crate) fn computed(computation: impl Computation + 'static) -> Bytes {
        Bytes::Computed(ComputedBytes::new(computation))
    }

    /// The number of bytes that are computed at once; 1 if they are in memory or mapped.
    pub(crate) fn unit_bytes(&self) -> usize {
        match self {
            Bytes::Computed(bytes) => bytes.unit_bytes(),
            _ => 1,
        }
    }

    /// Some of the bytes, as [`Bytes::read`]. Only the units that the range has a part of are computed.
    pub(crate) fn read_part(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        match self {
            Bytes::Computed(bytes) => bytes.read_part(range),
            _ => Cow::Borrowed(&self[range]),
        }
    }

    /// Orders by contents.
    pub(super) fn compare(&self, other: &Bytes) -> Ordering {
        let is_same = match (self, other) {
            (Bytes::Computed(a), Bytes::Computed(b)) => a.is(b),
            (Bytes::Computed(_), _) | (_, Bytes::Computed(_)) => false,
            _ => std::ptr::eq(&self[..], &other[..]),
        };
        if is_same {
            return Ordering::Equal;
        }

        // Most constants differ in their first bytes.
        let a = self.head();
        let b = other.head();
        let common = a.len().min(b.len());
        a[..common].cmp(&b[..common]).then_with(|| {
            if common == self.len() && common == other.len() {
                Ordering::Equal
            } else {
                self.read().cmp(&other.read())
            }
        })
    }

    /// Some of the first bytes, or all of them if they are in memory or mapped.
    pub(super) fn head(&self) -> &[u8] {
        match self {
            Bytes::Computed(bytes) => bytes.head(),
            _ => self,
        }
    }

    /// Calls `visit` with all bytes, in chunks of about `chunk_bytes`, until an error. Memory of a chunk that is mapped
    /// or computed is released after the call.
    pub(crate) fn visit<E>(
        &self,
        chunk_bytes: usize,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Bytes::Computed(bytes) = self {
            return bytes.visit(chunk_bytes, visit);
        }
        let mut done = 0;
        self.chunks(chunk_bytes).try_for_each(|chunk| {
            visit(chunk)?;
            self.release_part(done..done + chunk.len());
            done += chunk.len();
            Ok(())
        })
    }

    /// Tells the system that the bytes are not needed soon, if they are mapped or computed from mapped bytes. See
    /// [`FileMap::release`].
    pub(crate) fn release(&self) {
        match self {
            Bytes::Computed(bytes) => bytes.release(),
            _ => self.release_part(0..self.len()),
        }
    }

    /// As [`Self::release`], for some of the bytes.
    fn release_part(&self, part: Range<usize>) {
        if let Bytes::Mapped(map, range) = self {
            map.release(range.start + part.start..range.start + part.end);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Owned(bytes) => bytes,
            Bytes::Mapped(map, range) => &map[range.clone()],
            Bytes::Computed(bytes) => bytes.in_memory(),
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[u8; {}]", self.len())
    }
}
