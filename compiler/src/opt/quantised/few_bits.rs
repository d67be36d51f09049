//! Keeps large constants `(q - zero) * scale`, where `q` are stored integers of at most 8 bits, as integers.
//!
//! Constant folding would turn them into floats of four bytes. Such a product of constants becomes one constant of
//! [`FewBits`] instead, if blocks of many elements have the same scale and zero point. Its elements are the same
//! floats. Contractions read it packed; all other users make it floats when the model is lowered.

use super::real::{binary, cast, evaluated, is_fixed};
use crate::{
    error::Result,
    graph::{Graph, Op, Value, axis},
    opt::{bodies::number, dead::dead, fold::SMALL_BYTES, rebuild::rebuild, views::compose},
    scalar::BinaryOp,
    tensor::{FewBits, Tensor},
};
use num_integer::gcd;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// Smallest mean number of elements of a block. Smaller blocks have as many scales as others have bytes.
const MIN_BLOCK_ELEMS: usize = 8;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn few_bits(graph: &mut Graph) -> Result<()> {
    rebuild(graph, |new, node| {
        if !matches!(node.op, Op::Map(_)) {
            return Ok(None);
        }
        let results = new.push_multi(node.op.clone(), &node.operands)?;
        Ok(Some(match weights(new, results[0]) {
            Some(weights) => vec![new.constant(Tensor::from_few_bits(weights))?],
            None => results,
        }))
    })?;
    dead(graph)
}

/// The weights that `value` holds, if they are large.
fn weights(graph: &Graph, value: Value) -> Option<FewBits> {
    let (BinaryOp::Mul, x, y) = binary(graph, value)? else { return None };
    if graph.dtype(value) != DType::F32 {
        return None;
    }
    [(x, y), (y, x)].into_iter().find_map(|(centred, scale)| products(graph, centred, scale, &Some))
}

/// The weights `centred * of_scale(scale)`, if they are large. Both values have their shape, and `centred` holds stored
/// integers minus zero points.
pub(super) fn products(
    graph: &Graph,
    centred: Value,
    scale: Value,
    of_scale: &dyn Fn(f32) -> Option<f32>,
) -> Option<FewBits> {
    let dims = graph.shape(centred).iter();
    let shape: Vec<usize> = dims.map(|dim| usize::try_from(dim.as_i64()?).ok()).collect::<Option<_>>()?;
    let elems = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
    if elems <= SMALL_BYTES / 4 || !is_fixed(graph, centred) || !is_fixed(graph, scale) {
        return None;
    }

    let Centred { integers, zero } = Centred::of(graph, centred)?;
    let scale = Scattered::of(graph, scale)?;
    let zero = match zero {
        Some(zero) => Some(Scattered::of(graph, zero)?),
        None => None,
    };
    let block: Vec<usize> = (0..shape.len())
        .map(|k| {
            let scale = scale.block(graph, &shape, k);
            zero.as_ref().map_or(scale, |zero| common_block(scale, zero.block(graph, &shape, k), shape[k]))
        })
        .collect();

    let grid: Vec<usize> = shape.iter().zip(&block).map(|(dim, block)| dim.div_ceil(*block)).collect();
    let blocks: usize = grid.iter().product();
    if blocks * MIN_BLOCK_ELEMS > elems {
        return None;
    }
    let scales = scale.by_block(graph, &grid, &block)?.into_iter();
    let scales: Vec<f32> = scales.map(|scale| of_scale(scale as f32)).collect::<Option<_>>()?;
    let zeros: Vec<i16> = match zero {
        Some(zero) => {
            let zeros = zero.by_block(graph, &grid, &block)?.into_iter();
            zeros.map(small_integer).collect::<Option<_>>()?
        }
        None => vec![0; blocks],
    };

    let integers: Vec<i16> = match graph.as_constant(integers) {
        Some(tensor) => bytes_as_integers(tensor),
        None => bytes_as_integers(&evaluated(graph, integers)?),
    };
    FewBits::new(shape, block, &integers, scales, &zeros)
}

/// The integers of a tensor of bytes.
fn bytes_as_integers(tensor: &Tensor) -> Vec<i16> {
    let bytes = tensor.bytes().iter();
    match tensor.dtype() {
        DType::I8 => bytes.map(|byte| i16::from(*byte as i8)).collect(),
        _ => bytes.map(|byte| i16::from(*byte)).collect(),
    }
}

/// The integer of a zero point. `None` for fractions and for integers that no byte holds.
fn small_integer(zero: f64) -> Option<i16> {
    (zero.fract() == 0.0 && (-128.0..=255.0).contains(&zero)).then_some(zero as i16)
}

/// Elements along an axis that have both the same scale and the same zero point.
fn common_block(scale: usize, zero: usize, dim: usize) -> usize {
    match (scale == dim, zero == dim) {
        (true, _) => zero,
        (_, true) => scale,
        _ => gcd(scale, zero),
    }
}

/// Stored integers of one byte, minus zero points.
struct Centred {
    integers: Value,
    zero: Option<Value>,
}

