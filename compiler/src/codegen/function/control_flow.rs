//! Control flow of a function: loops, branches and returns; and words of memory.
//!
//! Blocks are created and filled in a fixed order, so equal calls emit equal code.

use super::FuncCtx;
use crate::{codegen::vector::convention::machine_code_signature, error::Result, kernel::Axis};
use cranelift_codegen::ir::{
    Block, BlockArg, Inst, InstBuilder, MemFlagsData, Type, Value, condcodes::IntCC, types,
};
use cranelift_module::FuncId;
use symshape_runtime::abi::Code;

impl FuncCtx<'_, '_> {
    /// A new block, which is not filled yet.
    pub(crate) fn create_block(&mut self) -> Block {
        self.builder.create_block()
    }

    /// Continues in `block`: later instructions are appended to it.
    pub(crate) fn switch_to_block(&mut self, block: Block) {
        self.builder.switch_to_block(block);
    }

    /// Says that the current block seldom runs.
    pub(crate) fn mark_cold(&mut self) {
        if let Some(block) = self.builder.current_block() {
            self.builder.set_cold_block(block);
        }
    }

    /// Loads an `i64` from memory that is valid and aligned.
    pub(crate) fn load_word(&mut self, base: Value, offset: i32) -> Value {
        self.ins().load(types::I64, MemFlagsData::trusted(), base, offset)
    }

    /// Stores a value of any type to memory that is valid and aligned.
    pub(crate) fn store_at(&mut self, value: Value, base: Value, offset: i32) {
        self.ins().store(MemFlagsData::trusted(), value, base, offset);
    }

    /// Stores values at their offsets from `base`, in the order of the list.
    pub(crate) fn store_fields(&mut self, base: Value, fields: &[(Value, i32)]) {
        for (value, offset) in fields {
            self.store_at(*value, base, *offset);
        }
    }

    /// The address of a function of the module.
    pub(crate) fn function_address(&mut self, func: FuncId) -> Value {
        let func = self.func_ref(func);
        self.ins().func_addr(types::I64, func)
    }

    /// Calls the function at an address; the result is its first one, if it has any.
    pub(crate) fn call_indirect(
        &mut self,
        callee: Value,
        params: &[Type],
        returns: &[Type],
        args: &[Value],
    ) -> Option<Value> {
        let signature = self.unit.signature(params, returns);
        let signature = self.builder.import_signature(signature);
        let call = self.ins().call_indirect(signature, callee, args);
        self.builder.inst_results(call).first().copied()
    }

    /// Calls the microkernel at an address with its argument block.
    pub(crate) fn call_microkernel(&mut self, microkernel: Value, block: Value) {
        let signature = machine_code_signature(self.unit.module.isa(), &[types::I64], &[]);
        let signature = self.builder.import_signature(signature);
        self.ins().call_indirect(signature, microkernel, &[block]);
    }

    /// Ends the function with a call, and returns the callee's result.
    pub(crate) fn return_call_result(&mut self, func: FuncId, args: &[Value]) {
        let result = self.call(func, args);
        self.ins().return_(result.as_slice());
    }

    /// `if condition { leave }` for a rare case: `leave` must return from the function. Its block is cold, so the hot
    /// path falls through.
    pub(crate) fn leave_if(
        &mut self,
        condition: Value,
        leave: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let rare = self.create_block();
        let next = self.create_block();
        self.ins().brif(condition, rare, &[], next, &[]);
        self.fill_leaving_block(rare, next, leave)
    }

    /// `if !condition { leave }`, see [`FuncCtx::leave_if`].
    pub(crate) fn leave_unless(
        &mut self,
        condition: Value,
        leave: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let rare = self.create_block();
        let next = self.create_block();
        self.ins().brif(condition, next, &[], rare, &[]);
        self.fill_leaving_block(rare, next, leave)
    }

    fn fill_leaving_block(
        &mut self,
        rare: Block,
        next: Block,
        leave: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.builder.set_cold_block(rare);
        self.builder.seal_block(rare);
        self.builder.seal_block(next);

        self.switch_to_block(rare);
        leave(self)?;

        self.switch_to_block(next);
        Ok(())
    }

    /// Returns `code`, an `i32`, from the function unless it is 0.
    pub(crate) fn return_if_error(&mut self, code: Value) -> Result<()> {
        self.leave_if(code, |f| {
            f.ins().return_(&[code]);
            Ok(())
        })
    }

