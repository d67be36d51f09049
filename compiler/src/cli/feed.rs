//! Reads the inputs of a call from files.

use super::{errors::usage, npy};
use crate::{
    error::{At, Error, ErrorKind, Result},
    import::seed::SEED_NAMES,
    tensor::{Bytes, Tensor},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use symshape_runtime::{CallError, DType, Model, TensorInfo};

/// Tensors for each input, in the model's order, from `NAME=F.npy` arguments and an `.npz` with keys `NAME` or
/// `in:NAME`.
pub(super) fn read(model: &Model, singles: &[String], npz: Option<&Path>) -> Result<Vec<Tensor>> {
    let named = read_named(&input_names(model), singles, npz)?;
    let place = || npz.map_or_else(|| "inputs".to_string(), |path| path.display().to_string());
    ordered(model, named).at(place)
}

/// The tensors in the files by name, where `inputs` are the names of inputs.
pub(super) fn read_named(
    inputs: &[&str],
    singles: &[String],
    npz: Option<&Path>,
) -> Result<BTreeMap<String, Tensor>> {
    let mut named = BTreeMap::new();
    if let Some(path) = npz {
        for (key, tensor) in npy::read_npz(path)? {
            let is_input = |name: &str| inputs.contains(&name);
            match key.strip_prefix("in:").filter(|name| !is_input(&key) || is_input(name)) {
                Some(name) => named.insert(name.to_string(), tensor),
                None if key.starts_with("out:") && !is_input(&key) => None,
                None => named.insert(key, tensor),
            };
        }
    }

    let mut named_singly = BTreeSet::new();
    for single in singles {
        let (name, file) =
            single.split_once('=').ok_or_else(|| usage(format!("-i {single}: expected NAME=F.npy")))?;
        if !inputs.contains(&name) {
            return Err(usage(format!(
                "-i {single}: the model has no input `{name}`; it has {}",
                quoted(inputs)
            )));
        }

        let tensor = npy::read(Path::new(file)).at(|| format!("input `{name}`"))?;
        if named_singly.insert(name) {
            named.insert(name.to_string(), tensor);
        } else {
            return Err(usage(format!("-i {single}: `{name}` was given before")));
        }
    }

    Ok(named)
}

/// The tensors in the order of the model's inputs. A note on standard error names tensors that are not inputs.
pub(super) fn ordered(model: &Model, mut named: BTreeMap<String, Tensor>) -> Result<Vec<Tensor>> {
    let given = named.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let tensors = model.inputs().iter().map(|info| {
        let given_or_seed = named.remove(info.name()).or_else(|| default_seed(info));
        given_or_seed.ok_or_else(|| {
            let given = if given.is_empty() { "nothing".to_string() } else { given.clone() };
            usage(format!("input `{}` is missing; {given} was given", info.name()))
        })
    });

    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    for name in named.keys() {
        eprintln!(
            "symc: note: `{name}` is not an input of the model and is ignored; its inputs are {}",
            quoted(&input_names(model))
        );
    }

    Ok(tensors)
}

/// The seed 0, if the input is the seed of random numbers.
pub(super) fn default_seed(info: &TensorInfo) -> Option<Tensor> {
    seed().filter(|_| is_seed(info.name(), info.dtype(), info.dims().len()))
}

/// Whether an input of this name, type and rank is the seed of random numbers.
pub(super) fn is_seed(name: &str, dtype: DType, rank: usize) -> bool {
    SEED_NAMES.contains(&name) && dtype == DType::I64 && rank == 0
}

/// The seed 0.
pub(super) fn seed() -> Option<Tensor> {
    Tensor::from_i64(Vec::new(), &[0])
}

/// The names of the model's inputs.
fn input_names(model: &Model) -> Vec<&str> {
    model.inputs().iter().map(TensorInfo::name).collect()
}

/// A list of names.
pub(super) fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A copy whose memory is aligned for every element type.
pub(super) fn aligned(tensor: Tensor) -> Tensor {
    let bytes = Bytes::Owned(tensor.bytes().into());
    Tensor::new(tensor.dtype(), tensor.shape().to_vec(), bytes).expect("of the same size")
}

/// The error for a call that the model refused.
pub(super) fn refused(error: &CallError) -> Error {
    Error::new(ErrorKind::Usage, error.to_string())
}
