//! Sizes on the command line, such as `--at N=8,S=128`.

use super::errors::usage;
use crate::error::Result;
use symshape_runtime::{Model, SymbolInfo};

/// The value of each symbol in `at`, the argument of `flag`.
pub(super) fn dims(model: &Model, flag: &str, at: &str) -> Result<Vec<i64>> {
    let dims = some_dims(model, flag, at)?;

    let missing = model.symbols().iter().zip(&dims).find(|(_, dim)| dim.is_none());
    match missing {
        Some((symbol, _)) => Err(usage(format!("{flag} {at}: {} is missing", symbol.name()))),
        None => Ok(dims.into_iter().flatten().collect()),
    }
}

/// The smallest and the largest value of every symbol at once; one entry if they are equal.
pub(super) fn ends(model: &Model) -> Vec<Vec<i64>> {
    let end = |last: bool| -> Vec<i64> {
        let value = |symbol: &SymbolInfo| {
            symbol.nth(if last { symbol.count().saturating_sub(1) } else { 0 }).unwrap_or(symbol.lo())
        };
        model.symbols().iter().map(value).collect()
    };
    let mut ends = vec![end(false), end(true)];
    ends.dedup();
    ends
}

/// As [`dims`]. The capacity of the model's state may be missing: it is the largest one then.
pub(super) fn dims_of_step(model: &Model, at: &str) -> Result<Vec<i64>> {
    match model.capacity_symbol().map(|at| &model.symbols()[at]) {
        Some(capacity) if some_dims(model, "--at", at)?[model.capacity_symbol().unwrap_or(0)].is_none() => {
            dims(model, "--at", &format!("{at},{}={}", capacity.name(), capacity.hi()))
        }
        _ => dims(model, "--at", at),
    }
}

/// The values that `text`, the argument of `flag`, gives to symbols; an entry for each symbol.
pub(super) fn some_dims(model: &Model, flag: &str, text: &str) -> Result<Vec<Option<i64>>> {
    let mut dims: Vec<Option<i64>> = vec![None; model.symbols().len()];
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let parsed =
            part.split_once('=').and_then(|(name, value)| Some((name.trim(), value.trim().parse().ok()?)));
        let (name, value) = parsed.ok_or_else(|| usage(format!("{flag} {text}: expected NAME=SIZE,…")))?;

        let position = model.symbols().iter().position(|symbol| symbol.name() == name).ok_or_else(|| {
            let known: Vec<&str> = model.symbols().iter().map(|symbol| symbol.name()).collect();
            usage(format!("{flag} {text}: the model has no symbol {name}; it has {}", known.join(", ")))
        })?;

        let symbol = &model.symbols()[position];
        if !symbol.allows(value) {
            return Err(usage(format!("{flag} {text}: {name} = {value}; {name} is declared {symbol}")));
        }
        dims[position] = Some(value);
    }
    Ok(dims)
}
