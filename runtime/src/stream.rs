//! Calls in blocks of rows: the first results are available when the first block is done.
//!
//! A row has the same bits in any batch, so the results have the bits of a single call.

use crate::{CallError, Context, Outputs, TensorInfo, TensorName, TensorRef, tensor};

/// Largest number of inputs of a model that is called in blocks.
const MAX_INPUTS: usize = 32;

impl Context {
    /// Runs the model on `block` rows at a time. After each block, it calls `each` with the index of the block's first
    /// row and the results. `symbol` is the number of rows: it must be the first axis of every output, and of every
    /// input that is split. An input without it is passed to each block whole. The whole contract is checked before
    /// the first block runs. Contexts in lent memory have no space for the results.
    ///
    /// ```no_run
    /// # use symshape_runtime::{Context, Model, TensorRef};
    /// # let mut context = Context::new(&Model::open("mlp.so")?)?;
    /// let x = vec![0.5_f32; 64 * 784];
    /// context.run_blocks("N", 4, &[TensorRef::new(&[64, 784], &x)?], |first, outputs| {
    ///     println!("rows from {first} on: {:?}", outputs.get(0).elems::<f32>());
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Context::run`]; when a tensor does not consist of rows; when the size of a block, or of the last one, is
    /// not allowed.
    pub fn run_blocks(
        &mut self,
        symbol: &str,
        block: usize,
        inputs: &[TensorRef<'_>],
        mut each: impl FnMut(usize, Outputs<'_>),
    ) -> Result<(), CallError> {
        self.bind(inputs)?;
        let model = self.model.clone();
        let position = model.symbols().iter().position(|info| info.name() == symbol);
        let position = position.ok_or(CallError::NoRowSymbol)?;
        for (idx, info) in model.outputs().iter().enumerate() {
            if !is_rows(info, symbol) {
                return Err(CallError::NotRows { tensor: TensorName::output(&model.desc, idx) });
            }
        }

        let mut is_split = [false; MAX_INPUTS];
        for (idx, info) in model.inputs().iter().enumerate() {
            let has_rows = is_rows(info, symbol);
            if idx >= MAX_INPUTS || (!has_rows && info.dims().iter().any(|dim| mentions(dim, symbol))) {
                return Err(CallError::NotRows { tensor: TensorName::input(&model.desc, idx) });
            }
            is_split[idx] = has_rows;
        }

        let rows = usize::try_from(self.dims[position]).unwrap_or(0);
        let info = &model.symbols()[position];
        let allowed = |rows: usize| i64::try_from(rows).is_ok_and(|rows| info.allows(rows));
        let last = rows.checked_rem(block).unwrap_or(0);
        if block == 0 || !allowed(block.min(rows)) || (rows > block && last > 0 && !allowed(last)) {
            return Err(CallError::WrongBlock { block, last });
        }

        let mut first = 0;
        loop {
            let size = block.min(rows - first);
            let mut part = [tensor::EMPTY; MAX_INPUTS];
            for (idx, input) in inputs.iter().enumerate() {
                part[idx] = if is_split[idx] { input.rows(first, size) } else { *input };
            }
            each(first, self.run_views(&part[..inputs.len()])?);
            first += size;
            if first >= rows {
                return Ok(());
            }
        }
    }
}

/// Whether the first axis of a tensor is the symbol, and no other axis depends on it.
pub(crate) fn is_rows(info: &TensorInfo, symbol: &str) -> bool {
    info.dims()
        .split_first()
        .is_some_and(|(first, rest)| first == symbol && rest.iter().all(|dim| !mentions(dim, symbol)))
}

fn mentions(dim: &str, symbol: &str) -> bool {
    dim.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == symbol)
}
