//! Generates random graphs, bindings and inputs from bytes, for property tests and fuzz targets.
//!
//! Every graph is well-formed and uses core operators through the builder. Its symbols have every kind of declaration,
//! and some are data-dependent. Sizes stay small enough for the evaluator, and include 0, 1 and primes. The same bytes
//! give the same graph, and a mutation of some bytes changes a part of it, as fuzzers need.

pub mod padded;
pub mod stateful;

use super::{
    Graph, Op, ScatterMode, Value, axis,
    eval::{Binding, check_binding, sizes},
};
use crate::{
    error::Result,
    graph::Coord,
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar, UnaryOp},
    tensor::Tensor,
};
use num_traits::ToPrimitive;
use symshape::{Declaration, Dim, Symbol};
use symshape_runtime::DType;

/// A stream of choices. After the last byte, each choice is the first option.
pub struct RandomSource<'a> {
    bytes: &'a [u8],
}

impl<'a> RandomSource<'a> {
    /// A stream that reads its choices from these bytes.
    pub fn new(bytes: &'a [u8]) -> RandomSource<'a> {
        RandomSource { bytes }
    }

    /// Whether all bytes are used up.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// A choice below `end`, which is at most 256 and not 0.
    fn below(&mut self, end: usize) -> usize {
        self.byte() as usize % end.max(1)
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    fn coin(&mut self) -> bool {
        self.byte() & 1 == 1
    }
}

/// The largest number of steps. Longer graphs would take the evaluator too long.
const MAX_STEPS: usize = 16;

/// The largest number of elements of a value at the upper bounds. Larger values are not built.
const MAX_ELEMS: i64 = 20_000;

/// Generates a well-formed graph.
pub fn graph(source: &mut RandomSource<'_>) -> Graph {
    let mut g = Graph { name: "random".into(), ..Graph::default() };
    let count = 1 + source.below(3);
    for name in ["A", "B", "C"].into_iter().take(count) {
        let declaration = match source.below(5) {
            0 => Declaration::range(0, 7),
            1 => Declaration::range(1, 11),
            2 => Declaration::range(2, 12).step(2, 0),
            3 => Declaration::values([1, 3, 8]),
            _ => Declaration::range(5, 5),
        };
        let declared = g.facts.declare(&Symbol::new(name), declaration);
        debug_assert!(declared.is_ok(), "the ranges are not empty");
        g.symbols.push(Symbol::new(name));
    }

    let mut values = Vec::new();
    for i in 0..1 + source.below(3) {
        let shape = (0..source.below(4)).map(|_| dim(&g, source)).collect();
        let dtype =
            source.pick(&[DType::F32, DType::F32, DType::I64, DType::F64, DType::Bool, DType::U8, DType::I8]);
        values.extend(g.input(&format!("x{i}"), dtype, shape));
    }

    for _ in 0..MAX_STEPS {
        if source.is_empty() {
            break;
        }
        let x = values[values.len() - 1 - source.below(values.len().min(4))];
        // The builder rejects a step that does not fit, and the graph goes without it.
        if let Ok(value) = step(&mut g, x, &values, source)
            && fits(&g, value)
        {
            values.push(value);
        }
    }

    for (i, value) in values.iter().rev().take(3).enumerate() {
        let added = g.output(&format!("y{i}"), *value);
        debug_assert!(added.is_ok(), "the names differ");
    }
    g
}

fn fits(g: &Graph, value: Value) -> bool {
    let elems = Dim::product(g.shape(value).iter().cloned());
    g.facts.bounds(&elems).hi.and_then(|hi| hi.to_i64()).is_some_and(|hi| hi <= MAX_ELEMS)
}

fn dim(g: &Graph, source: &mut RandomSource<'_>) -> Dim {
    let symbol = Dim::from(source.pick(&g.symbols));
    match source.below(8) {
        0 => 1.into(),
        1 => 2.into(),
        2 => 6.into(),
        3 => symbol * 2,
        4 => symbol + 1,
        _ => symbol,
    }
}

/// Computes one more value from `x` and others.
fn step(g: &mut Graph, x: Value, values: &[Value], source: &mut RandomSource<'_>) -> Result<Value> {
    let rank = g.rank(x);
    let k = source.below(rank);
    let k2 = source.below(rank);

    match source.below(26) {
        0 => unary(g, x, source),
        1 | 2 => binary(g, x, values, source),
        3 => select(g, x, values, source),
        4 => {
            let dtype = source.pick(&[
                DType::F32,
                DType::I64,
                DType::F64,
                DType::I32,
                DType::Bool,
                DType::F16,
                DType::U8,
                DType::I8,
                DType::I16,
            ]);
            g.cast(dtype, x)
        }
        5 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            if rank > 0 {
                perm.swap(k, k2);
            }
            g.transpose(x, &perm)
        }
        6 => slice(g, x, k, source),
        7 => g.unsqueeze(x, &[k]),
        8 => g.squeeze(x, &[k]),
        9 => merge(g, x, k),
        10 => split(g, x, k, source),
        11 => g.flatten(x, k),
        12 => g.reverse(x, k),
        13 => pad(g, x, source),
        14 => g.window(x, &[k], &[2], &[1 + source.below(2) as i64], &[1]),
        15 => concat(g, x, k, values, source),
        16 => g.reduce(reduce_op(source), x, &[k], source.coin()),
        17 => g.reduce(reduce_op(source), x, &(0..rank).collect::<Vec<_>>(), source.coin()),
        18 => g.matmul(x, source.pick(values)),
        19 => dense(g, x, source),
        20 => gather(g, x, k, source),
        21 => g.scan(reduce_op(source), x, k, source.coin(), source.coin()),
        22 => sort(g, x, k, source),
        23 => scatter(g, x, source),
        24 if source.coin() => bound_slice(g, x, k, source),
        24 => {
            let shape: Vec<Dim> = g.shape(x).to_vec();
            g.dims(&shape)
        }
        _ => g.index(DType::I64, g.shape(x).to_vec(), Dim::sum((0..rank).map(|k| Dim::from(axis(k)) * 3))),
    }
}

fn sort(g: &mut Graph, x: Value, k: usize, source: &mut RandomSource<'_>) -> Result<Value> {
    let descending = source.coin();
    let (values, places) = match (g.shape(x).get(k).cloned(), source.coin()) {
        (Some(size), true) => g.sort_first(x, k, descending, &size.floor_div(2))?,
        _ => g.sort(x, k, descending)?,
    };
    Ok(if source.coin() { values } else { places })
}

fn number(g: &mut Graph, like: Value, source: &mut RandomSource<'_>) -> Result<Value> {
    let value = f64::from(source.pick(&[0.0f32, 1.0, -1.0, 2.0, 0.5, -0.0, 3.0]));
    g.number(g.dtype(like), value)
}

fn unary(g: &mut Graph, x: Value, source: &mut RandomSource<'_>) -> Result<Value> {
    let op = source.pick(&[
        UnaryOp::Neg,
        UnaryOp::Abs,
        UnaryOp::Sign,
        UnaryOp::Floor,
        UnaryOp::Ceil,
        UnaryOp::Trunc,
        UnaryOp::Tanh,
        UnaryOp::Not,
        UnaryOp::IsNan,
        UnaryOp::Exp,
    ]);
    g.unary(op, x)
}

/// Combines `x` with another value, a constant, or a vector that broadcasts along its axes.
fn partner(g: &mut Graph, x: Value, values: &[Value], source: &mut RandomSource<'_>) -> Result<Value> {
    match source.below(4) {
        0 => number(g, x, source),
        1 => {
            let last = g.rank(x).saturating_sub(1);
            g.reduce(ReduceOp::Max, x, &[last], true)
        }
        2 => Ok(x),
        _ => g.cast(g.dtype(x), source.pick(values)),
    }
}

fn binary(g: &mut Graph, x: Value, values: &[Value], source: &mut RandomSource<'_>) -> Result<Value> {
    let op = source.pick(&[
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Mod,
        BinaryOp::Rem,
        BinaryOp::Min,
        BinaryOp::Max,
        BinaryOp::And,
        BinaryOp::Xor,
    ]);

    let y = partner(g, x, values, source)?;
    if source.coin() { g.binary(op, x, y) } else { g.binary(op, y, x) }
}

fn select(g: &mut Graph, x: Value, values: &[Value], source: &mut RandomSource<'_>) -> Result<Value> {
    let y = partner(g, x, values, source)?;
    let op = source.pick(&[CompareOp::Lt, CompareOp::Eq, CompareOp::Ge]);
    let condition = g.compare(op, x, y)?;
    g.select(condition, y, x)
}

fn slice(g: &mut Graph, x: Value, k: usize, source: &mut RandomSource<'_>) -> Result<Value> {
    g.check_axis(x, k)?;
    let size = g.shape(x)[k].clone();
    match source.below(3) {
        0 => g.slice(x, k, Dim::zero(), Dim::min(&size, 2), 1),
        1 => g.slice(x, k, Dim::zero(), size.ceil_div(2), 2),
        _ => g.slice(x, k, Dim::min(&size, 1), Dim::max(&(size - 1), 0), 1),
    }
}

/// Merges axes `k` and `k + 1`.
fn merge(g: &mut Graph, x: Value, k: usize) -> Result<Value> {
    g.check_axis(x, k + 1)?;
    let mut shape = g.shape(x).to_vec();
    let inner = shape.remove(k + 1);
    shape[k] = &shape[k] * inner;
    g.reshape(x, shape)
}

/// Splits axis `k` in two, one of them of size 2 or 3, if that is known to divide it.
fn split(g: &mut Graph, x: Value, k: usize, source: &mut RandomSource<'_>) -> Result<Value> {
    g.check_axis(x, k)?;
    let part = Dim::from(2 + source.below(2));
    let mut shape = g.shape(x).to_vec();
    if !g.facts.divides(&part, &shape[k]).is_yes() {
        return Ok(x);
    }
    let rest = g.facts.simplify(&shape[k].floor_div(part.clone()));
    let pair = if source.coin() { [rest, part] } else { [part, rest] };
    shape.splice(k..=k, pair);
    g.reshape(x, shape)
}

/// Slices axis `k` to a length that is the largest element of `x`. Most inputs keep it within the axis.
fn bound_slice(g: &mut Graph, x: Value, k: usize, source: &mut RandomSource<'_>) -> Result<Value> {
    g.check_axis(x, k)?;
    let lo = Dim::from(source.below(2));
    let hi = g.shape(x)[k].clone();
    let largest = g.reduce(ReduceOp::Max, x, &(0..g.rank(x)).collect::<Vec<_>>(), false)?;

    let mut count = g.cast(DType::I64, largest)?;
    if source.below(4) > 0 {
        let ends = [g.dim(DType::I64, lo.clone())?, g.dim(DType::I64, hi.clone())?];
        count = g.max(count, ends[0])?;
        count = g.min(count, ends[1])?;
    }

    let symbol = Symbol::new(&format!("M{}", g.data_dependent.len()));
    let len = g.bind(&symbol, count, lo, hi)?;
    g.slice(x, k, Dim::zero(), len, 1)
}

/// Concatenates `x`, a part of it, another value and a value that is computed for it.
fn concat(
    g: &mut Graph,
    x: Value,
    k: usize,
    values: &[Value],
    source: &mut RandomSource<'_>,
) -> Result<Value> {
    g.check_axis(x, k)?;
    let mut parts = vec![x];
    for _ in 0..1 + source.below(3) {
        parts.push(match source.below(4) {
            0 => x,
            1 => slice(g, x, k, source)?,
            2 => g.unary(UnaryOp::Abs, x)?,
            _ => source.pick(values),
        });
    }
    g.concat(&parts, k)
}

fn pad(g: &mut Graph, x: Value, source: &mut RandomSource<'_>) -> Result<Value> {
    let mut amounts = || (0..g.rank(x)).map(|_| Dim::from(source.below(3) as i64)).collect::<Vec<_>>();
    let lo = amounts();
    let hi = amounts();
    g.pad(x, &lo, &hi, Scalar::from_i64(g.dtype(x), 1))
}

fn reduce_op(source: &mut RandomSource<'_>) -> ReduceOp {
    source.pick(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod])
}

