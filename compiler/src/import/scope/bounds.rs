//! Bounds of data-dependent symbols.

use crate::error::{Error, ErrorKind, Result};
use num_bigint::BigInt;
use std::{cell::RefCell, collections::HashSet};
use symshape::{Declaration, Dim, Symbol};

/// The bounds that the caller declares for data-dependent sizes.
pub(crate) struct DataDependentBounds<'a> {
    /// Ranges by the symbols' names.
    pub(crate) declared: &'a [(String, Declaration)],
    /// Names of the symbols that were looked up.
    pub(crate) looked_up: RefCell<HashSet<String>>,
    /// The upper bound of symbols without any other.
    pub(crate) default_max: Option<i64>,
}

impl DataDependentBounds<'_> {
    /// The declared lower and upper bound of `symbol`.
    pub(crate) fn of(&self, symbol: &Symbol) -> Result<Option<(Dim, Option<Dim>)>> {
        self.looked_up.borrow_mut().insert(symbol.name().to_string());
        let found = self.declared.iter().rev().find(|(name, _)| name == symbol.name());
        let Some((name, declared)) = found else { return Ok(None) };
        if declared.values.is_some() || declared.step != BigInt::from(1) {
            let message = format!("--dim {name}: a data-dependent size needs a range LO..HI");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(Some((Dim::from(declared.lo.clone()), declared.hi.clone().map(Dim::from))))
    }
}
