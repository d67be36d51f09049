//! Finds the copies of a program: stores of elements that were loaded and not changed.

use super::{Access, Axis, BufferId, Inst, InstSeq, MemorySpace, Program, Stmt, data_dependent};
use num_traits::ToPrimitive;
use symshape::Dim;

/// Elements that a kernel moves from one buffer to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Position of the kernel in the program.
    pub kernel: usize,
    /// The buffer that is read.
    pub from: BufferId,
    /// The buffer that is written.
    pub to: BufferId,
    /// Number of bytes that are written, over the model's symbols.
    pub bytes: Dim,
}

/// The copies of a program, in the order of its kernels. Packing into scratch memory is a part of its kernel, and
/// loads whose address is itself loaded are computations; neither counts.
pub fn copies(program: &Program) -> Vec<Copy> {
    let mut copies = Vec::new();
    for (kernel, step) in program.kernels.iter().enumerate() {
        in_body(program, kernel, &step.body, &mut Vec::new(), &mut copies);
    }
    if let Some(blocks) = &program.batch_blocks {
        copies.iter_mut().for_each(|copy| copy.bytes = copy.bytes.clone() * blocks.count());
    }
    copies
}

/// The joint size of `copies`, over the model's symbols.
pub fn copied_bytes(program: &Program, copies: &[Copy]) -> Dim {
    program.facts.simplify(&Dim::sum(copies.iter().map(|copy| copy.bytes.clone())))
}

/// The largest value of `bytes` within the ranges of the symbols, if it has one.
pub(crate) fn max_bytes(program: &Program, bytes: &Dim) -> Option<u64> {
    program.facts.bounds(bytes).hi?.to_u64()
}

fn in_body(program: &Program, kernel: usize, body: &[Stmt], axes: &mut Vec<Axis>, copies: &mut Vec<Copy>) {
    for stmt in body {
        let depth = axes.len();
        match stmt {
            Stmt::For { axis, body, .. } => {
                axes.push(axis.clone());
                in_body(program, kernel, body, axes, copies);
            }
            Stmt::Block(code) => in_code(program, kernel, code, axes, copies),
            Stmt::Strip { axis, code } => {
                axes.push(axis.clone());
                in_code(program, kernel, code, axes, copies);
            }
            Stmt::If { then, otherwise, .. } => {
                in_body(program, kernel, then, axes, copies);
                in_body(program, kernel, otherwise, axes, copies);
            }
            Stmt::While { body, .. } => in_body(program, kernel, body, axes, copies),
            // The stores of an epilogue are computed.
            Stmt::Contraction(_) => {}
        }
        axes.truncate(depth);
    }
}

fn in_code(program: &Program, kernel: usize, code: &InstSeq, axes: &[Axis], copies: &mut Vec<Copy>) {
    if code.insts.iter().any(|inst| matches!(inst, Inst::Bind(..))) {
        return;
    }

    for inst in &code.insts {
        let Inst::Store(to, reg) = inst else { continue };
        let Inst::Load(from) = &code.insts[reg.0 as usize] else { continue };
        if !matches!(program.buffers[to.buffer].space, MemorySpace::Scratch) {
            let bytes = bytes(program, to, axes);
            copies.push(Copy { kernel, from: from.buffer, to: to.buffer, bytes });
        }
    }
}

/// The bytes that all iterations of these loops store.
fn bytes(program: &Program, to: &Access, axes: &[Axis]) -> Dim {
    let size = program.buffers[to.buffer].dtype.size_bytes() as i64;
    let elems = axes.iter().fold(Dim::one(), |elems, axis| elems * &axis.extent);
    let bytes = program.facts.simplify(&(elems * size));
    let bound = data_dependent::upper_bound(&program.facts, &program.data_dependent, &bytes);
    bound.unwrap_or(bytes)
}