/// Multiplies by constant weights, and applies an affine map to the last axis of the result.
fn dense(g: &mut Graph, x: Value, source: &mut RandomSource<'_>) -> Result<Value> {
    g.check_axis(x, 0)?;
    // The weights stay small enough that their text isn't elided.
    let Some(inner) = g.shape(x)[g.rank(x) - 1].as_i64().filter(|inner| *inner <= 16) else { return Ok(x) };
    let columns = 1 + source.below(4);

    let mut random_constant = |shape: &[usize]| -> Option<Tensor> {
        let elems: usize = shape.iter().product();
        let list: Vec<Scalar> = (0..elems)
            .map(|_| Scalar::from_f64(g.dtype(x), f64::from(source.byte() % 16) / 4.0 - 2.0))
            .collect();
        Tensor::from_scalars(g.dtype(x), shape.to_vec(), &list)
    };

    let weights = random_constant(&[inner as usize, columns]);
    let affine = [random_constant(&[columns]), random_constant(&[columns])];
    let (Some(weights), [Some(scale), Some(offset)]) = (weights, affine) else { return Ok(x) };
    let weights = g.constant(weights)?;
    let product = g.matmul(x, weights)?;
    if source.coin() {
        return Ok(product);
    }
    let scale = g.constant(scale)?;
    let offset = g.constant(offset)?;
    let shifted = g.add(product, offset)?;
    let scaled = g.mul(shifted, scale)?;
    g.add(scaled, offset)
}

