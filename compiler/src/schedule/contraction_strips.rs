//! Contractions that no microkernel multiplies, such as those of doubles, of 32-bit integers and of bytes that are not
//! packed, as loops of strips.
//!
//! ```text
//! for m, n { sum = Σ over k of lhs * rhs; epilogue }
//! ⇒  for m {
//!      strip n { sums[n] = 0 }
//!      for k { strip n { sums[n] = sums[n] + lhs * rhs } }
//!      strip n { sum = sums[n]; epilogue }
//!    }
//! ```
//!
//! The terms of a sum keep their order, and each is rounded as scalar code rounds it, so the bits are the same. A strip
//! adds several terms, because the sums are in memory between two strips.

use super::{
    epilogues::{self, in_model, loops, renamed},
    fresh_symbols::FreshSymbols,
    leaves::rewrite_contractions,
};
use crate::{
    Result,
    kernel::{
        Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt,
        WeightForm, hoist,
        lanes::{accumulator_type, strip_obstacle},
    },
    scalar::{BinaryOp, Reg, Scalar},
    tensor::{Bytes, Tensor},
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Terms that a strip adds at once: with more, their loads take longer than those of the sums.
const TERMS: i64 = 4;

/// Most elements of a strip, whose sums stay in a first-level cache. Longer axes are divided, which gives threads work.
const MAX_STRIP_ELEMS: i64 = 2048;

/// An axis with fewer elements does not become the strip if there is a longer one.
const MIN_STRIP_ELEMS: i64 = 8;

/// Rewrites all such contractions.
pub(super) fn expand(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }

    let mut symbols = FreshSymbols::new(program);
    rewrite_contractions(program, &mut |program, kernel, place, contraction| {
        let in_loop = !place.loops.is_empty();
        let mut expansion = Expansion { program, symbols: &mut symbols, kernel };
        expansion.expanded(&place.facts, in_loop, contraction)
    });
    Ok(())
}

/// Whether microkernels have no accumulators for the sums, or multiply integers of these operands only if the right one
/// is packed.
fn is_candidate(program: &Program, contraction: &Contraction) -> bool {
    let is_integer_or_f64 = matches!(contraction.dtype, DType::F64 | DType::I64 | DType::I32);
    let is_indexed = contraction.dtype == DType::I32 && matches!(contraction.rhs, Rhs::Indexed(_));
    is_integer_or_f64 && (is_indexed || accumulator_type(program, contraction).is_none())
}

/// The rewriting of one contraction.
struct Expansion<'a> {
    program: &'a mut Program,
    symbols: &'a mut FreshSymbols,
    kernel: &'a Kernel,
}

