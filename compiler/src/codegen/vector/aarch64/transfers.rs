//! The instructions that load or store one register: one table of words and assembler texts. The form of the address is
//! a part of the word that is the same for all.

use super::instructions::{Field, SN, VD, WD, XD, XM, encode};
use crate::error::Result;

/// A load or store of one register.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The word with all fields zero, in the form [`AddressForm::Unscaled`].
    word: u32,
    /// The mnemonic of all forms but one, and the register.
    text: &'static str,
    register: Field,
    /// Bytes that are moved.
    pub(super) bytes: i64,
}

/// The form of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressForm {
    /// A base and a multiple of the bytes.
    Offset,
    /// A base and a small signed number.
    Unscaled,
    /// A base and an index.
    Indexed,
    /// A base and an index times the bytes.
    Scaled,
}

impl AddressForm {
    /// All forms.
    pub const ALL: [AddressForm; 4] =
        [AddressForm::Offset, AddressForm::Unscaled, AddressForm::Indexed, AddressForm::Scaled];

    /// The bits of the word.
    fn bits(self) -> u32 {
        match self {
            AddressForm::Offset => 0x0100_0000,
            AddressForm::Unscaled => 0,
            AddressForm::Indexed => 0x0020_6800,
            AddressForm::Scaled => 0x0020_7800,
        }
    }
}

macro_rules! transfers {
    ($($name:ident = $word:literal $text:literal, $register:expr, $bytes:literal;)*) => {
        impl Transfer {
            $(
                #[doc = $text]
                pub const $name: Transfer =
                    Transfer { word: $word, text: $text, register: $register, bytes: $bytes };
            )*

            /// All loads and stores.
            pub const ALL: &'static [Transfer] = &[$(Transfer::$name),*];
        }
    };
}

transfers! {
    LDR_X = 0xf840_0000 "ldr {}", XD, 8;
    LDRSW = 0xb880_0000 "ldrsw {}", XD, 4;
    LDRSH = 0x7880_0000 "ldrsh {}", XD, 2;
    LDRH = 0x7840_0000 "ldrh {}", WD, 2;
    LDRSB = 0x3880_0000 "ldrsb {}", XD, 1;
    LDRB = 0x3840_0000 "ldrb {}", WD, 1;
    STR_X = 0xf800_0000 "str {}", XD, 8;
    STR_W = 0xb800_0000 "str {}", WD, 4;
    STRH = 0x7800_0000 "strh {}", WD, 2;
    STRB = 0x3800_0000 "strb {}", WD, 1;
    LDR_Q = 0x3cc0_0000 "ldr q{}", VD, 16;
    LDR_D = 0xfc40_0000 "ldr d{}", VD, 8;
    LDR_S = 0xbc40_0000 "ldr s{}", VD, 4;
    STR_Q = 0x3c80_0000 "str q{}", VD, 16;
    STR_D = 0xfc00_0000 "str d{}", VD, 8;
    STR_S = 0xbc00_0000 "str s{}", VD, 4;
}

impl Transfer {
    /// The instruction in the syntax of assemblers, with `{}` for each operand.
    pub fn text(self, form: AddressForm) -> String {
        match form {
            AddressForm::Offset => format!("{}, [{{}}, #{{}}]", self.text),
            // The mnemonic has a `u` after its first two letters.
            AddressForm::Unscaled => format!("{}u{}, [{{}}, #{{}}]", &self.text[..2], &self.text[2..]),
            AddressForm::Indexed => format!("{}, [{{}}, {{}}]", self.text),
            AddressForm::Scaled => format!("{}, [{{}}, {{}}, lsl #{}]", self.text, self.bytes.ilog2()),
        }
    }

    /// The operands in the order of the text.
    pub fn fields(self, form: AddressForm) -> [Field; 3] {
        let last = match form {
            AddressForm::Offset => Field::Unsigned(10, 12, self.bytes),
            AddressForm::Unscaled => Field::Signed(12, 9, 1),
            AddressForm::Indexed | AddressForm::Scaled => XM,
        };
        [self.register, SN, last]
    }

    /// The word of the instruction with these operands: the register, the base, and the offset or index.
    ///
    /// # Errors
    /// `Internal` where an operand does not fit its field: a bug.
    pub fn encode(self, form: AddressForm, operands: [i64; 3]) -> Result<u32> {
        encode(self.word | form.bits(), &self.fields(form), &operands)
    }
}
