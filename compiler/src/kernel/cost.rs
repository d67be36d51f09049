//! Estimates the work of a kernel, as a formula over the dims. The estimate decides how a network is cut into
//! partitions of similar size, and which loops are worth several threads.
//!
//! The unit is one multiply-add of a contraction. The cost of every other operation is the number of multiply-adds
//! that a machine with vector registers executes in the same time. The figures are rough, and no result depends on
//! them.

use super::{
    Axis, Contraction, Control, ExternalCall, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt,
};
use crate::scalar::{BinaryOp, UnaryOp};
use num_traits::ToPrimitive;
use symshape::{Dim, Facts, Symbol};

/// Cost of a scalar instruction, relative to the cost per element of a vector instruction.
pub(crate) const IN_BLOCK: i64 = 16;

/// Maximum number of rows of a contraction that take no longer than reading its constant operand.
const ROWS_TO_HIDE_READING: i64 = 4;

/// Iterations of a loop without an upper bound.
const UNBOUNDED_ITERATIONS: f64 = 1024.0;

/// Work that a machine does in a nanosecond: 8 lanes, two units, 3 GHz.
const IN_A_NANOSECOND: i64 = 48;

/// The work that takes this time.
pub(crate) fn of_nanoseconds(time: &Dim) -> Dim {
    time.clone().max(Dim::zero()) * IN_A_NANOSECOND
}

/// The work of an external call: as its target says, or estimated from the sizes of its arguments.
pub(crate) fn call(program: &Program, call: &ExternalCall) -> Dim {
    if let Some(work) = &call.work {
        return work.clone();
    }
    let arguments = call.operands.iter().chain(&call.results);
    program.facts.simplify(&(Dim::sum(arguments.map(|argument| argument.elems())) * IN_BLOCK))
}

/// The work of a kernel.
pub(crate) fn of(program: &Program, kernel: &Kernel) -> Dim {
    match &kernel.control {
        Some(Control::Call(called)) => call(program, called),
        _ => work(program, &kernel.body),
    }
}

/// The work of some statements, an expression over the model's symbols. Extents that are not known before the call
/// count as in the first iteration of the loops that they depend on, but as 1 at least. `while` loops have one
/// iteration.
pub(crate) fn work(program: &Program, body: &[Stmt]) -> Dim {
    let total = Dim::sum(body.iter().map(|stmt| statement(program, stmt)));
    program.facts.simplify(&total)
}

fn statement(program: &Program, stmt: &Stmt) -> Dim {
    let of_body = |body: &[Stmt]| Dim::sum(body.iter().map(|stmt| statement(program, stmt)));
    match stmt {
        Stmt::For { axis, body, .. } => times(program, of_body(body), &axis.extent),
        Stmt::Block(code) => Dim::from(steps(code) * IN_BLOCK),
        Stmt::Strip { axis, code } => times(program, Dim::from(steps(code)), &axis.extent),
        Stmt::Contraction(contraction) => of_contraction(program, contraction),
        Stmt::If { then, otherwise, .. } => of_body(then).max(of_body(otherwise)),
        Stmt::While { body, .. } => of_body(body),
    }
}

/// The largest work of some statements, at the upper bounds of all extents. `facts` hold around the statements.
pub(crate) fn at_most(facts: &Facts, body: &[Stmt]) -> f64 {
    let most = |extent: &Dim| most_iterations(facts, extent);
    let of_code = |code: &InstSeq| steps(code) as f64;
    let of_stmt = |stmt: &Stmt| match stmt {
        Stmt::For { axis, body, .. } => {
            let mut inside = facts.clone();
            inside.declare_index(&axis.var, &axis.extent);
            most(&axis.extent) * at_most(&inside, body)
        }
        Stmt::Block(code) => of_code(code) * IN_BLOCK as f64,
        Stmt::Strip { axis, code } => most(&axis.extent) * of_code(code),
        Stmt::Contraction(contraction) => {
            let inside = contraction.facts_inside(facts);
            let count = |axes: &[Axis]| {
                axes.iter().map(|axis| most_iterations(&inside, &axis.extent)).product::<f64>()
            };
            let elems = count(&contraction.m) * most(&contraction.n.extent);
            elems * (count(&contraction.k) + of_code(&contraction.epilogue))
        }
        Stmt::If { then, otherwise, .. } => at_most(facts, then).max(at_most(facts, otherwise)),
        Stmt::While { body, .. } => at_most(facts, body),
    };
    body.iter().map(of_stmt).sum()
}

