//! Random numbers, as functions of a seed.
//!
//! Each element is a function of the seed, the node, and the place of the element ([`Stream::word`]). It does not
//! depend on the number of samples, on threads or on the order of evaluation. All arithmetic is exact or rounds once,
//! so the elements have the same bits on all targets. It is done on integers ([`philox`] and
//! [`piecewise`](super::shared::piecewise)), and on floats whose products are exact.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        constant,
        model::weights,
        node::OnnxNode,
        ops::shared::{
            philox::{philox, word, words},
            piecewise::{NORMAL_BITS, POSITION_BITS, halved, normal, shr},
        },
    },
    scalar::{CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

ops! {
    Bernoulli 15 bernoulli,
    Dropout 1 dropout,
    Dropout 12 dropout_input,
    Multinomial 7 multinomial,
    RandomNormal 1 random_normal,
    RandomNormalLike 1 random_normal_like,
    RandomUniform 1 random_uniform,
    RandomUniformLike 1 random_uniform_like,
}

/// The fourth word of the counter of nodes with a seed of their own. Other nodes have their number instead.
const OWN_SEED: u32 = 1 << 31;
/// The fourth word of the counter that derives the key of an iteration.
const ITERATION: u32 = u32::MAX;

/// The random numbers of a node.
struct Stream {
    key: [Value; 2],
    /// The last word of the counter.
    id: Value,
}

impl Stream {
    /// The stream of node `n`: of its attribute `seed`, or else of the seed of the call and the number of the node.
    fn of(g: &mut Graph, n: &OnnxNode) -> Result<Stream> {
        let (mut key, id) = match own_seed(n)? {
            Some(seed) => {
                let seed = g.scalar(Scalar::i64(seed))?;
                (words(g, seed)?, OWN_SEED)
            }
            None => {
                let seed = n.scope.seed(g)?;
                (words(g, seed)?, n.scope.next_stream()?)
            }
        };

        // Each iteration of a loop has another key.
        for counter in n.scope.iterations(g) {
            key = of_iteration(g, key, &counter)?;
        }
        Ok(Stream { key, id: word(g, id)? })
    }

    /// A word below `2^32` for each element of a tensor, as `u64`.
    ///
    /// The counter of an element is its row-major index within its sample (two words), the index of the sample along
    /// the first axis, and the stream.
    fn word(&self, g: &mut Graph, shape: &[Dim]) -> Result<Value> {
        let mut place = Dim::zero();
        for (k, dim) in shape.iter().enumerate().skip(1) {
            place = place * dim + Dim::from(axis(k));
        }
        let sample = if shape.is_empty() { Dim::zero() } else { Dim::from(axis(0)) };
        let place = g.index(DType::I64, shape.to_vec(), g.index_facts(shape).simplify(&place))?;
        let sample = g.index(DType::I64, shape.to_vec(), sample)?;
        let [low, high] = words(g, place)?;
        let [sample, _] = words(g, sample)?;
        philox(g, self.key, [low, high, sample, self.id], 0)
    }

    /// A number in `[0, 1)` for each element, a multiple of `2^-24`, as `f64`.
    fn uniform(&self, g: &mut Graph, shape: &[Dim]) -> Result<Value> {
        let word = self.word(g, shape)?;
        let high = shr(g, word, 32 - POSITION_BITS)?;
        let wide = g.cast(DType::F64, high)?;
        let unit = g.number(DType::F64, 2_f64.powi(-(POSITION_BITS as i32)))?;
        g.mul(wide, unit)
    }
}

/// The attribute `seed`: an integer, or the bits of a float.
fn own_seed(n: &OnnxNode) -> Result<Option<i64>> {
    match n.op {
        "Dropout" => n.int("seed"),
        _ => Ok(n.float("seed")?.map(|seed| seed.to_bits().into())),
    }
}

/// The key of the iteration `counter` of a loop with this key.
fn of_iteration(g: &mut Graph, key: [Value; 2], counter: &Symbol) -> Result<[Value; 2]> {
    let iteration = g.dim(DType::I64, counter.into())?;
    let [low, high] = words(g, iteration)?;
    let zero = word(g, 0)?;
    let mark = word(g, ITERATION)?;
    let counter = [low, high, zero, mark];
    Ok([philox(g, key, counter, 0)?, philox(g, key, counter, 1)?])
}

/// The element type in the attribute `dtype`.
fn dtype_or(n: &OnnxNode, default: DType) -> Result<DType> {
    match n.int("dtype")? {
        Some(code) => weights::dtype(i32::try_from(code).unwrap_or(-1)),
        None => Ok(default),
    }
}

/// [`dtype_or`], which must be a float.
fn float_or(n: &OnnxNode, default: DType) -> Result<DType> {
    let dtype = dtype_or(n, default)?;
    if dtype.is_float() { Ok(dtype) } else { Err(Error::invalid(format!("{} of {dtype}", n.op))) }
}

/// The dims in the attribute `shape`.
fn shape_of(n: &OnnxNode) -> Result<Vec<Dim>> {
    let shape = n.ints("shape")?;
    let shape = shape.ok_or_else(|| Error::invalid(format!("{} needs the attribute `shape`", n.op)))?;
    match shape.iter().find(|size| **size < 0) {
        Some(size) => Err(Error::invalid(format!("the shape {shape:?} has a negative size {size}"))),
        None => Ok(shape.into_iter().map(Dim::from).collect()),
    }
}

/// Numbers from `low` to `high`.
fn uniform(g: &mut Graph, n: &OnnxNode, dtype: DType, shape: &[Dim]) -> Result<Value> {
    let low = n.float_or("low", 0.0)?;
    let high = n.float_or("high", 1.0)?;
    if !low.is_finite() || !high.is_finite() || low > high {
        return Err(Error::invalid(format!("numbers from low={low} to high={high}")));
    }

    // The product with a number of 24 bits is exact if the factor has 29.
    let span = f64::from_bits((high - low).to_bits() & !0xFF_FFFF);
    let share = Stream::of(g, n)?.uniform(g, shape)?;
    let span = g.number(DType::F64, span)?;
    let low = g.number(DType::F64, low)?;
    let above = g.mul(share, span)?;
    let sum = g.add(low, above)?;
    g.cast(dtype, sum)
}

/// Normal numbers.
fn normal_numbers(g: &mut Graph, n: &OnnxNode, dtype: DType, shape: &[Dim]) -> Result<Value> {
    let mean = n.float_or("mean", 0.0)?;
    let scale = n.float_or("scale", 1.0)?;

    let word = Stream::of(g, n)?.word(g, shape)?;
    let standard = normal(g, word)?;
    // The product of two numbers of 24 bits is exact in `f64`.
    let rounded = g.cast(DType::F32, standard)?;
    let wide = g.cast(DType::F64, rounded)?;
    let factor = g.number(DType::F64, scale * 2_f64.powi(-NORMAL_BITS))?;
    let scaled = g.mul(wide, factor)?;
    let mean = g.number(DType::F64, mean)?;
    let sum = g.add(scaled, mean)?;
    g.cast(dtype, sum)
}

/// Normally distributed numbers with `mean` and the standard deviation `scale`, in a tensor of the shape `shape`. They
/// depend on the seed of the call, or on the attribute `seed` alone; see [random.md](random.md).
///
/// `RandomNormal(; shape=[2, 2], seed=1.0) = [[0.25526297, 0.92380285], [-0.2437748, 0.29763427]]`
fn random_normal(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    normal_numbers(g, n, float_or(n, DType::F32)?, &shape_of(n)?)
}

/// `RandomNormal` in the shape of the input. The default of `dtype` is its element type.
///
/// `RandomNormalLike([[1, 2], [3, 4]]; seed=1.0, scale=0.0, mean=2.0) = [[2, 2], [2, 2]]`
fn random_normal_like(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let shape = g.shape(x).to_vec();
    normal_numbers(g, n, float_or(n, g.dtype(x))?, &shape)
}

/// Uniformly distributed numbers from `low` to `high`, in a tensor of the shape `shape`. They are `low` plus a multiple
/// of `(high - low) / 2^24`, rounded. They depend on the seed of the call, or on the attribute `seed` alone; see
/// [random.md](random.md).
///
/// `RandomUniform(; shape=[2, 2], seed=1.0) = [[0.79851997, 0.3555889], [0.80740523, 0.7659823]]`
fn random_uniform(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    uniform(g, n, float_or(n, DType::F32)?, &shape_of(n)?)
}

/// `RandomUniform` in the shape of the input. The default of `dtype` is its element type.
///
/// `RandomUniformLike([[1, 2], [3, 4]]; seed=1.0, low=2.0, high=2.0) = [[2, 2], [2, 2]]`
fn random_uniform_like(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let shape = g.shape(x).to_vec();
    uniform(g, n, float_or(n, g.dtype(x))?, &shape)
}

/// 1 with the probability in the input, otherwise 0. The default of `dtype` is the element type of the input.
///
/// `Bernoulli([[0, 1]]; seed=1.0) = [[0, 1]]`
fn bernoulli(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let dtype = dtype_or(n, g.dtype(x))?;
    let shape = g.shape(x).to_vec();
    let share = Stream::of(g, n)?.uniform(g, &shape)?;
    let x = g.cast(DType::F64, x)?;
    let is_one = g.compare(CompareOp::Lt, share, x)?;
    g.cast(dtype, is_one)
}

/// `sample_size` classes for each row of unnormalised log-probabilities, `[N, C]`. The result is `[N, sample_size]`.
/// Classes that are `2^30` times less probable than the most probable one are never drawn. `dtype` is `i32` (6), the
/// default, or `i64` (7).
///
/// `Multinomial([[0, -100]]; sample_size=3, seed=1.0) = i32[[0, 0, 0]]`
fn multinomial(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let dtype = dtype_or(n, DType::I32)?;
    let count = n.int_or("sample_size", 1)?;
    let [rows, classes] = <[Dim; 2]>::try_from(g.shape(x).to_vec())
        .map_err(|_| Error::invalid("the log-probabilities must have 2 axes"))?;
    if count < 1 || !matches!(dtype, DType::I32 | DType::I64) || !g.dtype(x).is_float() {
        return Err(Error::invalid(format!("{count} samples of {dtype} from {}", g.dtype(x))));
    }

    // Weights of the classes as integers, whose sums are exact in any order.
    let x = g.cast(DType::F64, x)?;
    let max = g.reduce(ReduceOp::Max, x, &[1], true)?;
    let below = g.sub(max, x)?;
    let factor = g.number(DType::F64, std::f64::consts::LOG2_E * f64::from(1 << POSITION_BITS))?;
    let below = g.mul(below, factor)?;
    let below = g.cast(DType::I64, below)?;
    let weights = halved(g, below)?;
    let ends = g.scan(ReduceOp::Sum, weights, 1, false, false)?;
    let total = g.reduce(ReduceOp::Sum, weights, &[1], true)?;

    // The sample is the first class whose end is above `total * word / 2^32`.
    let word = Stream::of(g, n)?.word(g, &[rows, count.into()])?;
    let [low, high] = words(g, total)?;
    let low = g.mul(low, word)?;
    let low = shr(g, low, 32)?;
    let high = g.mul(high, word)?;
    let drawn = g.add(high, low)?;
    let drawn = g.cast(DType::I64, drawn)?;

    let drawn = g.unsqueeze(drawn, &[2])?;
    let ends = g.unsqueeze(ends, &[1])?;
    let is_before = g.compare(CompareOp::Le, ends, drawn)?;
    let is_before = g.cast(DType::I64, is_before)?;
    let class = g.reduce(ReduceOp::Sum, is_before, &[2], false)?;
    // A row without classes has no sample.
    g.require(symshape::Relation::le(1, &classes), "classes of Multinomial")?;
    g.cast(dtype, class)
}

/// The input, unchanged, and a mask that is true everywhere. In training, `ratio` of the elements are 0, and the others
/// are divided by `1 - ratio`. Before opset 7, `is_test=1` means inference; later opsets have inference only.
///
/// `Dropout([1, 2]; ratio=0.5) = [1, 2]`
fn dropout(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let ratio = n.float_or("ratio", 0.5)?;
    if n.opset >= 7 || n.flag("is_test", false)? {
        return inference_output(g, n);
    }
    let ratio = g.number(DType::F32, ratio)?;
    let [y, mask] = dropped(g, n, ratio)?;
    let mask = g.cast(g.dtype(y), mask)?;
    Ok(vec![Some(y), Some(mask)])
}

/// In inference the input, unchanged, and a mask that is true everywhere. If `training_mode` (input 2) is true,
/// elements are 0 with probability `ratio` (input 1, by default 0.5). The others are multiplied with
/// `1 / (1 - ratio)`, and the mask is true for them. They depend on the seed of the call, or on the attribute `seed`
/// alone; see [random.md](random.md).
///
/// `Dropout([1, 2], 0.5) = [1, 2], bool[1, 1]`
/// `Dropout([[1, 2]], 0.0, bool:1) = [[1, 2]], bool[[1, 1]]`
fn dropout_input(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let x = n.input(0)?;
    let ratio = n.optional(1);
    own_seed(n)?;
    let Some(training) = n.optional(2) else { return inference_output(g, n) };
    let is_known = |value: Value, wanted: bool| -> Result<bool> {
        Ok(constant::value_of(g, value)?
            .is_some_and(|known| known.elems() == 1 && known.get(0).is_true() == wanted))
    };
    let keeps_all = match ratio {
        Some(ratio) => is_known(ratio, false)?,
        None => false,
    };
    if is_known(training, false)? || keeps_all {
        return inference_output(g, n);
    }

    let ratio = match ratio {
        Some(ratio) => g.reshape(ratio, Vec::new())?,
        None => g.number(DType::F32, 0.5)?,
    };
    let training = g.reshape(training, Vec::new())?;
    let [y, mask] = dropped(g, n, ratio)?;
    let y = g.select(training, y, x)?;
    let all = g.scalar(Scalar::bool(true))?;
    let mask = g.select(training, mask, all)?;
    Ok(vec![Some(y), Some(mask)])
}

/// Input 0 without a share of `ratio` of its elements, and the mask of the others.
fn dropped(g: &mut Graph, n: &OnnxNode, ratio: Value) -> Result<[Value; 2]> {
    let x = n.input(0)?;
    let dtype = g.dtype(x);
    let shape = g.shape(x).to_vec();
    let share = Stream::of(g, n)?.uniform(g, &shape)?;
    let ratio = g.cast(DType::F64, ratio)?;
    let mask = g.compare(CompareOp::Ge, share, ratio)?;

    let one = g.number(DType::F64, 1.0)?;
    let kept = g.sub(one, ratio)?;
    let factor = g.div(one, kept)?;
    let factor = g.cast(dtype, factor)?;
    let scaled = g.mul(x, factor)?;
    let zero = g.number(dtype, 0.0)?;
    Ok([g.select(mask, scaled, zero)?, mask])
}

fn inference_output(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let x = n.input(0)?;
    let mask = if n.wants(1) {
        let dtype = if n.opset < 10 { g.dtype(x) } else { DType::Bool };
        let one = g.scalar(Scalar::from_i64(dtype, 1))?;
        let shape = g.shape(x).to_vec();
        Some(g.broadcast_to(one, &shape)?)
    } else {
        None
    };
    Ok(vec![Some(x), mask])
}
