//! Loop nests: splits, orders and merges axes until every address is linear in the innermost loop.
//!
//! A nest is code over a set of axes, with one iteration for each point. It is built in three steps, each exact:
//!
//! 1. *split*: an axis `v` that occurs as `v // m` or `v % m`, where `m` divides its extent, becomes `vo * m + vi`,
//!    and simplification removes the division;
//! 2. *order*: axes along which the stored tensor moves furthest go outside;
//! 3. *merge*: neighbours `(o, i)` whose addresses all move along `o` by `extent(i)` times the step along `i` become
//!    one axis; divisions that are left take forms that share work between addresses and leave the inner loops.

use super::{
    index::{estimate, is_long},
    lowering::KernelScope,
};
use crate::{
    kernel::{Access, Axis, Check, Inst, InstSeq, Stmt, at_distance::AtDistance, hoist, walk},
    scalar::Reg,
};
use symshape::{Dim, Facts, Node, Symbol};

/// The largest number of splitting passes, more than any composition of reshapes needs.
const MAX_SPLITS: usize = 16;

/// An axis with fewer elements does not become a strip if there is another axis.
pub(super) const MIN_STRIP_ELEMS: i64 = 8;

/// Vectors read elements that are at most this far apart with little loss.
const MAX_ADJACENT_STEP: i64 = 2;

/// The role of an axis. Axes are ordered and merged only within their role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum AxisRole {
    /// An axis of the result.
    Kept,
    /// A reduced axis.
    Reduced,
}

/// The loop axes of some code, and the index expressions in it.
#[derive(Clone)]
pub(super) struct Nest {
    axes: Vec<(AxisRole, Axis)>,
    pub(super) exprs: Vec<Dim>,
}

/// Fresh axes for a shape, and the index over them. Axes of extent 1 need no loop.
pub(super) fn axes_of(scope: &mut KernelScope, shape: &[Dim]) -> (Vec<Axis>, Vec<Dim>) {
    let mut axes = Vec::new();
    let mut index = Vec::new();
    for extent in shape {
        if extent.as_i64() == Some(1) {
            index.push(Dim::zero());
            continue;
        }
        let var = scope.fresh("i");
        scope.facts.declare_index(&var, extent);
        index.push(Dim::from(&var));
        axes.push(Axis { var, extent: extent.clone() });
    }

    (axes, index)
}

impl Nest {
    /// A nest over axes of the result.
    pub(super) fn new(kept: Vec<Axis>, reduced: Vec<Axis>, exprs: Vec<Dim>) -> Nest {
        let kept = kept.into_iter().map(|axis| (AxisRole::Kept, axis));
        Nest { axes: kept.chain(reduced.into_iter().map(|axis| (AxisRole::Reduced, axis))).collect(), exprs }
    }

    /// The axes in this role, outermost first.
    pub(super) fn axes(&self, role: AxisRole) -> Vec<Axis> {
        self.axes.iter().filter(|(of, _)| *of == role).map(|(_, axis)| axis.clone()).collect()
    }

    /// The number of axes.
    pub(super) fn len(&self) -> usize {
        self.axes.len()
    }

    /// Splits axes, except the one of the variable `whole`, as long as a split removes a division or remainder.
    pub(super) fn split(&mut self, scope: &mut KernelScope, whole: Option<&Symbol>) {
        for _ in 0..MAX_SPLITS {
            let Some((position, factor)) = self.find_split(&scope.facts, whole) else { return };
            let (role, axis) = self.axes[position].clone();

            let outer = scope.fresh("i");
            let inner = scope.fresh("i");
            let outer_extent = scope.facts.simplify(&axis.extent.floor_div(&factor));
            scope.facts.declare_index(&outer, &outer_extent);
            scope.facts.declare_index(&inner, &factor);

            let joined = Dim::from(&outer) * &factor + Dim::from(&inner);
            self.substitute(&scope.facts, &axis.var, &joined);
            let outer = Axis { var: outer, extent: outer_extent };
            let inner = Axis { var: inner, extent: factor };
            self.axes.splice(position..=position, [(role, outer), (role, inner)]);
        }
    }

