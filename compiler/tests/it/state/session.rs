//! Steps of a model with state, each compared with the model without state.

use crate::{models::weights, tensors::refs};
use symshape_compiler::{
    StateRequest,
    graph::Graph,
    pipeline::Pipeline,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{CallError, Context, DType, Model, State, TensorRef};

/// A model with state, the same model without it, and the past that the latter takes.
pub(super) struct Session {
    stateful: Context,
    stateless: Context,
    pub(super) state: State,
    /// The content of the state, in its order.
    past: Vec<Tensor>,
    batch: usize,
    n_steps: u32,
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
}

fn copy(view: &TensorRef<'_>) -> Tensor {
    let shape = view.shape().to_vec();
    Tensor::new(view.dtype(), shape, Bytes::Owned(view.bytes().into())).expect("of the same size")
}

impl Session {
    pub(super) fn new(graph: &Graph, request: &StateRequest, batch: i64, capacity: usize) -> Session {
        Session::between(graph, graph, request, batch, capacity)
    }

    /// A session of `graph` with state and of `plain` without it.
    pub(super) fn between(
        graph: &Graph,
        plain: &Graph,
        request: &StateRequest,
        batch: i64,
        capacity: usize,
    ) -> Session {
        let model = Pipeline::new(graph).state(request.clone()).jit().expect("supported");
        let plain = Pipeline::new(plain).jit().expect("supported");
        let sizes = if model.symbols().iter().any(|symbol| symbol.name() == "N") {
            vec![("N", batch)]
        } else {
            vec![]
        };
        let state = State::with_dims(&model, capacity, &sizes).expect("a capacity in range");
        let past = (0..model.state().len())
            .map(|idx| {
                let shape = state.shape(idx);
                let dtype = model.state()[idx].dtype();
                let bytes = vec![0; dtype.size_bytes() * shape.iter().product::<usize>()];
                Tensor::new(dtype, shape, Bytes::Owned(bytes.into())).expect("zeros")
            })
            .collect();
        Session {
            stateful: Context::new(&model).expect("memory"),
            stateless: Context::new(&plain).expect("memory"),
            state,
            past,
            batch: batch as usize,
            n_steps: 0,
        }
    }

    pub(super) fn model(&self) -> &Model {
        self.stateful.model()
    }

    pub(super) fn past(&self) -> Vec<Tensor> {
        self.past.clone()
    }

    pub(super) fn replace(&mut self, state: State, past: Vec<Tensor>) {
        self.state = state;
        self.past = past;
    }

    /// Keeps the first rows of all tensors.
    pub(super) fn truncate(&mut self, length: usize) {
        self.state.truncate(length).expect("fewer rows");
        for idx in 0..self.past.len() {
            let bytes = self.state.tensor_bytes(idx);
            let shape = self.state.shape(idx);
            self.past[idx] =
                Tensor::new(self.past[idx].dtype(), shape, Bytes::Owned(bytes.into())).expect("rows");
        }
    }

    /// A step with `chunk` new rows. Outputs, state and the untouched bytes of the block must be as without state.
    pub(super) fn step(&mut self, chunk: usize) {
        self.try_step(chunk).expect("a call in range");
    }

    pub(super) fn try_step(&mut self, chunk: usize) -> Result<(), CallError> {
        self.n_steps += 1;
        let inputs = self.inputs(chunk);
        let before = self.state.block_bytes().to_vec();
        let length = self.state.length();

        let outputs = self.stateful.run_stateful_views(&refs(&inputs), &mut self.state)?;
        let outputs: Vec<Tensor> = (0..outputs.len()).map(|idx| copy(&outputs.get(idx))).collect();

        let model = self.stateful.model().clone();
        let mut given = inputs.into_iter();
        let plain = self.stateless.model().clone();
        let all: Vec<Tensor> = plain
            .inputs()
            .iter()
            .map(|info| match model.state().iter().position(|tensor| tensor.input() == info.name()) {
                Some(at) => self.past[at].clone(),
                None => given.next().expect("an input"),
            })
            .collect();
        let expected = self.stateless.run_views(&refs(&all)).expect("a call in range");
        for (idx, info) in model.outputs().iter().enumerate() {
            let expected = copy(&expected.by_name(info.name()).expect("the same output"));
            assert_close(info.name(), &outputs[idx], &expected);
        }
        for (idx, info) in model.state().iter().enumerate() {
            let present = copy(&expected.by_name(info.output()).expect("an output"));
            assert_eq!(self.state.shape(idx), present.shape(), "{}", info.output());
            let bytes = Bytes::Owned(self.state.tensor_bytes(idx).into());
            let own = Tensor::new(present.dtype(), present.shape().to_vec(), bytes).expect("as large");
            assert_close(info.output(), &own, &present);
            // The next step starts from the same past on both sides.
            self.past[idx] = own;
        }
        self.assert_only_new_rows_changed(&before, length);
        Ok(())
    }

    /// The result of a step whose mask hides the last element of the last sequence.
    pub(super) fn masked_step(&mut self, chunk: usize) -> Result<(), CallError> {
        let mut inputs = self.inputs(chunk);
        for tensor in inputs.iter_mut().filter(|tensor| tensor.dtype() == DType::I64) {
            let mut mask = vec![1; tensor.elems()];
            *mask.last_mut().expect("a mask") = 0;
            *tensor = Tensor::from_i64(tensor.shape().to_vec(), &mask).expect("of the same size");
        }
        self.stateful.run_stateful_views(&refs(&inputs), &mut self.state).map(drop)
    }

    /// The inputs of a step, without the state.
    fn inputs(&self, chunk: usize) -> Vec<Tensor> {
        model_inputs(self.stateful.model(), self.batch, chunk, self.state.length(), 100 * self.n_steps)
    }

    /// Compares the bytes of the block before and after a call: of appended tensors only new rows may differ, and of the
    /// header only the length.
    fn assert_only_new_rows_changed(&self, before: &[u8], length: usize) {
        let mut expected = before.to_vec();
        let after = self.state.block_bytes();
        let header = 64;
        expected[..header].copy_from_slice(&after[..header]);
        for (offset, len) in self.state.written_spans(length) {
            expected[offset..offset + len].copy_from_slice(&after[offset..offset + len]);
        }
        assert!(expected == after, "a byte outside of the new rows changed");
    }

    /// The error of a call with the state of another session.
    pub(super) fn foreign_call(mut self, mut other: Session) -> CallError {
        let inputs = self.inputs(1);
        let result = self.stateful.run_stateful_views(&refs(&inputs), &mut other.state).map(drop);
        result.expect_err("a state of another model")
    }
}

/// The inputs of a call with `chunk` new rows after `length` ones. `seed` chooses the floats.
pub(super) fn model_inputs(
    model: &Model,
    batch: usize,
    chunk: usize,
    length: usize,
    seed: u32,
) -> Vec<Tensor> {
    let size = |text: &String| match text.as_str() {
        "N" => batch,
        "S" => chunk,
        "P + S" => length + chunk,
        number => number.parse().unwrap_or_else(|_| panic!("{number} is not a dim of these tests")),
    };
    let tensor = |(idx, info): (usize, &symshape_runtime::TensorInfo)| {
        let shape: Vec<usize> = info.dims().iter().map(size).collect();
        if info.dtype() == DType::I64 {
            // A mask without padding.
            return Tensor::from_i64(shape.clone(), &vec![1; shape.iter().product()]).expect("ones");
        }
        weights(&shape, seed + idx as u32)
    };
    model.inputs().iter().enumerate().map(tensor).collect()
}

fn assert_close(name: &str, got: &Tensor, expected: &Tensor) {
    assert_eq!(got.shape(), expected.shape(), "{name}");
    if got.dtype() != DType::F32 {
        assert_eq!(got.bytes(), expected.bytes(), "{name}");
        return;
    }
    for (idx, (a, b)) in floats(got).into_iter().zip(floats(expected)).enumerate() {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{name}[{idx}]: {a} instead of {b}");
    }
}

/// The error of compiling `graph` with this pair as state.
pub(super) fn refused(graph: &Graph, pair: &str) -> String {
    let request = StateRequest::pairs([pair]);
    let lowered = request.and_then(|request| Pipeline::new(graph).state(request).lower());
    lowered.map(drop).expect_err("no state").to_string()
}
