//! Control markers between kernels, as blocks of the driver: branches, loops, data-dependent symbols and external
//! calls.
//!
//! A data-dependent symbol has two slots. One is in the frame, where kernels load the model's symbols too. The other
//! one follows the caller's dims: after the call, the shapes of the outputs are computed from it.

use super::{contract, external};
use crate::{
    codegen::function::{FuncCtx, frame},
    error::{Error, Result},
    kernel::{
        BufferId, Control,
        contract::{Failure, RelationGuard},
    },
};
use cranelift_codegen::ir::{Block, Inst, InstBuilder, MemFlagsData, StackSlot, Type, Value, types};
use symshape::{Dim, Symbol};

/// A region that is being emitted, with the blocks that its later markers need.
enum ControlRegion {
    /// The `then` of a branch.
    Then { branch: Inst, otherwise: Block, after: Block },
    /// The `else` of a branch.
    Otherwise { after: Block },
    /// The body of a loop, which repeats while `cell` is not zero.
    Loop { cell: BufferId, body: Block, after: Block },
}

/// The open regions around the next kernel, innermost last.
pub(crate) struct ControlRegions {
    frame: Value,
    /// The caller's dims.
    dims: Value,
    open: Vec<ControlRegion>,
    /// Stack memory for the arguments of external functions, once there is a call.
    call_area: Option<StackSlot>,
}

impl ControlRegions {
    pub(crate) fn new(frame: Value, dims: Value) -> ControlRegions {
        ControlRegions { frame, dims, open: Vec::new(), call_area: None }
    }

    /// Emits the code of a control marker.
    pub(crate) fn execute(&mut self, f: &mut FuncCtx, control: &Control) -> Result<()> {
        match control {
            Control::If(cell) => self.begin_branch(f, *cell),
            Control::Else => self.begin_otherwise(f)?,
            Control::While(cell) => self.begin_loop(f, *cell),
            Control::End => self.end(f)?,
            Control::Bind { symbol, from, lo, end, context } => {
                let value = self.load(f, *from, types::I64);
                self.check_bounds(f, symbol, value, lo, end, context)?;
                self.bind(f, symbol, value)?;
            }
            Control::Require(assumption) => {
                contract::check_relation(f, self.frame, &RelationGuard::of(assumption))?;
            }
            Control::Call(call) => {
                let area = *self.call_area.get_or_insert_with(|| external::call_area(f));
                external::call(f, self.frame, area, call)?;
            }
            Control::Fail(why) => {
                let never = f.ins().iconst(types::I8, 0);
                let zero = f.int(0);
                contract::require(f, self.frame, never, &Failure::contradiction(why), [zero; 3])?;
            }
        }
        Ok(())
    }

    fn begin_branch(&mut self, f: &mut FuncCtx, cell: BufferId) {
        let [then, otherwise, after] = [0; 3].map(|_| f.create_block());
        let condition = self.load(f, cell, types::I8);
        let branch = f.ins().brif(condition, then, &[], otherwise, &[]);

        enter(f, branch, then);
        self.open.push(ControlRegion::Then { branch, otherwise, after });
    }

    fn begin_otherwise(&mut self, f: &mut FuncCtx) -> Result<()> {
        let Some(ControlRegion::Then { branch, otherwise, after }) = self.open.pop() else {
            return Err(Error::internal("an `else` marker without a branch"));
        };
        f.ins().jump(after, &[]);
        f.pop_scope();

        enter(f, branch, otherwise);
        self.open.push(ControlRegion::Otherwise { after });
        Ok(())
    }

    fn begin_loop(&mut self, f: &mut FuncCtx, cell: BufferId) {
        let [body, after] = [0; 2].map(|_| f.create_block());
        let condition = self.load(f, cell, types::I8);
        let branch = f.ins().brif(condition, body, &[], after, &[]);

        enter(f, branch, body);
        self.open.push(ControlRegion::Loop { cell, body, after });
    }

    fn end(&mut self, f: &mut FuncCtx) -> Result<()> {
        let after = match self.open.pop() {
            Some(ControlRegion::Then { otherwise, after, .. }) => {
                f.ins().jump(after, &[]);
                // The branch has no `else`: its block is empty.
                f.switch_to_block(otherwise);
                f.ins().jump(after, &[]);
                after
            }
            Some(ControlRegion::Otherwise { after }) => {
                f.ins().jump(after, &[]);
                after
            }
            Some(ControlRegion::Loop { cell, body, after }) => {
                let condition = self.load(f, cell, types::I8);
                f.ins().brif(condition, body, &[], after, &[]);
                after
            }
            None => return Err(Error::internal("an `end` marker without a region")),
        };

        f.pop_scope();
        f.switch_to_block(after);
        Ok(())
    }

    /// Element 0 of a buffer.
    fn load(&self, f: &mut FuncCtx, cell: BufferId, ty: Type) -> Value {
        let slot = f.buffer_slot(cell);
        let address = f.load_word(self.frame, slot);
        f.ins().load(ty, MemFlagsData::trusted(), address, 0)
    }

    /// Emits the guard `lo <= value < end` of a data-dependent symbol.
    fn check_bounds(
        &self,
        f: &mut FuncCtx,
        symbol: &Symbol,
        value: Value,
        lo: &Dim,
        end: &Dim,
        context: &str,
    ) -> Result<()> {
        let lo = f.dim(lo)?;
        let end = f.dim(end)?;
        let is_within = f.is_within(value, lo, end);
        let hi = f.ins().iadd_imm_s(end, -1);
        let failure = Failure::symbol_out_of_bounds(symbol, context);
        contract::require(f, self.frame, is_within, &failure, [value, lo, hi])
    }

    /// Stores the value of a data-dependent symbol in both slots. Later code relies on its declaration.
    fn bind(&self, f: &mut FuncCtx, symbol: &Symbol, value: Value) -> Result<()> {
        let idx = f.unit.program.all_symbols().position(|other| other == symbol);
        let idx = idx.ok_or_else(|| Error::internal(format!("unknown symbol {symbol}")))?;
        f.store_at(value, self.frame, frame::symbol_slot(idx));
        f.store_at(value, self.dims, 8 * idx as i32);

        f.bind(symbol.clone(), value);
        if let Some(declaration) = f.unit.program.facts.declaration(symbol).cloned() {
            let declared = f.facts_mut().declare(symbol, declaration);
            declared.map_err(|error| Error::internal(error.to_string()))?;
        }
        Ok(())
    }
}

/// Enters `block` and a scope for it; only `branch` may lead there.
fn enter(f: &mut FuncCtx, branch: Inst, block: Block) {
    f.push_scope(branch);
    f.switch_to_block(block);
}
