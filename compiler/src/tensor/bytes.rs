//! The bytes of constants: on the heap, or in a mapped file.

use std::{
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
    /// Tells the system that the bytes are not needed soon, if they are mapped. See [`FileMap::release`].
    pub(crate) fn release(&self) {
        self.release_part(0..self.len());
    }

    /// As [`Self::release`], for some of the bytes.
    pub(crate) fn release_part(&self, part: Range<usize>) {
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
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[u8; {}]", self.len())
    }
}
