//! Inputs whose elements must be known at import time: axes, shapes and other small integers.

use crate::{
    error::{At, Error, Result},
    graph::{Graph, Value},
    import::{
        constant,
        node::{
            OnnxNode,
            axes::{normal_axes, normal_axis},
        },
    },
    tensor::Tensor,
};
use symshape::Dim;

impl OnnxNode<'_, '_> {
    /// The attribute `axis` as an axis of `x`.
    pub(crate) fn axis(&self, g: &Graph, x: Value, default: Option<i64>) -> Result<usize> {
        let axis = self.int("axis")?.or(default);
        let axis = axis.ok_or_else(|| Error::invalid(format!("{} needs the attribute `axis`", self.op)))?;
        normal_axis(axis, g.rank(x))
    }

    /// Axes of a tensor of `rank` axes from the attribute `axes` or from input `k`, in the given order.
    pub(crate) fn axes(&self, g: &Graph, k: usize, rank: usize) -> Result<Option<Vec<usize>>> {
        let axes = match (self.ints("axes")?, self.optional(k)) {
            (Some(axes), None) => axes,
            (None, Some(_)) => self.numbers(g, k)?,
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Error::invalid("axes are given both as an attribute and as an input"));
            }
        };
        normal_axes(&axes, rank).map(Some)
    }

    /// The elements of input `k`, an integer tensor of at most one axis, as expressions.
    ///
    /// # Errors
    /// They are known only at run time.
    pub(crate) fn dims(&self, g: &Graph, k: usize) -> Result<Vec<Dim>> {
        let value = self.input(k)?;
        if g.rank(value) > 1 {
            return Err(Error::invalid(format!("input {k} must have 1 axis, but it has {}", g.rank(value))));
        }
        g.contents(value).map(<[Dim]>::to_vec).ok_or_else(|| {
            Error::unsupported(format!("{}: the value of input {k} is known only at run time", self.op))
        })
    }

    /// As [`OnnxNode::dims`], for elements that must be constants.
    pub(crate) fn numbers(&self, g: &Graph, k: usize) -> Result<Vec<i64>> {
        let number = |dim: &Dim| {
            dim.as_i64().ok_or_else(|| {
                Error::unsupported(format!("{}: input {k} must be a constant, but it is {dim}", self.op))
            })
        };
        self.dims(g, k)?.iter().map(number).collect()
    }

    /// The element of input `k`, which must have one, as an expression.
    pub(crate) fn dim(&self, g: &Graph, k: usize) -> Result<Dim> {
        match self.dims(g, k)?.as_slice() {
            [dim] => Ok(dim.clone()),
            other => {
                Err(Error::invalid(format!("input {k} must have 1 element, but it has {}", other.len())))
            }
        }
    }

    /// The constant tensor of `value`. `name` is its name in messages.
    ///
    /// # Errors
    /// It depends on inputs or symbols.
    pub(crate) fn constant(&self, g: &Graph, value: Value, name: &str) -> Result<Tensor> {
        constant::value_of(g, value)
            .at(|| name.to_string())?
            .ok_or_else(|| Error::unsupported(format!("{}: {name} is known only at run time", self.op)))
    }
}
