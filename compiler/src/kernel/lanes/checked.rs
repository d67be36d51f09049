//! The values of a body that were checked, and the symbols that they are bound to.

use super::obstacle::Obstacle;
use symshape::{Dim, Symbol};

/// The checked values of a body, and the symbols that they are bound to.
#[derive(Default)]
pub(super) struct Gathers {
    pub(super) checked: Vec<CheckedValue>,
    pub(super) bound: Vec<(Symbol, CheckedValue)>,
}

/// A value that was checked to be in `0..end`.
#[derive(Clone)]
pub(super) struct CheckedValue {
    /// The register that was checked.
    pub(super) of: u32,
    /// The register of the checked value.
    pub(super) reg: u32,
    pub(super) end: Dim,
}

impl Gathers {
    /// Whether `dim` depends on a value of the body.
    pub(super) fn moves(&self, dim: &Dim) -> bool {
        self.bound.iter().any(|(symbol, _)| dim.contains(symbol))
    }

    /// Binds a symbol to a register that was checked.
    pub(super) fn bind(&mut self, symbol: &Symbol, of: u32) -> Result<u32, Obstacle> {
        let checked = self.checked.iter().find(|checked| checked.of == of).ok_or(Obstacle::LoadedAddress)?;
        let reg = checked.reg;
        self.bound.push((symbol.clone(), checked.clone()));
        Ok(reg)
    }
}
