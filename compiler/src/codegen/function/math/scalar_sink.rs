//! Formulas for one number, as Cranelift instructions.

use super::super::FuncCtx;
use crate::{
    codegen::formulas::{Binary, BranchCode, Handle, Sink, Table, Unary},
    error::Result,
};
use cranelift_codegen::ir::{
    Block, BlockArg, InstBuilder, MemFlagsData, Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use std::cell::RefCell;

/// The sink that appends to a [`FuncCtx`].
pub(super) struct ScalarSink<'a, 'f, 'u>(pub(super) RefCell<&'a mut FuncCtx<'f, 'u>>);

impl From<Value> for Handle {
    fn from(value: Value) -> Handle {
        Handle(value.as_u32())
    }
}

impl From<Handle> for Value {
    fn from(handle: Handle) -> Value {
        Value::from_u32(handle.0)
    }
}

impl Sink for ScalarSink<'_, '_, '_> {
    fn float(&self, value: f64) -> Handle {
        self.0.borrow_mut().ins().f64const(value).into()
    }

    fn int(&self, value: i64) -> Handle {
        self.0.borrow_mut().ins().iconst(types::I64, value).into()
    }

    fn unary(&self, op: Unary, x: Handle) -> Handle {
        let mut f = self.0.borrow_mut();
        let x = x.into();
        let value = match op {
            Unary::Bits => f.ins().bitcast(types::I64, MemFlagsData::new(), x),
            Unary::WithBits => f.ins().bitcast(types::F64, MemFlagsData::new(), x),
            Unary::ToInt | Unary::ToSmallInt => f.ins().fcvt_to_sint_sat(types::I64, x),
            Unary::ToFloat => f.ins().fcvt_from_sint(types::F64, x),
            Unary::UnsignedToFloat => f.ins().fcvt_from_uint(types::F64, x),
            Unary::TruthToInt => f.ins().uextend(types::I64, x),
            Unary::Abs => f.ins().fabs(x),
            Unary::Sqrt => f.ins().sqrt(x),
            Unary::Round => f.ins().nearest(x),
            Unary::Trunc => f.ins().trunc(x),
            Unary::NegFloat => f.ins().fneg(x),
            Unary::NegInt => f.ins().ineg(x),
            Unary::Not => f.ins().bxor_imm_u(x, 1),
        };
        value.into()
    }

    fn binary(&self, op: Binary, x: Handle, y: Handle) -> Handle {
        let mut f = self.0.borrow_mut();
        let x = x.into();
        let y = y.into();
        let value = match op {
            Binary::AddFloat => f.ins().fadd(x, y),
            Binary::SubFloat => f.ins().fsub(x, y),
            Binary::MulFloat => f.ins().fmul(x, y),
            Binary::DivFloat => f.ins().fdiv(x, y),
            Binary::Min => f.ins().fmin(x, y),
            Binary::Max => f.ins().fmax(x, y),
            Binary::CopySign => f.ins().fcopysign(x, y),
            Binary::AddInt => f.ins().iadd(x, y),
            Binary::SubInt => f.ins().isub(x, y),
            Binary::MulInt => f.ins().imul(x, y),
            Binary::MulHigh => f.ins().umulhi(x, y),
            Binary::ShiftLeft => f.ins().ishl(x, y),
            Binary::ShiftRight => f.ins().ushr(x, y),
            Binary::AndInt | Binary::AndTruth => f.ins().band(x, y),
            Binary::OrInt | Binary::OrTruth => f.ins().bor(x, y),
            Binary::Lt => f.ins().fcmp(FloatCC::LessThan, x, y),
            Binary::Gt => f.ins().fcmp(FloatCC::GreaterThan, x, y),
            Binary::Ge => f.ins().fcmp(FloatCC::GreaterThanOrEqual, x, y),
            Binary::Eq => f.ins().fcmp(FloatCC::Equal, x, y),
            Binary::Unordered => f.ins().fcmp(FloatCC::Unordered, x, y),
            Binary::IntLt => f.ins().icmp(IntCC::SignedLessThan, x, y),
            Binary::IntGe => f.ins().icmp(IntCC::SignedGreaterThanOrEqual, x, y),
            Binary::IntEq => f.ins().icmp(IntCC::Equal, x, y),
            Binary::Below => f.ins().icmp(IntCC::UnsignedLessThan, x, y),
        };
        value.into()
    }

    fn shift(&self, is_left: bool, x: Handle, by: u8) -> Handle {
        let mut f = self.0.borrow_mut();
        let by = i64::from(by);
        let value = if is_left { f.ins().ishl_imm_u(x.into(), by) } else { f.ins().sshr_imm_u(x.into(), by) };
        value.into()
    }

    fn select(&self, truth: Handle, yes: Handle, no: Handle) -> Handle {
        self.0.borrow_mut().ins().select(truth.into(), yes.into(), no.into()).into()
    }

    fn lookup(&self, table: &Table, idx: Handle, offset: usize) -> Result<Handle> {
        let mut f = self.0.borrow_mut();
        let words: Vec<i64> = table.words.iter().map(|word| *word as i64).collect();
        let data = f.unit.table(table.name, &words)?;
        let start = f.data_address(data);
        let distance = f.ins().ishl_imm_u(idx.into(), 3);
        let address = f.ins().iadd(start, distance);
        let flags = MemFlagsData::trusted().with_readonly();
        Ok(f.ins().load(types::I64, flags, address, 8 * offset as i32).into())
    }

    fn branch(&self, truth: Handle, yes: BranchCode<'_>, no: BranchCode<'_>) -> Result<Vec<Handle>> {
        let blocks: Vec<Block> = {
            let mut f = self.0.borrow_mut();
            let blocks: Vec<Block> = (0..3).map(|_| f.create_block()).collect();
            f.ins().brif(truth.into(), blocks[0], &[], blocks[1], &[]);
            f.switch_to_block(blocks[0]);
            blocks
        };
        let args = |values: &[(Handle, _)]| -> Vec<BlockArg> {
            values.iter().map(|(handle, _)| BlockArg::Value((*handle).into())).collect()
        };

        let results = yes()?;
        {
            let mut f = self.0.borrow_mut();
            f.ins().jump(blocks[2], &args(&results));
            f.switch_to_block(blocks[1]);
        }

        let others = no()?;
        let mut f = self.0.borrow_mut();
        f.ins().jump(blocks[2], &args(&others));
        let mut merged = Vec::new();
        for (handle, _) in &others {
            let ty = f.builder.func.dfg.value_type((*handle).into());
            merged.push(f.builder.append_block_param(blocks[2], ty).into());
        }
        f.switch_to_block(blocks[2]);
        Ok(merged)
    }
}
