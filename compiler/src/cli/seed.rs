//! Inputs where none are given: the same on every machine, and harmless as indices.

use super::usage;
use crate::{
    error::{Error, Result},
    scalar::Scalar,
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::{DType, Model, TensorInfo};

/// A tensor for each input of the model at these dims: floats in -1..1, integers and bools 0 or 1, the first one 1.
///
/// Zero and one are valid indices into anything that has two elements, and a mask of them is never all zero.
pub(super) fn inputs(model: &Model, dims: &[i64]) -> Result<Vec<Tensor>> {
    model.inputs().iter().enumerate().map(|(idx, info)| tensor(idx as u64, info, model, dims)).collect()
}

fn tensor(seed: u64, info: &TensorInfo, model: &Model, dims: &[i64]) -> Result<Tensor> {
    let shape = shape(info, model, dims)?;
    let elems = shape.iter().try_fold(1_usize, |size, dim| size.checked_mul(*dim));
    let elems = elems.filter(|elems| *elems <= isize::MAX as usize / info.dtype().size_bytes());
    let elems = elems.ok_or_else(|| usage(format!("`{}` would exceed the memory", info.name())))?;
    let mut state = seed;
    let data: Vec<Scalar> = (0..elems).map(|idx| element(info.dtype(), idx, next(&mut state))).collect();
    Tensor::from_scalars(info.dtype(), shape, &data).ok_or_else(|| Error::internal("elements were counted"))
}

/// Element `idx`, from random bits.
fn element(dtype: DType, idx: usize, bits: u64) -> Scalar {
    if dtype.is_float() {
        Scalar::from_f64(dtype, (bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
    } else {
        Scalar::from_i64(dtype, if idx == 0 { 1 } else { (bits >> 63) as i64 })
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The dims as people write them: `N=8,S=128`.
pub(super) fn binding(model: &Model, dims: &[i64]) -> String {
    let pairs = model.symbols().iter().zip(dims).map(|(symbol, dim)| format!("{}={dim}", symbol.name()));
    pairs.collect::<Vec<_>>().join(",")
}

/// One dim for each symbol from `N=8,S=128`.
pub(super) fn dims(model: &Model, at: &str) -> Result<Vec<i64>> {
    let mut dims: Vec<Option<i64>> = vec![None; model.symbols().len()];
    for part in at.split(',').filter(|part| !part.trim().is_empty()) {
        let parsed =
            part.split_once('=').and_then(|(name, value)| Some((name.trim(), value.trim().parse().ok()?)));
        let (name, value) = parsed.ok_or_else(|| usage(format!("--at {at}: expected NAME=SIZE,…")))?;
        let position = model.symbols().iter().position(|symbol| symbol.name() == name).ok_or_else(|| {
            let known: Vec<&str> = model.symbols().iter().map(|symbol| symbol.name()).collect();
            usage(format!("--at {at}: the model has no symbol {name}; it has {}", known.join(", ")))
        })?;
        let symbol = &model.symbols()[position];
        if !symbol.allows(value) {
            return Err(usage(format!("--at {at}: {name} = {value}; {name} is declared {symbol}")));
        }
        dims[position] = Some(value);
    }
    let missing = model.symbols().iter().zip(&dims).find(|(_, dim)| dim.is_none());
    match missing {
        Some((symbol, _)) => Err(usage(format!("--at {at}: {} is missing", symbol.name()))),
        None => Ok(dims.into_iter().flatten().collect()),
    }
}

/// The shape of an input at these dims, which are one for each symbol.
pub(super) fn shape(info: &TensorInfo, model: &Model, dims: &[i64]) -> Result<Vec<usize>> {
    let value = |symbol: &symshape::Symbol| {
        let position = model.symbols().iter().position(|info| info.name() == symbol.name())?;
        dims.get(position).copied()
    };
    let sizes = info.dims().iter().map(|text| {
        let dim: Dim = text.parse().map_err(|error| Error::internal(format!("dim `{text}`: {error}")))?;
        let size = dim.eval_i64(&value).map_err(|error| Error::internal(format!("dim `{text}`: {error}")))?;
        usize::try_from(size).map_err(|_| usage(format!("`{}` has a dim {size}", info.name())))
    });
    sizes.collect()
}
