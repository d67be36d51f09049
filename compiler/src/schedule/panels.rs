//! Packs right operands that contractions would have to gather, or to read from too many pages.
//!
//! If the columns of a right operand are not adjacent, as for the keys of attention, a tile would gather them lane by
//! lane, again for every few rows. Instead they are copied to scratch memory as packed panels, see [`Rhs::Panels`], in
//! the innermost loop that they depend on, or outside of it:
//!
//! ```text
//! for o { for block { C(o, block, B(o)) } }   ⇒   for o { P = panels of B(o);  for block { C(o, block, P) } }
//! ```
//!
//! Where the copy is not moved out of a loop, and all panels together would leave the first-level cache, a block of
//! columns is copied and multiplied at a time:
//!
//! ```text
//! for o { for block of columns { P = panels of B(o, block);  C(o, block, P) } }
//! ```
//!
//! Columns of an image are adjacent, but each channel begins in another page. Where the left operand has many rows,
//! such columns are copied, too: in larger blocks if the reduction is deep.
//!
//! Which of the two forms a large operand gets is decided at run time where a loop may have one iteration or more: a
//! decoder reads a prompt in many rows, and then has one token at a time.
//!
//! The lanes after the last column are never written, and their results are never stored.

use super::{
    epilogues::{self, renamed},
    fresh_symbols::FreshSymbols,
    pages,
};
use crate::{
    Result,
    kernel::{
        Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, Local, MemorySpace, Program, Rhs, Stmt,
    },
    scalar::{CompareOp, Scalar},
};
use cranelift_entity::PrimaryMap;
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Columns of a panel, as for constants that are packed at compile time.
const WIDTH: i64 = 16;

/// Elements of panels that stay in the second-level cache beside other operands.
const NEAR_ELEMS: i64 = 1 << 16;

/// The largest operand to copy, in elements.
const MAX_ELEMS: i64 = 1 << 20;

/// Elements of the panels of a block of columns: about a first-level cache.
const BLOCK_ELEMS: i64 = 1 << 13;

/// Columns of a block are a multiple of it: wide tiles have no rest.
const BLOCK_STEP: i64 = 64;

/// With fewer rows, the copy takes longer than it saves.
const MIN_ROWS: i64 = 8;

/// As [`MIN_ROWS`], for columns that are adjacent.
const MIN_ROWS_OF_ADJACENT: i64 = 24;

/// Packs all operands for which the copy pays.
pub(super) fn pack(program: &mut Program) -> Result<()> {
    let mut symbols = FreshSymbols::new(program);
    let mut kernels = std::mem::take(&mut program.kernels);
    for kernel in &mut kernels {
        let facts = program.facts.clone();
        let body = std::mem::take(&mut kernel.body);
        let mut pass = Packing { program, symbols: &mut symbols, locals: &mut kernel.locals };
        kernel.body = pass.stmts(&facts, None, body).0;
    }
    program.kernels = kernels;
    Ok(())
}

/// Statements to insert before the loops that the address does not depend on.
struct Before {
    origin: Dim,
    stmts: Vec<Stmt>,
}

/// The rewriting of one kernel.
struct Packing<'a> {
    program: &'a mut Program,
    symbols: &'a mut FreshSymbols,
    locals: &'a mut PrimaryMap<Local, DType>,
}