/// Indices that are constants, or computed from the tensor's own size.
fn gather(g: &mut Graph, x: Value, k: usize, source: &mut RandomSource<'_>) -> Result<Value> {
    g.check_axis(x, k)?;
    let size = g.shape(x)[k].clone();
    let idx = match size.as_i64() {
        Some(size) if size > 0 => {
            let list: Vec<i64> = (0..1 + source.below(3)).map(|_| source.byte() as i64 % size).collect();
            g.constant(
                Tensor::from_i64(vec![list.len()], &list).unwrap_or_else(|| unreachable!("one for each")),
            )?
        }
        _ => g.index(DType::I64, vec![size.clone()], size - 1 - Dim::from(axis(0)))?,
    };

    g.gather(x, idx, k)
}

/// Scatters the first axis of `x` into a copy of `x`, in reverse order.
fn scatter(g: &mut Graph, x: Value, source: &mut RandomSource<'_>) -> Result<Value> {
    g.check_axis(x, 0)?;
    let size = g.shape(x)[0].clone();
    let idx = g.index(DType::I64, vec![size.clone()], (size - 1 - Dim::from(axis(0))).floor_div(2))?;
    let mut coords: Vec<Coord> = (0..g.rank(x)).map(|k| Coord::At(axis(k).into())).collect();
    coords[0] = Coord::Load { operand: 2, at: vec![axis(0).into()] };
    let mode = source.pick(&[ScatterMode::Assign, ScatterMode::Combine(ReduceOp::Max)]);
    g.push(Op::Scatter { coords, mode }, &[x, x, idx])
}

