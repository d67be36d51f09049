//! The tensors of a batcher: which requests it accepts, and how many of their rows one call can take.

use super::{
    error::{BatchError, MAX_TENSORS},
    ragged::{RaggedUnits, RequestSize},
    rows::Unit,
};
use crate::{
    CallError, Model, RaggedInfo, SymbolInfo, TensorInfo, TensorName, TensorRef, Violation,
    descriptor::Slots, tensor, tensor::MAX_AXES,
};
use std::sync::{Mutex, PoisonError};

/// Sizes that a batch may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Largest number of rows.
    pub(super) rows: usize,
    /// Largest number of bytes of arena, if there is a limit.
    pub(super) arena_bytes: Option<usize>,
}

/// The tensors of all lanes.
pub(super) struct BatchLayout {
    pub(super) model: Model,
    /// Index of the batch's symbol.
    symbol: usize,
    pub(super) limits: Limits,
    /// The shape of the rows if all requests have the same, and the largest number of rows of a batch of them.
    fixed: Option<FixedRows>,
    /// The units of the tensors, if requests have sequences of different lengths.
    ragged: Option<RaggedUnits>,
    checker: Mutex<Checker>,
}

/// Rows of one shape.
struct FixedRows {
    shapes: Vec<Vec<usize>>,
    max_rows: usize,
}

/// A request that the contract allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    pub(super) rows: usize,
    /// Largest number of rows of a batch whose rows have the shape of this request.
    pub(super) max_rows: usize,
    /// The same for sequences; they are 0 if batches are not ragged.
    pub(super) sequences: usize,
    pub(super) max_sequences: usize,
}

impl Accepted {
    /// A request of rows alone.
    fn rows(rows: usize, max_rows: usize) -> Accepted {
        Accepted { rows, max_rows, sequences: 0, max_sequences: 0 }
    }
}

/// The tables of one check of the contract.
struct Checker {
    slots: Slots,
    /// The shapes of all inputs, one after another.
    shapes: Vec<i64>,
    /// Index in `shapes` of the first axis of each input.
    first_axes: Vec<usize>,
    dims: Vec<i64>,
}

impl BatchLayout {
    /// The layout of rows of one shape, or of any shape that the contract allows.
    pub(super) fn new(
        model: &Model,
        symbol: &str,
        rows: Option<&[&[usize]]>,
        limits: Limits,
    ) -> Result<BatchLayout, BatchError> {
        let position = model.symbols().iter().position(|info| info.name() == symbol);
        let position = position.ok_or_else(|| crate::QueryError::NoSymbol { name: symbol.into() })?;
        if model.desc.state.is_some() {
            return Err(CallError::StateMissing.into());
        }
        check_rows(model, symbol)?;
        if rows.is_none() && model.grows() {
            return Err(BatchError::Unbounded);
        }

        let checker = Mutex::new(Checker::new(model));
        let mut layout = BatchLayout {
            model: model.clone(),
            symbol: position,
            limits,
            fixed: None,
            ragged: None,
            checker,
        };
        if limits.rows == 0 || layout.padded(limits.rows).is_none() {
            let max = usize::try_from(model.symbols()[position].hi()).unwrap_or(usize::MAX);
            return Err(BatchError::WrongRows { rows: limits.rows, max });
        }

        if let Some(rows) = rows {
            layout.fixed = Some(layout.fixed_rows(rows)?);
        }
        Ok(layout)
    }

    /// The layout of sequences of different lengths.
    pub(super) fn ragged(model: &Model, limits: Limits) -> Result<BatchLayout, BatchError> {
        if model.grows() {
            return Err(BatchError::Unbounded);
        }
        if model.inputs().len() > MAX_TENSORS || model.outputs().len() > MAX_TENSORS {
            return Err(BatchError::TooManyTensors);
        }
        let units = RaggedUnits::new(model, limits.rows, limits.arena_bytes)?;
        let limits = Limits { rows: units.max_rows, ..limits };
        let symbol = model.ragged().map_or(0, RaggedInfo::rows);
        let checker = Mutex::new(Checker::new(model));
        Ok(BatchLayout { model: model.clone(), symbol, limits, fixed: None, ragged: Some(units), checker })
    }

