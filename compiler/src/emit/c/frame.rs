//! The frame that the partitions of a call share.

use crate::{emit::template::named, kernel::Program};

/// The struct and the functions that work on it.
const FRAME: &str = include_str!("frame.c");

/// Prints the frame's struct and the functions that work on it.
pub(super) fn definition(program: &Program) -> String {
    named(FRAME, &program.name)
}

/// Bytes of the frame; an upper bound that holds on every machine.
pub(super) fn frame_bytes(program: &Program) -> usize {
    (96 + 5 * program.partitions.len()).next_multiple_of(64)
}
