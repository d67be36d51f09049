//! Estimates of work at run time, from the formulas of [`crate::kernel::cost`].
//!
//! They are computed in floating point, which neither overflows nor traps. They decide only where work is done, so an
//! inexact estimate never changes a result.

use super::steps::{DriverStep, EmittedPart};
use crate::{
    codegen::{body::split, function::FuncCtx},
    error::{Error, Result},
    kernel::{Control, cost},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::FloatCC, condcodes::IntCC, types};
use num_traits::ToPrimitive;
use symshape::{Dim, Node};

/// The smallest work that is worth several threads. One thread does less before a second one has started: it is some
/// microseconds.
const MIN_PARALLEL_WORK: f64 = 200_000.0;

/// The work of a share: some tens of microseconds. With shorter ones, a contraction would read its operands too often.
const SHARE_WORK: f64 = 4_000_000.0;

/// Most shares for each thread. A thread that is interrupted, or has more work than others, loses shares to them.
const SHARES_PER_THREAD: i64 = 8;

/// The number of blocks for each thread from which on shares of whole blocks are even enough.
const BLOCKS_PER_THREAD: i64 = 4;

/// The largest number of shares that are whole blocks.
const MAX_BLOCK_SHARES: i64 = 1 << 16;

/// Work that starting a `parallel_for` and waiting for its end is equal to.
pub(crate) const PARALLEL_FOR_WORK: f64 = 60_000.0;

/// Overhead of a shared kernel, as a factor of its work. Shares are never even, and a thread often reads data that
/// another thread's caches hold. Partitions that run at once have no such overhead.
const SHARING_OVERHEAD: f64 = 1.06;

/// The upper bound of an estimate: sums of all estimates of a program stay within 64 bits.
const MAX_WORK: f64 = (1_u64 << 52) as f64;

/// Whether this work is worth several threads.
pub(crate) fn is_enough(f: &mut FuncCtx, work: &Dim) -> Result<Value> {
    let work = float(f, work)?;
    let enough = f.ins().f64const(MIN_PARALLEL_WORK);
    Ok(f.ins().fcmp(FloatCC::GreaterThanOrEqual, work, enough))
}

/// The number of shares of this work: by their size, but at least one for each thread, and not very many.
pub(crate) fn shares(f: &mut FuncCtx, work: &Dim, threads: Value) -> Result<Value> {
    let work = float(f, work)?;
    let size = f.ins().f64const(SHARE_WORK);
    let shares = f.ins().fdiv(work, size);
    let shares = f.ins().fcvt_to_sint_sat(types::I64, shares);
    let shares = f.ins().smax(shares, threads);
    let most = f.ins().imul_imm_s(threads, SHARES_PER_THREAD);
    Ok(f.ins().smin(shares, most))
}

/// The number of shares of blocks whose columns can be divided: one for each block if that is even enough, else one for
/// each thread. Threads that share the columns of a block repeat its preamble.
pub(crate) fn shares_of_blocks(f: &mut FuncCtx, blocks: &Dim, threads: Value) -> Result<Value> {
    let blocks = f.dim(blocks)?;
    // A host without threads has the number 0.
    let one = f.int(1);
    let threads = f.ins().umax(threads, one);
    let rest = f.ins().urem(blocks, threads);
    let is_even = f.ins().icmp_imm_s(IntCC::Equal, rest, 0);
    let enough = f.ins().imul_imm_s(threads, BLOCKS_PER_THREAD);
    let are_enough = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, blocks, enough);
    let are_whole = f.ins().bor(is_even, are_enough);
    // The product of a number of shares and a number of iterations must fit 64 bits.
    let most = f.int(MAX_BLOCK_SHARES);
    let whole = f.ins().smin(blocks, most);
    Ok(f.ins().select(are_whole, whole, threads))
}

