//! Sequences of tensors, which are resolved at compile time (see `scope::sequences`).

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::{OnnxNode, axes::normal_axis},
        ops::{index::from_start, table::Outputs},
    },
    scalar::Scalar,
};
use symshape::Dim;

ops! {
    ConcatFromSequence 11 concat_from_sequence,
    SequenceAt 11 sequence_at,
    SequenceConstruct 11 sequence_construct,
    SequenceEmpty 11 sequence_empty,
    SequenceErase 11 sequence_erase,
    SequenceInsert 11 sequence_insert,
    SequenceLength 11 sequence_length,
    SplitToSequence 11 split_to_sequence,
}

/// Longer sequences are refused: each element is a value of the graph.
const MAX_ELEMENTS: i64 = 1 << 12;

/// Defines output 0 as this sequence.
fn defined(n: &OnnxNode, list: Vec<Value>) -> Result<Outputs> {
    n.set_output_list(list);
    Ok(Outputs(Vec::new()))
}

/// The sequence of the inputs.
///
/// `SequenceConstruct([1, 2], [3]) = {[1, 2], [3]}`
fn sequence_construct(g: &mut Graph, n: &OnnxNode) -> Result<Outputs> {
    let list = n.all()?;
    if list.iter().any(|value| g.dtype(*value) != g.dtype(list[0])) {
        return Err(Error::invalid("the tensors of a sequence must have the same element type"));
    }
    defined(n, list)
}

/// A sequence without elements.
///
/// `SequenceEmpty() = {}`
fn sequence_empty(_: &mut Graph, n: &OnnxNode) -> Result<Outputs> {
    n.int("dtype")?;
    defined(n, Vec::new())
}

/// The position in input `k`, at most `end`, its default. Negative positions count from `len`.
fn position(g: &Graph, n: &OnnxNode, k: usize, len: usize, end: i64) -> Result<usize> {
    let at = match n.optional(k) {
        None => end,
        Some(_) => match n.numbers(g, k)?.as_slice() {
            [at] if *at < 0 => at + len as i64,
            [at] => *at,
            _ => return Err(Error::invalid("a position must have 1 element")),
        },
    };

    let inside = usize::try_from(at).ok().filter(|_| at <= end);
    inside.ok_or_else(|| {
        Error::invalid(format!("position {at} is out of range: the sequence has {len} tensors"))
    })
}

/// The sequence with input 1 inserted before the position in input 2, by default at the end. Negative positions count
/// from the end.
///
/// Limits: the position is known at compile time.
///
/// `SequenceInsert({[1], [2]}, [3], i64:-1) = {[1], [3], [2]}`
/// `SequenceInsert({[1]}, [3]) = {[1], [3]}`
fn sequence_insert(g: &mut Graph, n: &OnnxNode) -> Result<Outputs> {
    let mut list = n.list(0)?;
    let value = n.input(1)?;
    if list.iter().any(|other| g.dtype(*other) != g.dtype(value)) {
        return Err(Error::invalid("the tensors of a sequence must have the same element type"));
    }
    let at = position(g, n, 2, list.len(), list.len() as i64)?;
    list.insert(at, value);
    defined(n, list)
}

/// The sequence without the element at the position in input 1, by default the last.
///
/// Limits: the position is known at compile time.
///
/// `SequenceErase({[1], [2], [3]}, i64:0) = {[2], [3]}`
fn sequence_erase(g: &mut Graph, n: &OnnxNode) -> Result<Outputs> {
    let mut list = n.list(0)?;
    let at = position(g, n, 1, list.len(), list.len() as i64 - 1)?;
    list.remove(at);
    defined(n, list)
}

