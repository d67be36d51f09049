//! The values of a body's instructions in registers.

use super::wide::Wide;
use crate::codegen::vector::vcode::{Mask, Vector};

/// The value of a body's instruction in registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyValue {
    /// Floats or integers.
    Lanes(Vector),
    /// Doubles or 64-bit integers.
    Wide(Wide),
    /// Bools.
    Truth(Mask),
    /// The instruction has no result, or its value is part of a later instruction's.
    None,
}

impl BodyValue {
    /// The vector of an instruction whose type is numeric.
    pub(super) fn lanes(self) -> Vector {
        match self {
            BodyValue::Lanes(vector) => vector,
            _ => unreachable!("`Body::push` checked the types"),
        }
    }

    /// The vector of the first lanes of an instruction whose type is numeric.
    pub(super) fn first(self) -> Vector {
        match self {
            BodyValue::Wide([first, _]) => first,
            other => other.lanes(),
        }
    }

    /// The vectors of an instruction whose type has 64 bits.
    pub(super) fn wide(self) -> Wide {
        match self {
            BodyValue::Wide(vectors) => vectors,
            _ => unreachable!("`Body::push` checked the types"),
        }
    }

    /// The mask of an instruction whose type is bool.
    pub(super) fn truth(self) -> Mask {
        match self {
            BodyValue::Truth(mask) => mask,
            _ => unreachable!("`Body::push` checked the types"),
        }
    }
}
