//! Instructions: straight-line code on scalars.

use super::BufferId;
use crate::scalar::{BinaryOp, CompareOp, ReduceOp, Reg, Scalar, UnaryOp};
use cranelift_entity::entity_impl;
use std::collections::BTreeSet;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// A scalar variable of a [`Kernel`](super::Kernel).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Local(u32);
entity_impl!(Local, "local");

impl Local {
    /// The variable behind `count` variables of another kernel.
    #[must_use]
    pub(crate) fn after(self, count: usize) -> Local {
        Local(self.0 + count as u32)
    }
}

/// An element of a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The buffer that holds the element.
    pub buffer: BufferId,
    /// Flat index of the element.
    pub index: Dim,
}

/// A condition on an integer at run time. A value outside `lo..end` ends the call with a typed error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// The integer that is checked.
    pub value: Reg,
    /// Smallest allowed value.
    pub lo: Dim,
    /// Exclusive upper bound of the allowed values.
    pub end: Dim,
    /// The node and axis that the error names.
    pub context: String,
}

/// One instruction of an [`InstSeq`]. Its operands are the results of earlier instructions: `Reg(i)` is the result of
/// instruction `i`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inst {
    /// A constant.
    Const(Scalar),
    /// The value of an index expression, converted to this integer type.
    Index(DType, Dim),
    /// The value of an element.
    Load(Access),
    /// Binds the symbol to an `i64`, for the rest of the statement and for the statements nested in it or after it.
    Bind(Symbol, Reg),
    /// The sum of a contraction; only in its epilogue.
    Sum,
    /// The value of a scalar variable.
    Get(Local),
    /// Sets a scalar variable; not in strips.
    Set(Local, Reg),
    /// See [`UnaryOp`].
    Unary(UnaryOp, Reg),
    /// See [`BinaryOp`].
    Binary(BinaryOp, Reg, Reg),
    /// See [`CompareOp`].
    Compare(CompareOp, Reg, Reg),
    /// The second operand if the first one, a bool, is true; otherwise the third.
    Select(Reg, Reg, Reg),
    /// See [`crate::scalar::Step::Cast`].
    Cast(DType, Reg),
    /// See [`crate::scalar::Step::Bits`].
    Bits(DType, Reg),
    /// Stores a value into an element.
    Store(Access, Reg),
    /// Combines a value over all iterations of a strip, starting from the neutral element of the operation. The
    /// variable holds the result after the strip. Only in strips.
    Reduce(ReduceOp, Reg, Local),
    /// See [`Check`].
    Check(Check),
}

impl Inst {
    /// Whether the instruction has a result that later ones can use.
    pub(crate) fn has_result(&self) -> bool {
        !matches!(self, Inst::Bind(..) | Inst::Set(..) | Inst::Store(..) | Inst::Reduce(..) | Inst::Check(_))
    }

    /// The registers that the instruction reads, in order.
    pub fn operands(&self) -> Vec<Reg> {
        match self {
            Inst::Const(_) | Inst::Index(..) | Inst::Load(_) | Inst::Sum | Inst::Get(_) => Vec::new(),
            Inst::Bind(_, x) | Inst::Set(_, x) | Inst::Unary(_, x) => vec![*x],
            Inst::Cast(_, x) | Inst::Bits(_, x) => vec![*x],
            Inst::Store(_, x) | Inst::Reduce(_, x, _) => vec![*x],
            Inst::Binary(_, x, y) | Inst::Compare(_, x, y) => vec![*x, *y],
            Inst::Select(c, x, y) => vec![*c, *x, *y],
            Inst::Check(check) => vec![check.value],
        }
    }

    /// The instruction with each operand replaced by `of(operand)`.
    #[must_use]
    pub(crate) fn with_operands(&self, of: &dyn Fn(Reg) -> Reg) -> Inst {
        match self {
            Inst::Const(_) | Inst::Index(..) | Inst::Load(_) | Inst::Sum | Inst::Get(_) => self.clone(),
            Inst::Bind(symbol, x) => Inst::Bind(symbol.clone(), of(*x)),
            Inst::Set(local, x) => Inst::Set(*local, of(*x)),
            Inst::Unary(op, x) => Inst::Unary(*op, of(*x)),
            Inst::Cast(dtype, x) => Inst::Cast(*dtype, of(*x)),
            Inst::Bits(dtype, x) => Inst::Bits(*dtype, of(*x)),
            Inst::Store(access, x) => Inst::Store(access.clone(), of(*x)),
            Inst::Reduce(op, x, local) => Inst::Reduce(*op, of(*x), *local),
            Inst::Binary(op, x, y) => Inst::Binary(*op, of(*x), of(*y)),
            Inst::Compare(op, x, y) => Inst::Compare(*op, of(*x), of(*y)),
            Inst::Select(c, x, y) => Inst::Select(of(*c), of(*x), of(*y)),
            Inst::Check(check) => Inst::Check(Check { value: of(check.value), ..check.clone() }),
        }
    }
}

/// A sequence of instructions without control flow.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InstSeq {
    /// The instructions in the order in which they run.
    pub insts: Vec<Inst>,
}

impl InstSeq {
    /// The accesses in the order of the instructions, and whether each is a store.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = (&Access, bool)> {
        self.insts.iter().filter_map(|inst| match inst {
            Inst::Load(access) => Some((access, false)),
            Inst::Store(access, _) => Some((access, true)),
            _ => None,
        })
    }

    /// Whether no buffer that the code stores to is one that it loads from.
    pub(crate) fn stores_elsewhere(&self) -> bool {
        let mut loaded = BTreeSet::<BufferId>::new();
        let mut stored = BTreeSet::new();
        for (access, is_store) in self.accesses() {
            if is_store { &mut stored } else { &mut loaded }.insert(access.buffer);
        }
        loaded.is_disjoint(&stored)
    }

    /// Whether stores are the only effect of the code on later statements, and loaded addresses don't relate
    /// iterations: no iteration stores at such an address, or loads from there in a buffer that another one stores to.
    pub(crate) fn only_stores(&self) -> bool {
        let mut bound = Vec::new();
        let mut stored = Vec::new();
        let mut loaded = Vec::new();
        for inst in &self.insts {
            let is_at_loaded_address =
                |access: &Access| bound.iter().any(|symbol| access.index.contains(symbol));
            match inst {
                Inst::Reduce(..) | Inst::Set(..) => return false,
                Inst::Bind(symbol, _) => bound.push(symbol.clone()),
                Inst::Store(access, _) if is_at_loaded_address(access) => return false,
                Inst::Store(access, _) => stored.push(access.buffer),
                Inst::Load(access) if is_at_loaded_address(access) => loaded.push(access.buffer),
                _ => {}
            }
        }
        loaded.iter().all(|buffer| !stored.contains(buffer))
    }

    /// Appends an instruction and returns its result.
    pub fn push(&mut self, inst: Inst) -> Reg {
        self.insts.push(inst);
        Reg(self.insts.len() as u32 - 1)
    }
}
