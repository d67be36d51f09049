//! Sizes of buffers: as formulas, and their upper bounds.

use super::arena::ALIGN_BYTES;
use crate::{
    error::{Error, ErrorKind, Result},
    kernel::{BufferId, Program},
};
use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive};
use symshape::Dim;

/// The largest size of a memory: 2^47 bytes, the address space of a process.
pub(super) const MAX_BYTES: i64 = 1 << 47;

/// Bytes reserved for a buffer: rounded up to [`ALIGN_BYTES`], and 0 where the formula is negative.
pub(super) fn reserved_bytes(program: &Program, buffer: BufferId) -> Dim {
    let facts = &program.facts;
    let mut bytes = facts.simplify(&program.bytes(buffer));
    if facts.bounds(&bytes).lo.is_none_or(|lo| lo.is_negative()) {
        bytes = bytes.max(Dim::zero());
    }
    if facts.divides(&Dim::from(ALIGN_BYTES), &bytes).is_yes() {
        bytes
    } else {
        bytes.ceil_div(ALIGN_BYTES) * ALIGN_BYTES
    }
}

/// Upper bound of a buffer's bytes: of each copy, rounded up to [`ALIGN_BYTES`], times the number of copies.
///
/// The rounded size is not bounded as a formula: it may be written in other symbols than the size, and the ranges of
/// those may be wider than the facts allow. [`super::verify`] expects the bound of the size.
///
/// # Errors
/// The formula of the size has no upper bound, or the bound exceeds [`MAX_BYTES`].
pub(crate) fn upper_bound_bytes(program: &Program, id: BufferId) -> Result<i64> {
    let buffer = &program.buffers[id];
    let bytes = program.facts.simplify(&buffer.bytes());
    let name = if buffer.name.is_empty() { id.to_string() } else { format!("`{}`", buffer.name) };
    let Some(hi) = program.facts.bounds(&bytes).hi else {
        return Err(unbounded(program, &name, &bytes));
    };

    let hi = hi.max(BigInt::ZERO);
    let copies = program.copies(id);
    match hi.to_i64().filter(|hi| *hi <= MAX_BYTES / copies) {
        Some(hi) => Ok(round_up(hi) * copies),
        None => {
            let bytes = program.bytes(id);
            let message = format!("buffer {name} of {bytes} bytes can reach {}, more than 2^47", hi * copies);
            Err(Error::new(ErrorKind::Limit, message))
        }
    }
}

/// Names the unbounded symbols, and says how to bound them.
fn unbounded(program: &Program, name: &str, bytes: &Dim) -> Error {
    let bounded = |symbol: &symshape::Symbol| program.facts.bounds(&Dim::from(symbol)).hi.is_some();
    let blamed: Vec<String> =
        bytes.symbols().iter().filter(|symbol| !bounded(symbol)).map(|s| s.to_string()).collect();
    let advice = match blamed.first() {
        Some(first) => format!(": declare a range for {}, as in --dim {first}=1..64", blamed.join(", ")),
        None => String::new(),
    };
    Error::new(ErrorKind::Contract, format!("buffer {name} of {bytes} bytes has no upper bound{advice}"))
}

/// The next multiple of [`ALIGN_BYTES`]; `bytes` is at most [`MAX_BYTES`].
pub(super) fn round_up(bytes: i64) -> i64 {
    (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES
}