impl Packing<'_> {
    /// Rewrites statements inside the loop `around`, which may be parallel; also returns what comes before that loop.
    fn stmts(
        &mut self,
        facts: &Facts,
        around: Option<(&Axis, bool)>,
        body: Vec<Stmt>,
    ) -> (Vec<Stmt>, Vec<Before>) {
        let mut done = Vec::new();
        let mut before = Vec::new();
        for stmt in body {
            let (stmt, copies) = match stmt {
                Stmt::For { axis, parallel, body } => {
                    let mut facts = facts.clone();
                    facts.declare_index(&axis.var, &axis.extent);
                    let (body, outside) = self.stmts(&facts, Some((&axis, parallel)), body);
                    (Stmt::For { axis, parallel, body }, outside)
                }
                Stmt::Contraction(contraction) => match Operand::of(self.program, facts, &contraction) {
                    // Scratch memory belongs to one iteration of a parallel loop, so outside of all loops none exists.
                    Some(operand) if around.is_some() || operand.is_adjacent => {
                        self.contraction(&operand, around, contraction)
                    }
                    _ => (Stmt::Contraction(contraction), Vec::new()),
                },
                other => (other, Vec::new()),
            };

            for copy in copies {
                match around {
                    Some((axis, false)) if !copy.origin.contains(&axis.var) => before.push(copy),
                    _ => done.extend(copy.stmts),
                }
            }
            done.push(stmt);
        }

        (done, before)
    }

    /// Rewrites a contraction; also returns what comes before it, or before the loops around it.
    fn contraction(
        &mut self,
        operand: &Operand,
        around: Option<(&Axis, bool)>,
        contraction: Box<Contraction>,
    ) -> (Stmt, Vec<Before>) {
        let shared = match around {
            Some((axis, false)) if !operand.origin.contains(&axis.var) => Some(axis),
            _ => None,
        };
        let runs_once = |axis: &Axis| axis.extent.as_i64() == Some(1);
        let Some(blocks) = shared.filter(|axis| !runs_once(axis)) else {
            let is_parallel = operand.is_adjacent && around.is_none_or(|(_, parallel)| parallel);
            return match self.pack_in_blocks(operand, &contraction, is_parallel) {
                Some(blocks) => (blocks, Vec::new()),
                None if around.is_none() => (Stmt::Contraction(contraction), Vec::new()),
                None => self.pack_before(operand, contraction),
            };
        };

        let is_large = operand.elems(&contraction.n.extent);
        let is_large = self.program.facts.bounds(&is_large).hi.is_none_or(|hi| hi > NEAR_ELEMS.into());
        let in_blocks = if is_large { self.pack_in_blocks(operand, &contraction, false) } else { None };
        let (stmt, mut before) = self.pack_before(operand, contraction);
        let Some(in_blocks) = in_blocks else { return (stmt, before) };
        let Some(copy) = before.first_mut() else { return (in_blocks, before) };

        // Panels of all columns pay only where several blocks of rows share them.
        let cond = self.locals.push(DType::Bool);
        let mut choice = InstSeq::default();
        let count = choice.push(Inst::Index(DType::I64, blocks.extent.clone()));
        let one = choice.push(Inst::Const(Scalar::from_i64(DType::I64, 1)));
        let runs_once = choice.push(Inst::Compare(CompareOp::Le, count, one));
        choice.push(Inst::Set(cond, runs_once));
        let otherwise = std::mem::take(&mut copy.stmts);
        copy.stmts = vec![Stmt::Block(choice), Stmt::If { cond, then: Vec::new(), otherwise }];
        (Stmt::If { cond, then: vec![in_blocks], otherwise: vec![stmt] }, before)
    }

    /// Lets the contraction read panels of all columns, if they are not too large; also returns the copy.
    fn pack_before(&mut self, operand: &Operand, mut contraction: Box<Contraction>) -> (Stmt, Vec<Before>) {
        let columns = Columns { first: Dim::zero(), count: contraction.n.extent.clone() };
        let elems = operand.elems(&columns.count);
        // The size of a buffer must depend on the model's symbols only.
        let is_known = elems.symbols().iter().all(|symbol| self.program.symbols.contains(symbol));
        let is_small = self.program.facts.bounds(&elems).hi.is_some_and(|hi| hi <= MAX_ELEMS.into());
        if !is_known || !is_small {
            return (Stmt::Contraction(contraction), Vec::new());
        }

        let buffer = self.scratch(operand, elems);
        let copy = operand.copy(self.symbols, &contraction, buffer, &columns);
        contraction.rhs = Rhs::Panels { buffer, base: Dim::zero(), width: WIDTH as u32 };
        let before = Before { origin: operand.origin.clone(), stmts: vec![copy] };
        (Stmt::Contraction(contraction), vec![before])
    }

    /// A loop over blocks of columns, each of which is packed and multiplied. `None` if all panels together stay in the
    /// cache of a block, or a block would not.
    fn pack_in_blocks(
        &mut self,
        operand: &Operand,
        contraction: &Contraction,
        is_parallel: bool,
    ) -> Option<Stmt> {
        let count = operand.block_columns()?;
        let n = &contraction.n;
        // Those for bf16 are packed from these once more, which pays for many columns.
        let multiplies_bf16 = self.program.microkernels.multiplies_bf16(contraction.precision);
        let is_short = operand.facts.bounds(&n.extent).hi.is_some_and(|hi| hi <= (2 * count).into());
        if count == 0 || is_short || multiplies_bf16 {
            return None;
        }

        let buffer = self.scratch(operand, Dim::from(count) * &operand.depth);
        let extent = operand.facts.simplify(&n.extent.ceil_div(count));
        let block = Axis { var: self.symbols.fresh(), extent };
        let mut facts = operand.facts.clone();
        facts.declare_index(&block.var, &block.extent);
        let first = Dim::from(&block.var) * count;
        let columns = Columns { count: facts.simplify(&(&n.extent - &first).min(count.into())), first };
        let in_block = Operand { facts: facts.clone(), ..operand.clone() };
        let copy = in_block.copy(self.symbols, contraction, buffer, &columns);

        let column = Axis { var: self.symbols.fresh(), extent: columns.count };
        facts.declare_index(&column.var, &column.extent);
        let at = columns.first + Dim::from(&column.var);
        let product = Stmt::Contraction(Box::new(Contraction {
            n: column,
            rhs: Rhs::Panels { buffer, base: Dim::zero(), width: WIDTH as u32 },
            epilogue: epilogues::at(&facts, &contraction.epilogue, &n.var, &at),
            ..contraction.clone()
        }));
        // The kernel may have the contraction in its other form too.
        let product = renamed(self.symbols, &product);
        Some(Stmt::For { axis: block, parallel: is_parallel, body: vec![copy, product] })
    }

    fn scratch(&mut self, operand: &Operand, elems: Dim) -> BufferId {
        let name = format!("panels of {}", self.program.buffers[operand.access.buffer].name);
        self.program.buffers.push(Buffer { name, dtype: DType::F32, elems, space: MemorySpace::Scratch })
    }
}