/// The element at the position in input 1. Negative positions count from the end. If the position is known only at run
/// time, all elements must have the same shape.
///
/// `SequenceAt({[1, 2], [3]}, i64:-1) = [3]`
fn sequence_at(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let list = n.list(0)?;
    if n.is_known(g, 1) {
        n.input(1)?;
        return Ok(list[position(g, n, 1, list.len(), list.len() as i64 - 1)?]);
    }
    if list.is_empty() {
        return Err(Error::invalid("the sequence is empty"));
    }

    let at = g.reshape(n.input(1)?, Vec::new())?;
    let at = from_start(g, at, &[Dim::from(list.len())])?;
    let all = stacked(g, &list, 0)?;
    g.gather(all, at, 0)
}

/// The elements, stacked along a new axis.
fn stacked(g: &mut Graph, list: &[Value], axis: usize) -> Result<Value> {
    let wider: Vec<Value> = list.iter().map(|value| g.unsqueeze(*value, &[axis])).collect::<Result<_>>()?;
    g.concat(&wider, axis)
}

/// The number of elements in the sequence.
///
/// `SequenceLength({[1, 2], [3]}) = i64:2`
fn sequence_length(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let len = n.list(0)?.len();
    g.scalar(Scalar::i64(len as i64))
}

/// The elements, concatenated along `axis`, or with `new_axis=1` stacked along a new axis.
///
/// `ConcatFromSequence({[1, 2], [3]}; axis=0) = [1, 2, 3]`
/// `ConcatFromSequence({[1, 2], [3, 4]}; axis=-1, new_axis=1) = [[1, 3], [2, 4]]`
fn concat_from_sequence(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let list = n.list(0)?;
    let Some(first) = list.first() else { return Err(Error::invalid("the sequence is empty")) };
    let is_new = n.flag("new_axis", false)?;
    let axis =
        n.int("axis")?.ok_or_else(|| Error::invalid("ConcatFromSequence needs the attribute `axis`"))?;
    let axis = normal_axis(axis, g.rank(*first) + usize::from(is_new))?;
    if is_new { stacked(g, &list, axis) } else { g.concat(&list, axis) }
}

/// The parts of the input along `axis`. Input 1 holds their sizes, or a scalar that is the size of all parts but the
/// last. By default all parts have size 1, and with `keepdims=0` they lose the axis.
///
/// Limits: the number of parts is known at compile time.
///
/// `SplitToSequence([1, 2, 3], i64:2) = {[1, 2], [3]}`
/// `SplitToSequence([[1, 2], [3, 4]], i64[1, 1]; axis=1) = {[[1], [3]], [[2], [4]]}`
/// `SplitToSequence([[1, 2], [3, 4]]; keepdims=0) = {[1, 2], [3, 4]}`
fn split_to_sequence(g: &mut Graph, n: &OnnxNode) -> Result<Outputs> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(0))?;
    let keeps = n.flag("keepdims", true)?;
    let size = g.shape(x)[axis].clone();

    let sizes = match n.optional(1) {
        None => equal_parts(g, &size, &Dim::one())?,
        Some(sizes) if g.rank(sizes) == 0 => equal_parts(g, &size, &n.dim(g, 1)?)?,
        Some(_) => n.dims(g, 1)?,
    };

    let mut parts = g.split(x, axis, &sizes)?;
    if !keeps && n.optional(1).is_none() {
        for part in &mut parts {
            *part = g.squeeze(*part, &[axis])?;
        }
    }

    defined(n, parts)
}

/// The sizes of parts of `part` elements each. The last part may be smaller.
fn equal_parts(g: &Graph, size: &Dim, part: &Dim) -> Result<Vec<Dim>> {
    if !g.facts.prove_le(&Dim::one(), part).is_yes() {
        return Err(Error::unsupported(format!("a split into parts of {part}")));
    }
    let count = g.facts.simplify(&size.ceil_div(part));
    let known = count.as_i64().filter(|count| *count <= MAX_ELEMENTS);
    let count = known
        .ok_or_else(|| Error::unsupported(format!("a sequence whose length {count} is not a constant")))?;
    let last = g.facts.simplify(&(size - part * (count - 1).max(0)));
    let mut sizes = vec![part.clone(); usize::try_from(count - 1).unwrap_or(0)];
    sizes.extend((count > 0).then_some(last));
    Ok(sizes)
}
