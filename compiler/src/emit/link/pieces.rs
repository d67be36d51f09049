//! The pieces of a file, and the limit of its size.

use super::section::Section;
use crate::{
    error::{Error, ErrorKind},
    tensor::Bytes,
};
use std::{borrow::Cow, ops::Deref};

/// A piece of a file: its offset and its bytes.
pub(crate) type Piece<'o> = (u64, Content<'o>);

/// The bytes of a piece.
pub(crate) enum Content<'o> {
    /// Bytes in memory.
    Bytes(Cow<'o, [u8]>),
    /// A weight.
    Weight(&'o Bytes),
}

impl Content<'_> {
    /// The number of bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Content::Bytes(bytes) => bytes.len(),
            Content::Weight(weight) => weight.len(),
        }
    }
}

impl Deref for Content<'_> {
    type Target = [u8];

    /// The bytes. Those of weights that are computed stay in memory.
    fn deref(&self) -> &[u8] {
        match self {
            Content::Bytes(bytes) => bytes,
            Content::Weight(weight) => weight,
        }
    }
}

impl From<Vec<u8>> for Content<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Content::Bytes(bytes.into())
    }
}

/// Largest file: the reach of references between code and weights.
pub(super) const MAX_BYTES: u64 = i32::MAX as u64;

/// The error for a library whose references do not reach all of it.
pub(super) fn too_large(bytes: u64) -> Error {
    let message =
        format!("a shared library of {bytes} bytes: references between code and weights reach at most 2 GB");
    Error::new(ErrorKind::Limit, message)
}

/// The bytes of sections, which have ascending addresses.
pub(super) fn pieces<'o>(sections: Vec<Section<'o>>) -> impl Iterator<Item = Piece<'o>> {
    sections.into_iter().flat_map(|section| {
        let address = section.address;
        let own = section.weights.is_empty().then_some((address, Content::Bytes(section.bytes)));
        let weights = section.weights.into_iter();
        let weights = weights.map(move |(at, weight)| (address + at, Content::Weight(weight)));
        own.into_iter().chain(weights)
    })
}
