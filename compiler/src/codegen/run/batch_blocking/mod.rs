//! Batch blocking: a large batch runs as blocks of a few images.
//!
//! A program qualifies if the images of a batch are independent: a symbol is the batch size, and every kernel computes
//! each image from that image and from constants. A call for many images then gives the same bits as several calls for
//! a few. Blocks are faster if the tensors between kernels are large and the weights are small: the tensors of a few
//! images stay in the caches from one kernel to the next, those of a whole batch don't.
//!
//! `run` becomes a loop around the function that runs all kernels. The loop advances the addresses of the caller's
//! tensors from block to block. The arena and the call contract remain those of the whole batch. Several threads may
//! each run whole images, see [`run`].
//!
//! [`batch_strides`] proves the independence, and [`BatchBlocking::of`] decides whether blocks pay. A batch of constant
//! size was divided before, see [`BatchBlocks`]: its kernels and its arena are those of one block.

mod blocks;
mod run;
mod sharing;

use crate::{
    Error, Result,
    kernel::{
        BatchBlocks, MemorySpace, Port, Program,
        batch_strides::{self, BLOCK_BYTES, BatchStrides, ImageTraffic},
    },
};
use num_traits::ToPrimitive;
use symshape::{Dim, Symbol};

/// How a batch is divided.
pub(crate) struct BatchBlocking {
    size: BatchSize,
    /// Threads may share the images. Then the size of a slice of the arena must depend on the number of images alone,
    /// and there must be no table of partitions, because its caller runs the partitions as it likes.
    can_share: bool,
    /// Bytes from image to image of each input; 0 for those that all images share.
    inputs: Vec<Dim>,
    /// Bytes from image to image of each output.
    outputs: Vec<Dim>,
}

/// The size of a batch.
enum BatchSize {
    /// The call chooses it.
    Symbol(SymbolSize),
    /// Every call has the same number of images, and every run of the kernels as many as a block.
    Constant(BatchBlocks),
}

/// A batch size that is a symbol. Sizes of an image are formulas over the other symbols.
struct SymbolSize {
    /// Index of the batch size among the program's symbols.
    symbol: usize,
    /// Largest batch allowed.
    max_images: i64,
    /// The range of each symbol of the program.
    ranges: Vec<(i64, i64)>,
    /// Bytes that all kernels access for one image.
    image_bytes: Dim,
    /// Bytes that single kernels access for one image. The largest of them decides how many images form a block, so
    /// only the largest constant is among them.
    kernel_bytes: Vec<Dim>,
    /// The least bytes of an image for which blocks pay.
    min_image_bytes: i64,
}

impl BatchBlocking {
    /// How to divide the program's batches, if that is possible and pays.
    ///
    /// # Errors
    /// Blocks of a batch of constant size that don't fit the inputs and outputs.
    pub(crate) fn of(program: &Program) -> Result<Option<BatchBlocking>> {
        match &program.batch_blocks {
            Some(blocks) => BatchBlocking::of_constant(program, blocks).map(Some),
            None => Ok(BatchBlocking::of_symbols(program)),
        }
    }

    /// The division of a batch of constant size.
    fn of_constant(program: &Program, blocks: &BatchBlocks) -> Result<BatchBlocking> {
        let bytes = |port: &Port, elems: Option<i64>| {
            let elems = elems.ok_or_else(|| Error::internal(format!("`{}` has no images", port.name)))?;
            Ok(Dim::from(elems) * program.buffers[port.buffer].dtype.size_bytes() as i64)
        };
        let inputs = program.inputs.iter().enumerate();
        let outputs = program.outputs.iter().enumerate();
        Ok(BatchBlocking {
            can_share: blocks.slices > 1,
            inputs: inputs
                .map(|(idx, port)| bytes(port, blocks.input_elems(program, idx)))
                .collect::<Result<_>>()?,
            outputs: outputs
                .map(|(idx, port)| bytes(port, blocks.output_elems(program, idx)))
                .collect::<Result<_>>()?,
            size: BatchSize::Constant(blocks.clone()),
        })
    }

