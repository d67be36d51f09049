//! Sizes of trial calls.

use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
};
use num_bigint::BigInt;
use num_traits::{One, ToPrimitive};
use symshape_runtime::SymbolInfo;

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
pub(crate) fn halved<S: Values>(symbols: &[S], times: u32) -> Vec<i64> {
    let position = |count: u64| count.saturating_sub(1).checked_shr(times).unwrap_or(0);
    let dim = |symbol: &S| symbol.nth(position(symbol.count())).unwrap_or(symbol.lo());
    symbols.iter().map(dim).collect()
}

/// These dims, rounded down to multiples of [`ALIGNED`] where the symbol allows it. Networks often halve images several
/// times, and refuse other sizes.
pub(crate) fn aligned<S: Values>(symbols: &[S], dims: &[i64]) -> Vec<i64> {
    let dim = |(symbol, dim): (&S, &i64)| {
        let rounded = dim - dim % ALIGNED;
        if symbol.allows(rounded) { rounded } else { *dim }
    };
    symbols.iter().zip(dims).map(dim).collect()
}

/// Largest work of a call of a check, in multiplications, except at the smallest sizes.
const MAX_WORK: f64 = 8e9;

/// Largest work of the call at the smallest sizes. A model that needs more is not checked.
const MAX_SMALLEST_WORK: f64 = 1e11;

/// Offers the sizes of the calls of a check to `run`: the smallest, the largest that don't take long, and about half of
/// these. `run` returns whether the model accepts the sizes: it may refuse some because of its other constraints.
pub(super) fn for_each_size<S: Values>(
    symbols: &[S],
    work: impl Fn(&[i64]) -> f64,
    mut run: impl FnMut(Vec<i64>) -> bool,
) {
    let mut offered: Vec<Vec<i64>> = Vec::new();
    let mut offer = |dims: Vec<i64>, max_work: f64| {
        let is_new = !offered.contains(&dims) && work(&dims) <= max_work;
        if is_new {
            offered.push(dims.clone());
        }
        is_new && run(dims)
    };

    offer(halved(symbols, u64::BITS), MAX_SMALLEST_WORK);
    let mut n_larger = 0;
    for times in 0..u64::BITS {
        let dims = halved(symbols, times);
        for dims in [aligned(symbols, &dims), dims] {
            n_larger += usize::from(offer(dims, MAX_WORK));
            if n_larger == 2 {
                return;
            }
        }
    }
}
