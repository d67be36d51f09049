//! Lanes: memory for the inputs of a batch, and for its results.

use super::error::{BatchError, MAX_TENSORS};
use crate::{
    CallError, Context, DType, Model, TensorMut, TensorRef,
    arena::Arena,
    tensor::{self, MAX_AXES},
};

/// The tensors of a batch; the same for all lanes.
#[derive(Debug)]
pub(super) struct BatchLayout {
    model: Model,
    /// Index of the batch's symbol.
    symbol: usize,
    pub(super) max_rows: usize,
    inputs: Vec<RowTensor>,
    outputs: Vec<RowTensor>,
}

/// A tensor of rows.
#[derive(Debug)]
struct RowTensor {
    dtype: DType,
    /// The shape; the first entry is replaced by the number of rows.
    shape: Vec<usize>,
    /// Bytes of one row.
    bytes: usize,
}

impl RowTensor {
    fn new(dtype: DType, row: &[usize]) -> Result<RowTensor, BatchError> {
        let bytes = tensor::size_bytes(dtype, row).filter(|_| row.len() < MAX_AXES);
        let bytes = bytes.ok_or(crate::TensorError::TooLarge)?;
        Ok(RowTensor { dtype, shape: [&[0], row].concat(), bytes })
    }

    /// The shape of `rows` rows, and its rank.
    fn shape(&self, rows: usize) -> ([usize; MAX_AXES], usize) {
        let mut shape = [0; MAX_AXES];
        shape[..self.shape.len()].copy_from_slice(&self.shape);
        shape[0] = rows;
        (shape, self.shape.len())
    }
}

impl BatchLayout {
    pub(super) fn new(
        model: &Model,
        symbol: &str,
        rows: &[&[usize]],
        max_rows: usize,
    ) -> Result<BatchLayout, BatchError> {
        let position = model.symbols().iter().position(|info| info.name() == symbol);
        let position = position.ok_or_else(|| crate::QueryError::NoSymbol { name: symbol.into() })?;

        for info in model.inputs().iter().chain(model.outputs()) {
            if !crate::stream::is_rows(info, symbol) {
                let tensor = info.name().to_string();
                let dims = info.dims().join(", ");
                return Err(BatchError::NotRows { tensor, dims, symbol: symbol.into() });
            }
        }

        if model.inputs().len().max(model.outputs().len()) > MAX_TENSORS {
            return Err(BatchError::TooManyTensors);
        }
        if rows.len() != model.inputs().len() {
            let expected = model.inputs().len();
            let got = rows.len();
            return Err(CallError::WrongInputCount { expected, got }.into());
        }

        let inputs = model.inputs().iter().zip(rows).map(|(info, row)| RowTensor::new(info.dtype(), row));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let mut layout =
            BatchLayout { model: model.clone(), symbol: position, max_rows, inputs, outputs: Vec::new() };
        if max_rows == 0 || layout.padded(max_rows).is_none() {
            let max = usize::try_from(model.symbols()[position].hi()).unwrap_or(usize::MAX);
            return Err(BatchError::WrongRows { rows: max_rows, max });
        }

        layout.outputs = layout.output_rows()?;
        Ok(layout)
    }

    /// The rows of the outputs, from a check of the whole contract at the largest batch.
    fn output_rows(&self) -> Result<Vec<RowTensor>, BatchError> {
        let mut context = Context::new(&self.model)?;
        let rows = self.padded(self.max_rows).unwrap_or(self.max_rows);
        let memory: Vec<Arena> = self
            .inputs
            .iter()
            .map(|input| Arena::reserve(rows * input.bytes, &[]))
            .collect::<Result<_, _>>()?;
        context.bind(&self.refs(&memory, 0, rows)[..self.inputs.len()])?;
        let outputs = self.model.outputs().iter().enumerate();
        outputs.map(|(idx, info)| RowTensor::new(info.dtype(), &context.output_shape(idx)[1..])).collect()
    }

