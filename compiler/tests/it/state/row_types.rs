//! Rows of 16 bits: a state whose rows are rounded equals the graph that rounds them.

use super::{
    graphs::{decoder, gated, rows_first},
    session::Session,
};
use crate::{models::graph, tensors::refs};
use symshape::Dim;
use symshape_compiler::{
    StateRequest,
    graph::{Graph, eval::eval},
    kernel::{BufferId, Stmt},
    opt,
    pipeline::Pipeline,
    scalar::ReduceOp,
    state,
    tensor::Tensor,
};
use symshape_runtime::{Context, DType, State};

const ROW_TYPES: [DType; 2] = [DType::F16, DType::BF16];

fn request(row_type: DType) -> StateRequest {
    StateRequest::find().row_type(row_type)
}

/// The graph without state whose past and new rows have this type.
fn rounded(graph: &Graph, row_type: DType) -> Graph {
    let mut graph = graph.clone();
    opt::optimize(&mut graph).expect("a valid graph");
    state::round_rows(&mut graph, &request(row_type)).expect("appended rows");
    graph
}

#[test]
fn rows_of_16_bits_equal_the_graph_that_rounds_them() {
    for row_type in ROW_TYPES {
        for (graph, batch, capacity) in
            [(decoder(5, 9), 1, 14), (decoder(5, 9), 3, 14), (rows_first(), 1, 20)]
        {
            // Capacity 14 is the upper bound of the decoder; some sessions end there.
            for chunks in [&[1, 1, 1, 1, 1][..], &[5, 4, 5], &[1, 2, 5, 1, 5]] {
                let plain = rounded(&graph, row_type);
                let mut session = Session::between(&graph, &plain, &request(row_type), batch, capacity);
                assert!(session.model().state().iter().all(|tensor| tensor.dtype() == row_type));
                chunks.iter().for_each(|chunk| session.step(*chunk));
            }
        }
    }
}

/// A sum of rows: exact in `f32`, so that results don't depend on the order of the sum.
fn sums() -> Graph {
    let mut g = graph("sums", &[("S", 1, 4), ("P", 0, 12)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("S"), 3.into()]).expect("an input");
    let past = g.input("past", DType::F32, vec![Dim::symbol("P"), 3.into()]).expect("an input");
    let present = g.concat(&[past, x], 0).expect("rows");
    let y = g.reduce(ReduceOp::Sum, present, &[0], false).expect("a sum");
    g.output("y", y).expect("an output");
    g.output("present", present).expect("an output");
    g
}

#[test]
fn a_call_reads_its_own_rows_rounded() {
    for (row_type, x, stored) in [(DType::F16, 2049.0, 2048.0), (DType::BF16, 257.0, 256.0)] {
        let model = Pipeline::new(&sums()).state(request(row_type)).jit().expect("supported");
        let mut context = Context::new(&model).expect("memory");
        let mut state = State::new(&model, 12).expect("a capacity");
        for rows in [1_usize, 2, 4] {
            let length = state.length();
            let x = Tensor::from_f32(vec![rows, 3], &vec![x; 3 * rows]).expect("rows");
            let outputs = context.run_stateful_views(&refs(&[x]), &mut state).expect("in range");
            let sum = stored * (length + rows) as f32;
            assert_eq!(outputs.get(0).elems::<f32>().expect("floats"), [sum; 3]);
        }
    }
}

#[test]
fn the_evaluator_defines_rounded_rows() {
    let graph = rounded(&sums(), DType::F16);
    let x = Tensor::from_f32(vec![2, 3], &[2049.0, 1.0, -0.1, 1.0, 1.0, 0.1]).expect("rows");
    let past =
        Tensor::new(DType::F16, vec![0, 3], symshape_compiler::tensor::Bytes::Owned(Vec::new().into()));
    let outputs = eval(&graph, &[x, past.expect("no rows")]).expect("in range");
    assert_eq!(
        outputs[0].to_string(),
        Tensor::from_f32(vec![3], &[2049.0, 2.0, 0.0]).expect("sums").to_string()
    );
    assert_eq!(outputs[1].dtype(), DType::F16);
}

