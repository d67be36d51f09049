//! Shapes, axes and sizes that are known only while running.
//!
//! A value that decides about a shape becomes a symbol with a bound ([`Graph::bind`]); where the model declares the size
//! of the output, that is what the value must give, and it is checked. A value that decides about the structure (axes)
//! selects among the choices that fit what is declared.

use super::node::{OnnxNode, normal_axes};
use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    scalar::{CompareOp, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

/// More choices of axes than this are not compiled.
const MAX_CHOICES: usize = 64;

impl OnnxNode<'_, '_> {
    /// The elements of input `k`, an integer tensor of at most one axis whose length is a number: each an `i64` of rank 0.
    pub(super) fn elements(&self, g: &mut Graph, k: usize) -> Result<Vec<Value>> {
        let value = self.input(k)?;
        let count = match g.shape(value) {
            [] => 1,
            [len] => len.as_i64().ok_or_else(|| {
                Error::unsupported(format!("{}: input {k} has {len} elements: not a number", self.op))
            })?,
            _ => return Err(Error::invalid(format!("input {k} has more than one axis"))),
        };
        let value = g.cast(DType::I64, value)?;
        let value = g.reshape(value, vec![count.into()])?;
        (0..count)
            .map(|i| {
                let one = g.slice(value, 0, i.into(), Dim::one(), 1)?;
                g.squeeze(one, &[0])
            })
            .collect()
    }

    /// Whether the elements of input `k` are known while compiling, as expressions over the symbols.
    pub(super) fn is_known(&self, g: &Graph, k: usize) -> bool {
        self.optional(k).is_none_or(|value| g.contents(value).is_some())
    }

    /// The declared dim `axis` of output `output`, which a value that is found while running must give.
    pub(super) fn declared_dim(&self, g: &Graph, output: usize, axis: usize) -> Option<Dim> {
        self.declared(g, output)?.get(axis)?.clone()
    }

    /// `value` as the size of axis `axis` of output 0: what is declared, or at most `most`; it is checked while running.
    pub(super) fn size(&self, g: &mut Graph, value: Value, axis: usize, most: Option<Dim>) -> Result<Dim> {
        if let Some([dim]) = g.contents(value) {
            return Ok(dim.clone());
        }
        match (self.declared_dim(g, 0, axis), most) {
            (Some(dim), _) => self.found(g, value, dim.clone(), dim),
            (None, Some(most)) => self.found(g, value, 0, most),
            (None, None) => Err(Error::unsupported(format!(
                "{}: axis {axis} of the output is known only at run time, and nothing bounds it",
                self.op
            ))),
        }
    }

    /// The result of `f` for the axes that the attribute `axes` or input `k` names (`None`: there are none given). Axes
    /// that are known only while running select among those for which `fits` says that the result is as declared.
    pub(super) fn by_axes(
        &self,
        g: &mut Graph,
        k: usize,
        rank: usize,
        fits: impl Fn(&Graph, &[usize]) -> bool,
        mut f: impl FnMut(&mut Graph, Option<Vec<usize>>) -> Result<Value>,
    ) -> Result<Value> {
        let input = self.optional(k);
        let empty = input.is_some_and(|value| g.shape(value).first().and_then(Dim::as_i64) == Some(0));
        if self.is_known(g, k) || empty || self.has("axes") {
            let axes = match empty {
                true => Some(Vec::new()),
                false => self.axes(g, k, rank)?,
            };
            return f(g, axes);
        }
        let given = self.elements(g, k)?;
        let choices: Vec<Vec<usize>> =
            subsets(rank, given.len()).into_iter().filter(|axes| fits(g, axes)).collect();
        if choices.len() > MAX_CHOICES || choices.is_empty() {
            let what = format!("{}: the axes are known only at run time, {} choices", self.op, choices.len());
            return Err(Error::unsupported(what));
        }
        let mask = axes_mask(g, &given, rank)?;
        let number = |axes: &[usize]| axes.iter().map(|axis| 1_i64 << axis).sum::<i64>();
        let mut result: Option<Value> = None;
        let mut known = g.scalar(Scalar::bool(false))?;
        for axes in &choices {
            let value = f(g, Some(axes.clone()))?;
            let code = g.scalar(Scalar::i64(number(axes)))?;
            let here = g.compare(CompareOp::Eq, mask, code)?;
            known = g.or(known, here)?;
            result = Some(match result {
                None => value,
                Some(other) if g.shape(other) == g.shape(value) => g.select(here, value, other)?,
                Some(_) => {
                    let what =
                        format!("{}: the axes are known only at run time and decide the shape", self.op);
                    return Err(Error::unsupported(what));
                }
            });
        }
        let known = g.cast(DType::I64, known)?;
        self.found(g, known, 1, 1)?;
        result.ok_or_else(|| Error::internal("at least one choice of axes"))
    }
}

/// The sum of `2^axis` over axes that may be counted from the end.
fn axes_mask(g: &mut Graph, axes: &[Value], rank: usize) -> Result<Value> {
    let (zero, one) = (g.scalar(Scalar::i64(0))?, g.scalar(Scalar::i64(1))?);
    let rank = g.scalar(Scalar::i64(rank as i64))?;
    let mut mask = zero;
    for axis in axes {
        let axis = counted(g, *axis, rank)?;
        let bit = g.binary(crate::scalar::BinaryOp::Shl, one, axis)?;
        mask = g.add(mask, bit)?;
    }
    Ok(mask)
}

/// `at`, to which `size` is added where it is negative.
pub(super) fn counted(g: &mut Graph, at: Value, size: Value) -> Result<Value> {
    let zero = g.scalar(Scalar::i64(0))?;
    let negative = g.compare(CompareOp::Lt, at, zero)?;
    let shifted = g.add(at, size)?;
    g.select(negative, shifted, at)
}

/// All ascending choices of `count` of the first `rank` numbers.
fn subsets(rank: usize, count: usize) -> Vec<Vec<usize>> {
    let all = 1_u32 << rank.min(20);
    let chosen = |mask: u32| (0..rank).filter(|k| mask >> k & 1 == 1).collect::<Vec<usize>>();
    (0..all).filter(|mask| mask.count_ones() as usize == count).map(chosen).collect()
}

/// The values that a list gives each axis: entry `i` is for axis `axes[i]`, others have the default.
pub(super) fn by_axis(
    g: &mut Graph,
    rank: usize,
    axes: &[Value],
    list: &[Value],
    default: &[Value],
) -> Result<Vec<Value>> {
    let size = g.scalar(Scalar::i64(rank as i64))?;
    let mut values = default.to_vec();
    for (axis, entry) in axes.iter().zip(list) {
        let axis = counted(g, *axis, size)?;
        for (k, value) in values.iter_mut().enumerate() {
            let own = g.scalar(Scalar::i64(k as i64))?;
            let here = g.compare(CompareOp::Eq, axis, own)?;
            *value = g.select(here, *entry, *value)?;
        }
    }
    Ok(values)
}

/// The axes in input `k` as values; all of them, in order, if there is no such input.
pub(super) fn axis_values(
    g: &mut Graph,
    n: &OnnxNode,
    k: usize,
    count: usize,
    rank: usize,
) -> Result<Vec<Value>> {
    if n.optional(k).is_some() && !n.is_known(g, k) {
        return n.elements(g, k);
    }
    let axes = match n.optional(k) {
        Some(_) => normal_axes(&n.numbers(g, k)?, rank)?,
        None => (0..count).collect(),
    };
    axes.into_iter().map(|axis| g.scalar(Scalar::i64(axis as i64))).collect()
}
