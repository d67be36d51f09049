//! Reads a weight from the panels of a contraction instead of a second, row-major copy.
//!
//! A language model may look up rows of a table and multiply by the same table at its end. The contraction needs
//! panels. The look-up could read rows from memory, but then the artefact would hold the table twice. It reads the
//! panels, with a step of one panel between elements, if that costs the whole call little ([`is_cheap`]).

use crate::{
    Result,
    kernel::{Access, Axis, BufferId, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt, cost, walk},
    tensor::Tensor,
};
use num_traits::ToPrimitive;
use symshape::{Dim, Facts};

/// Multiply-adds that take as long as reading one element from a cache line that no other element is read from.
const STRIDED_LOAD: i64 = 160;

/// The largest share of a call's work that reading from panels may cost: one part in this many.
const MAX_SHARE: i64 = 20;

/// Rewrites the row-major constants for which it pays.
pub(super) fn share(program: &mut Program) -> Result<()> {
    let panels = constant_panels(program);
    if panels.is_empty() {
        return Ok(());
    }

    for buffer in program.used_constants() {
        let held = panels.iter().find_map(|panels| Some((panels, panels.order_of(program, buffer)?)));
        let Some((panels, order)) = held.filter(|_| is_cheap(program, buffer)) else { continue };
        if let Some(kernels) = reading_panels(program, buffer, panels, order) {
            program.kernels = kernels;
        }
    }
    Ok(())
}

/// The panels of one constant matrix of `k` rows and `n` columns.
#[derive(PartialEq, Eq)]
struct ConstantPanels {
    buffer: BufferId,
    k: i64,
    n: i64,
    width: i64,
}

/// The order of a matrix in memory.
#[derive(Clone, Copy)]
enum Order {
    /// Rows of `n` columns.
    Rows,
    /// Columns of `k` elements: the matrix is stored transposed.
    Columns,
}

/// The constants that contractions read as panels, from their first panel on.
fn constant_panels(program: &Program) -> Vec<ConstantPanels> {
    let mut found = Vec::new();
    for kernel in &program.kernels {
        collect_panels(program, &kernel.body, &mut found);
    }
    found
}

fn collect_panels(program: &Program, body: &[Stmt], found: &mut Vec<ConstantPanels>) {
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => collect_panels(program, body, found),
            Stmt::If { then, otherwise, .. } => {
                collect_panels(program, then, found);
                collect_panels(program, otherwise, found);
            }
            Stmt::Contraction(contraction) => {
                let Rhs::Panels { buffer, base, width } = &contraction.rhs else { continue };
                let sizes = contraction.depth().as_i64().zip(contraction.n.extent.as_i64());
                let Some((k, n)) = sizes else { continue };
                let panels = ConstantPanels { buffer: *buffer, k, n, width: i64::from(*width) };
                if program.is_const(*buffer) && base.as_i64() == Some(0) && !found.contains(&panels) {
                    found.push(panels);
                }
            }
            Stmt::Block(_) | Stmt::Strip { .. } => {}
        }
    }
}

impl ConstantPanels {
    /// The order in which `buffer` holds the same matrix, if it does.
    fn order_of(&self, program: &Program, buffer: BufferId) -> Option<Order> {
        let MemorySpace::Const(panels) = &program.buffers[self.buffer].space else { return None };
        let MemorySpace::Const(matrix) = &program.buffers[buffer].space else { return None };
        let elems = self.k.checked_mul(self.n).filter(|elems| *elems > 0)?;
        if buffer == self.buffer || matrix.dtype() != panels.dtype() || matrix.elems() as i64 != elems {
            return None;
        }
        let n_panels = (self.n + self.width - 1) / self.width;
        if panels.elems() as i64 != n_panels * self.k * self.width {
            return None;
        }

        [Order::Columns, Order::Rows].into_iter().find(|order| self.holds(panels, matrix, *order))
    }

    /// Whether the panels hold the elements of `matrix`, which is stored in this order.
    fn holds(&self, panels: &Tensor, matrix: &Tensor, order: Order) -> bool {
        let size = panels.dtype().size_bytes();
        (0..self.n).all(|n| {
            (0..self.k).all(|k| {
                let at = match order {
                    Order::Rows => k * self.n + n,
                    Order::Columns => n * self.k + k,
                };
                element(matrix, at, size) == element(panels, self.offset(k, n), size)
            })
        })
    }

    /// The index of an element in the panels.
    fn offset(&self, k: i64, n: i64) -> i64 {
        ((n / self.width) * self.k + k) * self.width + n % self.width
    }