    /// Whether `lo <= value < end`, in signed 64-bit integers.
    pub(crate) fn is_within(&mut self, value: Value, lo: Value, end: Value) -> Value {
        let is_not_below = self.ins().icmp(IntCC::SignedGreaterThanOrEqual, value, lo);
        let is_below_end = self.ins().icmp(IntCC::SignedLessThan, value, end);
        self.ins().band(is_not_below, is_below_end)
    }

    /// Returns a code from a function that returns an `i32`.
    pub(crate) fn return_code(&mut self, code: i64) {
        let code = self.ins().iconst(types::I32, code);
        self.ins().return_(&[code]);
    }

    /// Returns 0, the code of success.
    pub(crate) fn return_ok(&mut self) {
        self.return_code(0);
    }

    /// `for var in 0..extent { body }`.
    pub(crate) fn for_axis(&mut self, axis: &Axis, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let end = self.dim(&axis.extent)?;
        let begin = self.int(0);
        self.for_axis_range(axis, begin, end, body)
    }

    /// `for var in begin..end { body }`, for a range within the axis.
    pub(crate) fn for_axis_range(
        &mut self,
        axis: &Axis,
        begin: Value,
        end: Value,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.for_range(begin, end, |f, var| {
            f.facts_mut().declare_index(&axis.var, &axis.extent);
            f.bind(axis.var.clone(), var);
            body(f)
        })
    }

    /// `for var in begin..end { body }`, where no symbol is bound to the variable.
    pub(crate) fn for_range(
        &mut self,
        begin: Value,
        end: Value,
        body: impl FnOnce(&mut Self, Value) -> Result<()>,
    ) -> Result<()> {
        let inside = self.create_block();
        let after = self.create_block();
        let var = self.builder.append_block_param(inside, types::I64);
        let is_not_empty = self.ins().icmp(IntCC::SignedLessThan, begin, end);
        let exit = self.ins().brif(is_not_empty, inside, &[BlockArg::Value(begin)], after, &[]);
        self.push_scope(exit);

        self.switch_to_block(inside);
        body(self, var)?;
        let next = self.ins().iadd_imm_s(var, 1);
        let more = self.ins().icmp(IntCC::SignedLessThan, next, end);
        self.ins().brif(more, inside, &[BlockArg::Value(next)], after, &[]);

        self.builder.seal_block(inside);
        self.builder.seal_block(after);
        self.pop_scope();
        self.switch_to_block(after);
        Ok(())
    }

    /// `if cond { then } else { otherwise }`, where any value but 0 holds.
    pub(crate) fn branch(
        &mut self,
        cond: Value,
        then: impl FnOnce(&mut Self) -> Result<()>,
        otherwise: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let then_block = self.create_block();
        let otherwise_block = self.create_block();
        let after = self.create_block();
        let exit = self.ins().brif(cond, then_block, &[], otherwise_block, &[]);
        self.arm(then_block, after, exit, then)?;
        self.arm(otherwise_block, after, exit, otherwise)?;
        self.switch_to_block(after);
        self.builder.seal_block(after);
        Ok(())
    }

    /// `if cond { body }`, where any value but 0 holds.
    pub(crate) fn when(&mut self, cond: Value, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let inside = self.create_block();
        let after = self.create_block();
        let exit = self.ins().brif(cond, inside, &[], after, &[]);
        self.arm(inside, after, exit, body)?;
        self.switch_to_block(after);
        self.builder.seal_block(after);
        Ok(())
    }

    /// Emits the body of a branch that `exit` jumps to.
    fn arm(
        &mut self,
        inside: Block,
        after: Block,
        exit: Inst,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.switch_to_block(inside);
        self.builder.seal_block(inside);
        self.push_scope(exit);
        body(self)?;
        self.ins().jump(after, &[]);
        self.pop_scope();
        Ok(())
    }

    /// Ends a function by a case for each index below `count`: `emit_case` emits it, then 0 is returned. For any other
    /// index, [`Code::OutOfRange`] is returned.
    pub(crate) fn switch(
        &mut self,
        index: Value,
        count: usize,
        mut emit_case: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        for number in 0..count {
            let this = self.create_block();
            let next = self.create_block();
            let is_this = self.ins().icmp_imm_u(IntCC::Equal, index, number as i64);
            let exit = self.ins().brif(is_this, this, &[], next, &[]);

            self.switch_to_block(this);
            self.push_scope(exit);
            emit_case(self, number)?;
            self.return_ok();
            self.pop_scope();

            self.switch_to_block(next);
        }
        self.return_code(Code::OutOfRange as i64);
        Ok(())
    }
}
