//! Symbols for new loop variables: `i0`, `i1`, …, without those in use.

use crate::kernel::{Program, Stmt, walk};
use std::collections::BTreeSet;
use symshape::Symbol;

/// A supply of unused symbols.
#[derive(Clone)]
pub(super) struct FreshSymbols {
    taken: BTreeSet<Symbol>,
    next: usize,
}

impl FreshSymbols {
    /// Symbols that neither the model nor any kernel uses.
    pub(super) fn new(program: &Program) -> FreshSymbols {
        let mut symbols = FreshSymbols::for_one_kernel(program);
        for kernel in &program.kernels {
            walk::symbols(&kernel.body, &mut |symbol| symbols.reserve(symbol.clone()));
        }
        symbols
    }

    /// Symbols that the model does not use; other kernels may.
    pub(super) fn for_one_kernel(program: &Program) -> FreshSymbols {
        FreshSymbols { taken: program.all_symbols().cloned().collect(), next: 0 }
    }

    /// Symbols that are unused so far and that no statement in `body` uses.
    pub(super) fn outside_of(&self, body: &[Stmt]) -> FreshSymbols {
        let mut symbols = self.clone();
        walk::symbols(body, &mut |symbol| symbols.reserve(symbol.clone()));
        symbols
    }

    /// Reserves this symbol.
    pub(super) fn reserve(&mut self, symbol: Symbol) {
        self.taken.insert(symbol);
    }

    /// Returns an unused symbol, and marks it as used.
    pub(super) fn fresh(&mut self) -> Symbol {
        loop {
            let symbol = Symbol::new(&format!("i{}", self.next));
            self.next += 1;
            if self.taken.insert(symbol.clone()) {
                return symbol;
            }
        }
    }
}