/// The work of all steps if each runs on `threads` threads (an `i32`), as an `i64`.
pub(crate) fn on_threads(f: &mut FuncCtx, steps: &[DriverStep], threads: Value) -> Result<Value> {
    let is_parallel = f.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, threads, 1);
    let threads = f.ins().fcvt_from_uint(types::F64, threads);

    let mut total = f.ins().f64const(0.0);
    for step in steps {
        let work = match step {
            DriverStep::Part(part) => part_on_threads(f, part, is_parallel, threads)?,
            DriverStep::Sequences(group) => part_on_threads(f, &group.whole, is_parallel, threads)?,
            DriverStep::Control(Control::Call(call)) => float(f, &cost::call(f.unit.program, call))?,
            DriverStep::Control(_) => continue,
        };
        total = f.ins().fadd(total, work);
    }

    let max = f.ins().f64const(MAX_WORK);
    let min = f.ins().f64const(0.0);
    let total = f.ins().fmin(total, max);
    let total = f.ins().fmax(total, min);
    Ok(f.ins().fcvt_to_sint_sat(types::I64, total))
}

/// The work of one part, which the driver shares among `threads` (an `f64`) if that pays.
fn part_on_threads(f: &mut FuncCtx, part: &EmittedPart, is_parallel: Value, threads: Value) -> Result<Value> {
    let alone = float(f, &part.work)?;
    if !part.can_share(f.unit.program.workers) {
        return Ok(alone);
    }

    let is_enough = is_enough(f, &part.work)?;
    let is_shared = f.ins().band(is_parallel, is_enough);
    let shares = match split::iterations(part.split()) {
        Some(iterations) => {
            let iterations = float(f, &iterations)?;
            f.ins().fmin(threads, iterations)
        }
        None => threads,
    };

    let overhead = f.ins().f64const(SHARING_OVERHEAD);
    let shared = f.ins().fmul(alone, overhead);
    let shared = f.ins().fdiv(shared, shares);
    let start = f.ins().f64const(PARALLEL_FOR_WORK);
    let shared = f.ins().fadd(shared, start);
    Ok(f.ins().select(is_shared, shared, alone))
}

/// The value of an expression over the model's symbols, as an `f64`.
fn float(f: &mut FuncCtx, dim: &Dim) -> Result<Value> {
    let fold = |f: &mut FuncCtx, list: &[Dim], join: fn(&mut FuncCtx, Value, Value) -> Value| {
        let values = list.iter().map(|dim| float(f, dim)).collect::<Result<Vec<_>>>()?;
        let joined = values.into_iter().reduce(|a, b| join(f, a, b));
        joined.ok_or_else(|| Error::internal("a work estimate has an operator without operands"))
    };

    match dim.node() {
        Node::Int(value) => Ok(f.ins().f64const(value.to_f64().unwrap_or(MAX_WORK))),
        Node::Symbol(_) => {
            let value = f.dim(dim)?;
            Ok(f.ins().fcvt_from_sint(types::F64, value))
        }
        Node::Add(terms) => fold(f, terms, |f, a, b| f.ins().fadd(a, b)),
        Node::Mul(factors) => fold(f, factors, |f, a, b| f.ins().fmul(a, b)),
        Node::Min(list) => fold(f, list, |f, a, b| f.ins().fmin(a, b)),
        Node::Max(list) => fold(f, list, |f, a, b| f.ins().fmax(a, b)),
        Node::FloorDiv(a, b) => floor_quotient(f, a, b),
        Node::Mod(a, b) => {
            let quotient = floor_quotient(f, a, b)?;
            let dividend = float(f, a)?;
            let divisor = float(f, b)?;
            let multiple = f.ins().fmul(quotient, divisor);
            Ok(f.ins().fsub(dividend, multiple))
        }
    }
}

fn floor_quotient(f: &mut FuncCtx, a: &Dim, b: &Dim) -> Result<Value> {
    let dividend = float(f, a)?;
    let divisor = float(f, b)?;
    let quotient = f.ins().fdiv(dividend, divisor);
    Ok(f.ins().floor(quotient))
}
