//! Branches and loops over whole kernels, as blocks of `run`; symbols whose values are found while running; calls.
//!
//! Such a symbol has a slot of the frame, where the kernels find it as they find the model's symbols, and one behind
//! the caller's dims, from which the shapes of outputs follow after the call.

use super::{contract, external};
use crate::{
    codegen::function::{FuncCtx, frame},
    error::{Error, Result},
    kernel::{
        BufferId, Control,
        contract::{Failure, RelationGuard},
    },
};
use cranelift_codegen::ir::{
    Block, Inst, InstBuilder, MemFlagsData, StackSlot, Value, condcodes::IntCC, types,
};
use symshape::{Dim, Symbol};

/// A region that is being emitted.
enum Region {
    Then { branch: Inst, otherwise: Block, after: Block },
    Otherwise { after: Block },
    Round { cell: BufferId, body: Block, after: Block },
}

/// The regions around the kernel that is called next.
pub(crate) struct Regions {
    frame: Value,
    /// The caller's dims.
    dims: Value,
    open: Vec<Region>,
    /// What calls of functions outside of the compiler write their arguments to.
    room: Option<StackSlot>,
}

impl Regions {
    pub(crate) fn new(frame: Value, dims: Value) -> Regions {
        Regions { frame, dims, open: Vec::new(), room: None }
    }

    /// Emits what `control` asks for.
    pub(crate) fn step(&mut self, f: &mut FuncCtx, control: &Control) -> Result<()> {
        match control {
            Control::If(cell) => {
                let [then, otherwise, after] = [0; 3].map(|_| f.create_block());
                let cond = self.load(f, *cell, types::I8);
                let branch = f.ins().brif(cond, then, &[], otherwise, &[]);
                enter(f, branch, then);
                self.open.push(Region::Then { branch, otherwise, after });
                Ok(())
            }
            Control::Else => match self.open.pop() {
                Some(Region::Then { branch, otherwise, after }) => {
                    f.ins().jump(after, &[]);
                    f.pop_scope();
                    enter(f, branch, otherwise);
                    self.open.push(Region::Otherwise { after });
                    Ok(())
                }
                _ => Err(Error::internal("a region that is no branch has an `else`")),
            },
            Control::While(cell) => {
                let [body, after] = [0; 2].map(|_| f.create_block());
                let cond = self.load(f, *cell, types::I8);
                let branch = f.ins().brif(cond, body, &[], after, &[]);
                enter(f, branch, body);
                self.open.push(Region::Round { cell: *cell, body, after });
                Ok(())
            }
            Control::End => self.end(f),
            Control::Bind { symbol, from, lo, end, context } => {
                self.bind(f, symbol, *from, [lo, end], context)
            }
            Control::Require(assumption) => {
                contract::check_relation(f, self.frame, &RelationGuard::of(assumption))
            }
            Control::Call(call) => {
                let room = *self.room.get_or_insert_with(|| external::room(f));
                external::call(f, self.frame, room, call)
            }
            Control::Fail(why) => {
                let never = f.ins().iconst(types::I8, 0);
                let zero = f.int(0);
                contract::require(f, self.frame, never, &Failure::contradiction(why), [zero; 3])
            }
        }
    }

    fn end(&mut self, f: &mut FuncCtx) -> Result<()> {
        let after = match self.open.pop() {
            Some(Region::Then { otherwise, after, .. }) => {
                f.ins().jump(after, &[]);
                f.switch_to_block(otherwise);
                f.ins().jump(after, &[]);
                after
            }
            Some(Region::Otherwise { after }) => {
                f.ins().jump(after, &[]);
                after
            }
            Some(Region::Round { cell, body, after }) => {
                let cond = self.load(f, cell, types::I8);
                f.ins().brif(cond, body, &[], after, &[]);
                after
            }
            None => return Err(Error::internal("a region ends that was never begun")),
        };
        f.pop_scope();
        f.switch_to_block(after);
        Ok(())
    }

    /// Element 0 of a buffer.
    fn load(&self, f: &mut FuncCtx, cell: BufferId, ty: types::Type) -> Value {
        let slot = f.buffer_slot(cell);
        let at = f.load_word(self.frame, slot);
        f.ins().load(ty, MemFlagsData::trusted(), at, 0)
    }

    fn bind(
        &self,
        f: &mut FuncCtx,
        symbol: &Symbol,
        from: BufferId,
        [lo, end]: [&Dim; 2],
        context: &str,
    ) -> Result<()> {
        let value = self.load(f, from, types::I64);
        let (lo, end) = (f.dim(lo)?, f.dim(end)?);
        let not_below = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, value, lo);
        let below = f.ins().icmp(IntCC::SignedLessThan, value, end);
        let inside = f.ins().band(not_below, below);
        let hi = f.ins().iadd_imm_s(end, -1);
        let failure = Failure::symbol_out_of_bounds(symbol, context);
        contract::require(f, self.frame, inside, &failure, [value, lo, hi])?;
        let position = f.unit.program.all_symbols().position(|known| known == symbol);
        let position = position.ok_or_else(|| Error::internal(format!("unknown symbol {symbol}")))?;
        f.store_at(value, self.frame, frame::symbol_slot(position));
        f.store_at(value, self.dims, 8 * position as i32);
        f.bind(symbol.clone(), value);
        if let Some(declaration) = f.unit.program.facts.declaration(symbol).cloned() {
            let known = f.facts_mut().declare(symbol, declaration);
            known.map_err(|error| Error::internal(error.to_string()))?;
        }
        Ok(())
    }
}

/// Goes on in `block`, into which only `branch` leads, within a scope of its own.
fn enter(f: &mut FuncCtx, branch: Inst, block: Block) {
    f.push_scope(branch);
    f.switch_to_block(block);
}
