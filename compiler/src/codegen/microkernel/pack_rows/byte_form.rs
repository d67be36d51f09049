//! The forms of packed bytes.

use crate::codegen::vector::vcode::NarrowInt;

/// The form of packed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ByteForm {
    /// 16 bits each.
    Halves,
    /// Unsigned bytes; 128 is added to signed ones.
    Unsigned,
    /// Signed bytes; 128 is subtracted from unsigned ones.
    Signed,
}

impl ByteForm {
    /// The value that packing adds to each element of this type.
    pub fn shift(self, from: NarrowInt) -> i32 {
        match (self, from) {
            (ByteForm::Unsigned, NarrowInt::I8) => 128,
            (ByteForm::Signed, NarrowInt::U8) => -128,
            _ => 0,
        }
    }
}