    fn find_split(&self, facts: &Facts, whole: Option<&Symbol>) -> Option<(usize, Dim)> {
        let mut found = None;
        for expr in &self.exprs {
            visit(expr, &mut |dim| {
                if found.is_none()
                    && let Node::FloorDiv(numerator, factor) | Node::Mod(numerator, factor) = dim.node()
                {
                    let axis = self.splittable(facts, numerator, factor);
                    found = axis.filter(|(position, _)| Some(&self.axes[*position].1.var) != whole);
                }
            });
        }
        found
    }

    /// The axis that must be split by `factor` so that `numerator` loses its division.
    fn splittable(&self, facts: &Facts, numerator: &Dim, factor: &Dim) -> Option<(usize, Dim)> {
        if self.axes.iter().any(|(_, axis)| factor.contains(&axis.var)) || factor.as_i64() == Some(1) {
            return None;
        }
        self.axes.iter().enumerate().find_map(|(position, (_, axis))| {
            if !numerator.contains(&axis.var) {
                return None;
            }
            let (coef, _) = facts.linear_in(numerator, &axis.var)?;
            let same = facts.prove_eq(&axis.extent, factor).is_yes();
            let fits = coef.as_i64() == Some(1) && !same && facts.divides(factor, &axis.extent).is_yes();
            fits.then(|| (position, factor.clone()))
        })
    }

    fn substitute(&mut self, facts: &Facts, var: &Symbol, by: &Dim) {
        for expr in &mut self.exprs {
            if expr.contains(var) {
                *expr = facts.simplify(&expr.substitute(&|symbol| (symbol == var).then(|| by.clone())));
            }
        }
    }

    /// Orders the axes in this role by the step of `address` along each, the largest first. Axes of other roles keep
    /// their positions.
    pub(super) fn order_by(&mut self, facts: &Facts, role: AxisRole, address: &Dim) {
        let step = |(of, axis): &(AxisRole, Axis)| {
            if *of != role {
                return (*of, std::cmp::Reverse(0));
            }
            (role, std::cmp::Reverse(step(facts, address, axis)))
        };
        self.axes.sort_by_key(step);
    }

    /// Moves the axis of this variable to the first position of its role.
    pub(super) fn move_outside(&mut self, var: &Symbol) {
        self.axes.sort_by_key(|(role, axis)| (*role, axis.var != *var));
    }

    /// Orders the axes of the result by a class, and keeps the order within each class.
    pub(super) fn sort_kept_by(&mut self, class: impl Fn(&Axis) -> i32) {
        self.axes.sort_by_key(|(role, axis)| (*role, if *role == AxisRole::Kept { class(axis) } else { 0 }));
    }

    /// Merges neighbouring axes wherever all expressions allow it. The axes are final afterwards, so expressions that
    /// still divide get the forms that are cheapest together in these loops.
    pub(super) fn merge(&mut self, scope: &mut KernelScope) {
        // Innermost first: a merged axis is tried with its next neighbour outside.
        for position in (1..self.axes.len()).rev() {
            self.try_merge(scope, position - 1);
        }
        if self.exprs.iter().any(divides) {
            let loops: Vec<Symbol> = self.axes.iter().map(|(_, axis)| axis.var.clone()).collect();
            self.exprs = scope.facts.simplify_in_loops(&self.exprs, &loops);
        }
    }

    /// Swaps the two innermost axes of the result if the innermost has few elements and a tensor is contiguous along
    /// the other, such as the pixels of an image with three channels.
    pub(super) fn lengthen(&mut self, facts: &Facts) {
        let Some(last) = self.axes.iter().rposition(|(role, _)| *role == AxisRole::Kept) else { return };
        let [.., (role, outer), (_, inner)] = &self.axes[..=last] else { return };
        let is_short = |axis: &Axis| axis.extent.as_i64().is_some_and(|extent| extent < MIN_STRIP_ELEMS);
        let along = |expr: &Dim| expr.contains(&outer.var) && step(facts, expr, outer) == 1;
        if *role == AxisRole::Kept && is_short(inner) && !is_short(outer) && self.exprs.iter().any(along) {
            self.axes.swap(last - 1, last);
        }
    }

