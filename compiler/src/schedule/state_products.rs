//! Moves the use of the state out of products with weights.
//!
//! A call with several states runs a kernel that uses a state once for each of them. A product that stores new rows in
//! the state, or whose epilogue depends on the length, would then read its weights once for each. Instead it stores its
//! sums, and a kernel of its own runs the epilogue:
//!
//! ```text
//! for m, n { sum = Σ; state[P + m, n] = sum }
//! ⇒  for m, n { sum = Σ; t[m, n] = sum }   for m, n { state[P + m, n] = t[m, n] }
//! ```
//!
//! It costs a copy of the new rows, and does nothing if a call takes one sequence only.

use super::epilogues::{Split, loading, loops, storing};
use crate::{
    Result,
    kernel::{
        Access, Axis, Buffer, Contraction, Inst, Kernel, MemorySpace, Program, Rhs, Stmt,
        sequences::{self, is_of_sequence},
        upper_bound,
    },
};
use symshape::{Dim, Symbol};

/// Makes kernels of the epilogues that use the state.
pub(super) fn separate(program: &mut Program) -> Result<()> {
    if program.state.is_none() || !program.microkernels.is_native() {
        return Ok(());
    }
    let Ok(count) = sequences::count(program) else { return Ok(()) };

    for kernel in std::mem::take(&mut program.kernels) {
        let second = separated(program, &count, &kernel);
        match second {
            Some([product, epilogue]) => program.kernels.extend([product, epilogue]),
            None => program.kernels.push(kernel),
        }
    }
    Ok(())
}

/// The product and the epilogue of a kernel that multiplies with weights and uses the state.
fn separated(program: &mut Program, count: &Symbol, kernel: &Kernel) -> Option<[Kernel; 2]> {
    let mut axes = Vec::new();
    let mut body = &kernel.body[..];
    while let [Stmt::For { axis, parallel: true, body: inner }] = body {
        axes.push(axis.clone());
        body = inner;
    }
    let [Stmt::Contraction(contraction)] = body else { return None };
    let weights = match &contraction.rhs {
        Rhs::Panels { buffer, .. } => *buffer,
        Rhs::FewBits(panels) => panels.buffer,
        Rhs::Indexed(access) => access.buffer,
    };
    if !program.is_const(weights) || !is_of_sequence(program, kernel) {
        return None;
    }

    let sums = sums(program, count, &axes, contraction)?;
    let split =
        Split { contraction: storing(contraction, &sums), code: loading(&contraction.epilogue, &sums) };
    let epilogue = Kernel {
        name: kernel.name.replacen("contraction", "epilogue", 1),
        control: None,
        locals: kernel.locals.clone(),
        body: loops(&axes, true, split.epilogue(program, true)),
    };
    let body = loops(&axes, true, vec![Stmt::Contraction(Box::new(split.contraction))]);
    Some([Kernel { body, ..kernel.clone() }, epilogue])
}

/// An element of a new buffer for the sums. The axes over the batch come first, so that the rows of each sequence are
/// adjacent. `None` if the size has no upper bound in the model's symbols.
fn sums(program: &mut Program, count: &Symbol, outer: &[Axis], contraction: &Contraction) -> Option<Access> {
    let mut axes: Vec<&Axis> = contraction.m.iter().chain(outer).chain([&contraction.n]).collect();
    axes.sort_by_key(|axis| !axis.extent.contains(count));
    let mut index = Dim::zero();
    let mut elems = Dim::one();
    for axis in axes {
        let is_of_model = |symbol: &Symbol| program.symbols.contains(symbol);
        if !axis.extent.symbols().iter().all(is_of_model) {
            return None;
        }
        index = index * &axis.extent + Dim::from(&axis.var);
        elems = elems * upper_bound(&program.facts, &program.data_dependent, &axis.extent)?;
    }
    let name = format!("sums of {}", result_name(program, contraction));
    let elems = program.facts.simplify(&elems);
    let buffer = Buffer { name, dtype: contraction.dtype, elems, space: MemorySpace::Arena };
    let buffer = program.buffers.push(buffer);
    Some(Access { buffer, index: program.facts.simplify(&index) })
}

/// The name of the buffer that the epilogue stores to.
fn result_name<'p>(program: &'p Program, contraction: &Contraction) -> &'p str {
    let stored = contraction.epilogue.insts.iter().rev().find_map(|inst| match inst {
        Inst::Store(access, _) => Some(access.buffer),
        _ => None,
    });
    stored.map_or("", |buffer| &program.buffers[buffer].name)
}