/// Draws values of the symbols within the contract of `graph`. A fair draw sometimes finds none.
pub fn binding(graph: &Graph, source: &mut RandomSource<'_>) -> Option<Binding> {
    (0..32).find_map(|attempt| {
        let mut binding = Binding::new();
        for symbol in &graph.symbols {
            let Declaration { lo, hi, .. } = graph.facts.declaration(symbol)?;
            let lo = lo.to_i64()?;
            let hi = hi.as_ref()?.to_i64()?;
            let at = (source.byte() as i64 + attempt) % (hi - lo + 1);
            binding.insert(symbol.clone(), lo + at);
        }
        check_binding(graph, &binding).is_ok().then_some(binding)
    })
}

/// Small inputs: integers and halves, so that most sums are exact in any order.
///
/// # Errors
/// The binding doesn't bind all symbols.
pub fn inputs(graph: &Graph, binding: &Binding, source: &mut RandomSource<'_>) -> Result<Vec<Tensor>> {
    let mut seed = u64::from(source.byte());
    let mut tensors = Vec::new();
    for (_, value) in &graph.inputs {
        let shape = sizes(graph.shape(*value), binding)?;
        let dtype = graph.dtype(*value);
        let elems: Vec<Scalar> = (0..shape.iter().product())
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                Scalar::from_f64(dtype, (seed >> 59) as f64 / 2.0 - 4.0)
            })
            .collect();
        tensors.extend(Tensor::from_scalars(dtype, shape, &elems));
    }

    Ok(tensors)
}