impl Expansion<'_> {
    /// The loops of a contraction, or `None` if it stays as it is. `in_loop` says whether there is a loop around it.
    fn expanded(&mut self, facts: &Facts, in_loop: bool, contraction: &Contraction) -> Option<Vec<Stmt>> {
        if !is_candidate(self.program, contraction) {
            return None;
        }
        let rhs = match &contraction.rhs {
            Rhs::Indexed(access) => access.clone(),
            Rhs::Panels { buffer, base, width } => {
                let panels = Panels { buffer: *buffer, base, width: i64::from(*width) };
                panels.in_rows(self.program, contraction)?
            }
            Rhs::FewBits(_) => return None,
        };

        let mut inner = contraction.facts_inside(facts);
        let (mut rows, mut strip) = strip_axis(contraction);
        let mut rhs = rhs;
        let in_blocks = self.in_blocks(&mut inner, contraction, &mut rhs, &mut strip);
        let contraction = match &in_blocks {
            Some((block, contraction)) => {
                rows.push(block.clone());
                contraction
            }
            None => contraction,
        };
        let (last, outer) = contraction.k.split_last()?;
        let elems = in_model(self.program, &inner, &strip.extent)?;
        let sums = Access { buffer: self.program.buffers.next_key(), index: Dim::from(&strip.var) };
        let name = "sums of a row".to_string();
        let buffer = Buffer { name, dtype: contraction.dtype, elems, space: MemorySpace::Scratch };
        let terms = |count: i64, k: &Dim| terms(self.program, contraction, &rhs, &sums, count, k);

        // The main loop adds `TERMS` terms at a time, and the rest one.
        let main = Axis { var: self.symbols.fresh(), extent: last.extent.floor_div(TERMS) };
        let main_code = terms(TERMS, &(Dim::from(&main.var) * TERMS));
        let rest = Axis { var: self.symbols.fresh(), extent: last.extent.modulo(TERMS) };
        let rest_code = terms(1, &(last.extent.floor_div(TERMS) * TERMS + Dim::from(&rest.var)));
        self.program.buffers.push(buffer);

        let mut facts_of_terms = inner.clone();
        facts_of_terms.declare_index(&main.var, &main.extent);
        if strip_obstacle(self.program, self.kernel, &facts_of_terms, &strip, &main_code).is_some() {
            return None;
        }

        let mut parts = Vec::new();
        for (axis, code) in [(main, main_code), (rest, rest_code)] {
            if inner.simplify(&axis.extent).as_i64() != Some(0) {
                let strip = Stmt::Strip { axis: strip.clone(), code };
                let strip = renamed(self.symbols, &strip);
                parts.push(Stmt::For { axis, parallel: false, body: vec![strip] });
            }
        }

        let mut zero = InstSeq::default();
        let value = zero.push(Inst::Const(Scalar::from_i64(contraction.dtype, 0)));
        zero.push(Inst::Store(sums.clone(), value));
        let zero = renamed(self.symbols, &Stmt::Strip { axis: strip.clone(), code: zero });
        let epilogue = self.epilogue(&inner, contraction, &strip, &sums);

        let body = [vec![zero], loops(outer, false, parts), epilogue].concat();
        // Scratch memory exists inside of loops only.
        Some(loops(&rows, !in_loop, body))
    }

    /// Divides a long strip into blocks. Returns the axis of the blocks, and the contraction inside of them.
    fn in_blocks(
        &mut self,
        facts: &mut Facts,
        contraction: &Contraction,
        rhs: &mut Access,
        strip: &mut Axis,
    ) -> Option<(Axis, Contraction)> {
        if facts.prove_le(&strip.extent, &MAX_STRIP_ELEMS.into()).is_yes() {
            return None;
        }
        let block = Axis { var: self.symbols.fresh(), extent: strip.extent.ceil_div(MAX_STRIP_ELEMS) };
        facts.declare_index(&block.var, &block.extent);
        let first = Dim::from(&block.var) * MAX_STRIP_ELEMS;
        let count = facts.simplify(&(&strip.extent - &first).min(MAX_STRIP_ELEMS.into()));
        let place = Axis { var: self.symbols.fresh(), extent: count };
        facts.declare_index(&place.var, &place.extent);
        let at = first + Dim::from(&place.var);
        let strip = std::mem::replace(strip, place);

        let moved = |dim: &Dim| dim.substitute(&|symbol| (*symbol == strip.var).then(|| at.clone()));
        rhs.index = moved(&rhs.index);
        let lhs = Access { index: moved(&contraction.lhs.index), ..contraction.lhs.clone() };
        let epilogue = epilogues::at(facts, &contraction.epilogue, &strip.var, &at);
        Some((block, Contraction { lhs, epilogue, ..contraction.clone() }))
    }

    /// The epilogue as a strip, after the part of it that all its elements share.
    fn epilogue(
        &mut self,
        facts: &Facts,
        contraction: &Contraction,
        strip: &Axis,
        sums: &Access,
    ) -> Vec<Stmt> {
        let insts = contraction.epilogue.insts.iter().map(|inst| match inst {
            Inst::Sum => Inst::Load(sums.clone()),
            other => other.clone(),
        });
        let code = InstSeq { insts: insts.collect() };
        let runs = facts.prove_le(&Dim::one(), &strip.extent).is_yes();
        let (before, code) = if runs { hoist::hoist(code, &strip.var) } else { (None, code) };
        let strip = Stmt::Strip { axis: strip.clone(), code };
        before.map(Stmt::Block).into_iter().chain([strip]).collect()
    }
}

