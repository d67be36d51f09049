//! Calls for one block of images after another.

use super::{BatchBlocking, BatchSize};
use crate::{
    codegen::{function::FuncCtx, run::arguments::RunArguments},
    error::{Error, Result},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};
use cranelift_module::FuncId;
use symshape::Dim;

/// Arguments of the calls for one block after another: arrays on the stack, see [`RunArguments`].
pub(super) struct BlockArrays {
    inputs: Value,
    outputs: Value,
    pub(super) dims: Value,
}

/// The images that a sequence of blocks covers.
#[derive(Clone, Copy)]
pub(super) struct Images {
    pub(super) first: Value,
    pub(super) end: Value,
    /// Images of a block; the last block may have fewer.
    pub(super) block: Value,
}

/// Bytes from image to image of the inputs and outputs.
pub(super) struct ImageStrides {
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

impl BatchBlocking {
    /// The distances from image to image.
    pub(super) fn strides(&self, f: &mut FuncCtx) -> Result<ImageStrides> {
        let mut values = |strides: &[Dim]| strides.iter().map(|stride| f.dim(stride)).collect::<Result<_>>();
        Ok(ImageStrides { inputs: values(&self.inputs)?, outputs: values(&self.outputs)? })
    }

    /// Stack memory for the arguments of calls for a block.
    pub(super) fn block_arrays(&self, f: &mut FuncCtx) -> BlockArrays {
        let inputs = f.words(self.inputs.len() + usize::from(f.unit.has_weights_file()));
        let outputs = f.words(self.outputs.len());
        let dims = f.words(f.unit.program.symbols.len());
        BlockArrays { inputs, outputs, dims }
    }

    /// Calls `inner` for one block of images after another. Returns the code of the call that failed, or 0.
    pub(super) fn run_blocks(
        &self,
        f: &mut FuncCtx,
        inner: FuncId,
        arrays: &BlockArrays,
        arguments: &RunArguments,
        strides: &ImageStrides,
        images: Images,
    ) -> Result<Value> {
        let Images { first, end, block } = images;
        let after = f.create_block();
        let code = f.builder.append_block_param(after, types::I32);
        let ok = f.ins().iconst(types::I32, 0);
        let zero = f.int(0);
        let count = f.ins().isub(end, first);
        let round_up = f.ins().iadd_imm_s(block, -1);
        let padded = f.ins().iadd(count, round_up);
        let n_blocks = f.ins().udiv(padded, block);
        if f.unit.has_weights_file() {
            let at = 8 * self.inputs.len() as i32;
            let weights = f.load_word(arguments.inputs, at);
            f.store_at(weights, arrays.inputs, at);
        }

        f.for_range(zero, n_blocks, |f, idx| {
            let skipped = f.ins().imul(idx, block);
            let image = f.ins().iadd(first, skipped);
            let (image, dims) = match &self.size {
                BatchSize::Symbol(size) => {
                    let remaining = f.ins().isub(end, image);
                    let count = f.ins().smin(remaining, block);
                    f.store_at(count, arrays.dims, 8 * size.symbol as i32);
                    (image, arrays.dims)
                }
                // The last block begins earlier and has as many images as others.
                BatchSize::Constant(blocks) => {
                    let last = f.int(blocks.images - blocks.block);
                    (f.ins().smin(image, last), arguments.dims)
                }
            };
            advance_tensors(f, &strides.inputs, arguments.inputs, arrays.inputs, image);
            advance_tensors(f, &strides.outputs, arguments.outputs, arrays.outputs, image);

            let block_arguments =
                RunArguments { inputs: arrays.inputs, outputs: arrays.outputs, dims, ..*arguments };
            let result = f.call(inner, &block_arguments.values());
            let result = result.ok_or_else(|| Error::internal("`run` returns a code"))?;
            let next = f.create_block();
            f.ins().brif(result, after, &[BlockArg::Value(result)], next, &[]);

            f.switch_to_block(next);
            Ok(())
        })?;
        f.ins().jump(after, &[BlockArg::Value(ok)]);

        f.switch_to_block(after);
        Ok(code)
    }
}

/// The bytes of arena that a call of these sizes needs.
pub(super) fn call_arena_bytes(f: &mut FuncCtx, arena_bytes: FuncId, dims: Value) -> Result<Value> {
    f.call(arena_bytes, &[dims]).ok_or_else(|| Error::internal("`arena_bytes` returns a size"))
}

/// Stores the addresses of all tensors at an image, given the bytes from image to image of each.
fn advance_tensors(f: &mut FuncCtx, strides: &[Value], from: Value, to: Value, image: Value) {
    for (idx, stride) in strides.iter().enumerate() {
        let begin = f.load_word(from, 8 * idx as i32);
        let skipped = f.ins().imul(image, *stride);
        let address = f.ins().iadd(begin, skipped);
        f.store_at(address, to, 8 * idx as i32);
    }
}
