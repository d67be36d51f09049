//! Moves checks and bindings of loaded addresses out of loops that they don't depend on.

use super::{Inst, InstSeq};
use crate::scalar::Reg;
use symshape::{Dim, Symbol};

/// The invariant part of `code` before a loop over `var`, if there is one, and the rest.
pub(crate) fn hoist(code: InstSeq, var: &Symbol) -> (Option<InstSeq>, InstSeq) {
    let varies = varying(&code, var);
    let mut wanted = vec![false; code.insts.len()];
    for (idx, inst) in code.insts.iter().enumerate() {
        if matches!(inst, Inst::Bind(..) | Inst::Check(_)) && !varies[idx] {
            want(&code, idx, &mut wanted);
        }
    }

    if !wanted.contains(&true) {
        return (None, code);
    }

    let before = keep(&code, &|idx| wanted[idx]);
    let is_bound = |idx: usize| wanted[idx] && matches!(code.insts[idx], Inst::Bind(..) | Inst::Check(_));
    let rest = keep(&code, &|idx| !is_bound(idx));
    (Some(before), without_dead(&rest))
}

/// The checks of `code` and all that they need, if it has any.
pub(crate) fn checks(code: &InstSeq) -> Option<InstSeq> {
    let mut wanted = vec![false; code.insts.len()];
    for (idx, inst) in code.insts.iter().enumerate() {
        if matches!(inst, Inst::Check(_)) {
            want(code, idx, &mut wanted);
        }
    }
    wanted.contains(&true).then(|| keep(code, &|idx| wanted[idx]))
}

/// The code without instructions whose results nothing uses.
pub(crate) fn without_dead(code: &InstSeq) -> InstSeq {
    let mut wanted = vec![false; code.insts.len()];
    for (idx, inst) in code.insts.iter().enumerate() {
        let acts = matches!(
            inst,
            Inst::Store(..) | Inst::Set(..) | Inst::Reduce(..) | Inst::Check(_) | Inst::Bind(..)
        );
        if acts {
            want(code, idx, &mut wanted);
        }
    }
    keep(code, &|idx| wanted[idx])
}

/// The instructions that depend on `var`, directly or through bound symbols.
pub(crate) fn varying(code: &InstSeq, var: &Symbol) -> Vec<bool> {
    let mut symbols = vec![var.clone()];
    let mut varies = Vec::with_capacity(code.insts.len());
    for inst in &code.insts {
        let depends = inst.operands().iter().any(|reg| varies[reg.0 as usize])
            || dims(inst).iter().any(|dim| symbols.iter().any(|symbol| dim.contains(symbol)));
        if let (true, Inst::Bind(symbol, _)) = (depends, inst) {
            symbols.push(symbol.clone());
        }
        varies.push(depends);
    }
    varies
}

/// Marks an instruction and all that it needs.
fn want(code: &InstSeq, idx: usize, wanted: &mut [bool]) {
    if std::mem::replace(&mut wanted[idx], true) {
        return;
    }

    for reg in code.insts[idx].operands() {
        want(code, reg.0 as usize, wanted);
    }

    // The instruction that binds a symbol of such an address is needed too.
    for (other, inst) in code.insts[..idx].iter().enumerate() {
        if let Inst::Bind(symbol, _) = inst
            && dims(&code.insts[idx]).iter().any(|dim| dim.contains(symbol))
        {
            want(code, other, wanted);
        }
    }
}

/// The instructions that `keep` selects by position.
pub(crate) fn keep(code: &InstSeq, keep: &dyn Fn(usize) -> bool) -> InstSeq {
    let mut moved = vec![Reg(0); code.insts.len()];
    let mut kept = InstSeq::default();
    for (idx, inst) in code.insts.iter().enumerate() {
        if keep(idx) {
            moved[idx] = kept.push(inst.with_operands(&|reg| moved[reg.0 as usize]));
        }
    }
    kept
}

/// The index expressions of an instruction.
pub(crate) fn dims(inst: &Inst) -> Vec<&Dim> {
    match inst {
        Inst::Index(_, dim) => vec![dim],
        Inst::Load(access) | Inst::Store(access, _) => vec![&access.index],
        Inst::Check(check) => vec![&check.lo, &check.end],
        _ => vec![],
    }
}
