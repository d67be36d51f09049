//! Bounds of data-dependent symbols.

use crate::error::{Error, ErrorKind, Result};
use num_bigint::BigInt;
use std::{cell::RefCell, collections::HashSet};
use symshape::{Declaration, Dim, Symbol};

/// The bounds that the caller declares for data-dependent sizes.
pub(crate) struct DataDependentBounds<'a> {
    /// Ranges by the symbols' names.
    pub declared: &'a [(String, Declaration)],
    /// The names that were met.
    pub met: RefCell<HashSet<String>>,
    /// The upper bound of symbols without any other.
    pub most: Option<i64>,
}

impl DataDependentBounds<'_> {
    /// The declaration of `symbol`.
    pub(crate) fn of(&self, symbol: &Symbol) -> Result<Option<(Dim, Option<Dim>)>> {
        self.met.borrow_mut().insert(symbol.name().to_string());
        let found = self.declared.iter().rev().find(|(name, _)| name == symbol.name());
        let Some((name, declared)) = found else { return Ok(None) };
        if declared.values.is_some() || declared.step != BigInt::from(1) {
            let what = format!("--dim {name}: a size that is found while running takes a range LO..HI");
            return Err(Error::new(ErrorKind::Usage, what));
        }
        Ok(Some((Dim::from(declared.lo.clone()), declared.hi.clone().map(Dim::from))))
    }
}