    /// The smallest allowed size of a batch of at least `rows` rows.
    fn padded(&self, rows: usize) -> Option<usize> {
        let symbol = &self.model.symbols()[self.symbol];
        let rows = i64::try_from(rows).ok()?;
        if symbol.allows(rows) {
            return usize::try_from(rows).ok();
        }

        let mut lo = 0;
        let mut hi = symbol.count();
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if symbol.nth(mid).is_some_and(|value| value < rows) { lo = mid + 1 } else { hi = mid }
        }
        symbol.nth(lo).and_then(|value| usize::try_from(value).ok())
    }

    /// Number of rows that a batch has memory for, including padding.
    fn capacity(&self) -> usize {
        self.padded(self.max_rows).unwrap_or(self.max_rows)
    }

    /// The number of rows of a request, if its types and shapes are right.
    pub(super) fn accept(&self, inputs: &[TensorRef<'_>]) -> Result<usize, BatchError> {
        let expected = self.inputs.len();
        let got = inputs.len();
        if expected != got {
            return Err(CallError::WrongInputCount { expected, got }.into());
        }
        let rows = inputs.first().and_then(|input| input.shape().first().copied()).unwrap_or(1);
        if rows == 0 || rows > self.max_rows {
            return Err(BatchError::WrongRows { rows, max: self.max_rows });
        }

        for (idx, (input, expected_rows)) in inputs.iter().zip(&self.inputs).enumerate() {
            let tensor = || crate::TensorName::input(&self.model.desc, idx);
            if input.dtype() != expected_rows.dtype {
                let expected = expected_rows.dtype;
                let got = input.dtype();
                return Err(CallError::WrongDType { tensor: tensor(), expected, got }.into());
            }

            let expected = expected_rows.shape.len();
            let got = input.shape().len();
            if expected != got {
                return Err(CallError::WrongRank { tensor: tensor(), expected, got }.into());
            }
            if input.shape()[0] != rows {
                return Err(BatchError::Uneven { input: idx, expected: rows, got: input.shape()[0] });
            }

            if let Some(axis) = (1..got).find(|axis| input.shape()[*axis] != expected_rows.shape[*axis]) {
                let expected = expected_rows.shape[axis];
                let got = input.shape()[axis];
                return Err(CallError::WrongShape { tensor: tensor(), axis, expected, got }.into());
            }
        }
        Ok(rows)
    }

    /// The rows `first..first + rows` of all inputs.
    fn refs<'m>(&self, memory: &'m [Arena], first: usize, rows: usize) -> [TensorRef<'m>; MAX_TENSORS] {
        let mut refs = [tensor::EMPTY; MAX_TENSORS];
        for ((slot, memory), input) in refs.iter_mut().zip(memory).zip(&self.inputs) {
            let (shape, rank) = input.shape(rows);
            let bytes = memory.slice(first * input.bytes, rows * input.bytes);
            *slot = TensorRef::from_bytes(input.dtype, &shape[..rank], bytes)
                .expect("the memory has the shape's bytes and is aligned");
        }
        refs
    }
}

/// Memory for a batch, and for one request that runs alone.
fn reserve(layout: &BatchLayout, tensors: &[RowTensor]) -> Result<Vec<Arena>, BatchError> {
    let capacity = layout.capacity();
    Ok(tensors
        .iter()
        .map(|rows| Arena::reserve(2 * capacity * rows.bytes.max(1), &[]))
        .collect::<Result<_, _>>()?)
}

/// The inputs of a batch; the second half of the memory is for requests that run alone.
pub(super) struct Lane {
    inputs: Vec<Arena>,
    requests: Vec<RequestRows>,
}

/// The rows of a request in a batch.
#[derive(Clone, Copy)]
struct RequestRows {
    first: usize,
    rows: usize,
}

impl Lane {
    pub(super) fn new(layout: &BatchLayout) -> Result<Lane, BatchError> {
        Ok(Lane { inputs: reserve(layout, &layout.inputs)?, requests: Vec::with_capacity(layout.max_rows) })
    }