    /// Rows of one shape: the whole contract is checked at the largest batch.
    fn fixed_rows(&self, rows: &[&[usize]]) -> Result<FixedRows, BatchError> {
        let expected = self.model.inputs().len();
        let got = rows.len();
        if expected != got {
            return Err(CallError::WrongInputCount { expected, got }.into());
        }
        for (idx, (row, info)) in rows.iter().zip(self.model.inputs()).enumerate() {
            let got = row.len() + 1;
            if got > MAX_AXES || tensor::size_bytes(info.dtype(), row).is_none() {
                return Err(crate::TensorError::TooLarge.into());
            }
            if got != info.rank() {
                let tensor = TensorName::input(&self.model.desc, idx);
                return Err(CallError::WrongRank { tensor, expected: info.rank(), got }.into());
            }
        }

        let mut checker = self.checker.lock().unwrap_or_else(PoisonError::into_inner);
        let shape = |idx: usize| rows[idx];
        let mut max_rows = self.limits.rows;
        if self.limits.arena_bytes.is_some() {
            let least = self.padded(1).unwrap_or(1);
            checker.bind(self, shape, least)?;
            max_rows = self.max_rows(&mut checker, shape, least)?;
        }
        checker.bind(self, shape, self.padded(max_rows).unwrap_or(max_rows))?;
        Ok(FixedRows { shapes: rows.iter().map(|row| row.to_vec()).collect(), max_rows })
    }

    fn symbol(&self) -> &SymbolInfo {
        &self.model.symbols()[self.symbol]
    }

    /// The smallest allowed size of a batch of at least `rows` rows.
    pub(super) fn padded(&self, rows: usize) -> Option<usize> {
        let value = self.symbol().range().at_least(i64::try_from(rows).ok()?)?;
        usize::try_from(value).ok()
    }

    /// Bytes to reserve for a batch of a tensor: enough for any rows that a batch may have.
    pub(super) fn batch_bytes(&self, info: &TensorInfo, row_bytes: Option<usize>) -> usize {
        let capacity = self.padded(self.limits.rows).unwrap_or(self.limits.rows);
        row_bytes.map_or(info.max_bytes(), |bytes| capacity * bytes).next_multiple_of(64)
    }

    /// Bytes of a row of input `idx`, if all rows have one shape.
    pub(super) fn fixed_input_bytes(&self, idx: usize) -> Option<usize> {
        let fixed = self.fixed.as_ref()?;
        tensor::size_bytes(self.model.inputs()[idx].dtype(), &fixed.shapes[idx])
    }

    /// Bytes of a row of output `idx`, if all rows have one shape.
    pub(super) fn fixed_output_bytes(&self, idx: usize) -> Option<usize> {
        let fixed = self.fixed.as_ref()?;
        let mut checker = self.checker.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = self.padded(fixed.max_rows).unwrap_or(fixed.max_rows);
        checker.bind(self, |idx| fixed.shapes[idx].as_slice(), rows).ok()?;
        let info = &self.model.outputs()[idx];
        let mut shape = [0; MAX_AXES];
        self.model.desc.output_shape(idx, &checker.dims, &mut shape[..info.rank()]);
        let sizes = shape.map(|dim| usize::try_from(dim).unwrap_or(0));
        tensor::size_bytes(info.dtype(), &sizes[1..info.rank()])
    }

    /// Whether the rows of all requests have one shape.
    pub(super) fn has_one_shape(&self) -> bool {
        self.fixed.is_some() || self.ragged.is_some()
    }

    /// Whether a request may join a batch before the requests that wait for an empty lane. That keeps no other request
    /// waiting, because batches of other shapes have no space for it.
    pub(super) fn joins_early(&self) -> bool {
        !self.has_one_shape()
    }

    /// Largest number of requests of a batch.
    pub(super) fn max_requests(&self) -> usize {
        self.ragged.as_ref().map_or(self.limits.rows, |units| units.max_sequences)
    }

    /// The unit that requests divide input `idx` by.
    pub(super) fn input_unit(&self, idx: usize) -> Unit {
        self.ragged.as_ref().map_or(Unit::Rows, |units| units.inputs[idx])
    }

