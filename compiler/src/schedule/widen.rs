//! Converts bf16 operands that no microkernel reads directly to `f32`, before a contraction of `f32`.
//!
//! Tile registers read left operands of bf16. Machines without tile registers convert rows of them to `f32`. Both
//! require a constant on the right. For any other contraction, a separate kernel copies the whole bf16 operand.

use super::fresh_symbols::FreshSymbols;
use crate::{
    Result,
    kernel::{
        Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt,
    },
};
use symshape::Dim;
use symshape_runtime::DType;

/// Runs the pass.
pub(super) fn widen(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }

    let mut symbols = FreshSymbols::new(program);
    for mut kernel in std::mem::take(&mut program.kernels) {
        let mut copies = Vec::new();
        stmts(program, &mut kernel.body, &mut copies);
        for (from, to) in copies {
            let axis = Axis { var: symbols.fresh(), extent: program.buffers[from].elems.clone() };
            let copy = copy(program, axis, from, to);
            program.kernels.push(copy);
        }
        program.kernels.push(kernel);
    }

    Ok(())
}

fn stmts(program: &mut Program, body: &mut [Stmt], copies: &mut Vec<(BufferId, BufferId)>) {
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => stmts(program, body, copies),
            Stmt::If { then, otherwise, .. } => {
                stmts(program, then, copies);
                stmts(program, otherwise, copies);
            }
            Stmt::Contraction(contraction) => widen_operands(program, contraction, copies),
            Stmt::Block(_) | Stmt::Strip { .. } => {}
        }
    }
}

/// Lets a contraction read copies of the operands that its microkernels cannot read.
fn widen_operands(
    program: &mut Program,
    contraction: &mut Contraction,
    copies: &mut Vec<(BufferId, BufferId)>,
) {
    if contraction.dtype != DType::F32 {
        return;
    }

    let is_half = |program: &Program, buffer: BufferId| {
        let buffer = &program.buffers[buffer];
        buffer.dtype == DType::BF16 && matches!(buffer.space, MemorySpace::Arena | MemorySpace::Input(_))
    };

    if !program.accepts_bf16_lhs(contraction) && is_half(program, contraction.lhs.buffer) {
        contraction.lhs.buffer = copied(program, contraction.lhs.buffer, copies);
    }

    if let Rhs::Indexed(access) = &mut contraction.rhs
        && is_half(program, access.buffer)
    {
        access.buffer = copied(program, access.buffer, copies);
    }
}

/// The `f32` copy of a buffer.
fn copied(program: &mut Program, from: BufferId, copies: &mut Vec<(BufferId, BufferId)>) -> BufferId {
    if let Some((_, to)) = copies.iter().find(|(known, _)| *known == from) {
        return *to;
    }
    let Buffer { name, elems, .. } = &program.buffers[from];
    let name = format!("{name} as f32");
    let elems = elems.clone();
    let to = program.buffers.push(Buffer { name, dtype: DType::F32, elems, space: MemorySpace::Arena });
    copies.push((from, to));
    to
}

/// The kernel that copies a buffer.
fn copy(program: &Program, axis: Axis, from: BufferId, to: BufferId) -> Kernel {
    let at = Dim::from(&axis.var);
    let mut code = InstSeq::default();
    let half = code.push(Inst::Load(Access { buffer: from, index: at.clone() }));
    let wide = code.push(Inst::Cast(DType::F32, half));
    code.push(Inst::Store(Access { buffer: to, index: at }, wide));
    let name = format!("copy {}", program.buffers[to].name);
    Kernel { name, body: vec![Stmt::Strip { axis, code }], ..Kernel::default() }
}
