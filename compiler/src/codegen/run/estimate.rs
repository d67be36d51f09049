//! Estimates of work while running, from the formulas of [`crate::kernel::cost`].
//!
//! They are computed in floating point, which neither overflows nor traps, and decide only where work is done.

use super::kernels::Step;
use crate::{
    codegen::{body::split, function::FuncCtx},
    error::{Error, Result},
    kernel::{Control, cost},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, condcodes::IntCC, types};
use num_traits::ToPrimitive;
use symshape::{Dim, Node};

/// Less work than this is done by one thread before another one has begun: some microseconds.
const MIN_PARALLEL: f64 = 200_000.0;

/// What it costs to hand out work and to wait for its end.
pub(crate) const HAND_OUT: f64 = 60_000.0;

/// What a share of a kernel takes beyond its part: shares are never even, and what is near each thread is not what it reads
/// next. Partitions that run at once have none of it.
const UNEVEN: f64 = 1.06;

/// The most that an estimate says: sums of as many as there can be stay in 64 bits.
const MOST: f64 = (1_u64 << 52) as f64;

/// Whether so much work is worth several threads.
pub(crate) fn is_enough(f: &mut FuncCtx, work: &Dim) -> Result<Value> {
    let work = float(f, work)?;
    let enough = f.ins().f64const(MIN_PARALLEL);
    Ok(f.ins().fcmp(FloatCC::GreaterThanOrEqual, work, enough))
}

/// The work of all steps when each runs on so many threads (an `i32`), as an `i64`.
pub(crate) fn on_threads(f: &mut FuncCtx, steps: &[Step], threads: Value) -> Result<Value> {
    let several = f.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, threads, 1);
    let count = f.ins().fcvt_from_uint(types::F64, threads);
    let workers = f.unit.program.workers;
    let mut total = f.ins().f64const(0.0);
    for step in steps {
        let emitted = match step {
            Step::Part(emitted) => emitted,
            Step::Control(Control::Call(call)) => {
                let cost = float(f, &cost::call(f.unit.program, call))?;
                total = f.ins().fadd(total, cost);
                continue;
            }
            Step::Control(_) => continue,
        };
        let (work, can_share) = emitted.estimate(workers);
        let mut cost = float(f, work)?;
        if can_share {
            let enough = is_enough(f, work)?;
            let shared = f.ins().band(several, enough);
            let shares = match split::iterations(emitted.split()) {
                Some(iterations) => {
                    let iterations = float(f, &iterations)?;
                    f.ins().fmin(count, iterations)
                }
                None => count,
            };
            let uneven = f.ins().f64const(UNEVEN);
            let split = f.ins().fmul(cost, uneven);
            let split = f.ins().fdiv(split, shares);
            let hand_out = f.ins().f64const(HAND_OUT);
            let split = f.ins().fadd(split, hand_out);
            cost = f.ins().select(shared, split, cost);
        }
        total = f.ins().fadd(total, cost);
    }
    let (most, least) = (f.ins().f64const(MOST), f.ins().f64const(0.0));
    let total = f.ins().fmin(total, most);
    let total = f.ins().fmax(total, least);
    Ok(f.ins().fcvt_to_sint_sat(types::I64, total))
}

/// The value of an expression over the model's symbols.
fn float(f: &mut FuncCtx, dim: &Dim) -> Result<Value> {
    let fold = |f: &mut FuncCtx, list: &[Dim], join: fn(&mut FuncCtx, Value, Value) -> Value| {
        let values = list.iter().map(|dim| float(f, dim)).collect::<Result<Vec<_>>>()?;
        let joined = values.into_iter().reduce(|a, b| join(f, a, b));
        joined.ok_or_else(|| Error::internal("an expression without operands"))
    };
    match dim.node() {
        Node::Int(value) => Ok(f.ins().f64const(value.to_f64().unwrap_or(MOST))),
        Node::Symbol(_) => {
            let value = f.dim(dim)?;
            Ok(f.ins().fcvt_from_sint(types::F64, value))
        }
        Node::Add(terms) => fold(f, terms, |f, a, b| f.ins().fadd(a, b)),
        Node::Mul(factors) => fold(f, factors, |f, a, b| f.ins().fmul(a, b)),
        Node::Min(list) => fold(f, list, |f, a, b| f.ins().fmin(a, b)),
        Node::Max(list) => fold(f, list, |f, a, b| f.ins().fmax(a, b)),
        Node::FloorDiv(a, b) => quotient(f, a, b),
        Node::Mod(a, b) => {
            let (quotient, whole, divisor) = (quotient(f, a, b)?, float(f, a)?, float(f, b)?);
            let less = f.ins().fmul(quotient, divisor);
            Ok(f.ins().fsub(whole, less))
        }
    }
}

fn quotient(f: &mut FuncCtx, a: &Dim, b: &Dim) -> Result<Value> {
    let (a, b) = (float(f, a)?, float(f, b)?);
    let quotient = f.ins().fdiv(a, b);
    Ok(f.ins().floor(quotient))
}