/// The largest number of iterations of a loop.
pub(crate) fn most_iterations(facts: &Facts, extent: &Dim) -> f64 {
    let bound = facts.bounds(extent).hi.and_then(|bound| bound.to_f64());
    bound.unwrap_or(UNBOUNDED_ITERATIONS).max(0.0)
}

fn of_contraction(program: &Program, contraction: &Contraction) -> Dim {
    let rows = contraction.m.iter().fold(Dim::one(), |work, axis| times(program, work, &axis.extent));
    let is_read_once = match &contraction.rhs {
        Rhs::Panels { buffer, .. } => matches!(program.buffers[*buffer].space, MemorySpace::Const(_)),
        Rhs::FewBits(_) => true,
        Rhs::Indexed(_) => false,
    };
    let multiplied_rows =
        if is_read_once { rows.clone().max(ROWS_TO_HIDE_READING.into()) } else { rows.clone() };
    let columns = [&contraction.n].into_iter().chain(&contraction.k);
    let multiplications = columns.fold(multiplied_rows, |work, axis| times(program, work, &axis.extent));
    multiplications + times(program, rows, &contraction.n.extent) * steps(&contraction.epilogue)
}

/// The cost of the instructions for one element of a vector.
pub(crate) fn steps(code: &InstSeq) -> i64 {
    code.insts.iter().map(instruction).sum()
}

fn instruction(inst: &Inst) -> i64 {
    match inst {
        Inst::Const(_) | Inst::Get(_) | Inst::Bind(..) | Inst::Sum => 0,
        Inst::Index(..) | Inst::Load(_) | Inst::Set(..) | Inst::Cast(..) | Inst::Bits(..) => 1,
        Inst::Compare(..) | Inst::Select(..) | Inst::Check(_) | Inst::Reduce(..) => 1,
        Inst::Store(..) => 2,
        Inst::Unary(op, _) => unary(*op),
        Inst::Binary(op, ..) => binary(*op),
    }
}

fn unary(op: UnaryOp) -> i64 {
    match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil => 1,
        UnaryOp::Round | UnaryOp::Trunc | UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => 1,
        UnaryOp::Recip | UnaryOp::RoundBf16 => 3,
        UnaryOp::Sqrt => 5,
        UnaryOp::Exp => 17,
        UnaryOp::Log => 26,
        UnaryOp::Tanh => 29,
        UnaryOp::Erf => 40,
        UnaryOp::Expm1 | UnaryOp::Log1p => 50,
        UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Asin | UnaryOp::Acos | UnaryOp::Atan => 26,
        // Computed in double precision.
        UnaryOp::Tan => 150,
        UnaryOp::Sinh | UnaryOp::Cosh | UnaryOp::Asinh | UnaryOp::Acosh | UnaryOp::Atanh => 250,
    }
}

fn binary(op: BinaryOp) -> i64 {
    match op {
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Min | BinaryOp::Max => 1,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => 1,
        BinaryOp::Div => 3,
        BinaryOp::Rem | BinaryOp::Mod => 100,
        BinaryOp::Atan2 => 250,
        BinaryOp::Pow => 80,
    }
}

/// `work` times `extent`. Where this depends on an outer loop, it is that of the first iteration.
pub(crate) fn times(program: &Program, work: Dim, extent: &Dim) -> Dim {
    let is_known = |symbol: &Symbol| program.symbols.contains(symbol);
    if extent.symbols().iter().all(is_known) {
        return work * extent;
    }
    let first = extent.substitute(&|symbol| (!is_known(symbol)).then(Dim::zero));
    work * first.max(1.into())
}