/// A right operand that is copied to panels.
#[derive(Clone)]
struct Operand {
    access: Access,
    /// The type of its elements; panels are `f32`.
    element: DType,
    /// The address of its first element.
    origin: Dim,
    depth: Dim,
    /// Whether its columns are adjacent.
    is_adjacent: bool,
    /// What is known inside of the contraction.
    facts: Facts,
}

/// Consecutive columns of an operand.
struct Columns {
    first: Dim,
    count: Dim,
}

impl Operand {
    /// The right operand of a contraction. `None` if the copy does not pay.
    fn of(program: &Program, facts: &Facts, contraction: &Contraction) -> Option<Operand> {
        let Rhs::Indexed(access) = &contraction.rhs else { return None };
        let facts = contraction.facts_inside(facts);
        let (column, _) = facts.linear_in(&access.index, &contraction.n.var)?;

        let element = program.buffers[access.buffer].dtype;
        let is_float =
            contraction.dtype == DType::F32 && matches!(element, DType::F32 | DType::F16 | DType::BF16);
        let has_many_rows = facts.bounds(&contraction.rows()).hi.is_none_or(|hi| hi >= MIN_ROWS.into());
        let is_adjacent = column.as_i64() == Some(1);
        let pays = !is_adjacent || reads_many_pages(program, &facts, contraction, access);
        if !is_float || !has_many_rows || !pays {
            return None;
        }
        let origin = access.index.substitute(&|symbol| {
            let mut axes = contraction.k.iter().chain([&contraction.n]);
            axes.any(|axis| axis.var == *symbol).then(Dim::zero)
        });
        Some(Operand {
            access: access.clone(),
            element,
            origin,
            depth: contraction.depth(),
            is_adjacent,
            facts,
        })
    }