    /// Copies the rows of a request to the batch.
    pub(super) fn put(&mut self, layout: &BatchLayout, first: usize, rows: usize, inputs: &[TensorRef<'_>]) {
        for ((memory, input), wanted) in self.inputs.iter_mut().zip(inputs).zip(&layout.inputs) {
            memory.slice_mut(first * wanted.bytes, rows * wanted.bytes).copy_from_slice(input.bytes());
        }
        self.requests.push(RequestRows { first, rows });
    }

    /// Runs the batch, or each request alone if the call fails. Clears the list of requests.
    pub(super) fn run(
        &mut self,
        layout: &BatchLayout,
        context: &mut Context,
        rows: usize,
        results: &mut Results,
    ) {
        results.errors.clear();
        if self.call(layout, context, 0, rows, results).is_err() {
            self.run_each(layout, context, results);
        }
        self.requests.clear();
    }

    /// Runs each request alone, and records the errors.
    fn run_each(&mut self, layout: &BatchLayout, context: &mut Context, results: &mut Results) {
        let capacity = layout.capacity();
        for idx in 0..self.requests.len() {
            let RequestRows { first, rows } = self.requests[idx];
            for (memory, input) in self.inputs.iter_mut().zip(&layout.inputs) {
                let all = memory.slice_mut(0, 2 * capacity * input.bytes);
                all[capacity * input.bytes..].fill(0);
                all.copy_within(first * input.bytes..(first + rows) * input.bytes, capacity * input.bytes);
            }

            let result = self.call(layout, context, capacity, rows, results);
            for (memory, output) in results.outputs.iter_mut().zip(&layout.outputs) {
                let all = memory.slice_mut(0, 2 * capacity * output.bytes);
                let from = capacity * output.bytes;
                all.copy_within(from..from + rows * output.bytes, first * output.bytes);
            }
            results.errors.extend(result.err().map(|error| (first, error)));
        }
    }

    /// Calls the model on the rows from `first` on, and on their padding.
    fn call(
        &self,
        layout: &BatchLayout,
        context: &mut Context,
        first: usize,
        rows: usize,
        results: &mut Results,
    ) -> Result<(), CallError> {
        let rows = layout.padded(rows).unwrap_or(rows);
        let inputs = layout.refs(&self.inputs, first, rows);
        let mut outputs: [TensorMut<'_>; MAX_TENSORS] =
            std::array::from_fn(|_| TensorMut::new::<u8>(&mut []));
        for ((slot, memory), output) in outputs.iter_mut().zip(&mut results.outputs).zip(&layout.outputs) {
            let bytes = memory.slice_mut(first * output.bytes, rows * output.bytes);
            *slot = TensorMut::from_bytes(output.dtype, bytes).expect("reserved memory is aligned");
        }
        context.run(&inputs[..layout.inputs.len()], &mut outputs[..layout.outputs.len()])
    }
}

/// The outputs of a batch; the second half of the memory is for requests that run alone.
pub(super) struct Results {
    outputs: Vec<Arena>,
    /// The first row of each request that failed, and its error.
    errors: Vec<(usize, CallError)>,
}

impl Results {
    pub(super) fn new(layout: &BatchLayout) -> Result<Results, BatchError> {
        Ok(Results {
            outputs: reserve(layout, &layout.outputs)?,
            errors: Vec::with_capacity(layout.max_rows),
        })
    }

    /// Copies the results of a request to the caller.
    pub(super) fn take(
        &self,
        layout: &BatchLayout,
        first: usize,
        rows: usize,
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), BatchError> {
        let expected = layout.outputs.len();
        let got = outputs.len();
        if expected != got {
            return Err(CallError::WrongOutputCount { expected, got }.into());
        }
        if let Some((_, error)) = self.errors.iter().find(|(failed, _)| *failed == first) {
            return Err(error.clone().into());
        }

        for (idx, (output, row)) in outputs.iter_mut().zip(&layout.outputs).enumerate() {
            let tensor = || crate::TensorName::output(&layout.model.desc, idx);
            if output.dtype() != row.dtype {
                let expected = row.dtype;
                let got = output.dtype();
                return Err(CallError::WrongDType { tensor: tensor(), expected, got }.into());
            }

            let needed = rows * row.bytes;
            let got = output.len_bytes();
            if got < needed {
                return Err(CallError::TooSmall { tensor: tensor(), needed, got }.into());
            }

            let bytes = self.outputs[idx].slice(first * row.bytes, needed);
            output.bytes()[..needed].copy_from_slice(bytes);
        }
        Ok(())
    }
}