    /// How to divide batches whose size is a symbol, if that is possible and pays.
    fn of_symbols(program: &Program) -> Option<BatchBlocking> {
        let has_control = program.kernels.iter().any(|kernel| kernel.control.is_some());
        // A block of the batch would need a part of the state.
        if has_control || !program.data_dependent.is_empty() || program.state.is_some() {
            return None;
        }
        // The rows of a ragged batch are not images.
        if program.ragged.is_some() {
            return None;
        }
        let mut symbols = program.symbols.iter().enumerate();
        symbols.find_map(|(idx, symbol)| BatchBlocking::along(program, idx, symbol))
    }

    /// How to divide batches whose size is `symbol`.
    fn along(program: &Program, idx: usize, symbol: &Symbol) -> Option<BatchBlocking> {
        let bounds = program.facts.bounds(&Dim::from(symbol));
        let min_images = bounds.lo?.to_i64()?;
        let max_images = bounds.hi?.to_i64()?;
        if !takes_any_value(program, symbol) || min_images > 1 {
            return None;
        }

        let strides = BatchStrides::of(program, symbol)?;
        let ImageTraffic { total, of_kernels } = strides.traffic();
        let min_image_bytes = batch_strides::min_image_bytes(program);
        if largest(program, &total) < min_image_bytes {
            return None;
        }
        let largest_kernel = of_kernels.iter().map(|bytes| largest(program, bytes)).max()?;
        let can_share = max_images > 1 && program.symbols.len() == 1 && program.partitions.is_empty();
        if BLOCK_BYTES / largest_kernel.max(1) >= max_images && !can_share {
            return None;
        }
        // Formulas are computed before relations of symbols are checked.
        if total.as_i64().is_none() && !program.facts.assumptions().is_empty() {
            return None;
        }
        let largest_constant = of_kernels.iter().filter_map(Dim::as_i64).max();
        let kernel_bytes = of_kernels.into_iter().filter(|bytes| bytes.as_i64().is_none());
        let kernel_bytes = kernel_bytes.chain(largest_constant.map(Dim::from)).collect();
        let ranges = program.symbols.iter().map(|symbol| {
            let bounds = program.facts.bounds(&Dim::from(symbol));
            Some((bounds.lo?.to_i64()?, bounds.hi?.to_i64()?))
        });
        let ranges = ranges.collect::<Option<_>>()?;

        let inputs = (0..program.inputs.len() as u32)
            .map(|port| strides.bytes_of(&MemorySpace::Input(port)))
            .collect::<Option<_>>()?;
        let outputs = (0..program.outputs.len() as u32)
            .map(|port| strides.bytes_of(&MemorySpace::Output(port)))
            .collect::<Option<_>>()?;
        Some(BatchBlocking {
            size: BatchSize::Symbol(SymbolSize {
                symbol: idx,
                max_images,
                ranges,
                image_bytes: total,
                kernel_bytes,
                min_image_bytes,
            }),
            can_share,
            inputs,
            outputs,
        })
    }
}

/// The upper bound of a number of bytes.
fn largest(program: &Program, bytes: &Dim) -> i64 {
    program.facts.bounds(bytes).hi.and_then(|hi| hi.to_i64()).unwrap_or(i64::MAX)
}

/// Whether the symbol takes all values of its range, independently of other symbols: a block is smaller than the batch.
fn takes_any_value(program: &Program, symbol: &Symbol) -> bool {
    let Some(declared) = program.facts.declaration(symbol) else { return false };
    let is_related = program
        .facts
        .assumptions()
        .iter()
        .any(|fact| fact.relation.a.contains(symbol) || fact.relation.b.contains(symbol));
    declared.values.is_none() && declared.step.to_i64() == Some(1) && !is_related
}
