//! How much work a kernel is, as a formula of the dims: to cut a network into parts of about one size, and to decide
//! which of them are worth a thread.
//!
//! The unit is one multiplication with addition of a contraction's leaf. Everything else counts by how many of these
//! fit into its time on a machine with vectors; the figures are rough, and no result depends on them.

use super::{Call, Code, Control, Inst, Kernel, Program, Stmt};
use symshape::{Dim, Symbol};

/// An instruction in a leaf: vectors as in contractions, but each element comes from memory.
const IN_STRIP: i64 = 4;

/// An instruction on single elements.
const IN_BLOCK: i64 = 16;

/// The work of a function that is called, of which nothing is known but what it is handed.
pub fn call(program: &Program, call: &Call) -> Dim {
    let arguments = call.operands.iter().chain(&call.results);
    program.facts.simplify(&(Dim::sum(arguments.map(|argument| argument.elems())) * IN_BLOCK))
}

/// The work of a kernel.
pub fn of(program: &Program, kernel: &Kernel) -> Dim {
    match &kernel.control {
        Some(Control::Call(called)) => call(program, called),
        _ => work(program, &kernel.body),
    }
}

/// The work of these statements, an expression over the model's symbols. What is not known before the call counts once:
/// the extent of a loop that depends on another one, and the rounds of a loop that ends by what it finds.
pub fn work(program: &Program, body: &[Stmt]) -> Dim {
    let total = Dim::sum(body.iter().map(|stmt| statement(program, stmt)));
    program.facts.simplify(&total)
}

fn statement(program: &Program, stmt: &Stmt) -> Dim {
    let many = |body: &[Stmt]| Dim::sum(body.iter().map(|stmt| statement(program, stmt)));
    match stmt {
        Stmt::For { axis, body, .. } => times(program, many(body), &axis.extent),
        Stmt::Block(code) => Dim::from(instructions(code) * IN_BLOCK),
        Stmt::Strip { axis, code } => times(program, Dim::from(instructions(code) * IN_STRIP), &axis.extent),
        Stmt::Contract(contract) => {
            let rows = contract.m.iter().chain([&contract.n]);
            let once = rows.fold(Dim::one(), |work, axis| times(program, work, &axis.extent));
            let sums = contract.k.iter().fold(once.clone(), |work, axis| times(program, work, &axis.extent));
            sums + once * (instructions(&contract.epilogue) * IN_STRIP)
        }
        Stmt::If { then, otherwise, .. } => many(then).max(many(otherwise)),
        Stmt::While { body, .. } => many(body),
    }
}

/// Those that do something.
fn instructions(code: &Code) -> i64 {
    let idle = |inst: &&Inst| matches!(inst, Inst::Const(_) | Inst::Get(_) | Inst::Bind(..) | Inst::Sum);
    code.insts.iter().filter(|inst| !idle(inst)).count() as i64
}

fn times(program: &Program, work: Dim, extent: &Dim) -> Dim {
    let known = |symbol: &Symbol| program.symbols.contains(symbol);
    if extent.symbols().iter().all(known) { work * extent } else { work }
}
