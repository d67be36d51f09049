//! The registers, by their numbers.

/// The integer registers in the order of allocation: the argument, then those that a function may clobber, then those
/// that it must restore. Systems reserve register 18.
pub(super) const INTS: [i64; 26] =
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28];

/// The index of the first of [`INTS`] that a function must restore.
pub(super) const FIRST_SAVED: usize = 16;

/// Holds addresses within one step.
pub(super) const ADDRESS: i64 = 16;

/// Holds immediate operands within one step.
pub(super) const IMMEDIATE: i64 = 17;

/// As a base: the stack pointer.
pub(super) const STACK_POINTER: i64 = 31;

/// As an operand of arithmetic: zero.
pub(super) const ZERO: i64 = 31;

/// Vector registers that the allocator assigns.
pub(super) const VECTORS: usize = 31;

/// Holds a vector within one step.
pub(super) const TEMP: i64 = 31;

/// The vector registers whose low halves a function must restore.
pub(super) const SAVED_VECTORS: std::ops::RangeInclusive<i64> = 8..=15;
