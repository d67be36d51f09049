//! The general registers.

use iced_x86::Register;

/// The integer registers in the order of allocation: the argument, then those that a function may clobber, then those
/// that it must restore.
pub(super) const INTS: [Register; 15] = [
    Register::RDI,
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// The index of the first of [`INTS`] that a function must restore.
pub(super) const FIRST_SAVED: usize = 9;

/// The lower half of a 64-bit register.
pub(super) fn low_half(reg: Register) -> Register {
    Register::EAX + (reg as u32 - Register::RAX as u32)
}

/// The lowest 16 bits of a 64-bit register.
pub(super) fn low_word(reg: Register) -> Register {
    Register::AX + (reg as u32 - Register::RAX as u32)
}

/// The lowest byte of a 64-bit register.
pub(super) fn low_byte(reg: Register) -> Register {
    match reg {
        Register::RAX => Register::AL,
        Register::RCX => Register::CL,
        Register::RDX => Register::DL,
        Register::RBX => Register::BL,
        Register::RSI => Register::SIL,
        Register::RDI => Register::DIL,
        Register::RBP => Register::BPL,
        other => Register::R8L + (other as u32 - Register::R8 as u32),
    }
}
