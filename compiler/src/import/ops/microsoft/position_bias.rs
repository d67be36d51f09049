//! Summands of attention scores that depend on the distance between query and key.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::OnnxNode,
        ops::{activation::logistic, attention::heads},
    },
    scalar::ReduceOp,
    tensor::Tensor,
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "com.microsoft" GatedRelativePositionBias 1 gated_relative_position_bias,
    "com.microsoft" RelativePositionBias 1 relative_position_bias,
}

/// The largest `max_distance` and number of buckets. Models have some hundreds.
const MAX_BUCKETED: i64 = 1 << 16;

/// The buckets of T5: the first half of them holds one distance each, the others hold ranges that grow geometrically.
struct Buckets {
    /// Buckets of one direction.
    count: i64,
    /// Distances from here on share the last bucket.
    max_distance: i64,
    /// Whether keys after the query have buckets of their own.
    is_bidirectional: bool,
}

impl Buckets {
    /// The bucket of each distance of a query from a key, from `-max_distance` to `max_distance`.
    fn by_distance(&self) -> Vec<i64> {
        let bucket = |distance: i64| match distance {
            0.. => self.of(distance),
            _ if self.is_bidirectional => self.count + self.of(-distance),
            _ => self.of(0),
        };
        (-self.max_distance..=self.max_distance).map(bucket).collect()
    }

    /// The bucket of a distance that is not negative.
    fn of(&self, distance: i64) -> i64 {
        let exact = self.count / 2;
        if distance < exact {
            return distance;
        }
        // Models define the ranges in `f32`, so their limits are those of rounded logarithms.
        let log = |a: i64| (a as f64 / exact.max(1) as f64).ln() as f32;
        let share = log(distance) / log(self.max_distance);
        let far = exact.saturating_add((share * (self.count - exact) as f32) as i64);
        far.clamp(0, self.count - 1)
    }
}

/// The bias of T5 for each head and distance: `[1, heads, S, S]`, for the length `S` in inputs 1 and 2. A distance
/// belongs to a bucket, and input 0 has one element per bucket and head. Its shape is `[buckets, heads]`, but its
/// elements are ordered by head, then bucket. With `is_bidirectional=1`, the second half of the buckets is for keys
/// after the query; otherwise these share bucket 0.
///
/// `RelativePositionBias([[1, 2], [3, 4]], i64[2], i64[2]; max_distance=4) = [[[[1, 1], [2, 1]], [[3, 3], [4, 3]]]]`
fn relative_position_bias(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let table = n.input(0)?;
    let is_bidirectional = n.flag("is_bidirectional", false)?;
    let max_distance = n.int("max_distance")?.unwrap_or(0);
    let [buckets, heads] = <[Dim; 2]>::try_from(g.shape(table).to_vec())
        .map_err(|_| Error::invalid("the table of biases must have 2 axes"))?;
    let all =
        buckets.as_i64().ok_or_else(|| Error::unsupported("a number of buckets that is not a constant"))?;

    let count = if is_bidirectional { all / 2 } else { all };
    if !(1..=MAX_BUCKETED).contains(&count) || !(1..=MAX_BUCKETED).contains(&max_distance) {
        let message =
            format!("{all} buckets for distances up to {max_distance}; both must be in 1..={MAX_BUCKETED}");
        return Err(Error::invalid(message));
    }

    let queries = length(g, n, 1)?;
    let keys = length(g, n, 2)?;
    g.require(Relation::eq(&queries, &keys), "lengths of RelativePositionBias")?;

    let buckets_of = Buckets { count, max_distance, is_bidirectional }.by_distance();
    let buckets_of = Tensor::from_i64(vec![buckets_of.len()], &buckets_of)
        .ok_or_else(|| Error::internal("there must be a bucket for each distance"))?;
    let buckets_of = g.constant(buckets_of)?;
    let by_head = g.reshape(table, vec![heads.clone(), buckets])?;
    let by_distance = g.gather(by_head, buckets_of, 1)?;

    let distance = Dim::from(axis(2)) - Dim::from(axis(3));
    let place = Dim::max(&Dim::min(&distance, max_distance), -max_distance) + max_distance;
    g.view(by_distance, vec![Dim::one(), heads, queries, keys], vec![axis(1).into(), place])
}

/// The length in input `k`, a vector of one element or a scalar.
fn length(g: &mut Graph, n: &OnnxNode, k: usize) -> Result<Dim> {
    let value = n.input(k)?;
    let value = g.cast(DType::I64, value)?;
    let value = g.reshape(value, Vec::new())?;
    n.size(g, value, k + 1, None)
}

/// A relative position bias (input 2) times a gate that depends on the query: the bias of WavLM. The gate is
/// `u * (r * eco_a - 1) + 2`, where `u` and `r` are sigmoids of sums of halves of `(query + query_bias)·weight + bias`
/// for each head. The inputs are the query, its bias, the position bias, weight, bias and `eco_a`.
///
/// Limits: no `token_offset`.
///
/// `GatedRelativePositionBias([[[1]]], [1], [[[[10]]]], [[0, 0]], [0, 0], [[[[2]]]]; num_heads=1) = [[[[20]]]]`
fn gated_relative_position_bias(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    if n.optional(6).is_some() {
        return Err(Error::unsupported("GatedRelativePositionBias with token_offset"));
    }

    let query = g.add(n.input(0)?, n.input(1)?)?;
    let query = heads(g, query, n.int_or("num_heads", 0)?)?;
    let product = g.contract(query, b"bhsd", n.input(3)?, b"dk", b"bhsk")?;
    let product = g.add(product, n.input(4)?)?;

    let width = g.shape(product)[3].clone();
    g.require(Relation::divides(2, &width), "halves of the gate")?;
    let half = g.facts.simplify(&width.floor_div(2));
    let halves = g.split(product, 3, &[half.clone(), half])?;
    let mut gates = Vec::new();
    for half in halves {
        let sum = g.reduce(ReduceOp::Sum, half, &[3], true)?;
        gates.push(logistic(g, sum)?);
    }

    let dtype = g.dtype(product);
    let one = g.number(dtype, 1.0)?;
    let two = g.number(dtype, 2.0)?;
    let scaled = g.mul(gates[1], n.input(5)?)?;
    let shifted = g.sub(scaled, one)?;
    let gated = g.mul(gates[0], shifted)?;
    let gate = g.add(gated, two)?;
    g.mul(gate, n.input(2)?)
}
