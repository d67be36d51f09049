//! Random graphs at random sizes: machine code, with and without vector microkernels, in one piece and in partitions,
//! against the reference evaluator. An input that begins with the byte 255 is a session of a random graph with state
//! instead, and one with the byte 254 has ragged calls of a random padded graph.
#![no_main]

#[path = "../../compiler/tests/it/ragged/fuzzed.rs"]
mod ragged;
#[path = "../../compiler/tests/it/state/random.rs"]
mod sessions;
#[path = "../../compiler/tests/it/tensors.rs"]
mod tensors;

use std::num::NonZeroU32;
use symshape_compiler::{
    CompileOptions, ErrorKind, Microkernels,
    graph::{
        tolerance::RoundingTolerance,
        arbitrary::{self, RandomSource},
        eval::eval,
    },
    kernel::Policies,
    partition::Count,
    pipeline::Pipeline,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{CallError, Context, TensorInfo, TensorMut, TensorRef};

/// A tensor as a call takes it.
fn lend(tensor: &Tensor) -> TensorRef<'_> {
    let lent = TensorRef::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes());
    lent.expect("memory of the heap is aligned")
}

/// The outputs of a call that runs partitions in the reverse order, as far as the table allows.
fn backwards(context: &mut Context, inputs: &[TensorRef<'_>]) -> Result<Vec<Vec<u8>>, CallError> {
    context.bind(inputs)?;
    let model = context.model().clone();
    let bytes = |(idx, info): (usize, &TensorInfo)| {
        vec![0; context.output_shape(idx).iter().product::<usize>() * info.dtype().size_bytes()]
    };
    let mut buffers: Vec<Vec<u8>> = model.outputs().iter().enumerate().map(bytes).collect();
    let outputs = buffers.iter_mut().zip(model.outputs());
    let outputs = outputs.map(|(buffer, info)| {
        TensorMut::from_bytes(info.dtype(), buffer).expect("memory of the heap is aligned")
    });
    context.run_steps(inputs, &mut outputs.collect::<Vec<_>>(), |steps| {
        let mut left: Vec<usize> = (0..steps.len()).collect();
        while let Some(at) = left.iter().rposition(|number| steps.is_ready(*number)) {
            if steps.run(left.remove(at)).is_err() {
                break;
            }
        }
    })?;
    Ok(buffers)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let [u8::MAX, session @ ..] = bytes {
        sessions::run(session);
        return;
    }
    if let [254, encoder @ ..] = bytes {
        ragged::run(encoder);
        return;
    }
    let graph = arbitrary::graph(&mut RandomSource::new(bytes));
    // The binding reads the bytes in reverse, since the graph has used the first ones.
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut source = RandomSource::new(&reversed);
    let Some(binding) = arbitrary::binding(&graph, &mut source) else { return };
    let Ok(inputs) = arbitrary::inputs(&graph, &binding, &mut source) else { return };
    let Ok(wanted) = eval(&graph, &inputs) else { return };
    let tolerance = RoundingTolerance::of(&graph, &inputs);
    let count = NonZeroU32::new(bytes.len() as u32 / 2 % 4);
    let microkernels = if bytes.len() % 2 == 1 { Microkernels::ScalarLoops } else { Microkernels::Native };
    let options = CompileOptions::default()
        .partitions(count.map(Count::Of))
        .policies(Policies::Any)
        .microkernels(microkernels);
    let lowered =
        Pipeline::new(&graph).options(options).lower().unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let program = &lowered.program;
    let model = match lowered.jit() {
        Ok(model) => model,
        // A symbol that no input's shape determines can't be bound.
        Err(error) if error.kind() == ErrorKind::Contract => return,
        Err(error) => panic!("{error}\n{graph}"),
    };
    let lent: Vec<TensorRef<'_>> = inputs.iter().map(lend).collect();
    let mut context = Context::new(&model).expect("small graphs have small arenas");
    let backwards = (count.is_some()).then(|| backwards(&mut context, &lent));
    let found = context.run_views(&lent).unwrap_or_else(|error| panic!("{error} at {binding:?}\n{graph}"));
    for (idx, wanted) in wanted.iter().enumerate() {
        let view = found.get(idx);
        if let Some(Ok(outputs)) = &backwards {
            let same = outputs[idx][..view.bytes().len()] == *view.bytes();
            assert!(same, "output {idx} has other bits in another order, at {binding:?}\n{graph}\n{program}");
        }
        let memory = Bytes::Owned(view.bytes().into());
        let found =
            Tensor::new(view.dtype(), view.shape().to_vec(), memory).expect("an output fits its shape");
        if let Err(why) = tolerance.check(wanted, &found) {
            panic!("output {idx}: {found}, not {wanted}, {why}, at {binding:?}\n{graph}\n{program}");
        }
    }
});
