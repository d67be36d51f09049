//! Calls and models that are refused.

use super::{
    graphs::{FORMS, MAX_LENGTH, embedded, encoder, layer, mean_of_tokens, padded},
    session::Session,
};
use crate::models::weights;
use symshape::Dim;
use symshape_compiler::{
    RaggedRequest, Result,
    graph::{Graph, Value},
    pipeline::Pipeline,
    scalar::{ReduceOp, Scalar},
};
use symshape_runtime::DType;

#[test]
fn wrong_offsets_are_refused_before_any_kernel_runs() {
    let request = RaggedRequest::along("S").max_rows(60);
    let mut session = Session::new(&encoder(FORMS[0]), &request);
    let cases: [(&[i64], &str); 7] = [
        (&[1, 4], "begins at row 0"),
        (&[0, 3], "ends at the last row"),
        (&[0, 2, 2, 4], "S = 0"),
        (&[0, 3, 1, 4], "S = -2"),
        (&[0, i64::MIN, 4], "S = -9223372036854775808"),
        (&[0, i64::MAX, 4], "S = 9223372036854775807"),
        (&[0, 1, 2, 3, 4, 5, 6], "N = 6"),
    ];
    for (offsets, words) in cases {
        let error = session.call_with(&[1, 2, 3, 4], offsets).expect_err("wrong offsets").to_string();
        assert!(error.contains(words), "{offsets:?}: {error}");
    }

    let long = MAX_LENGTH + 1;
    let error = session.call_with(&vec![1; long as usize], &[0, long]).expect_err("too long").to_string();
    assert!(error.contains("S = 38"), "{error}");
    let error = session.call_with(&[1; 61], &[0, 30, 61]).expect_err("too many rows").to_string();
    assert!(error.contains("T = 61"), "{error}");
    let error = session.call_with(&[1, 99, 3], &[0, 1, 3]).expect_err("an unknown token").to_string();
    assert!(error.contains("99"), "{error}");
    let error = session.call_with_narrow_offsets(&[1, 2, 3], &[0, 1, 3]).expect_err("32 bits").to_string();
    assert!(error.contains("`offsets`") && error.contains("i64") && error.contains("i32"), "{error}");
    // The context works after errors.
    session.compare(&[3, 1, 20], 2);
}

/// The error of compiling a padded model whose output is made by `output`.
fn refused(output: impl Fn(&mut Graph, Value, Value) -> Result<Value>) -> String {
    let build = || -> Result<Graph> {
        let (mut g, ids, mask) = padded("refused")?;
        let x = embedded(&mut g, ids)?;
        let x = layer(&mut g, x, mask, FORMS[0], 10)?;
        let y = output(&mut g, x, mask)?;
        g.output("y", y)?;
        Ok(g)
    };
    let graph = build().expect("a valid graph");
    let lowered = Pipeline::new(&graph).ragged(RaggedRequest::along("S").mask("mask")).lower();
    lowered.map(|_| ()).expect_err("padding reaches the output").to_string()
}

