//! The strip: phases over the rows of a row loop. Each phase is scalar code or one strip-mined loop over straight-line
//! code.
//!
//! ```text
//! for row { phase; phase; … }
//! ```
//!
//! A loop phase covers `extent` elements: vectors of them, then a tail. Scalar code runs with the same value in all
//! lanes. Scalar variables live in vector registers whose lanes are all equal, so one phase reads the maximum that
//! another found without leaving the vector unit: softmax and layer norm are one strip each.
//!
//! Rows of few elements have no loops, and their elements stay in registers from phase to phase, see [`short_rows`].
//!
//! Where it saves memory accesses, the loops are interchanged, see [`columns`] and [`down_rows`].
//!
//! A check that fails does not end the strip: its lane goes on with 0. The caller learns of it, and runs the code again
//! as scalar loops, which find and report the failure.
//!
//! A reduction keeps `rows::ACCUMULATORS` vectors of partial results where the body is short, `rows::unroll_factor`
//! where it is a long chain, else one. The vectors are combined pairwise, then lanes by halves. So the order of a sum
//! depends on its length, the body and the ISA, and on nothing else.

mod accumulators;
mod alternate;
mod byte_squares;
mod columns;
mod down_rows;
mod groups;
mod kept;
mod key;
mod position;
mod reduction;
mod repeated;
mod rows;
mod short_rows;

pub use key::{MAX_SHORT_ROW, Phase, Stream, StripKey};

use crate::codegen::{
    microkernel::{body, wide},
    vector::{
        Builder, VectorShape,
        vcode::{IntWidth, VCode},
    },
};
use columns::Columns;
use down_rows::Accumulation;
use kept::KeptValues;
use position::{StripRegisters, VectorAccess};
use short_rows::ShortRow;

/// The code of a strip on an ISA of this shape.
pub(super) fn emit(key: &StripKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let pointers = (0..key.pointers.len()).map(|pointer| b.arg(key.pointer(pointer as u32))).collect();
    let zero = b.bits(0);
    let variables = (0..key.variables).map(|_| b.variable(zero)).collect();
    let failed = key.may_fail.then(|| b.imm(0));
    let strip = StripRegisters { key, pointers, variables, failed };

    if let Some(columns) = Columns::of(key, shape) {
        columns.emit(&strip, &mut b);
    } else if let Some(accumulation) = Accumulation::of(key, shape) {
        accumulation.emit(&strip, &mut b);
    } else if key.rows {
        emit_rows(&strip, &mut b);
    } else {
        emit_phases(&strip, None, &mut b);
        for (index, &var) in key.results.iter().enumerate() {
            let value = strip.variables[var as usize];
            let result = b.arg_mem(key.result(index));
            if key.is_wide(var) {
                wide::store_one(&mut b, result, [value; 2])
            } else {
                b.store_one(result, value)
            }
        }
    }
    if let Some(failed) = failed {
        b.store_int(b.arg_mem(key.failed()), failed, IntWidth::I64);
    }
    b.finish()
}

fn emit_rows(strip: &StripRegisters<'_>, b: &mut Builder) {
    let rows = b.arg(StripKey::ROWS);
    let short = ShortRow::of(strip, b);
    b.repeat(rows, 1, |b| {
        emit_phases(strip, short.as_ref(), b);
        for (idx, &pointer) in strip.pointers.iter().enumerate() {
            let stride = b.arg(strip.key.pointer(idx as u32) + 1);
            b.advance(pointer, stride);
        }
    });
}

/// Emits all phases of the current row.
fn emit_phases(strip: &StripRegisters<'_>, short: Option<&ShortRow>, b: &mut Builder) {
    let kept = KeptValues::default();
    for phase in &strip.key.phases {
        match (phase, short) {
            (Phase::Scalar(body), _) => {
                let access = VectorAccess::scalar(strip);
                body::emit(body, b, &mut VectorAccess { kept: Some(&kept), ..access });
            }
            (Phase::Loop { body, .. }, Some(short)) => short.emit_loop(strip, b, body, &kept),
            (Phase::Loop { extent, body }, None) => {
                rows::emit_loop(strip, b, *extent, body, &kept.scalars(strip.key, body));
                kept.forget_stored(body);
            }
        }
    }
}
