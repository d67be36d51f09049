//! Sizes of trial calls.

use symshape_runtime::{Model, SymbolInfo};

/// Image sizes are often multiples of this.
const ALIGNED: i64 = 32;

/// The dims whose distance from the smallest is that of the largest, halved `times` times.
pub(crate) fn halved(model: &Model, times: u32) -> Vec<i64> {
    let position = |count: u64| count.saturating_sub(1).checked_shr(times).unwrap_or(0);
    let dim = |symbol: &SymbolInfo| symbol.nth(position(symbol.count())).unwrap_or(symbol.lo());
    model.symbols().iter().map(dim).collect()
}

/// These dims, rounded down to multiples of [`ALIGNED`] where the symbol allows it. Networks often halve images several
/// times, and refuse other sizes.
pub(crate) fn aligned(model: &Model, dims: &[i64]) -> Vec<i64> {
    let dim = |(symbol, dim): (&SymbolInfo, &i64)| {
        let rounded = dim - dim % ALIGNED;
        if symbol.allows(rounded) { rounded } else { *dim }
    };
    model.symbols().iter().zip(dims).map(dim).collect()
}
