//! Definitions of functions. A function is emitted when it is needed, and compiled later together with others, because
//! compilation takes longer and uses all cores.

use super::{
    module::{FunctionSummary, ModuleBuilder, internal},
    pending::{Body, Pending},
};
use crate::{error::Result, parallel};
use cranelift_module::FuncId;

/// The number of functions that are compiled at once. More would take memory, fewer would leave cores without work.
const BATCH: usize = 256;

impl ModuleBuilder<'_> {
    /// Defines a declared function, at the latest when [`Self::define_pending`] is called.
    pub(crate) fn define_later(&mut self, id: FuncId, name: String, body: Body) -> Result<()> {
        self.pending.push(Pending { id, name, body });
        if self.pending.len() < BATCH { Ok(()) } else { self.define_pending() }
    }

    /// Compiles the functions that are not defined yet, and defines them in the order in which they were emitted. The
    /// module has therefore the same bytes for any number of threads.
    pub(crate) fn define_pending(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let target = self.module.isa();
        for compiled in parallel::map_largest_first(pending, self.threads, Pending::insts, |function| {
            function.compile(target)
        }) {
            let (id, name, code) = compiled?;
            code.define(id, self.module).map_err(|error| internal(&name, *error))?;
            self.functions.push(FunctionSummary { name, code_bytes: code.len_bytes() });
        }
        Ok(())
    }
}
