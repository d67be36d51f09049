//! Fuses reductions of the same elements: the smallest and the largest element of a tensor take one pass.
//!
//! ```text
//! strip i { reduce min x[i] -> a }  block { .. a .. }     strip j { reduce max x[j] -> b }  block { .. b .. }
//! ⇒  strip i { reduce min x[i] -> a  reduce max x[i] -> b }  block { .. a .. }  block { .. b .. }
//! ```
//!
//! Both strips only load and reduce, over the same range. The first block writes nothing that the second strip reads.

use super::{
    neighbours::{self, BufferUse},
    strips::joined,
};
use crate::{
    Result,
    kernel::{
        Axis, Inst, InstSeq, Kernel, Program, Stmt,
        lanes::strip_obstacle,
        walk::{self, Rewrite},
    },
};
use symshape::Dim;

/// Largest number of instructions of a fused strip: its registers hold the elements and all partial results.
const MAX_INSTS: usize = 12;

/// Fuses all such kernels.
pub(super) fn fuse(program: &mut Program) -> Result<()> {
    let kernels = std::mem::take(&mut program.kernels);
    program.kernels = neighbours::fuse(kernels, &|before, after| joined_kernels(program, before, after));
    Ok(())
}

/// The strip of a kernel that reduces elements and then runs scalar code, with that code.
fn reduction(kernel: &Kernel) -> Option<(&Axis, &InstSeq, &[Stmt])> {
    let (Stmt::Strip { axis, code }, rest) = kernel.body.split_first()? else { return None };
    let is_pure = |inst: &Inst| {
        use Inst::{Binary, Bits, Cast, Compare, Const, Load, Reduce, Select, Unary};
        matches!(
            inst,
            Load(_)
                | Const(_)
                | Unary(..)
                | Binary(..)
                | Compare(..)
                | Select(..)
                | Cast(..)
                | Bits(..)
                | Reduce(..)
        )
    };
    let reduces = code.insts.iter().any(|inst| matches!(inst, Inst::Reduce(..)));
    let is_scalar = |stmt: &Stmt| matches!(stmt, Stmt::Block(_));
    (reduces && code.insts.iter().all(is_pure) && rest.iter().all(is_scalar)).then_some((axis, code, rest))
}

/// The fusion of two reductions of common elements.
fn joined_kernels(program: &Program, before: &Kernel, after: &Kernel) -> Option<Kernel> {
    let (axis, code, rest) = reduction(before)?;
    let (next_axis, ..) = reduction(after)?;
    let next_body = walk::rewrite(
        &after.body,
        &Rewrite {
            dim: &|dim| dim.substitute(&|symbol| (*symbol == next_axis.var).then(|| Dim::from(&axis.var))),
            access: &|access| access,
            symbol: &|symbol| if *symbol == next_axis.var { axis.var.clone() } else { symbol.clone() },
            local: &|local| local.after(before.locals.len()),
        },
    );
    let [Stmt::Strip { code: next, .. }, next_rest @ ..] = &next_body[..] else { return None };

    let is_common = |inst: &Inst| matches!(inst, Inst::Load(_)) && next.insts.contains(inst);
    let written = BufferUse::by(before).written;
    let is_new = next.accesses().all(|(access, _)| !written.contains(&access.buffer));
    if axis.extent != next_axis.extent || !code.insts.iter().any(is_common) || !is_new {
        return None;
    }

    let mut whole = before.clone();
    whole.locals.extend(after.locals.values().copied());
    let code = joined(code, next);
    let mut facts = program.facts.clone();
    facts.declare_index(&axis.var, &axis.extent);
    if code.insts.len() > MAX_INSTS || strip_obstacle(program, &whole, &facts, axis, &code).is_some() {
        return None;
    }
    let strip = Stmt::Strip { axis: axis.clone(), code };
    whole.body = [strip].into_iter().chain(rest.iter().cloned()).chain(next_rest.iter().cloned()).collect();
    if !whole.name.ends_with(&after.name) {
        whole.name = format!("{}, {}", before.name, after.name);
    }
    Some(whole)
}