    /// Moves the axis along which a read is contiguous next to the innermost axis, if that axis crosses the read's
    /// memory and runs along `address`. Squares of both axes can then be transposed in registers. Both must be long.
    pub(super) fn pair_for_squares(&mut self, facts: &Facts, address: &Dim) {
        let Some(last) = self.axes.iter().rposition(|(role, _)| *role == AxisRole::Kept) else { return };
        let is_long = |axis: &Axis| is_long(facts, &axis.extent, MIN_STRIP_ELEMS);
        let inner = &self.axes[last].1;
        if !is_long(inner) || step(facts, address, inner) != 1 {
            return;
        }
        let is_across = |expr: &&Dim| {
            expr.contains(&inner.var) && (MAX_ADJACENT_STEP + 1..i64::MAX).contains(&step(facts, expr, inner))
        };
        let across = self.exprs.iter().filter(is_across);
        let along = |expr: &Dim| {
            let is_row = |(role, axis): &(AxisRole, Axis)| {
                *role == AxisRole::Kept
                    && is_long(axis)
                    && expr.contains(&axis.var)
                    && step(facts, expr, axis) == 1
            };
            self.axes[..last].iter().rposition(is_row)
        };
        if let Some(row) = across.filter_map(along).next() {
            self.axes[row..last].rotate_left(1);
        }
    }

    /// Merges the axes at `position` and after it, if possible. Returns whether it did.
    fn try_merge(&mut self, scope: &mut KernelScope, position: usize) -> bool {
        let ((role, outer), (other, inner)) = (self.axes[position].clone(), self.axes[position + 1].clone());
        if role != other {
            return false;
        }

        let extent = scope.facts.simplify(&(&outer.extent * &inner.extent));
        let var = scope.fresh("i");
        scope.facts.declare_index(&var, &extent);

        let mut known = AtDistance::new(&scope.facts);
        let mut merge = |expr: &Dim| {
            if !expr.contains(&outer.var) && !expr.contains(&inner.var) {
                return Some(expr.clone());
            }
            let merged = || inner.merged_address(&scope.facts, expr, &outer, &var).ok_or(());
            let (merged, distance) = known.get((), expr, merged).ok()?;
            Some(merged + distance)
        };
        let Some(exprs) = self.exprs.iter().map(&mut merge).collect() else { return false };
        self.exprs = exprs;
        self.axes.splice(position..=position + 1, [(role, Axis { var, extent })]);

        true
    }
}

/// The step of `address` for one iteration along `axis`, at a typical binding.
pub(super) fn step(facts: &Facts, address: &Dim, axis: &Axis) -> i64 {
    let coef = facts.linear_in(address, &axis.var).map(|(coef, _)| coef);
    coef.map_or(i64::MAX, |coef| estimate(facts, &coef).abs())
}

fn divides(dim: &Dim) -> bool {
    let mut contains = false;
    visit(dim, &mut |part| contains |= matches!(part.node(), Node::FloorDiv(..) | Node::Mod(..)));
    contains
}

/// Calls `see` for `dim` and every expression within it.
pub(super) fn visit(dim: &Dim, see: &mut dyn FnMut(&Dim)) {
    see(dim);
    for operand in dim.node().operands() {
        visit(operand, see);
    }
}

/// The index expressions of `code`, in order.
pub(super) fn exprs_of(code: &InstSeq) -> Vec<Dim> {
    let mut exprs = Vec::new();
    for inst in &code.insts {
        match inst {
            Inst::Index(_, dim) => exprs.push(dim.clone()),
            Inst::Load(access) | Inst::Store(access, _) => exprs.push(access.index.clone()),
            Inst::Check(check) => exprs.extend([check.lo.clone(), check.end.clone()]),
            _ => {}
        }
    }
    exprs
}

