//! Names for new loop variables.

use crate::kernel::{Program, walk};
use std::collections::BTreeSet;
use symshape::Symbol;

/// Gives out names that nothing else has.
pub(super) struct Names {
    pub(super) taken: BTreeSet<Symbol>,
    next: usize,
}

impl Names {
    /// Names that neither the model nor any kernel uses.
    pub(super) fn new(program: &Program) -> Names {
        let mut taken: BTreeSet<Symbol> = program.all_symbols().cloned().collect();
        for kernel in &program.kernels {
            walk::symbols(&kernel.body, &mut |symbol| _ = taken.insert(symbol.clone()));
        }
        Names { taken, next: 0 }
    }

    /// A new one.
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