#[test]
fn a_prompt_has_the_same_bits_in_chunks() {
    for row_type in ROW_TYPES {
        let model = Pipeline::new(&decoder(6, 12)).state(request(row_type)).jit().expect("supported");
        let rows = |count: usize, first: usize| {
            let elem = |at: usize| ((16 * first + at) as f32 * 0.37).sin();
            Tensor::from_f32(vec![1, count, 16], &(0..16 * count).map(elem).collect::<Vec<_>>())
                .expect("rows")
        };
        let run = |chunks: &[usize]| {
            let mut context = Context::new(&model).expect("memory");
            let mut state = State::with_dims(&model, 12, &[("N", 1)]).expect("a capacity");
            let mut y = Vec::new();
            for chunk in chunks {
                let first = state.length();
                // A row sees the rows up to itself.
                let mut causal = vec![0.0_f32; chunk * (first + chunk)];
                for row in 0..*chunk {
                    causal[row * (first + chunk) + first + row + 1..(row + 1) * (first + chunk)]
                        .fill(f32::NEG_INFINITY);
                }
                let bias = Tensor::from_f32(vec![1, 1, *chunk, first + chunk], &causal).expect("a mask");
                let outputs = context
                    .run_stateful_views(&refs(&[rows(*chunk, first), bias]), &mut state)
                    .expect("in range");
                y.extend_from_slice(outputs.get(0).bytes());
            }
            (y, state.save())
        };
        let whole = run(&[6]);
        for chunks in [&[1, 1, 1, 1, 1, 1][..], &[2, 4], &[3, 1, 2], &[5, 1]] {
            assert!(run(chunks) == whole, "{row_type} in {chunks:?}");
        }
    }
}

#[test]
fn requests_without_appended_rows_of_f32_are_refused() {
    let error = |graph: &Graph, request: StateRequest| {
        Pipeline::new(graph).state(request).lower().expect_err("refused").to_string()
    };
    let overwritten = StateRequest::pairs(["h=h_next"]).expect("a pair");
    let cause = error(&gated(), overwritten.row_type(DType::F16));
    assert!(cause.contains("--state-type f16: no pair of the state has appended rows of f32"), "{cause}");
    let cause = error(&gated(), StateRequest::default().row_type(DType::BF16));
    assert!(cause.contains("add --stateful or --state IN=OUT"), "{cause}");
    let cause = error(&sums(), request(DType::I8));
    assert!(cause.contains("--state-type i8: expected f16 or bf16"), "{cause}");
}

/// Microkernels read a right operand of 16 bits, but not a left one.
#[test]
fn state_on_the_left_of_a_product_becomes_floats_before() {
    let mut g = graph("scores", &[("S", 1, 4), ("P", 0, 12)]);
    let [s, p] = ["S", "P"].map(Dim::symbol);
    let x = g.input("x", DType::F32, vec![s.clone(), 8.into()]).expect("an input");
    let past = g.input("past", DType::F32, vec![p, 8.into()]).expect("an input");
    let present = g.concat(&[past, x], 0).expect("rows");
    let turned = g.transpose(x, &[1, 0]).expect("a matrix");
    let y = g.matmul(present, turned).expect("a product");
    g.output("y", y).expect("an output");
    g.output("present", present).expect("an output");

    let request = request(DType::F16);
    let lowered = Pipeline::new(&g).state(request.clone()).lower().expect("supported");
    let program = &lowered.program;
    let mut left = Vec::new();
    program.kernels.iter().for_each(|kernel| left_operands(&kernel.body, &mut left));
    assert!(!left.is_empty(), "{program}");
    assert!(left.iter().all(|buffer| program.buffers[*buffer].dtype == DType::F32), "{program}");

    let mut session = Session::between(&g, &rounded(&g, DType::F16), &request, 1, 12);
    [4, 1, 3, 4].iter().for_each(|chunk| session.step(*chunk));
}

fn left_operands(body: &[Stmt], found: &mut Vec<BufferId>) {
    for stmt in body {
        match stmt {
            Stmt::Contraction(contraction) => found.push(contraction.lhs.buffer),
            Stmt::For { body, .. } => left_operands(body, found),
            _ => {}
        }
    }
}