/// The addresses of all loads, for choices that need no proof. A loaded address is replaced by the sum of the axes that
/// it depends on, as if each step along one of them were a step of the address.
pub(super) fn load_addresses(code: &InstSeq, axes: &[Axis]) -> Vec<Dim> {
    let mut bound: Vec<(&Symbol, Dim)> = Vec::new();
    let mut depends: Vec<Vec<bool>> = Vec::with_capacity(code.insts.len());
    let mut addresses = Vec::new();
    for inst in &code.insts {
        let mut on = vec![false; axes.len()];
        for reg in inst.operands() {
            on.iter_mut().zip(&depends[reg.0 as usize]).for_each(|(on, operand)| *on |= operand);
        }
        if let Inst::Load(Access { index, .. }) | Inst::Index(_, index) = inst {
            let by =
                |symbol: &Symbol| bound.iter().find(|(other, _)| *other == symbol).map(|(_, by)| by.clone());
            let address = index.substitute(&by);
            on.iter_mut().zip(axes).for_each(|(on, axis)| *on |= address.contains(&axis.var));
            if matches!(inst, Inst::Load(_)) {
                addresses.push(address);
            }
        }
        if let Inst::Bind(symbol, _) = inst {
            let moved = axes.iter().zip(&on).filter(|(_, on)| **on);
            bound.push((symbol, moved.fold(Dim::zero(), |sum, (axis, _)| sum + Dim::from(&axis.var))));
        }
        depends.push(on);
    }
    addresses
}

/// Returns `code` with its index expressions replaced by these, see [`exprs_of`].
pub(super) fn with_exprs(code: &InstSeq, exprs: &[Dim]) -> InstSeq {
    let mut next = exprs.iter().cloned();
    let mut take = || next.next().expect("as many expressions as were taken out");
    let insts = code.insts.iter().map(|inst| match inst {
        Inst::Index(dtype, _) => Inst::Index(*dtype, take()),
        Inst::Load(access) => Inst::Load(Access { buffer: access.buffer, index: take() }),
        Inst::Store(access, reg) => Inst::Store(Access { buffer: access.buffer, index: take() }, *reg),
        Inst::Check(check) => Inst::Check(Check { lo: take(), end: take(), ..check.clone() }),
        other => other.clone(),
    });
    InstSeq { insts: insts.collect() }
}

/// Appends `more` to `code`, with `sum` in place of its sum.
pub(super) fn append(code: &mut InstSeq, more: &InstSeq, sum: Reg) {
    let mut moved = Vec::with_capacity(more.insts.len());
    for inst in &more.insts {
        let reg = match inst {
            Inst::Sum => sum,
            other => code.push(other.with_operands(&|reg| moved[reg.0 as usize])),
        };
        moved.push(reg);
    }
}

/// A strip of `code` along `axis`, with its invariant part hoisted: addresses that don't change along the axis are
/// loaded, checked and bound before the strip. Nothing is hoisted from a strip that may have no iteration, because it
/// must neither read memory nor fail on a value there.
pub(super) fn strip(scope: &KernelScope, axis: Axis, code: InstSeq) -> Vec<Stmt> {
    let runs = scope.around.prove_le(&Dim::one(), &axis.extent).is_yes();
    let (before, code) = if runs { hoist::hoist(code, &axis.var) } else { (None, code) };
    before.map(Stmt::Block).into_iter().chain([Stmt::Strip { axis, code }]).collect()
}

/// `stmt` with fresh names for all symbols that it introduces, for a loop that occurs twice in one kernel.
pub(super) fn renamed(scope: &mut KernelScope, stmt: &Stmt) -> Stmt {
    let mut names = Vec::new();
    walk::symbols(std::slice::from_ref(stmt), &mut |symbol| names.push((symbol.clone(), scope.fresh("i"))));
    let name = |symbol: &Symbol| names.iter().find(|(old, _)| old == symbol).map(|(_, new)| new.clone());
    let by = walk::Rewrite {
        dim: &|dim| dim.substitute(&|symbol| name(symbol).map(Dim::from)),
        access: &|access| access,
        symbol: &|symbol| name(symbol).unwrap_or_else(|| symbol.clone()),
        local: &|local| local,
    };
    by.stmt(stmt)
}

/// `body` inside loops over `axes`, all parallel if `parallel`.
pub(super) fn loops(axes: &[Axis], parallel: bool, body: Vec<Stmt>) -> Vec<Stmt> {
    axes.iter().rev().fold(body, |body, axis| vec![Stmt::For { axis: axis.clone(), parallel, body }])
}