    /// The unit that requests divide output `idx` by.
    pub(super) fn output_unit(&self, idx: usize) -> Unit {
        self.ragged.as_ref().map_or(Unit::Rows, |units| units.outputs[idx])
    }

    /// The number of items of a call with `count` items and their padding.
    pub(super) fn padded_count(&self, unit: Unit, count: usize) -> usize {
        if unit == Unit::Rows { self.padded(count).unwrap_or(count) } else { count }
    }

    /// The rows of a request, if its types and shapes are right.
    pub(super) fn accept(&self, inputs: &[TensorRef<'_>]) -> Result<Accepted, BatchError> {
        let expected = self.model.inputs().len();
        let got = inputs.len();
        if expected != got {
            return Err(CallError::WrongInputCount { expected, got }.into());
        }

        if let Some(units) = &self.ragged {
            return self.accept_ragged(units, inputs);
        }

        let max = self.fixed.as_ref().map_or(self.limits.rows, |fixed| fixed.max_rows);
        let rows = inputs.first().and_then(|input| input.shape().first().copied()).unwrap_or(1);
        if rows == 0 || rows > max {
            return Err(BatchError::WrongRows { rows, max });
        }

        for (idx, (input, info)) in inputs.iter().zip(self.model.inputs()).enumerate() {
            self.accept_rows(idx, input, info, rows)?;
        }
        if self.fixed.is_some() {
            return Ok(Accepted::rows(rows, max));
        }

        let mut checker = self.checker.lock().unwrap_or_else(PoisonError::into_inner);
        let shape = |idx: usize| &inputs[idx].shape()[1..];
        checker.bind(self, shape, self.padded(rows).unwrap_or(rows))?;
        let max_rows = self.max_rows(&mut checker, shape, rows)?;
        Ok(Accepted::rows(rows, max_rows))
    }

    /// The sizes of a request whose tensors are those of a ragged call.
    fn accept_ragged(&self, units: &RaggedUnits, inputs: &[TensorRef<'_>]) -> Result<Accepted, BatchError> {
        for (idx, (input, info)) in inputs.iter().zip(self.model.inputs()).enumerate() {
            self.accept_type(idx, input, info)?;
        }
        let RequestSize { rows, sequences } = units.accept(&self.model, inputs)?;
        if rows > units.max_rows {
            return Err(BatchError::WrongRows { rows, max: units.max_rows });
        }
        if sequences > units.max_sequences {
            return Err(BatchError::WrongSequences { sequences, max: units.max_sequences });
        }
        let mut checker = self.checker.lock().unwrap_or_else(PoisonError::into_inner);
        checker.bind_whole(self, |idx| inputs[idx].shape())?;
        Ok(Accepted { rows, max_rows: units.max_rows, sequences, max_sequences: units.max_sequences })
    }

    /// Checks the type and the number of axes of an input of a request.
    fn accept_type(&self, idx: usize, input: &TensorRef<'_>, info: &TensorInfo) -> Result<(), BatchError> {
        let tensor = || TensorName::input(&self.model.desc, idx);
        if input.dtype() != info.dtype() {
            let expected = info.dtype();
            let got = input.dtype();
            return Err(CallError::WrongDType { tensor: tensor(), expected, got }.into());
        }

        let expected = info.rank();
        let got = input.shape().len();
        if expected != got {
            return Err(CallError::WrongRank { tensor: tensor(), expected, got }.into());
        }
        Ok(())
    }

    /// Checks the type and the shape of an input of a request of `rows` rows.
    fn accept_rows(
        &self,
        idx: usize,
        input: &TensorRef<'_>,
        info: &TensorInfo,
        rows: usize,
    ) -> Result<(), BatchError> {
        self.accept_type(idx, input, info)?;
        if input.shape()[0] != rows {
            return Err(BatchError::Uneven { input: idx, expected: rows, got: input.shape()[0] });
        }

        let Some(fixed) = &self.fixed else { return Ok(()) };
        let tensor = || TensorName::input(&self.model.desc, idx);
        let expected_row = &fixed.shapes[idx];
        let wrong = (1..info.rank()).find(|axis| input.shape()[*axis] != expected_row[*axis - 1]);
        match wrong {
            Some(axis) => {
                let expected = expected_row[axis - 1];
                let got = input.shape()[axis];
                Err(CallError::WrongShape { tensor: tensor(), axis, expected, got }.into())
            }
            None => Ok(()),
        }
    }

    /// The largest number of rows of this shape that one call can take: at most the limits, and within all relations
    /// of the contract. `checker` has checked `rows` rows.
    fn max_rows<'s>(
        &self,
        checker: &mut Checker,
        shape: impl Fn(usize) -> &'s [usize] + Copy,
        rows: usize,
    ) -> Result<usize, BatchError> {
        let desc = &self.model.desc;
        let capacity = self.padded(self.limits.rows).unwrap_or(self.limits.rows) as i64;
        let limit = self.limits.arena_bytes.unwrap_or(usize::MAX);
        let needed = desc.arena_bytes(&checker.dims);
        if needed > limit {
            return Err(BatchError::TooMuchArena { rows, needed, limit });
        }

        let least = checker.dims[self.symbol];
        let dims = &mut checker.dims;
        let fits = |value: i64| {
            dims[self.symbol] = value;
            desc.arena_bytes(dims) <= limit
        };

        let mut value = self.symbol().range().largest_within(least, capacity, desc.is_monotone(), fits);
        while value > least && checker.bind(self, shape, value as usize).is_err() {
            value = self.symbol().range().below(value).unwrap_or(least);
        }
        Ok(usize::try_from(value).unwrap_or(rows).min(self.limits.rows))
    }
}

impl std::fmt::Debug for BatchLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchLayout").field("model", &self.model).field("limits", &self.limits).finish()
    }
}

