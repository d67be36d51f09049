//! Finds the copies of a program: stores of elements that were loaded and not changed.

use super::{Access, Axis, BufferId, Inst, InstSeq, MemorySpace, Program, Stmt, data_dependent};
use num_traits::ToPrimitive;
use std::collections::BTreeSet;
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

/// The copies of a program, in the order of its kernels. Packing into scratch memory is a part of its kernel, so is
/// reading the result of a contraction from there, and loads whose address is itself loaded are computations; none of
/// them counts.
pub fn copies(program: &Program) -> Vec<Copy> {
    let mut copies = Vec::new();
    for (kernel, step) in program.kernels.iter().enumerate() {
        let mut search = Search { program, kernel, axes: Vec::new(), results: BTreeSet::new(), copies };
        search.body(&step.body);
        copies = search.copies;
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

/// The search in one kernel.
struct Search<'a> {
    program: &'a Program,
    kernel: usize,
    /// The loops around the statement.
    axes: Vec<Axis>,
    /// Scratch memory with results of contractions.
    results: BTreeSet<BufferId>,
    copies: Vec<Copy>,
}

impl Search<'_> {
    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            let depth = self.axes.len();
            match stmt {
                Stmt::For { axis, body, .. } => {
                    self.axes.push(axis.clone());
                    self.body(body);
                }
                Stmt::Block(code) => self.code(code),
                Stmt::Strip { axis, code } => {
                    self.axes.push(axis.clone());
                    self.code(code);
                }
                Stmt::If { then, otherwise, .. } => {
                    self.body(then);
                    self.body(otherwise);
                }
                Stmt::While { body, .. } => self.body(body),
                // The stores of an epilogue are computed.
                Stmt::Contraction(contraction) => {
                    let stored = contraction.epilogue.insts.iter().filter_map(|inst| match inst {
                        Inst::Store(to, _) => Some(to.buffer),
                        _ => None,
                    });
                    self.results.extend(stored.filter(|buffer| is_scratch(self.program, *buffer)));
                }
            }
            self.axes.truncate(depth);
        }
    }

    fn code(&mut self, code: &InstSeq) {
        if code.insts.iter().any(|inst| matches!(inst, Inst::Bind(..))) {
            return;
        }

        for inst in &code.insts {
            let Inst::Store(to, reg) = inst else { continue };
            let Inst::Load(from) = &code.insts[reg.0 as usize] else { continue };
            if !is_scratch(self.program, to.buffer) && !self.results.contains(&from.buffer) {
                let bytes = bytes(self.program, to, &self.axes);
                self.copies.push(Copy { kernel: self.kernel, from: from.buffer, to: to.buffer, bytes });
            }
        }
    }
}

fn is_scratch(program: &Program, buffer: BufferId) -> bool {
    matches!(program.buffers[buffer].space, MemorySpace::Scratch)
}

/// The bytes that all iterations of these loops store.
fn bytes(program: &Program, to: &Access, axes: &[Axis]) -> Dim {
    let size = program.buffers[to.buffer].dtype.size_bytes() as i64;
    let elems = axes.iter().fold(Dim::one(), |elems, axis| elems * &axis.extent);
    let bytes = program.facts.simplify(&(elems * size));
    let bound = data_dependent::upper_bound(&program.facts, &program.data_dependent, &bytes);
    bound.unwrap_or(bytes)
}
