//! Models that take the length of each sequence in place of a mask.

use super::{
    graphs::{CHANNELS, FORMS, MAX_LENGTH, MAX_SEQUENCES, embedded, layer, mean_of_tokens},
    session::{cases, offsets, ragged},
};
use crate::models::graph;
use symshape::Dim;
use symshape_compiler::{
    RaggedRequest, Result,
    graph::{Graph, Value},
    pipeline::Pipeline,
    scalar::{CompareOp, ReduceOp, Scalar},
};
use symshape_runtime::{Context, DType, TensorRef};

/// `position + by OP length` for each position: `[N, S]`, an integer of this type.
fn mask_of(g: &mut Graph, dtype: DType, lengths: Value, by: i64, op: CompareOp) -> Result<Value> {
    let positions = g.index(DType::I64, vec![1.into(), Dim::symbol("S")], Dim::symbol("$1"))?;
    let by = g.scalar(Scalar::i64(by))?;
    let [positions, by] = g.broadcast(&[positions, by])?[..] else { unreachable!() };
    let positions = g.add(positions, by)?;
    let positions = g.cast(dtype, positions)?;
    let lengths = g.cast(dtype, lengths)?;
    let lengths = g.unsqueeze(lengths, &[1])?;
    let [positions, lengths] = g.broadcast(&[positions, lengths])?[..] else { unreachable!() };
    let mask = g.compare(op, positions, lengths)?;
    g.cast(DType::I64, mask)
}

/// An encoder that compares positions with `lengths`, integers of `of_lengths`, as numbers of `dtype`.
fn encoder(of_lengths: DType, dtype: DType, by: i64, op: CompareOp) -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("lengths", &[("N", 1, MAX_SEQUENCES), ("S", 1, MAX_LENGTH)]);
        let ids = g.input("ids", DType::I64, vec![Dim::symbol("N"), Dim::symbol("S")])?;
        let lengths = g.input("lengths", of_lengths, vec![Dim::symbol("N")])?;
        let mask = mask_of(&mut g, dtype, lengths, by, op)?;
        let x = embedded(&mut g, ids)?;
        let x = layer(&mut g, x, mask, FORMS[0], 10)?;
        let mean = mean_of_tokens(&mut g, x, mask)?;
        g.output("hidden", x)?;
        g.output("mean", mean)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

#[test]
fn lengths_mask_as_a_mask_does() {
    let graph = encoder(DType::I32, DType::I64, 0, CompareOp::Lt);
    let model = ragged(&graph, &RaggedRequest::along("S"));
    let info = model.ragged().expect("a ragged batch");
    assert_eq!((info.lengths(), info.mask()), (Some("lengths"), None));
    let dense = Pipeline::new(&graph).jit().expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let mut dense = Context::new(&dense).expect("memory");

    for lengths in cases() {
        let width = lengths.iter().copied().max().unwrap_or(1);
        let token = |row: usize, position: usize| ((row * 31 + position * 7) % 50) as i64;
        let rows: Vec<i64> = lengths
            .iter()
            .enumerate()
            .flat_map(|(row, length)| (0..*length).map(move |k| token(row, k)))
            .collect();
        let padded: Vec<i64> = (0..lengths.len() * width)
            .map(|k| if k % width < lengths[k / width] { token(k / width, k % width) } else { 49 })
            .collect();
        let list: Vec<i32> = lengths.iter().map(|length| *length as i32).collect();
        let padded_shape = [lengths.len(), width];
        let expected = dense
            .run_views(&[
                TensorRef::new(&padded_shape, &padded).expect("sized"),
                TensorRef::new(&[lengths.len()], &list).expect("sized"),
            ])
            .expect("in contract");
        let expected: Vec<Vec<f32>> =
            (0..2).map(|idx| expected.get(idx).elems::<f32>().expect("floats").to_vec()).collect();

        let offsets = offsets(&lengths);
        let outputs = context
            .run_views(&[
                TensorRef::new(&[rows.len()], &rows).expect("sized"),
                TensorRef::new(&[offsets.len()], &offsets).expect("sized"),
            ])
            .expect("in contract");
        let hidden = outputs.get(0).elems::<f32>().expect("floats");
        let mean = outputs.get(1).elems::<f32>().expect("floats");
        for (row, length) in lengths.iter().enumerate() {
            let got = &hidden[offsets[row] as usize * CHANNELS..][..length * CHANNELS];
            let want = &expected[0][row * width * CHANNELS..][..length * CHANNELS];
            let means = mean[row * CHANNELS..][..CHANNELS].iter().zip(&expected[1][row * CHANNELS..]);
            for (got, want) in got.iter().zip(want).chain(means) {
                assert!(
                    (got - want).abs() <= 1e-4 * want.abs().max(1.0),
                    "{lengths:?}: {got} instead of {want}"
                );
            }
        }
    }
}

