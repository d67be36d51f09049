//! Data-dependent shapes, axes and sizes.
//!
//! A value that determines a size becomes a symbol with a bound ([`Graph::bind`]). If the model declares the size of
//! the output, the value must equal it, which is checked at run time. A value that determines axes selects among the
//! choices that fit the declared output.

use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::{Graph, Value, build::check_rank},
    import::node::{
        OnnxNode,
        axes::{larger, normal_position},
    },
    scalar::{CompareOp, Scalar},
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// Maximum number of choices of axes.
const MAX_CHOICES: usize = 64;

impl OnnxNode<'_, '_> {
    /// The elements of input `k`, each an `i64` of rank 0. The input is an integer tensor of at most one axis and
    /// constant length.
    pub(crate) fn elements(&self, g: &mut Graph, k: usize) -> Result<Vec<Value>> {
        let value = self.input(k)?;
        let count = match g.shape(value) {
            [] => 1,
            [len] => len.as_i64().ok_or_else(|| {
                Error::unsupported(format!(
                    "{}: the number of elements of input {k} must be a constant, but it is {len}",
                    self.op
                ))
            })?,
            _ => return Err(Error::invalid(format!("input {k} must have at most 1 axis"))),
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

    /// Whether the elements of input `k` are known at compile time, as expressions over the symbols.
    pub(crate) fn is_known(&self, g: &Graph, k: usize) -> bool {
        self.optional(k).is_none_or(|value| g.contents(value).is_some())
    }

    /// The declared dim `axis` of output `output`, which a data-dependent value must equal.
    pub(crate) fn declared_dim(&self, g: &Graph, output: usize, axis: usize) -> Option<Dim> {
        self.declared(g, output)?.get(axis)?.clone()
    }

    /// `value` as the size of axis `axis` of output 0: the declared size, or a symbol up to `max`. It is checked at run
    /// time.
    pub(crate) fn size(&self, g: &mut Graph, value: Value, axis: usize, max: Option<Dim>) -> Result<Dim> {
        check_rank(axis + 1)?;
        if let Some([dim]) = g.contents(value) {
            return Ok(dim.clone());
        }
        if let Some(dim) = self.declared_dim(g, 0, axis) {
            return self.data_dependent(g, value, dim.clone(), dim);
        }
        let symbol = self.declared_symbol(g, axis).unwrap_or_else(|| self.fresh(g));
        self.data_dependent_as(g, &symbol, value, Dim::zero(), max)
            .at(|| format!("axis {axis} of {}", self.op))
    }

    /// `value` as a dim in `lo..=hi`. If it is unknown at compile time, it is a symbol that is checked at run time.
    pub(crate) fn data_dependent(
        &self,
        g: &mut Graph,
        value: Value,
        lo: impl Into<Dim>,
        hi: impl Into<Dim>,
    ) -> Result<Dim> {
        let symbol = self.fresh(g);
        self.data_dependent_as(g, &symbol, value, lo.into(), Some(hi.into()))
    }

    /// As [`OnnxNode::data_dependent`], with this symbol and within the bounds that the caller declares for it.
    fn data_dependent_as(
        &self,
        g: &mut Graph,
        symbol: &Symbol,
        value: Value,
        mut lo: Dim,
        mut hi: Option<Dim>,
    ) -> Result<Dim> {
        let bounds = self.scope.bounds();
        if let Some((declared_lo, declared_hi)) = bounds.of(symbol)? {
            lo = g.facts.simplify(&Dim::max(&lo, declared_lo));
            hi = match (hi, declared_hi) {
                (Some(hi), Some(declared_hi)) => Some(g.facts.simplify(&Dim::min(&hi, declared_hi))),
                (hi, declared_hi) => hi.or(declared_hi),
            };
        }
        let hi = hi.or(bounds.default_max.map(Dim::from)).ok_or_else(|| unbounded(symbol))?;
        g.bind(symbol, value, lo, hi)
    }

    /// The caller's bound for a size that nothing else bounds, and the symbol that declares it.
    pub(crate) fn open_bound(&self, g: &Graph) -> Result<(Symbol, Dim)> {
        let symbol = self.fresh(g);
        let bounds = self.scope.bounds();
        let declared = bounds.of(&symbol)?.and_then(|(_, hi)| hi);
        let bound = declared.or(bounds.default_max.map(Dim::from)).ok_or_else(|| unbounded(&symbol))?;
        Ok((symbol, bound))
    }

    /// The result of `f` for the axes in the attribute `axes` or input `k`, or for `None` without either.
    ///
    /// Axes known only at run time select among those for which `fits` holds: their result is as declared.
    pub(crate) fn by_axes(
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
            let axes = if empty { Some(Vec::new()) } else { self.axes(g, k, rank)? };
            return f(g, axes);
        }

        let given = self.elements(g, k)?;
        let choices: Vec<Vec<usize>> =
            subsets(rank, given.len()).into_iter().filter(|axes| fits(g, axes)).collect();
        if choices.len() > MAX_CHOICES || choices.is_empty() {
            let message =
                format!("{}: the axes are known only at run time, {} choices", self.op, choices.len());
            return Err(Error::unsupported(message));
        }

        let mask = axes_mask(g, &given, rank)?;
        let number = |axes: &[usize]| axes.iter().map(|axis| 1_i64 << axis).sum::<i64>();

        let mut results = Vec::new();
        let mut known = g.scalar(Scalar::bool(false))?;
        for axes in &choices {
            let value = f(g, Some(axes.clone()))?;
            let code = g.scalar(Scalar::i64(number(axes)))?;
            let here = g.compare(CompareOp::Eq, mask, code)?;
            known = g.or(known, here)?;
            results.push((here, value));
        }

        let known = g.cast(DType::I64, known)?;
        self.data_dependent(g, known, 1, 1)?;
        self.chosen(g, results)
    }

    /// The value whose condition holds.
    ///
    /// If the sizes differ, all values are padded to the largest size. The result is sliced to the size of the chosen
    /// value.
    fn chosen(&self, g: &mut Graph, choices: Vec<(Value, Value)>) -> Result<Value> {
        let shapes: Vec<Vec<Dim>> = choices.iter().map(|(_, value)| g.shape(*value).to_vec()).collect();
        let first =
            shapes.first().ok_or_else(|| Error::internal("there must be at least one choice of axes"))?;

        let mut largest = first.clone();
        for shape in &shapes {
            if shape.len() != largest.len() {
                let message =
                    format!("{}: the axes are known only at run time, and the rank depends on them", self.op);
                return Err(Error::unsupported(message));
            }
            for (largest, dim) in largest.iter_mut().zip(shape) {
                *largest = g.facts.simplify(&larger(g, largest, dim));
            }
        }

        let mut sizes = Vec::new();
        for k in 0..largest.len() {
            if shapes.iter().all(|shape| shape[k] == largest[k]) {
                continue;
            }
            let mut size = g.dim(DType::I64, shapes[0][k].clone())?;
            for ((here, _), shape) in choices.iter().zip(&shapes) {
                let own = g.dim(DType::I64, shape[k].clone())?;
                size = g.select(*here, own, size)?;
            }
            sizes.push((k, self.data_dependent(g, size, 0, largest[k].clone())?));
        }

        let mut result = None;
        for ((here, value), shape) in choices.into_iter().zip(shapes) {
            let hi: Vec<Dim> = largest.iter().zip(&shape).map(|(largest, dim)| largest - dim).collect();
            let fill = Scalar::from_i64(g.dtype(value), 0);
            let value = g.pad(value, &vec![Dim::zero(); hi.len()], &hi, fill)?;
            result = Some(match result {
                None => value,
                Some(other) => g.select(here, value, other)?,
            });
        }

        let mut result =
            result.ok_or_else(|| Error::internal("there must be at least one choice of axes"))?;
        for (k, size) in sizes {
            result = g.slice(result, k, Dim::zero(), size, 1)?;
        }

        Ok(result)
    }
}

fn unbounded(symbol: &Symbol) -> Error {
    let message =
        format!("`{symbol}` is known only at run time and has no upper bound; declare, for example,");
    Error::new(ErrorKind::Contract, format!("{message} --dim {symbol}=0..4096"))
}

/// The sum of `2^axis` over axes. Negative axes count from the end.
fn axes_mask(g: &mut Graph, axes: &[Value], rank: usize) -> Result<Value> {
    let zero = g.scalar(Scalar::i64(0))?;
    let one = g.scalar(Scalar::i64(1))?;
    let rank = g.scalar(Scalar::i64(rank as i64))?;
    let mut mask = zero;
    for axis in axes {
        let axis = normal_position(g, *axis, rank)?;
        let bit = g.binary(crate::scalar::BinaryOp::Shl, one, axis)?;
        mask = g.add(mask, bit)?;
    }
    Ok(mask)
}

/// All ascending choices of `count` indices below `rank`.
fn subsets(rank: usize, count: usize) -> Vec<Vec<usize>> {
    let all = 1_u32 << rank.min(20);
    let chosen = |mask: u32| (0..rank).filter(|k| mask >> k & 1 == 1).collect::<Vec<usize>>();
    (0..all).filter(|mask| mask.count_ones() as usize == count).map(chosen).collect()
}