    /// Columns of a block: those of a first-level cache, or else of a second-level cache if they are adjacent.
    fn block_columns(&self) -> Option<i64> {
        let depth = self.depth.as_i64().filter(|depth| *depth > 0)?;
        let near = BLOCK_ELEMS / depth / BLOCK_STEP * BLOCK_STEP;
        let far = if self.is_adjacent { (NEAR_ELEMS / depth).min(BLOCK_STEP) / WIDTH * WIDTH } else { 0 };
        Some(near.max(far))
    }

    /// Elements of the panels of this many columns.
    fn elems(&self, columns: &Dim) -> Dim {
        self.facts.simplify(&(columns.ceil_div(WIDTH) * &self.depth * WIDTH))
    }

    /// `for panel { for k… { for last k { strip column of the panel { panel[k][column] = B } } } }`, or with the two
    /// inner loops interchanged, or with the loop over panels inside of those over k.
    fn copy(
        &self,
        symbols: &mut FreshSymbols,
        contraction: &Contraction,
        buffer: BufferId,
        columns: &Columns,
    ) -> Stmt {
        let mut facts = self.facts.clone();
        let panel = Axis { var: symbols.fresh(), extent: facts.simplify(&columns.count.ceil_div(WIDTH)) };
        let first = Dim::from(&panel.var) * WIDTH;
        let extent = facts.simplify(&(&columns.count - &first).min(WIDTH.into()));
        let column = Axis { var: symbols.fresh(), extent };
        let fresh = |axis: &Axis| Axis { var: symbols.fresh(), extent: axis.extent.clone() };
        let k: Vec<Axis> = contraction.k.iter().map(fresh).collect();
        [&panel, &column].into_iter().chain(&k).for_each(|axis| facts.declare_index(&axis.var, &axis.extent));

        let at = self.access.index.substitute(&|symbol| {
            let inner = contraction.k.iter().position(|axis| axis.var == *symbol);
            match inner {
                Some(idx) => Some(Dim::from(&k[idx].var)),
                None => {
                    (contraction.n.var == *symbol).then(|| &columns.first + &first + Dim::from(&column.var))
                }
            }
        });
        let flat = k.iter().fold(Dim::zero(), |flat, axis| flat * &axis.extent + Dim::from(&axis.var));
        let place = (Dim::from(&panel.var) * &self.depth + flat) * WIDTH + Dim::from(&column.var);

        let mut code = InstSeq::default();
        let from = Access { buffer: self.access.buffer, index: facts.simplify(&at) };
        let mut value = code.push(Inst::Load(from));
        if self.element != DType::F32 {
            value = code.push(Inst::Cast(DType::F32, value));
        }
        code.push(Inst::Store(Access { buffer, index: facts.simplify(&place) }, value));

        let mut k = k.into_iter();
        let last = k.next_back().unwrap_or_else(|| Axis { var: symbols.fresh(), extent: Dim::one() });
        // Where the last axis of k is adjacent in memory, strips along the columns transpose squares in registers:
        // whole vectors are loaded and stored. Strips along k would store element by element.
        let k_is_adjacent = facts.linear_in(&at, &last.var).is_some_and(|(step, _)| step.as_i64() == Some(1));
        let (loops, strip): (Vec<Axis>, Axis) = if self.is_adjacent {
            // All columns of a page are read at once.
            (k.chain([last, panel]).collect(), column)
        } else if k_is_adjacent {
            ([panel].into_iter().chain(k).chain([last]).collect(), column)
        } else {
            ([panel].into_iter().chain(k).chain([column]).collect(), last)
        };
        let strip = Stmt::Strip { axis: strip, code };
        loops.into_iter().rev().fold(strip, |body, axis| Stmt::For {
            axis,
            parallel: false,
            body: vec![body],
        })
    }
}

/// Whether many rows of a constant read columns whose reduction spans many pages.
fn reads_many_pages(program: &Program, facts: &Facts, contraction: &Contraction, access: &Access) -> bool {
    let [k] = &contraction.k[..] else { return false };
    program.is_const(contraction.lhs.buffer)
        && !program.microkernels.multiplies_bf16(contraction.precision)
        && facts.prove_le(&MIN_ROWS_OF_ADJACENT.into(), &contraction.rows()).is_yes()
        && pages::are_many(facts, &access.index, k)
}
