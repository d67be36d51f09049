//! The pieces of a file, and the limit of its size.

use super::section::Section;
use crate::error::{Error, ErrorKind};
use std::borrow::Cow;

/// A piece of a file: its offset and its bytes.
pub(crate) type Piece<'o> = (u64, Cow<'o, [u8]>);

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
        let own = section.borrowed.is_empty().then_some((address, section.bytes));
        let borrowed = section.borrowed.into_iter();
        let borrowed = borrowed.map(move |(at, bytes)| (address + at, Cow::Borrowed(bytes)));
        own.into_iter().chain(borrowed)
    })
}
