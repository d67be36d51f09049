//! Copies left operands whose rows are adjacent, and whose reduction spans many pages or consists of bytes.
//!
//! A product may read an image as its left operand: its rows are the pixels, which are adjacent, and each channel of
//! the reduction begins in another page. A tile of a few rows would read a few elements of each of these pages, again
//! for every tile of columns. Microkernels multiply groups of bytes that are adjacent along the reduction, and pack
//! other bytes one by one. Instead a block of rows is copied to scratch memory, where the points of the reduction are
//! adjacent:
//!
//! ```text
//! for row { C(row, A[row, k]) }   ⇒   for block of rows { for row { for k { P[row, k] = A[row, k] } }  C(block, P) }
//! ```

use super::{
    epilogues::{self, loops},
    fresh_symbols::FreshSymbols,
    leaves::{Place, rewrite_contractions},
    pack_buffers, pages,
};
use crate::{
    Result,
    kernel::{Access, Axis, Buffer, Contraction, Inst, InstSeq, MemorySpace, Program, Rhs, Stmt},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Bytes of a block: about half of a second-level cache.
const BLOCK_BYTES: i64 = 3 << 16;

/// The rows of a block of floats are a multiple of this, which the heights of most tiles divide.
const ROWS_STEP: i64 = 12;

/// The fewest and the most rows of a block of floats: enough that the multiplication takes longer than reading the
/// right operand.
const BLOCK_ROWS: (i64, i64) = (24, 144);

/// As [`ROWS_STEP`] and [`BLOCK_ROWS`], for bytes: whole cache lines, and at most the rows of a block of the result.
const ROWS_OF_BYTES_STEP: i64 = 64;
const BLOCK_ROWS_OF_BYTES: (i64, i64) = (64, 256);

/// With fewer columns, the copy of floats takes longer than it saves.
const MIN_COLUMNS: i64 = 32;

/// Copies all left operands for which it pays.
pub(super) fn copy(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }
    let mut symbols = FreshSymbols::new(program);
    rewrite_contractions(program, &mut |program, _, place, contraction| {
        let form = BlockForm::of(program, place, contraction)?;
        Some(vec![in_blocks(program, &mut symbols, place, contraction, form)])
    });
    Ok(())
}

/// The form of a copied block.
struct BlockForm {
    /// The type of its elements.
    dtype: DType,
    /// The most rows of a block.
    rows: i64,
    /// Elements from one row to the next.
    row_elems: i64,
}

impl BlockForm {
    /// `None` if the copy does not pay.
    fn of(program: &Program, place: &Place, contraction: &Contraction) -> Option<BlockForm> {
        let ([.., last], [k]) = (&contraction.m[..], &contraction.k[..]) else { return None };
        if contraction.padding.is_some() || !matches!(contraction.rhs, Rhs::Panels { .. }) {
            return None;
        }

        let facts = contraction.facts_inside(&place.facts);
        let (row, _) = facts.linear_in(&contraction.lhs.index, &last.var)?;
        let (step, _) = facts.linear_in(&contraction.lhs.index, &k.var)?;
        let depth = k.extent.as_i64().filter(|depth| *depth > 0)?;
        if row.as_i64() != Some(1) || step.as_i64() == Some(1) {
            return None;
        }

        let dtype = program.buffers[contraction.lhs.buffer].dtype;
        let ((fewest, most), step) = match (contraction.dtype, dtype) {
            (DType::I32, DType::U8 | DType::I8) => (BLOCK_ROWS_OF_BYTES, ROWS_OF_BYTES_STEP),
            (DType::F32, DType::F32) if !program.microkernels.multiplies_bf16(contraction.precision) => {
                let is_far = pages::are_many(&facts, &contraction.lhs.index, k);
                let has_columns = facts.prove_le(&MIN_COLUMNS.into(), &contraction.n.extent).is_yes();
                if !is_far || !has_columns {
                    return None;
                }
                (BLOCK_ROWS, ROWS_STEP)
            }
            _ => return None,
        };
        let size = dtype.size_bytes() as i64;
        let rows = (BLOCK_BYTES / size / depth / step * step).clamp(fewest, most);
        Some(BlockForm { dtype, rows, row_elems: pack_buffers::spread_row_bytes(size * depth) / size })
    }
}

/// Loops over the outer row axes and blocks of rows, each of which is copied and multiplied.
fn in_blocks(
    program: &mut Program,
    symbols: &mut FreshSymbols,
    place: &Place,
    contraction: &Contraction,
    BlockForm { dtype, rows, row_elems }: BlockForm,
) -> Stmt {
    let (last, outer) = contraction.m.split_last().expect("a contraction has row axes");
    let lhs = &contraction.lhs;
    let name = format!("rows of {}", program.buffers[lhs.buffer].name);
    let elems = Dim::from(row_elems * rows);
    let buffer = program.buffers.push(Buffer { name, dtype, elems, space: MemorySpace::Scratch });

    let mut facts = contraction.facts_inside(&place.facts);
    let mut axis = |extent: Dim| {
        let axis = Axis { var: symbols.fresh(), extent: facts.simplify(&extent) };
        facts.declare_index(&axis.var, &axis.extent);
        axis
    };
    let block = axis(last.extent.ceil_div(rows));
    let first = Dim::from(&block.var) * rows;
    let count = (&last.extent - &first).min(rows.into());
    let [copied, row] = [count.clone(), count].map(&mut axis);
    let k = &contraction.k[0];
    let point = axis(k.extent.clone());
    let place_of =
        |row: &Axis, k: &Axis| Access { buffer, index: Dim::from(&row.var) * row_elems + Dim::from(&k.var) };

    let from = lhs.index.substitute(&|symbol| match symbol {
        symbol if *symbol == k.var => Some(Dim::from(&point.var)),
        symbol if *symbol == last.var => Some(&first + Dim::from(&copied.var)),
        _ => None,
    });
    let mut code = InstSeq::default();
    let value = code.push(Inst::Load(Access { buffer: lhs.buffer, index: facts.simplify(&from) }));
    code.push(Inst::Store(place_of(&copied, &point), value));
    let strip = Stmt::Strip { axis: point, code };
    let copy = Stmt::For { axis: copied, parallel: false, body: vec![strip] };

    let at = first + Dim::from(&row.var);
    let product = Contraction {
        lhs: place_of(&row, k),
        epilogue: epilogues::at(&facts, &contraction.epilogue, &last.var, &at),
        m: vec![row],
        ..contraction.clone()
    };
    let body = vec![copy, Stmt::Contraction(Box::new(product))];
    let axes: Vec<Axis> = outer.iter().cloned().chain([block]).collect();
    loops(&axes, true, body).remove(0)
}