    /// The index in the panels of the element with the index `at` in the matrix.
    fn index(&self, facts: &Facts, at: &Dim, order: Order) -> Dim {
        let (k, n) = match order {
            Order::Rows => (at.floor_div(self.n), at.modulo(self.n)),
            Order::Columns => (at.modulo(self.k), at.floor_div(self.k)),
        };
        let k = facts.simplify(&k);
        let n = facts.simplify(&n);
        facts.simplify(&((n.floor_div(self.width) * self.k + k) * self.width + n.modulo(self.width)))
    }
}

/// The bytes of element `at`, which has `size` of them.
fn element(tensor: &Tensor, at: i64, size: usize) -> Option<&[u8]> {
    let from = at as usize * size;
    tensor.bytes().get(from..from + size)
}

/// The kernels with each load of `buffer` from `panels`. `None` if it has a use that can't be one: an operand of a
/// contraction or call, or a strip whose address would not be linear.
fn reading_panels(
    program: &Program,
    buffer: BufferId,
    panels: &ConstantPanels,
    order: Order,
) -> Option<Vec<Kernel>> {
    let mut kernels = program.kernels.clone();
    for kernel in &mut kernels {
        let touched = kernel.control.as_ref().map(|control| control.touched().0);
        if touched.is_some_and(|read| read.contains(&buffer)) {
            return None;
        }
        Redirect { buffer, panels, order }.stmts(&program.facts, &mut kernel.body)?;
    }
    Some(kernels)
}

/// Redirects loads of a matrix to its panels.
struct Redirect<'a> {
    buffer: BufferId,
    panels: &'a ConstantPanels,
    order: Order,
}

impl Redirect<'_> {
    fn stmts(&self, facts: &Facts, body: &mut [Stmt]) -> Option<()> {
        for stmt in body {
            match stmt {
                Stmt::For { axis, body, .. } => self.stmts(&within(facts, axis), body)?,
                Stmt::While { body, .. } => self.stmts(facts, body)?,
                Stmt::If { then, otherwise, .. } => {
                    self.stmts(facts, then)?;
                    self.stmts(facts, otherwise)?;
                }
                Stmt::Block(code) => self.code(facts, None, code)?,
                Stmt::Strip { axis, code } => self.code(&within(facts, axis), Some(axis), code)?,
                Stmt::Contraction(_) => self.refuse_uses(stmt)?,
            }
        }
        Some(())
    }

    fn code(&self, facts: &Facts, strip: Option<&Axis>, code: &mut InstSeq) -> Option<()> {
        for inst in &mut code.insts {
            let Inst::Load(access) = inst else { continue };
            if access.buffer != self.buffer {
                continue;
            }

            let index = self.panels.index(facts, &access.index, self.order);
            if let Some(axis) = strip {
                let (step, _) = facts.linear_in(&index, &axis.var)?;
                step.as_i64()?;
            }
            *access = Access { buffer: self.panels.buffer, index };
        }
        Some(())
    }

    /// `None` if the statement uses the matrix.
    fn refuse_uses(&self, stmt: &Stmt) -> Option<()> {
        let mut is_used = false;
        walk::accesses(std::slice::from_ref(stmt), &mut |site| is_used |= site.access.buffer == self.buffer);
        (!is_used).then_some(())
    }
}

/// The facts within a loop.
fn within(facts: &Facts, axis: &Axis) -> Facts {
    let mut facts = facts.clone();
    facts.declare_index(&axis.var, &axis.extent);
    facts
}

/// Whether strided loads of all elements that kernels read from `buffer` add little to the work of a call, at the
/// smallest and at the largest sizes.
fn is_cheap(program: &Program, buffer: BufferId) -> bool {
    let mut loads = Dim::zero();
    for kernel in &program.kernels {
        walk::accesses(&kernel.body, &mut |site| {
            if site.access.buffer == buffer {
                let elems = site
                    .axes
                    .iter()
                    .fold(Dim::one(), |elems, axis| cost::times(program, elems, &axis.extent));
                loads = &loads + &elems;
            }
        });
    }
    let total = Dim::sum(program.kernels.iter().map(|kernel| cost::of(program, kernel)));
    let extra = loads * (STRIDED_LOAD * MAX_SHARE);

    [at_ends(program, false), at_ends(program, true)].iter().all(|value| {
        match (extra.eval_i64(value), total.eval_i64(value)) {
            (Ok(extra), Ok(total)) => extra <= total,
            _ => false,
        }
    })
}

/// The values of the model's symbols at the lower or at the upper ends of their ranges.
fn at_ends(program: &Program, upper: bool) -> impl Fn(&symshape::Symbol) -> Option<i64> {
    move |symbol| {
        let bounds = program.facts.bounds(&symbol.into());
        let end = if upper { bounds.hi } else { bounds.lo };
        end?.to_i64()
    }
}
