//! Scripts of consecutive calls for programs outside of this process. Each program leaves the bytes that our machine
//! code leaves in the same state.

use super::session::model_inputs;
use crate::{foreign::Program, tensors::refs};
use symshape_compiler::{
    StateRequest,
    graph::Graph,
    pipeline::Pipeline,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{CallError, Context, DType, State};

use Command::{Call, Reset, Truncate};

/// A command to a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// A call with this many new rows.
    Call(usize),
    Reset,
    /// Keeps this many rows.
    Truncate(usize),
}

/// Ends at the capacity of a contract of 12 rows and chunks of 4.
pub(super) const TO_THE_END: [Command; 6] = [Call(4), Call(1), Call(4), Call(3), Call(4), Call(1)];

/// Keeps fewer rows, and begins again. The last calls exceed a capacity of 9 rows.
pub(super) const AGAIN: [Command; 11] =
    [Call(1), Call(4), Truncate(2), Call(3), Truncate(6), Call(1), Reset, Call(4), Call(4), Call(2), Call(1)];

/// The state that a script begins with, and its commands.
pub(super) struct Script<'a> {
    pub(super) graph: &'a Graph,
    pub(super) request: &'a StateRequest,
    pub(super) batch: usize,
    pub(super) capacity: usize,
    pub(super) commands: &'a [Command],
}

/// The answer to a command: its code, the outputs of a call that succeeded, and the block of the state.
struct Answer {
    code: i64,
    outputs: Vec<Tensor>,
    block: Vec<u8>,
}

/// The number that begins each kind of command.
const CALL: i64 = 1;
const RESET: i64 = 2;
const TRUNCATE: i64 = 3;

impl Script<'_> {
    /// Runs the script in machine code and in `program`, and compares all answers.
    pub(super) fn assert_agrees(&self, program: &Program) {
        let (request, expected) = self.in_this_process();
        let answer = program.answer(&request);
        let mut rest = &answer[..];
        let mut before: Option<&[u8]> = None;
        for (idx, expected) in expected.iter().enumerate() {
            let at = format!("{} {:?} {idx}: {:?}", self.graph.name, self.batch, self.commands[idx]);
            assert_eq!(take_number(&mut rest), expected.code, "{at}");
            for output in &expected.outputs {
                let bytes = take(&mut rest, output.bytes().len());
                assert_close(&format!("{at}, output"), output.dtype(), bytes, output.bytes());
            }

            let len = take_number(&mut rest) as usize;
            assert_eq!(len, expected.block.len(), "{at}");
            let block = take(&mut rest, len);
            let header = HEADER_BYTES;
            assert_eq!(block[..header], expected.block[..header], "{at}: the header");
            assert_close(
                &format!("{at}, state"),
                self.row_type(),
                &block[header..],
                &expected.block[header..],
            );
            if expected.code != 0 {
                assert!(
                    before.is_none_or(|before| before == block),
                    "{at}: a refused call changed the state"
                );
            }
            before = Some(block);
        }
        assert!(rest.is_empty(), "{} more bytes", rest.len());
    }

    /// The type of the elements of the state.
    fn row_type(&self) -> DType {
        self.request.row_type.unwrap_or(DType::F32)
    }

    /// The request for a program, and the answers of machine code.
    fn in_this_process(&self) -> (Vec<u8>, Vec<Answer>) {
        let model = Pipeline::new(self.graph).state(self.request.clone()).jit().expect("supported");
        let has_batch = model.symbols().iter().any(|symbol| symbol.name() == "N");
        let sizes = if has_batch { vec![("N", self.batch as i64)] } else { vec![] };
        let mut state = State::with_dims(&model, self.capacity, &sizes).expect("a capacity in range");
        let mut context = Context::new(&model).expect("memory");

        let mut request = Vec::new();
        for symbol in model.symbols() {
            let value = match symbol.name() {
                "N" => self.batch,
                "capacity" => self.capacity,
                _ => 0,
            };
            put(&mut request, value as i64);
        }
        let mut answers = Vec::new();
        for (idx, command) in self.commands.iter().enumerate() {
            let answer = match *command {
                Command::Call(chunk) => {
                    let inputs =
                        model_inputs(&model, self.batch, chunk, state.length(), 100 * (1 + idx as u32));
                    put(&mut request, CALL);
                    put_inputs(&mut request, &inputs);
                    let answer = self.call(&mut context, &mut state, &inputs);
                    put_output_sizes(&mut request, model.outputs().len(), &answer.outputs);
                    answer
                }
                Command::Reset => {
                    put(&mut request, RESET);
                    state.reset();
                    Answer { code: 0, outputs: Vec::new(), block: state.block_bytes().to_vec() }
                }
                Command::Truncate(length) => {
                    request.extend([TRUNCATE, length as i64].map(i64::to_le_bytes).concat());
                    let code = i64::from(state.truncate(length).is_err());
                    Answer { code, outputs: Vec::new(), block: state.block_bytes().to_vec() }
                }
            };
            answers.push(answer);
        }
        put(&mut request, 0);
        (request, answers)
    }

    fn call(&self, context: &mut Context, state: &mut State, inputs: &[Tensor]) -> Answer {
        let mut outputs = Vec::new();
        let code = match context.run_stateful_views(&refs(inputs), state) {
            Ok(views) => {
                for idx in 0..views.len() {
                    let view = views.get(idx);
                    let bytes = Bytes::Owned(view.bytes().into());
                    let output = Tensor::new(view.dtype(), view.shape().to_vec(), bytes);
                    outputs.push(output.expect("as large as its shape"));
                }
                0
            }
            Err(CallError::StateFull(violation) | CallError::OutOfRange(violation)) => {
                i64::from(violation.code())
            }
            Err(error) => panic!("{error}"),
        };
        Answer { code, outputs, block: state.block_bytes().to_vec() }
    }
}

