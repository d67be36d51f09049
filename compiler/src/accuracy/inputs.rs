//! Seeded inputs, the same on every machine. Their integers are valid indices into any axis of two elements.

use crate::{
    error::{Error, ErrorKind, Result},
    random::next,
    scalar::Scalar,
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::{DType, Model, RaggedInfo, TensorInfo};

/// A tensor for each input of the model at these dims: floats in -1..1; integers and bools are 0 or 1.
///
/// The first integer of a tensor is 1, so a mask is never all zero.
pub(crate) fn inputs(model: &Model, dims: &[i64]) -> Result<Vec<Tensor>> {
    model.inputs().iter().enumerate().map(|(idx, info)| tensor(idx as u64, info, model, dims)).collect()
}

/// As [`inputs`], for a ragged call of sequences of these lengths, whose dims are `dims`.
pub(crate) fn of_sequences(
    model: &Model,
    ragged: &RaggedInfo,
    dims: &[i64],
    lengths: &[usize],
) -> Result<Vec<Tensor>> {
    let mut tensors = inputs(model, dims)?;
    tensors[ragged.offsets()] = offsets(lengths)?;
    Ok(tensors)
}

/// The first row of each sequence, and at last the number of rows.
pub(crate) fn offsets(lengths: &[usize]) -> Result<Tensor> {
    let mut offsets = vec![0_i64];
    for length in lengths {
        let end =
            i64::try_from(*length).ok().and_then(|length| offsets[offsets.len() - 1].checked_add(length));
        offsets.push(end.ok_or_else(|| wrong("the sum of the lengths is too large".into()))?);
    }
    Tensor::from_i64(vec![offsets.len()], &offsets).ok_or_else(|| Error::internal("a list of offsets"))
}

/// As many sequences as `dims` say with as many rows, of almost equal lengths.
pub(crate) fn even_lengths(ragged: &RaggedInfo, dims: &[i64]) -> Vec<usize> {
    let size = |symbol: usize| usize::try_from(dims[symbol]).unwrap_or(0);
    let sequences = size(ragged.sequences()).max(1);
    let rows = size(ragged.rows());
    (0..sequences).map(|k| rows / sequences + usize::from(k < rows % sequences)).collect()
}

/// As [`inputs`], for a model with state: its integers are 1. It may take masks, whose rows must have as many ones as
/// its state has rows.
pub(crate) fn inputs_of_step(model: &Model, dims: &[i64]) -> Result<Vec<Tensor>> {
    let ones = |tensor: Tensor| {
        if !tensor.dtype().is_int() {
            return Ok(tensor);
        }
        let ones = vec![Scalar::from_i64(tensor.dtype(), 1); tensor.elems()];
        let tensor = Tensor::from_scalars(tensor.dtype(), tensor.shape().to_vec(), &ones);
        tensor.ok_or_else(|| Error::internal("as many elements"))
    };
    inputs(model, dims)?.into_iter().map(ones).collect()
}

fn tensor(seed: u64, info: &TensorInfo, model: &Model, dims: &[i64]) -> Result<Tensor> {
    random(seed, info.dtype(), shape(info, model, dims)?)
        .map_err(|error| error.at(format!("`{}`", info.name())))
}

/// A tensor of this type and shape, see [`inputs`].
pub(crate) fn random(seed: u64, dtype: DType, shape: Vec<usize>) -> Result<Tensor> {
    let elems = shape.iter().try_fold(1_usize, |size, dim| size.checked_mul(*dim));
    let elems = elems.filter(|elems| *elems <= isize::MAX as usize / dtype.size_bytes());
    let elems = elems.ok_or_else(|| wrong("too large for the memory of this machine".into()))?;
    let mut state = seed;
    let data: Vec<Scalar> = (0..elems).map(|idx| element(dtype, idx, next(&mut state))).collect();
    Tensor::from_scalars(dtype, shape, &data).ok_or_else(|| Error::internal("elements were counted"))
}

/// Element `idx`, from random bits.
fn element(dtype: DType, idx: usize, bits: u64) -> Scalar {
    if dtype.is_float() {
        Scalar::from_f64(dtype, (bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
    } else {
        Scalar::from_i64(dtype, if idx == 0 { 1 } else { (bits >> 63) as i64 })
    }
}

/// The dims in the format of `--at`: `N=8,S=128`.
pub(crate) fn binding(model: &Model, dims: &[i64]) -> String {
    let pairs = model.symbols().iter().zip(dims).map(|(symbol, dim)| format!("{}={dim}", symbol.name()));
    pairs.collect::<Vec<_>>().join(",")
}

/// The shape of an input at these dims, one for each symbol of the model.
pub(crate) fn shape(info: &TensorInfo, model: &Model, dims: &[i64]) -> Result<Vec<usize>> {
    let value = |symbol: &symshape::Symbol| {
        let position = model.symbols().iter().position(|info| info.name() == symbol.name())?;
        dims.get(position).copied()
    };
    let sizes = info.dims().iter().map(|text| {
        let dim: Dim = text.parse().map_err(|error| Error::internal(format!("dim `{text}`: {error}")))?;
        let size = dim.eval_i64(&value).map_err(|error| Error::internal(format!("dim `{text}`: {error}")))?;
        usize::try_from(size).map_err(|_| wrong(format!("`{}` has a dim {size}", info.name())))
    });
    sizes.collect()
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}
