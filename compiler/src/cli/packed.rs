//! The inputs of a call: as they are given, or packed from padded tensors into a ragged batch.

use super::{at, errors::usage, feed, ragged::Lengths};
use crate::{
    accuracy::inputs,
    error::{At, Error, ErrorKind, Result},
    tensor::{self, Bytes, Tensor},
};
use std::{collections::BTreeMap, path::Path};
use symshape_runtime::{
    Model, RaggedBatch, RaggedError, RaggedInfo, RaggedOutputs, TensorMut, TensorRef, Tokens,
};

/// The inputs of a call.
pub(super) enum CallInputs {
    /// The model's inputs.
    Given(Vec<Tensor>),
    /// Those of the padded model, packed.
    Packed(Box<RaggedBatch>),
}

impl CallInputs {
    /// Reads inputs from files, see [`feed::read`]. With a ragged batch, they may be those of the padded model, with
    /// its mask or with `lengths`. Without files, inputs of these lengths are random.
    pub(super) fn read(
        model: &Model,
        singles: &[String],
        npz: Option<&Path>,
        lengths: Option<&Lengths>,
    ) -> Result<CallInputs> {
        let Some(ragged) = model.ragged() else {
            if let Some(lengths) = lengths {
                return Err(usage(format!("--lengths {lengths}: the model takes no ragged batch")));
            }
            return feed::read(model, singles, npz).map(CallInputs::Given);
        };

        if singles.is_empty()
            && npz.is_none()
            && let Some(lengths) = lengths
        {
            return random(model, lengths).map(CallInputs::Given);
        }
        let mut names: Vec<&str> = model.inputs().iter().map(|info| info.name()).collect();
        names.extend(ragged.mask().or(ragged.lengths()));
        let named = feed::read_named(&names, singles, npz)?;
        let place = || npz.map_or_else(|| "inputs".to_string(), |path| path.display().to_string());
        CallInputs::of_named(model, named, lengths).at(place)
    }

    /// The inputs of a call from tensors of the model, or of the padded model.
    pub(super) fn of_named(
        model: &Model,
        mut named: BTreeMap<String, Tensor>,
        lengths: Option<&Lengths>,
    ) -> Result<CallInputs> {
        let ragged = model.ragged().ok_or_else(|| refused(RaggedError::NotRagged))?;
        let offsets = model.inputs()[ragged.offsets()].name();
        let mask = ragged.mask().and_then(|name| Some((name, named.remove(name)?)));
        let own_lengths = ragged.lengths().and_then(|name| Some((name, named.remove(name)?)));
        let is_plain = mask.is_none() && own_lengths.is_none() && lengths.is_none();
        if named.contains_key(offsets) && is_plain {
            return feed::ordered(model, named).map(CallInputs::Given);
        }

        let given = named.contains_key(offsets).then_some(offsets);
        let name = |input: &Option<(&'_ str, Tensor)>| input.as_ref().map(|(name, _)| name.to_string());
        let given = [
            given.map(str::to_string),
            name(&mask),
            name(&own_lengths),
            lengths.map(|_| "--lengths".to_string()),
        ];
        match &given.into_iter().flatten().collect::<Vec<_>>()[..] {
            [_] => {}
            [] => {
                let input = ragged.mask().or(ragged.lengths());
                let mask = input.map_or_else(String::new, |input| format!("the input `{input}`, "));
                return Err(usage(format!("the lengths are missing: give {mask}`{offsets}` or --lengths")));
            }
            [a, b, ..] => return Err(usage(format!("{a} and {b} are given; expected one of them"))),
        }

        let own_lengths = own_lengths.map(|(name, tensor)| Lengths::of_tensor(name, &tensor)).transpose()?;
        let lengths = lengths.or(own_lengths.as_ref());
        if let Some(lengths) = lengths
            && has_rows(model, ragged, &named)
        {
            named.insert(offsets.to_string(), lengths.offsets()?);
            return feed::ordered(model, named).map(CallInputs::Given);
        }
        let tokens = match (&mask, lengths) {
            (Some((name, mask)), _) => {
                let mask = feed::aligned(mask.clone());
                let refs = tensor::refs(std::slice::from_ref(&mask))?;
                Tokens::of_mask(&refs[0]).map_err(refused).at(|| format!("input `{name}`"))?
            }
            (None, Some(lengths)) => {
                let positions = positions(model, ragged, &named).unwrap_or_else(|| lengths.max());
                Tokens::of_lengths(&lengths.0, positions).map_err(refused)?
            }
            (None, None) => return Err(Error::internal("there is a mask or there are lengths")),
        };
        packed(model, ragged, named, &tokens).map(|batch| CallInputs::Packed(Box::new(batch)))
    }

    /// The inputs of the call.
    pub(super) fn refs(&self) -> Result<Vec<TensorRef<'_>>> {
        match self {
            CallInputs::Given(tensors) => tensor::refs(tensors),
            CallInputs::Packed(batch) => Ok(batch.inputs()),
        }
    }

    /// The inputs as they were given; none if they are packed.
    pub(super) fn given(&self) -> &[Tensor] {
        match self {
            CallInputs::Given(tensors) => tensors,
            CallInputs::Packed(_) => &[],
        }
    }

    /// Copies of the inputs of the call.
    pub(super) fn into_tensors(self) -> Vec<Tensor> {
        match self {
            CallInputs::Given(tensors) => tensors,
            CallInputs::Packed(batch) => batch.inputs().iter().map(tensor::copy).collect(),
        }
    }
}