impl Centred {
    fn of(graph: &Graph, value: Value) -> Option<Centred> {
        let value = before_casts(graph, value);
        let (integers, zero) = match binary(graph, value) {
            Some((BinaryOp::Sub, integers, zero)) => (before_casts(graph, integers), Some(zero)),
            _ => (value, None),
        };
        matches!(graph.dtype(integers), DType::U8 | DType::I8).then_some(Centred { integers, zero })
    }
}

/// The value before conversions that keep all integers between -255 and 255.
fn before_casts(graph: &Graph, mut value: Value) -> Value {
    let keeps = |dtype: DType| matches!(dtype, DType::I16 | DType::I32 | DType::I64 | DType::F32);
    while let Some((to, from)) = cast(graph, value)
        && keeps(to)
        && (graph.dtype(from).is_int() || keeps(graph.dtype(from)))
    {
        value = from;
    }
    value
}

/// Elements of a constant, spread over the axes `$k` of a larger value.
struct Scattered {
    source: Tensor,
    /// The place of the element in the source.
    address: Dim,
}

impl Scattered {
    fn of(graph: &Graph, value: Value) -> Option<Scattered> {
        let mut index: Vec<Dim> = (0..graph.rank(value)).map(|k| axis(k).into()).collect();
        let mut source = value;
        loop {
            if let Some(number) = number(graph, source) {
                let source = Tensor::from_scalars(number.dtype(), vec![], &[number])?;
                return Some(Scattered { source, address: Dim::zero() });
            }
            source = match graph.op(source) {
                Op::View { index: map, .. } => {
                    index = compose(map, &index);
                    graph.operands(source)[0]
                }
                _ => match cast(graph, source) {
                    Some((to, from)) if is_widening(graph.dtype(from), to) => from,
                    _ => break,
                },
            };
        }

        let source = match graph.as_constant(source) {
            Some(tensor) => tensor.clone(),
            None => evaluated(graph, source)?,
        };
        let mut stride = 1;
        let mut address = Dim::zero();
        for (dim, at) in source.shape().iter().zip(index).rev() {
            if *dim > 1 {
                address = address + at * stride;
            }
            stride *= i64::try_from(*dim).ok()?;
        }
        let address = graph.index_facts(graph.shape(value)).simplify(&address);
        Some(Scattered { source, address })
    }

    /// Elements along axis `k` that are equal, from each multiple of their number on.
    fn block(&self, graph: &Graph, shape: &[usize], k: usize) -> usize {
        let dim = shape[k];
        if !self.address.contains(&axis(k)) {
            return dim.max(1);
        }
        let place = |at: usize| {
            self.address.eval_i64(&|symbol| Some(if *symbol == axis(k) { at as i64 } else { 0 })).ok()
        };
        let block = (1..dim).find(|at| place(*at) != place(0)).unwrap_or(1);

        // `$k` is `block * quotient + rest`, and the address must not depend on the rest.
        let quotient = Symbol::new("quotient");
        let rest = Symbol::new("rest");
        let dims: Vec<Dim> = shape.iter().map(|dim| Dim::from(*dim)).collect();
        let mut facts = graph.index_facts(&dims);
        facts.declare_index(&quotient, &Dim::from(dim.div_ceil(block)));
        facts.declare_index(&rest, &Dim::from(block));
        let divided = Dim::from(&quotient) * Dim::from(block) + Dim::from(&rest);
        let address = self.address.substitute(&|symbol| (*symbol == axis(k)).then(|| divided.clone()));
        if facts.simplify(&address).contains(&rest) { 1 } else { block }
    }

    /// The element of each block, in row-major order. `None` if their places are not linear.
    fn by_block(&self, graph: &Graph, grid: &[usize], block: &[usize]) -> Option<Vec<f64>> {
        let first = |symbol: &Symbol| {
            let k = (0..grid.len()).find(|k| axis(*k) == *symbol)?;
            Some(Dim::from(axis(k)) * Dim::from(block[k]))
        };
        let dims: Vec<Dim> = grid.iter().map(|dim| Dim::from(*dim)).collect();
        let facts = graph.index_facts(&dims);
        let mut rest = facts.simplify(&self.address.substitute(&first));
        let mut steps = Vec::new();
        for k in 0..grid.len() {
            let (step, without) = facts.linear_in(&rest, &axis(k))?;
            steps.push(step.as_i64()?);
            rest = without;
        }

        let mut places = vec![rest.as_i64()?];
        for (step, dim) in steps.into_iter().zip(grid) {
            let along = |place: i64| (0..*dim as i64).map(move |at| place + at * step);
            places = places.into_iter().flat_map(along).collect();
        }
        let element = |place: i64| {
            let idx = usize::try_from(place).ok().filter(|idx| *idx < self.source.elems())?;
            Some(self.source.get(idx).as_f64())
        };
        places.into_iter().map(element).collect()
    }
}

/// Whether a conversion keeps all values of zero points and scales.
fn is_widening(from: DType, to: DType) -> bool {
    match to {
        DType::F32 => {
            matches!(from, DType::U8 | DType::I8 | DType::I16 | DType::U16 | DType::F16 | DType::BF16)
        }
        DType::I16 | DType::I32 => matches!(from, DType::U8 | DType::I8),
        _ => false,
    }
}