/// Bytes of the header of all states of these tests.
const HEADER_BYTES: usize = 64;

fn put(request: &mut Vec<u8>, value: i64) {
    request.extend(value.to_le_bytes());
}

fn put_inputs(request: &mut Vec<u8>, inputs: &[Tensor]) {
    for input in inputs {
        put(request, input.shape().len() as i64);
        input.shape().iter().for_each(|size| put(request, *size as i64));
        put(request, input.bytes().len() as i64);
        request.extend_from_slice(input.bytes());
    }
}

/// The bytes of each output; a refused call has none.
fn put_output_sizes(request: &mut Vec<u8>, count: usize, outputs: &[Tensor]) {
    for idx in 0..count {
        put(request, outputs.get(idx).map_or(0, |output| output.bytes().len()) as i64);
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, tail) = rest.split_at_checked(len).expect("an answer of that length");
    *rest = tail;
    taken
}

fn take_number(rest: &mut &[u8]) -> i64 {
    i64::from_le_bytes(take(rest, 8).try_into().expect("eight bytes"))
}

/// Compares elements that were rounded in another order. The terms of a sum may be as large as the largest element.
fn assert_close(case: &str, dtype: DType, got: &[u8], expected: &[u8]) {
    let tensor = |bytes: &[u8]| {
        let elems = bytes.len() / dtype.size_bytes();
        Tensor::new(dtype, vec![elems], Bytes::Owned(bytes.into())).expect("as large")
    };
    let (got, expected) = (tensor(got), tensor(expected));
    let step = match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 2e-5,
    };
    let elements = (0..expected.elems()).map(|idx| expected.get(idx).as_f64());
    let largest = elements.clone().map(f64::abs).fold(1.0, f64::max);
    for (idx, b) in elements.enumerate() {
        let a = got.get(idx).as_f64();
        assert!((a - b).abs() <= step * largest, "{case} [{idx}]: {a}, not {b}");
    }
}
