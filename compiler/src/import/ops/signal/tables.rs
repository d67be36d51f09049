//! Transforms as contractions with constant tables of sines and cosines.

use crate::{
    error::{Error, Result},
    graph::{Graph, Label, Op, Value},
    import::ops::signal::{
        fourier,
        spectrum::{fitted, joined},
    },
    scalar::{Precision, Scalar},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

/// From this length on, transforms are fast transforms.
///
/// A contraction is faster up to about twice this length. But its table grows with the square of the length and takes
/// megabytes.
pub(crate) const LONG: i64 = 2049;

/// Shorter windows are not worth folding.
const FOLDED: i64 = 128;

/// With few bits, errors of loud frequencies would exceed quiet frequencies.
const PRECISION: Precision = Precision::Full;

/// Maximum number of elements of a table that is computed at compile time.
const MAX_TABLE: i64 = 1 << 23;

/// The size of a table of turns.
#[derive(Clone, Copy)]
pub(crate) struct TableSize {
    /// Elements of the signal that the table covers.
    pub(crate) count: i64,
    /// Parts of an element of the signal: 1 if it is real, 2 if it is complex.
    pub(crate) parts: i64,
    /// Frequencies.
    pub(crate) bins: i64,
}

impl TableSize {
    /// Whether the table has more elements than are computed at compile time.
    pub(crate) fn is_too_large(self) -> bool {
        self.count.saturating_mul(2 * self.parts).saturating_mul(self.bins) > MAX_TABLE
    }
}

/// The table `[count, parts, 2, bins]` in double precision. It maps each part of each element of a signal to each part
/// of each frequency.
///
/// The elements are sines and cosines of multiples of `1/length` of a circle.
pub(crate) fn turns(g: &mut Graph, length: i64, size: TableSize) -> Result<Value> {
    let TableSize { count, parts, bins } = size;
    let rows = (0..count).flat_map(|j| (0..parts * 2).map(move |row| (j, row)));
    let elements = rows.flat_map(|(j, row)| {
        (0..bins).map(move |k| {
            let (cos, sin) = fourier::turn(j * k % length, length);
            [cos, -sin, sin, cos][row as usize]
        })
    });
    constant(g, vec![count, parts, 2, bins], elements)
}

/// The contraction of a signal with [`turns`]. Its axes `c` and `l` are summed. The axes `k` and `p` of `out` are the
/// frequencies and their parts.
pub(crate) fn contracted(
    g: &mut Graph,
    x: Value,
    labels: &[Label],
    table: Value,
    out: &[Label],
) -> Result<Value> {
    let dtype = g.dtype(x);
    let table = g.cast(dtype, table)?;
    let [lhs, rhs, out] = [labels, b"lcpk", out].map(<[Label]>::to_vec);
    g.push(Op::Contraction { lhs, rhs, out, dtype, precision: PRECISION }, &[x, table])
}

/// Whether folding saves multiplications for `length` points, of which only the first `taken` may be nonzero. With all
/// points, it saves half of them.
pub(crate) fn folds(length: i64, taken: i64) -> bool {
    length >= FOLDED && length - taken < length / 4
}

/// The transform of a real signal of up to `length` points along an axis to `bins` frequencies. A new last axis holds
/// their parts.
///
/// Points `j` and `length - j` have equal cosines and opposite sines. So their sums and differences are contracted,
/// each with half a table. The points that are their own mirror images are added to the result.
pub(crate) fn folded(g: &mut Graph, x: Value, along: usize, length: i64, bins: i64) -> Result<Value> {
    let dtype = g.dtype(x);
    let x = fitted(g, x, along, &length.into())?;

    let pairs = (length - 1) / 2;
    let first = g.slice(x, along, Dim::one(), pairs.into(), 1)?;
    let mirrored = g.slice(x, along, (length - 1).into(), pairs.into(), -1)?;
    let sums = g.add(first, mirrored)?;
    let differences = g.sub(first, mirrored)?;

    let half = |g: &mut Graph, x: Value, part: fn((f64, f64)) -> f64| {
        let at = (1..=pairs).flat_map(|j| (0..bins).map(move |k| j * k % length));
        let table = constant(g, [pairs, bins].to_vec(), at.map(|turns| part(fourier::turn(turns, length))))?;
        let table = g.cast(dtype, table)?;
        let mut labels: Vec<Label> = (0..g.rank(x) as u8).map(|k| b'A' + k).collect();
        labels[along] = b'l';
        let mut out = labels.clone();
        out[along] = b'k';
        let op = Op::Contraction { lhs: labels, rhs: b"lk".to_vec(), out, dtype, precision: PRECISION };
        g.push(op, &[x, table])
    };

    let mut re = half(g, sums, |(cos, _)| cos)?;
    let im = half(g, differences, |(_, sin)| -sin)?;
    let own = g.slice(x, along, Dim::zero(), Dim::one(), 1)?;
    re = g.add(re, own)?;

    if length % 2 == 0 {
        // The middle point has alternating signs over the frequencies.
        let own = g.slice(x, along, (length / 2).into(), Dim::one(), 1)?;
        let signs = constant(g, vec![bins], (0..bins).map(|k| if k % 2 == 0 { 1.0 } else { -1.0 }))?;
        let signs = g.cast(dtype, signs)?;
        let signs = g.unsqueeze(signs, &(1..g.rank(x) - along).collect::<Vec<_>>())?;
        let own = g.mul(own, signs)?;
        re = g.add(re, own)?;
    }

    joined(g, [re, im], dtype, false)
}

/// A table in double precision.
fn constant(g: &mut Graph, shape: Vec<i64>, elements: impl Iterator<Item = f64>) -> Result<Value> {
    let elements: Vec<Scalar> = elements.map(|element| Scalar::from_f64(DType::F64, element)).collect();
    let shape = shape.into_iter().map(|size| size as usize).collect();
    let table = Tensor::from_scalars(DType::F64, shape, &elements);
    g.constant(table.ok_or_else(|| Error::internal("the elements of a table must match its shape"))?)
}
