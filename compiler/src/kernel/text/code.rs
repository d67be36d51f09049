//! Parses instructions.

use super::operand::{access, local};
use crate::{
    error::Result,
    kernel::{Buffer, BufferId, Check, Inst, InstSeq, Local},
    scalar::{BinaryOp, CompareOp, ReduceOp, Reg, UnaryOp},
    text::Cursor,
};
use cranelift_entity::PrimaryMap;
use std::collections::HashMap;
use symshape_runtime::DType;

/// A sequence of instructions that is being parsed, with the registers that its names refer to.
pub(super) struct CodeReader<'a> {
    pub(super) code: InstSeq,
    locals: &'a PrimaryMap<Local, DType>,
    regs: HashMap<u32, Reg>,
}

impl<'a> CodeReader<'a> {
    pub(super) fn new(locals: &'a PrimaryMap<Local, DType>) -> Self {
        CodeReader { code: InstSeq::default(), locals, regs: HashMap::new() }
    }

    /// Parses one line.
    pub(super) fn inst(
        &mut self,
        cursor: &mut Cursor<'_>,
        buffers: &PrimaryMap<BufferId, Buffer>,
    ) -> Result<()> {
        let name: Option<u32> = if cursor.eat("%") { Some(cursor.number()?) } else { None };
        if name.is_some() {
            cursor.expect("=")?;
        }

        let inst = match cursor.word() {
            "store" => {
                let access = access(cursor, buffers)?;
                cursor.expect(",")?;
                Inst::Store(access, self.reg(cursor)?)
            }
            "load" => Inst::Load(access(cursor, buffers)?),
            word => self.other(cursor, word)?,
        };

        cursor.end_line()?;
        if inst.has_result() != name.is_some() {
            let message = if name.is_some() {
                "the instruction has no result"
            } else {
                "the result of the instruction has no name"
            };
            return Err(cursor.error(message));
        }

        let reg = self.code.push(inst);
        match name.and_then(|name| self.regs.insert(name, reg)) {
            None => Ok(()),
            Some(_) => Err(cursor.error("the register is defined twice")),
        }
    }

    fn other(&mut self, cursor: &mut Cursor<'_>, word: &str) -> Result<Inst> {
        Ok(match word {
            "const" => {
                let dtype = cursor.dtype()?;
                Inst::Const(cursor.literal(dtype)?)
            }
            "index" => Inst::Index(cursor.dtype()?, cursor.dim(&[])?),
            "sum" => Inst::Sum,
            "get" => Inst::Get(local(cursor, self.locals)?),
            "select" => {
                let cond = self.reg(cursor)?;
                let x = self.next_reg(cursor)?;
                let y = self.next_reg(cursor)?;
                Inst::Select(cond, x, y)
            }
            "cast" => Inst::Cast(cursor.dtype()?, self.reg(cursor)?),
            "bits" => Inst::Bits(cursor.dtype()?, self.reg(cursor)?),
            "bind" => {
                let symbol = cursor.symbol(&["="])?;
                cursor.expect("=")?;
                Inst::Bind(symbol, self.reg(cursor)?)
            }
            "set" => Inst::Set(local(cursor, self.locals)?, self.next_reg(cursor)?),
            "reduce" => {
                let op = cursor.parsed("a reduction", ReduceOp::from_name)?;
                let value = self.reg(cursor)?;
                cursor.expect("->")?;
                Inst::Reduce(op, value, local(cursor, self.locals)?)
            }
            "check" => Inst::Check(self.check(cursor)?),
            word => return self.operator(cursor, word),
        })
    }

    fn operator(&mut self, cursor: &mut Cursor<'_>, word: &str) -> Result<Inst> {
        if let Some(op) = UnaryOp::from_name(word) {
            Ok(Inst::Unary(op, self.reg(cursor)?))
        } else if let Some(op) = BinaryOp::from_name(word) {
            Ok(Inst::Binary(op, self.reg(cursor)?, self.next_reg(cursor)?))
        } else if let Some(op) = CompareOp::from_name(word) {
            Ok(Inst::Compare(op, self.reg(cursor)?, self.next_reg(cursor)?))
        } else {
            Err(cursor.error(format!("`{word}` is not an instruction")))
        }
    }

    fn check(&mut self, cursor: &mut Cursor<'_>) -> Result<Check> {
        let lo = cursor.dim(&["<="])?;
        cursor.expect("<=")?;
        let value = self.reg(cursor)?;
        cursor.expect("<")?;
        let end = cursor.dim(&[","])?;
        let context = if cursor.eat(",") { cursor.string()? } else { String::new() };
        Ok(Check { value, lo, end, context })
    }

    fn next_reg(&mut self, cursor: &mut Cursor<'_>) -> Result<Reg> {
        cursor.expect(",")?;
        self.reg(cursor)
    }

    fn reg(&mut self, cursor: &mut Cursor<'_>) -> Result<Reg> {
        cursor.expect("%")?;
        let regs = &self.regs;
        cursor.parsed("a register defined above", |word| regs.get(&word.parse().ok()?).copied())
    }
}
