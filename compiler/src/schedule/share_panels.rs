//! Reads a weight from the panels of a contraction instead of a second, row-major copy.
//!
//! A language model may look up rows of a table and multiply by the same table at its end. The contraction needs
//! panels. The look-up could read rows from memory, but then the artefact would hold the table twice. It reads the
//! panels, with a step of one panel between elements, if that costs the whole call little ([`is_cheap`]).
//!
//! A table of few bits is a matrix of bytes, and the panels of few bits contain the same bytes between scales.

use crate::{
    Result,
    kernel::{
        Access, Axis, BufferId, FewBitsForm, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt, cost,
        few_bits, walk,
    },
};
use num_traits::ToPrimitive;
use symshape::{Dim, Facts};
use symshape_runtime::DType;

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
    form: Form,
}

/// The form of panels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Elements in panels of `width` columns.
    Elements { width: i64 },
    /// Codes between scales.
    FewBits(FewBitsForm),
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
                let (buffer, base, form) = match &contraction.rhs {
                    Rhs::Panels { buffer, base, width } => {
                        (buffer, base, Form::Elements { width: i64::from(*width) })
                    }
                    Rhs::FewBits(panels) => (&panels.buffer, &panels.base, Form::FewBits(panels.form)),
                    Rhs::Indexed(_) => continue,
                };
                let sizes = contraction.depth().as_i64().zip(contraction.n.extent.as_i64());
                let Some((k, n)) = sizes else { continue };
                let panels = ConstantPanels { buffer: *buffer, k, n, form };
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
        let rows = self.matrix_rows();
        let elems = rows.checked_mul(self.n).filter(|elems| *elems > 0)?;
        let dtype = match self.form {
            Form::Elements { .. } => panels.dtype(),
            Form::FewBits(_) => DType::U8,
        };
        if buffer == self.buffer || matrix.dtype() != dtype || matrix.elems() as i64 != elems {
            return None;
        }
        if panels.elems() as i64 != self.panel_elems()?.checked_mul(self.n_panels())? {
            return None;
        }

        // Element 0 of panels of elements is that of the matrix, in both orders. Computed panels are rarely needed.
        let size = matrix.dtype().size_bytes();
        let begins_alike = || panels.head().get(..size) == matrix.head().get(..size);
        if matches!(self.form, Form::Elements { .. }) && !begins_alike() {
            return None;
        }

        let panels = panels.read();
        let elements = matrix.read();
        let order = [Order::Columns, Order::Rows]
            .into_iter()
            .find(|order| self.holds(&panels, &elements, size, *order));
        matrix.release();
        order
    }

    fn n_panels(&self) -> i64 {
        let width = match self.form {
            Form::Elements { width } => width,
            Form::FewBits(_) => few_bits::WIDTH,
        };
        (self.n + width - 1) / width
    }

    /// Elements of a panel; those of few bits are bytes.
    fn panel_elems(&self) -> Option<i64> {
        match self.form {
            Form::Elements { width } => self.k.checked_mul(width),
            Form::FewBits(form) => form.panel_bytes(self.k),
        }
    }

    /// Reduction indices that share an element of the matrix.
    fn shared(&self) -> i64 {
        match self.form {
            Form::Elements { .. } => 1,
            Form::FewBits(form) => 8 / i64::from(form.bits),
        }
    }

    /// Rows of the matrix.
    fn matrix_rows(&self) -> i64 {
        (self.k + self.shared() - 1) / self.shared()
    }

    /// Whether the panels hold the elements of `matrix`, which is stored in this order and has `size` bytes for each.
    fn holds(&self, panels: &[u8], matrix: &[u8], size: usize, order: Order) -> bool {
        let rows = self.matrix_rows();
        let Some(panel) = self.panel_elems() else { return false };
        (0..self.n).all(|n| {
            (0..rows).all(|row| {
                let at = match order {
                    Order::Rows => row * self.n + n,
                    Order::Columns => n * rows + row,
                };
                let place = match self.form {
                    Form::Elements { width } => ((n / width) * self.k + row) * width + n % width,
                    Form::FewBits(form) => {
                        let first = n / few_bits::WIDTH * panel;
                        form.code_byte(first, row * self.shared(), n % few_bits::WIDTH)
                    }
                };
                element(matrix, at, size) == element(panels, place, size)
            })
        })
    }

    /// The index in the panels of the element with the index `at` in the matrix.
    fn index(&self, facts: &Facts, at: &Dim, order: Order) -> Option<Dim> {
        let rows = self.matrix_rows();
        let (row, n) = match order {
            Order::Rows => (at.floor_div(self.n), at.modulo(self.n)),
            Order::Columns => (at.modulo(rows), at.floor_div(rows)),
        };
        let row = facts.simplify(&row);
        let n = facts.simplify(&n);
        let place = match self.form {
            Form::Elements { width } => (n.floor_div(width) * self.k + row) * width + n.modulo(width),
            Form::FewBits(form) => {
                form.place(&Dim::zero(), self.panel_elems()?, &(row * self.shared()), &n).code
            }
        };
        Some(facts.simplify(&place))
    }
}

/// The bytes of element `at`, which has `size` of them.
fn element(bytes: &[u8], at: i64, size: usize) -> Option<&[u8]> {
    let from = at as usize * size;
    bytes.get(from..from + size)
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
                Stmt::Strip { axis, code } => {
                    let facts = within(facts, axis);
                    let mut redirected = code.clone();
                    match self.code(&facts, Some(axis), &mut redirected) {
                        Some(()) => *code = redirected,
                        None => *stmt = self.scalar_loop(&facts, axis, code)?,
                    }
                }
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

            let index = self.panels.index(facts, &access.index, self.order)?;
            if let Some(axis) = strip {
                let (step, _) = facts.linear_in(&index, &axis.var)?;
                step.as_i64()?;
            }
            *access = Access { buffer: self.panels.buffer, index };
        }
        Some(())
    }

    /// A strip as a loop over single elements, whose addresses need not be linear: codes have scales between them.
    /// `facts` are those within the strip.
    fn scalar_loop(&self, facts: &Facts, axis: &Axis, code: &InstSeq) -> Option<Stmt> {
        let is_scalar = !code.insts.iter().any(|inst| matches!(inst, Inst::Reduce { .. }));
        if !is_scalar || !matches!(self.panels.form, Form::FewBits(_)) {
            return None;
        }
        let mut code = code.clone();
        self.code(facts, None, &mut code)?;
        Some(Stmt::For { axis: axis.clone(), parallel: true, body: vec![Stmt::Block(code)] })
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