/// Packs the inputs of the padded model.
fn packed(
    model: &Model,
    ragged: &RaggedInfo,
    mut named: BTreeMap<String, Tensor>,
    tokens: &Tokens,
) -> Result<RaggedBatch> {
    // The offsets are computed; a placeholder keeps the order of the inputs.
    let offsets = model.inputs()[ragged.offsets()].name().to_string();
    named.insert(offsets, Lengths(Vec::new()).offsets()?);
    let mut padded = feed::ordered(model, named)?;
    padded.remove(ragged.offsets());
    let padded: Vec<Tensor> = padded.into_iter().map(feed::aligned).collect();

    let mut batch = RaggedBatch::new(model).map_err(refused)?;
    batch.push_padded(tokens, &tensor::refs(&padded)?).map_err(refused)?;
    Ok(batch)
}

/// Packs the inputs of a data set of the padded model. Without a mask, all positions are tokens.
pub(super) fn data_set(model: &Model, named: BTreeMap<String, Tensor>) -> Result<RaggedBatch> {
    let ragged = model.ragged().ok_or_else(|| refused(RaggedError::NotRagged))?;
    if ragged.mask().or(ragged.lengths()).is_none() {
        let tokens = whole(model, ragged, &named);
        return packed(model, ragged, named, &tokens.map_err(refused)?);
    }
    match CallInputs::of_named(model, named, None)? {
        CallInputs::Packed(batch) => Ok(*batch),
        CallInputs::Given(_) => {
            Err(usage("the data set has offsets; expected the inputs of the padded model"))
        }
    }
}

/// All positions of padded tensors.
fn whole(
    model: &Model,
    ragged: &RaggedInfo,
    named: &BTreeMap<String, Tensor>,
) -> std::result::Result<Tokens, RaggedError> {
    let sequences = padded_inputs(model, ragged, named)
        .find_map(|(_, idx, tensor)| tensor.shape().get(ragged.input_batch_axes()[idx]?).copied());
    let positions = positions(model, ragged, named).unwrap_or(0);
    if positions == 0 {
        return Err(RaggedError::NoPositions);
    }
    Tokens::of_lengths(&vec![positions; sequences.unwrap_or(0)], positions)
}

/// The error for tensors that can't be packed.
pub(super) fn refused(error: RaggedError) -> Error {
    Error::new(ErrorKind::Usage, error.to_string())
}

/// The outputs of a ragged call in their padded form. Padding is zero, or has the elements of `filled`.
pub(super) fn padded(outputs: &RaggedOutputs<'_>, filled: Option<&[Tensor]>) -> Result<Vec<Tensor>> {
    let all = outputs.all();
    let pad = |idx: usize| {
        let dtype = all.get(idx).dtype();
        let shape = outputs.padded_shape(idx);
        let size = shape.iter().product::<usize>() * dtype.size_bytes();
        let filled =
            filled.and_then(|tensors| tensors.get(idx)).filter(|tensor| tensor.bytes().len() == size);
        let mut bytes = filled.map_or_else(|| vec![0; size], |tensor| tensor.bytes().to_vec());
        let mut memory =
            TensorMut::from_bytes(dtype, &mut bytes).map_err(|error| Error::internal(error.to_string()))?;
        outputs.pad(idx, &mut memory).map_err(refused)?;
        Tensor::new(dtype, shape, Bytes::Owned(bytes.into()))
            .ok_or_else(|| Error::internal("sized for the shape"))
    };
    (0..all.len()).map(pad).collect()
}

/// Whether the tensors have the rows of all sequences, and no axis of sequences.
fn has_rows(model: &Model, ragged: &RaggedInfo, named: &BTreeMap<String, Tensor>) -> bool {
    padded_inputs(model, ragged, named).any(|(rank, _, tensor)| tensor.shape().len() == rank)
}

/// The padded length of the tensors.
fn positions(model: &Model, ragged: &RaggedInfo, named: &BTreeMap<String, Tensor>) -> Option<usize> {
    let rows = model.symbols()[ragged.rows()].name();
    let mut inputs = padded_inputs(model, ragged, named).filter_map(|(_, idx, tensor)| {
        let axis = model.inputs()[idx].dims().iter().position(|dim| dim == rows)?;
        let sequences = ragged.input_batch_axes()[idx]?;
        tensor.shape().get(if axis < sequences { axis } else { axis + 1 }).copied()
    });
    inputs.next()
}

/// The given inputs that have an axis of sequences and one of positions in the padded model: the number of axes in a
/// ragged call, the index of the input, and the tensor.
fn padded_inputs<'a>(
    model: &'a Model,
    ragged: &'a RaggedInfo,
    named: &'a BTreeMap<String, Tensor>,
) -> impl Iterator<Item = (usize, usize, &'a Tensor)> {
    model.inputs().iter().enumerate().filter_map(|(idx, info)| {
        ragged.input_batch_axes()[idx]?;
        Some((info.rank(), idx, named.get(info.name())?))
    })
}

/// Random inputs of sequences of these lengths.
pub(super) fn random(model: &Model, lengths: &Lengths) -> Result<Vec<Tensor>> {
    let ragged = model.ragged().ok_or_else(|| refused(RaggedError::NotRagged))?;
    let binding = |symbol: usize, value: usize| format!("{}={value}", model.symbols()[symbol].name());
    let rows = lengths.0.iter().try_fold(0_usize, |rows, length| rows.checked_add(*length));
    let rows = rows.ok_or_else(|| usage(format!("--lengths {lengths}: the sum is too large")))?;
    let sizes = [binding(ragged.sequences(), lengths.0.len()), binding(ragged.rows(), rows)].join(",");
    let dims = at::dims(model, "--lengths gives", &sizes)?;
    inputs::of_sequences(model, ragged, &dims, &lengths.0)
}