#[test]
fn models_whose_results_depend_on_padding_are_refused() {
    let error = refused(|g, x, _| g.mean(x, &[1], false));
    assert!(error.contains("padding is not masked"), "{error}");

    let error = refused(|g, x, _| g.reduce(ReduceOp::Max, x, &[1], false));
    assert!(error.contains("padding is not masked"), "{error}");

    // A mask to which ones are added along another axis than that of the tokens.
    let error = refused(|g, x, mask| {
        let mask = g.cast(DType::F32, mask)?;
        let mask = g.unsqueeze(mask, &[2])?;
        let zeros = [0.into(), 0.into(), 0.into()];
        let mask = g.pad(mask, &zeros, &[0.into(), 0.into(), 15.into()], Scalar::f32(1.0))?;
        let kept = g.mul(x, mask)?;
        g.reduce(ReduceOp::Sum, kept, &[1], false)
    });
    assert!(error.contains("padding is not masked"), "{error}");

    let error = refused(|g, x, _| {
        let last = g.slice(x, 1, Dim::symbol("S") - 1, 1.into(), 1)?;
        g.squeeze(last, &[1])
    });
    assert!(error.contains("position"), "{error}");

    let error = refused(|g, x, _| g.reverse(x, 1));
    assert!(error.contains("position"), "{error}");

    // Positions that count from the end of the padded length.
    let error = refused(|g, x, _| {
        let width = g.shape(x)[2].clone();
        let table = g.constant(weights(&[MAX_LENGTH as usize, 16], 5))?;
        let from_end = Dim::symbol("S") - 1 - Dim::symbol("$0");
        let rows = vec![Dim::symbol("S"), width];
        let turned = g.view(table, rows, vec![from_end, Dim::symbol("$1")])?;
        let [x, turned] = g.broadcast(&[x, turned])?[..] else { unreachable!() };
        g.add(x, turned)
    });
    assert!(error.contains("padded sizes"), "{error}");

    // A sum along the padded length of values that are the same for all sequences.
    let error = refused(|g, x, _| {
        let one = g.scalar(Scalar::f32(1.0))?;
        let ones = g.broadcast_to(one, &[Dim::symbol("S")])?;
        let count = g.reduce(ReduceOp::Sum, ones, &[0], false)?;
        let [x, count] = g.broadcast(&[x, count])?[..] else { unreachable!() };
        g.div(x, count)
    });
    assert!(error.contains("an axis of the size S"), "{error}");
}

#[test]
fn refusals_name_the_input_that_masks_most() {
    let build = || -> Result<Graph> {
        let (mut g, ids, mask) = padded("refused")?;
        let x = embedded(&mut g, ids)?;
        let x = layer(&mut g, x, mask, FORMS[0], 10)?;
        g.origin = "pool".into();
        let mean = g.mean(x, &[1], false)?;
        g.output("mean", mean)?;
        Ok(g)
    };
    let graph = build().expect("a valid graph");
    let lowered = Pipeline::new(&graph).ragged(RaggedRequest::along("S")).lower();
    let error = lowered.map(|_| ()).expect_err("padding reaches the mean").to_string();
    // The proof with the mask comes to the mean. Without a mask, or with the ids as one, it ends in the attention.
    let words = ["`mean`", "pool", "--ragged S with the mask `mask`: it reduces all tokens"];
    assert!(words.iter().all(|words| error.contains(words)), "{error}");
}

#[test]
fn models_whose_sequences_depend_on_each_other_are_refused() {
    let error = refused(|g, x, mask| {
        let mean = mean_of_tokens(g, x, mask)?;
        let turned = g.transpose(mean, &[1, 0])?;
        g.matmul(mean, turned)
    });
    assert!(error.contains("sequences"), "{error}");

    let error = refused(|g, x, _| {
        let largest = g.reduce(ReduceOp::Max, x, &[0], true)?;
        let [x, largest] = g.broadcast(&[x, largest])?[..] else { unreachable!() };
        g.sub(x, largest)
    });
    assert!(error.contains("an axis of the size N"), "{error}");
}

#[test]
fn requests_that_do_not_fit_the_model_are_refused() {
    let compile = |request: RaggedRequest| {
        let lowered = Pipeline::new(&encoder(FORMS[0])).ragged(request).lower();
        lowered.map(|_| ()).expect_err("refused").to_string()
    };
    let cases = [
        (RaggedRequest::along("L"), "the model has no symbol L"),
        (RaggedRequest::along("S").batch("S"), "the same symbol"),
        (RaggedRequest::along("S").mask("masks"), "no such input"),
        (RaggedRequest::along("S").mask("ids"), "not masked"),
        (RaggedRequest::along("S").max_rows(0), "at least 1"),
    ];
    for (request, words) in cases {
        let error = compile(request);
        assert!(error.contains(words), "{error}");
    }

    let mut g = encoder(FORMS[0]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 3.into(), Dim::symbol("S")]).expect("an input");
    let y = g.relu(x).expect("floats");
    g.output("turned", y).expect("an output");
    let error = Pipeline::new(&g).ragged(RaggedRequest::along("S")).lower().map(|_| ()).expect_err("refused");
    assert!(error.to_string().contains("not adjacent"), "{error}");
}
