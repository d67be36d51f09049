//! Batches of sequences of different lengths: the units of the tensors, and the offsets of a request.

use super::{error::BatchError, rows::Unit};
use crate::{Model, RaggedError, RaggedInfo, TensorInfo, TensorRef};

/// How the requests of a ragged batch share each tensor, and how large a batch may be.
pub(super) struct RaggedUnits {
    pub(super) inputs: Vec<Unit>,
    pub(super) outputs: Vec<Unit>,
    /// Largest number of sequences of a batch.
    pub(super) max_sequences: usize,
    /// Largest number of rows of all sequences of a batch.
    pub(super) max_rows: usize,
}

impl RaggedUnits {
    /// The units of the tensors of a model with a ragged batch.
    ///
    /// # Errors
    /// When a tensor has other axes before its rows or sequences, or has neither; or when the limits allow no row.
    pub(super) fn new(
        model: &Model,
        max_rows: usize,
        arena_bytes: Option<usize>,
    ) -> Result<RaggedUnits, BatchError> {
        let ragged = model.ragged().ok_or(RaggedError::NotRagged)?;
        let unit = |info: &TensorInfo| unit(model, ragged, info);
        let inputs = model.inputs().iter().enumerate();
        let inputs =
            inputs.map(|(idx, info)| if idx == ragged.offsets() { Ok(Unit::Offsets) } else { unit(info) });
        let inputs = inputs.collect::<Result<_, _>>()?;
        let outputs = model.outputs().iter().map(unit).collect::<Result<_, _>>()?;

        let size = |symbol: usize| usize::try_from(model.symbols()[symbol].hi()).unwrap_or(usize::MAX);
        let max_sequences = size(ragged.sequences());
        let max = size(ragged.rows());
        let mut max_rows = max_rows.min(max);
        if let Some(bytes) = arena_bytes {
            max_rows = max_rows.min(rows_within(model, ragged, bytes)?);
        }
        if max_rows == 0 {
            return Err(BatchError::WrongRows { rows: 0, max });
        }
        Ok(RaggedUnits { inputs, outputs, max_sequences, max_rows })
    }

    /// The number of rows and of sequences of a request, whose offsets must begin with 0, give each sequence an allowed
    /// length, and end with the number of rows.
    pub(super) fn accept(&self, model: &Model, inputs: &[TensorRef<'_>]) -> Result<RequestSize, BatchError> {
        let ragged = model.ragged().ok_or(RaggedError::NotRagged)?;
        let wrong = |index: usize, got: i64, why: String| BatchError::WrongOffset { index, got, why };
        let offsets: &[i64] = inputs[ragged.offsets()].elems()?;
        let Some((first, rest)) = offsets.split_first() else {
            return Err(BatchError::NoSequences);
        };
        if rest.is_empty() {
            return Err(BatchError::NoSequences);
        }
        if *first != 0 {
            return Err(wrong(0, *first, "the first sequence begins at row 0".into()));
        }

        let length = ragged.length();
        for (index, pair) in offsets.windows(2).enumerate() {
            let got = pair[1].checked_sub(pair[0]).unwrap_or(i64::MIN);
            if !length.allows(got) {
                let why = format!("{} is {got} for this sequence; it is declared {length}", length.name());
                return Err(wrong(index + 1, pair[1], why));
            }
        }
        let rows = usize::try_from(rest[rest.len() - 1]).unwrap_or(usize::MAX);
        let tensors = self.inputs.iter().zip(inputs).filter(|(unit, _)| **unit == Unit::Rows);
        for (_, tensor) in tensors {
            if tensor.shape().first() != Some(&rows) {
                let has = tensor.shape().first().copied().unwrap_or(0);
                let why = format!("the last sequence ends at the last row, but an input has {has} rows");
                return Err(wrong(rest.len(), rest[rest.len() - 1], why));
            }
        }
        Ok(RequestSize { rows, sequences: rest.len() })
    }
}

/// The size of a request of a ragged batch.
pub(super) struct RequestSize {
    pub(super) rows: usize,
    pub(super) sequences: usize,
}

/// The unit of a tensor, whose first axis must be the rows or the sequences.
fn unit(model: &Model, ragged: &RaggedInfo, info: &TensorInfo) -> Result<Unit, BatchError> {
    let rows = model.symbols()[ragged.rows()].name();
    let sequences = model.symbols()[ragged.sequences()].name();
    if crate::stream::is_rows(info, rows) {
        return Ok(Unit::Rows);
    }
    if crate::stream::is_rows(info, sequences) {
        return Ok(Unit::Sequences);
    }
    let symbol = format!("{rows} or {sequences}");
    Err(BatchError::NotRows { tensor: info.name().to_string(), dims: info.dims().join(", "), symbol })
}

/// The largest number of rows of a call with the largest number of sequences within this many bytes of arena.
fn rows_within(model: &Model, ragged: &RaggedInfo, bytes: usize) -> Result<usize, BatchError> {
    let mut dims: Vec<i64> = model.symbols().iter().map(|symbol| symbol.hi()).collect();
    let symbol = model.symbols()[ragged.rows()].name();
    if let Some(rows) = model.max_dim(symbol, bytes, &dims)? {
        return Ok(usize::try_from(rows).unwrap_or(usize::MAX));
    }
    dims[ragged.rows()] = 1;
    Err(BatchError::TooMuchArena { rows: 1, needed: model.arena_bytes(&dims)?, limit: bytes })
}
