//! Moves values without a vector form out of strips that don't change them.
//!
//! A strip has no vector form if it compares 64-bit integers, for example. Where the compared integers are the same for
//! the whole strip, such as the mask of a row, a block before the strip computes the result, and the strip reads it
//! from scratch memory:
//!
//! ```text
//! for m { strip n { y[m, n] = select mask[m] == 0, x[m, n], 0 } }
//! ⇒  for m { s = mask[m] == 0;  strip n { y[m, n] = select s, x[m, n], 0 } }
//! ```

use super::leaves::rewrite_leaves;
use crate::{
    Result,
    kernel::{
        Access, Axis, Buffer, Inst, InstSeq, Kernel, MemorySpace, Program, Stmt, hoist,
        lanes::{has_lanes, strip_obstacle},
    },
    scalar::{Reg, Scalar, UnaryOp},
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Rewrites all strips inside loops that get a vector form by it.
pub(super) fn move_out(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }

    rewrite_leaves(program, &mut |program, kernel, place, stmt| match stmt {
        // Scratch memory belongs to one iteration of a parallel loop, so outside of all loops none exists.
        Stmt::Strip { axis, code } if !place.loops.is_empty() => {
            strip(program, kernel, &place.facts, axis, code)
        }
        other => vec![other],
    });

    Ok(())
}

/// A strip, after the block of its invariant values if it gets a vector form by it.
fn strip(program: &mut Program, kernel: &Kernel, facts: &Facts, axis: Axis, code: InstSeq) -> Vec<Stmt> {
    let passed = passed(program, kernel, &axis, &code);
    // Nothing is moved out of a strip that may have no iteration, because it must not read memory there.
    if passed.is_empty() || !facts.prove_le(&Dim::one(), &axis.extent).is_yes() {
        return vec![Stmt::Strip { axis, code }];
    }
    let mut inner = facts.clone();
    inner.declare_index(&axis.var, &axis.extent);
    if strip_obstacle(program, kernel, &inner, &axis, &code).is_none() {
        return vec![Stmt::Strip { axis, code }];
    }

    let with_constants = reading(&code, &passed, &mut |dtype| Inst::Const(Scalar::from_i64(dtype, 0)));
    if strip_obstacle(program, kernel, &inner, &axis, &with_constants).is_some() {
        return vec![Stmt::Strip { axis, code }];
    }

    let mut places = Vec::new();
    let code_after = reading(&code, &passed, &mut |dtype| {
        let name = "value of a row".to_string();
        let buffer = Buffer { name, dtype, elems: Dim::one(), space: MemorySpace::Scratch };
        let place = Access { buffer: program.buffers.push(buffer), index: Dim::zero() };
        places.push(place.clone());
        Inst::Load(place)
    });
    let before = storing(code, &passed, places);
    vec![Stmt::Block(before), Stmt::Strip { axis, code: code_after }]
}

/// An invariant value that the strip reads from memory.
struct Passed {
    reg: Reg,
    dtype: DType,
}

/// The invariant values that the rest of the code uses. Empty if one of them has no lanes.
fn passed(program: &Program, kernel: &Kernel, axis: &Axis, code: &InstSeq) -> Vec<Passed> {
    let varies = hoist::varying(code, &axis.var);
    let types = types(program, kernel, code);
    let mut passed: Vec<Passed> = Vec::new();
    for (idx, inst) in code.insts.iter().enumerate() {
        if matches!(inst, Inst::Bind(..) | Inst::Check(_)) {
            return Vec::new();
        }
        if !varies[idx] && inst.has_result() {
            continue;
        }

        for reg in inst.operands() {
            let operand = reg.0 as usize;
            let is_passed = passed.iter().any(|known| known.reg == reg);
            if varies[operand] || is_passed || matches!(code.insts[operand], Inst::Const(_)) {
                continue;
            }
            match types[operand] {
                Some(dtype) if has_lanes(dtype) => passed.push(Passed { reg, dtype }),
                _ => return Vec::new(),
            }
        }
    }

    passed
}

/// The type of the result of each instruction.
fn types(program: &Program, kernel: &Kernel, code: &InstSeq) -> Vec<Option<DType>> {
    let mut types: Vec<Option<DType>> = Vec::with_capacity(code.insts.len());
    for inst in &code.insts {
        let of = |reg: &Reg| types[reg.0 as usize];
        types.push(match inst {
            Inst::Const(value) => Some(value.dtype()),
            Inst::Index(dtype, _) | Inst::Cast(dtype, _) | Inst::Bits(dtype, _) => Some(*dtype),
            Inst::Load(access) => Some(program.buffers[access.buffer].dtype),
            Inst::Get(local) => Some(kernel.locals[*local]),
            Inst::Unary(UnaryOp::IsNan | UnaryOp::IsInf, _) | Inst::Compare(..) => Some(DType::Bool),
            Inst::Unary(_, x) | Inst::Binary(_, x, _) | Inst::Select(_, x, _) => of(x),
            Inst::Sum
            | Inst::Bind(..)
            | Inst::Set(..)
            | Inst::Store(..)
            | Inst::Reduce(..)
            | Inst::Check(_) => None,
        });
    }
    types
}

/// The code with these values replaced by the instructions that `read` returns for their types.
fn reading(code: &InstSeq, passed: &[Passed], read: &mut dyn FnMut(DType) -> Inst) -> InstSeq {
    let mut code = code.clone();
    for Passed { reg, dtype } in passed {
        code.insts[reg.0 as usize] = read(*dtype);
    }
    hoist::without_dead(&code)
}

/// The code that computes these values and stores them at `places`.
fn storing(mut code: InstSeq, passed: &[Passed], places: Vec<Access>) -> InstSeq {
    let all = code.insts.len();
    for (Passed { reg, .. }, place) in passed.iter().zip(places) {
        code.push(Inst::Store(place, *reg));
    }
    let code = hoist::keep(&code, &|idx| idx >= all || code.insts[idx].has_result());
    hoist::without_dead(&code)
}