/// The axis of the strips, and the other axes of the result, outermost first.
fn strip_axis(contraction: &Contraction) -> (Vec<Axis>, Axis) {
    let mut axes = contraction.m.clone();
    let is_short = |axis: &Axis| axis.extent.as_i64().is_some_and(|extent| extent < MIN_STRIP_ELEMS);
    let last_row = axes.last().filter(|last| is_short(&contraction.n) && !is_short(last)).cloned();
    match last_row {
        Some(last_row) => {
            axes.pop();
            axes.push(contraction.n.clone());
            (axes, last_row)
        }
        None => (axes, contraction.n.clone()),
    }
}

/// A constant right-hand side in panels.
struct Panels<'a> {
    buffer: BufferId,
    base: &'a Dim,
    width: i64,
}

impl Panels<'_> {
    /// The element of a new constant that has the columns of each row next to each other, so that a strip reads across
    /// panels.
    fn in_rows(&self, program: &mut Program, contraction: &Contraction) -> Option<Access> {
        let MemorySpace::Const(tensor) = &program.buffers[self.buffer].space else { return None };
        let depth = contraction.depth().as_i64()?;
        let columns = contraction.n.extent.as_i64()?;
        let n_panels = (columns + self.width - 1) / self.width;
        let block_elems = n_panels * depth * self.width;
        let dtype = tensor.dtype();
        let size = dtype.size_bytes();
        let blocks = (tensor.elems() as i64).checked_div(block_elems)?;
        let panels = tensor.read();

        let mut bytes = Vec::with_capacity((blocks * depth * columns) as usize * size);
        for block in 0..blocks {
            for k in 0..depth {
                for n in 0..columns {
                    let panel = (n / self.width * depth + k) * self.width;
                    let at = (block * block_elems + panel + n % self.width) as usize * size;
                    bytes.extend(panels.get(at..at + size)?);
                }
            }
        }

        let shape = vec![blocks as usize, depth as usize, columns as usize];
        let rows = Tensor::new(dtype, shape, Bytes::Owned(bytes.into()))?;
        let name = program.buffers[self.buffer].name.clone();
        let elems = Dim::from(blocks * depth * columns);
        let buffer = program.buffers.push(Buffer { name, dtype, elems, space: MemorySpace::Const(rows) });
        if let Some(weight) = program.weights.get(&self.buffer) {
            let weight = WeightForm { form: "row-major", ..weight.clone() };
            program.weights.insert(buffer, weight);
        }

        let row =
            contraction.k.iter().fold(Dim::zero(), |row, axis| row * &axis.extent + Dim::from(&axis.var));
        let block = self.base.floor_div(block_elems) * depth;
        Some(Access { buffer, index: (block + row) * columns + Dim::from(&contraction.n.var) })
    }
}

/// The code that adds `count` terms from step `k` of the last reduction axis on to the sums.
fn terms(
    program: &Program,
    contraction: &Contraction,
    rhs: &Access,
    sums: &Access,
    count: i64,
    k: &Dim,
) -> InstSeq {
    let last = &contraction.k.last().expect("a contraction has a reduction axis").var;
    let mut code = InstSeq::default();
    let mut sum = code.push(Inst::Load(sums.clone()));
    for step in 0..count {
        let at = k + step;
        let mut load = |access: &Access| -> Reg {
            let index = access.index.substitute(&|symbol| (symbol == last).then(|| at.clone()));
            let dtype = program.buffers[access.buffer].dtype;
            let value = code.push(Inst::Load(Access { buffer: access.buffer, index }));
            if dtype == contraction.dtype { value } else { code.push(Inst::Cast(contraction.dtype, value)) }
        };
        let x = load(&contraction.lhs);
        let y = load(rhs);
        let product = code.push(Inst::Binary(BinaryOp::Mul, x, y));
        sum = code.push(Inst::Binary(BinaryOp::Add, sum, product));
    }
    code.push(Inst::Store(sums.clone(), sum));
    code
}
