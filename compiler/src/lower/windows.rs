//! The windows that strips read and sum in registers: the layout of a value and the loops of its reader agree on them.

/// The largest number of products that a strip adds in registers.
pub(super) const MAX_WINDOW: i64 = 64;

/// The largest distance of the elements that a strip along a row of a plane reads.
pub(super) const MAX_STEP: i64 = 2;