impl Checker {
    fn new(model: &Model) -> Checker {
        let mut first_axes = Vec::new();
        let mut n_axes = 0;
        for input in model.inputs() {
            first_axes.push(n_axes);
            n_axes += input.rank();
        }
        Checker {
            slots: Slots::new(model.inputs().len(), model.outputs().len(), 0, model.weights_address()),
            shapes: vec![0; n_axes],
            first_axes,
            dims: vec![0; model.desc.n_dims()],
        }
    }

    /// Checks the whole contract for inputs of these shapes, and binds the dims.
    fn bind_whole<'s>(
        &mut self,
        layout: &BatchLayout,
        shape: impl Fn(usize) -> &'s [usize],
    ) -> Result<(), BatchError> {
        let size = |dim: usize| i64::try_from(dim).unwrap_or(i64::MAX);
        for (idx, first) in self.first_axes.iter().enumerate() {
            for (axis, dim) in shape(idx).iter().enumerate() {
                self.shapes[first + axis] = size(*dim);
            }
        }
        self.check(layout)
    }

    /// Checks the whole contract for `rows` rows of these shapes, and binds the dims.
    fn bind<'s>(
        &mut self,
        layout: &BatchLayout,
        shape: impl Fn(usize) -> &'s [usize],
        rows: usize,
    ) -> Result<(), BatchError> {
        let size = |dim: usize| i64::try_from(dim).unwrap_or(i64::MAX);
        for (idx, first) in self.first_axes.iter().enumerate() {
            self.shapes[*first] = size(rows);
            for (axis, dim) in shape(idx).iter().enumerate() {
                self.shapes[first + 1 + axis] = size(*dim);
            }
        }
        self.check(layout)
    }

    /// Checks the whole contract for the shapes of the table, and binds the dims.
    fn check(&mut self, layout: &BatchLayout) -> Result<(), BatchError> {
        let desc = &layout.model.desc;
        let checked = desc.check(&self.shapes, &[], &mut self.slots, &mut self.dims);
        checked.map_err(|error| CallError::reported(Violation::new(desc, error)).into())
    }
}

/// Refuses models whose tensors don't all consist of rows of the symbol.
fn check_rows(model: &Model, symbol: &str) -> Result<(), BatchError> {
    for info in model.inputs().iter().chain(model.outputs()) {
        if !crate::stream::is_rows(info, symbol) {
            let tensor = info.name().to_string();
            let dims = info.dims().join(", ");
            return Err(BatchError::NotRows { tensor, dims, symbol: symbol.into() });
        }
    }
    if model.inputs().len() > MAX_TENSORS || model.outputs().len() > MAX_TENSORS {
        return Err(BatchError::TooManyTensors);
    }
    Ok(())
}
