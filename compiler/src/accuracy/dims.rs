//! Sizes of trial calls.

use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
};
use num_bigint::BigInt;
use num_traits::{One, ToPrimitive};
use symshape_runtime::{Model, SymbolInfo};

/// Image sizes are often multiples of this.
const ALIGNED: i64 = 32;

/// The values that a symbol may have.
pub(crate) trait Values {
    fn lo(&self) -> i64;
    fn count(&self) -> u64;
    fn allows(&self, value: i64) -> bool;
    /// The value at this position in rising order.
    fn nth(&self, position: u64) -> Option<i64>;
}

impl Values for SymbolInfo {
    fn lo(&self) -> i64 {
        SymbolInfo::lo(self)
    }

    fn count(&self) -> u64 {
        SymbolInfo::count(self)
    }

    fn allows(&self, value: i64) -> bool {
        SymbolInfo::allows(self, value)
    }

    fn nth(&self, position: u64) -> Option<i64> {
        SymbolInfo::nth(self, position)
    }
}

/// The values of a symbol of a graph.
pub(crate) struct GraphSymbol {
    lo: i64,
    hi: i64,
    step: i64,
    listed: Option<Vec<i64>>,
}

impl GraphSymbol {
    /// The symbols of a graph, in their order.
    ///
    /// # Errors
    /// A symbol has no upper bound.
    pub(crate) fn all(graph: &Graph) -> Result<Vec<GraphSymbol>> {
        let of = |symbol: &symshape::Symbol| {
            let missing = || Error::new(ErrorKind::Limit, format!("{symbol} has no upper bound"));
            let declaration = graph.facts.declaration(symbol).ok_or_else(missing)?;
            let integer = |value: &BigInt| value.to_i64().ok_or_else(missing);
            let listed = declaration.values.as_ref();
            Ok(GraphSymbol {
                lo: integer(&declaration.lo)?,
                hi: integer(declaration.hi.as_ref().ok_or_else(missing)?)?,
                step: integer((&declaration.step).max(&BigInt::one()))?,
                listed: listed.map(|values| values.iter().map(integer).collect()).transpose()?,
            })
        };
        graph.symbols.iter().map(of).collect()
    }
}

impl Values for GraphSymbol {
    fn lo(&self) -> i64 {
        self.lo
    }

    fn count(&self) -> u64 {
        match &self.listed {
            Some(values) => values.len() as u64,
            None => (self.hi.abs_diff(self.lo) / self.step.unsigned_abs()).saturating_add(1),
        }
    }

    fn allows(&self, value: i64) -> bool {
        match &self.listed {
            Some(values) => values.contains(&value),
            None => {
                (self.lo..=self.hi).contains(&value)
                    && value.abs_diff(self.lo).is_multiple_of(self.step.unsigned_abs())
            }
        }
    }

    fn nth(&self, position: u64) -> Option<i64> {
        match &self.listed {
            Some(values) => values.get(usize::try_from(position).ok()?).copied(),
            None => self.lo.checked_add(i64::try_from(position).ok()?.checked_mul(self.step)?),
        }
    }
}

/// The dims whose distance from the smallest is that of the largest, halved `times` times.
pub(crate) fn halved_of<S: Values>(symbols: &[S], times: u32) -> Vec<i64> {
    let position = |count: u64| count.saturating_sub(1).checked_shr(times).unwrap_or(0);
    let dim = |symbol: &S| symbol.nth(position(symbol.count())).unwrap_or(symbol.lo());
    symbols.iter().map(dim).collect()
}

/// These dims, rounded down to multiples of [`ALIGNED`] where the symbol allows it. Networks often halve images several
/// times, and refuse other sizes.
pub(crate) fn aligned_of<S: Values>(symbols: &[S], dims: &[i64]) -> Vec<i64> {
    let dim = |(symbol, dim): (&S, &i64)| {
        let rounded = dim - dim % ALIGNED;
        if symbol.allows(rounded) { rounded } else { *dim }
    };
    symbols.iter().zip(dims).map(dim).collect()
}

/// As [`halved_of`], for the symbols of a model.
pub(crate) fn halved(model: &Model, times: u32) -> Vec<i64> {
    halved_of(model.symbols(), times)
}

/// As [`aligned_of`], for the symbols of a model.
pub(crate) fn aligned(model: &Model, dims: &[i64]) -> Vec<i64> {
    aligned_of(model.symbols(), dims)
}