#[test]
fn comparisons_that_let_padding_through_are_refused() {
    let lower = |by: i64, op: CompareOp, dtype: DType| {
        let graph = encoder(DType::I64, dtype, by, op);
        let lowered = Pipeline::new(&graph).ragged(RaggedRequest::along("S").mask("lengths")).lower();
        lowered.map(|_| ()).map_err(|error| error.to_string())
    };
    for (by, op, dtype) in [
        (0, CompareOp::Lt, DType::I64),
        (1, CompareOp::Le, DType::I64),
        (3, CompareOp::Lt, DType::I32),
        (0, CompareOp::Lt, DType::F32),
    ] {
        assert_eq!(lower(by, op, dtype), Ok(()), "{by} {op:?} {dtype}");
    }
    // The first position of padding is the length.
    for (by, op, dtype) in [
        (0, CompareOp::Le, DType::I64),
        (-1, CompareOp::Lt, DType::I64),
        (0, CompareOp::Ne, DType::I64),
        (0, CompareOp::Gt, DType::I64),
        (1 << 40, CompareOp::Lt, DType::I64),
    ] {
        let error = lower(by, op, dtype).expect_err("padding reaches the sum");
        assert!(error.contains("padding is not masked") || error.contains("0 at padding"), "{error}");
    }
}

/// Lowers a model that sums the tokens of two channels, those before `limits`: `[N, 2]`, computed from the lengths
/// `[N, 1]`. Positions have the type `dtype`.
fn lower_sums(dtype: DType, limits: impl Fn(&mut Graph, Value) -> Result<Value>) -> Result<(), String> {
    let build = || -> Result<Graph> {
        let mut g = graph("limits", &[("N", 1, MAX_SEQUENCES), ("S", 1, MAX_LENGTH)]);
        let ids = g.input("ids", DType::I64, vec![Dim::symbol("N"), Dim::symbol("S")])?;
        let lengths = g.input("lengths", dtype, vec![Dim::symbol("N")])?;
        let lengths = g.unsqueeze(lengths, &[1])?;
        let limits = limits(&mut g, lengths)?;
        let limits = g.unsqueeze(limits, &[1])?;
        let positions = g.index(dtype, vec![1.into(), Dim::symbol("S"), 1.into()], Dim::symbol("$1"))?;
        let [positions, limits] = g.broadcast(&[positions, limits])?[..] else { unreachable!() };
        let mask = g.compare(CompareOp::Lt, positions, limits)?;
        let mask = g.cast(DType::F32, mask)?;
        let x = embedded(&mut g, ids)?;
        let x = g.slice(x, 2, 0.into(), 2.into(), 1)?;
        let kept = g.mul(x, mask)?;
        let sum = g.reduce(ReduceOp::Sum, kept, &[1], false)?;
        g.output("sum", sum)?;
        Ok(g)
    };
    let graph = build().expect("a valid graph");
    let lowered = Pipeline::new(&graph).ragged(RaggedRequest::along("S").mask("lengths")).lower();
    lowered.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn limits_that_are_not_the_lengths_are_refused() {
    let twice = |g: &mut Graph, lengths: Value| g.broadcast_to(lengths, &[Dim::symbol("N"), 2.into()]);
    assert_eq!(lower_sums(DType::I64, twice), Ok(()));

    let added = |g: &mut Graph, lengths: Value| {
        g.pad(lengths, &[0.into(), 0.into()], &[0.into(), 1.into()], Scalar::i64(100))
    };
    let running_sum = |g: &mut Graph, lengths: Value| {
        let lengths = twice(g, lengths)?;
        g.scan(ReduceOp::Sum, lengths, 1, false, false)
    };
    for error in [
        lower_sums(DType::I64, added),
        lower_sums(DType::I64, running_sum),
        // Positions of 8 bits could begin again at 0.
        lower_sums(DType::U8, twice),
    ] {
        let error = error.expect_err("padding reaches the sum");
        assert!(error.contains("padding is not masked"), "{error}");
    }
}
