//! Queries about a model without a call, and descriptors that are refused.

use crate::fake;

use symshape_runtime::{MAX_AXES, OpenError, QueryError, abi::ModelDesc};

#[test]
fn sizes_and_their_inverse() {
    let model = fake::model();
    assert_eq!(model.arena_max(), 2048);
    assert_eq!(model.arena_formula(), "4*N*S");
    assert_eq!(model.arena_bytes(&[3, 8]).unwrap(), 96);
    assert_eq!(model.output_shape(0, &[3, 8]).unwrap(), [3, 8]);

    assert_eq!(model.max_dim("N", 96, &[0, 8]).unwrap(), Some(3));
    assert_eq!(model.max_dim("N", 127, &[0, 8]).unwrap(), Some(3));
    assert_eq!(model.max_dim("N", 31, &[0, 8]).unwrap(), None);
    assert_eq!(model.max_dim("N", usize::MAX, &[0, 8]).unwrap(), Some(64));
    assert_eq!(model.max_dim("S", 200, &[10, 0]).unwrap(), Some(4));
}

#[test]
fn queries_outside_the_contract_are_refused() {
    let model = fake::model();
    let message = |dims: &[i64]| model.arena_bytes(dims).unwrap_err().to_string();
    assert_eq!(message(&[65, 8]), "N = 65; N is declared 1..=64");
    assert_eq!(message(&[1, 5]), "S = 5; S is declared one of 2, 4, 8");
    assert_eq!(message(&[1]), "got 1 dims; the model has 2 symbols");
    assert!(matches!(model.max_dim("T", 1, &[1, 2]), Err(QueryError::NoSymbol { .. })));
    assert!(matches!(model.max_dim("N", 1, &[]), Err(QueryError::WrongDimCount { .. })));
    assert!(matches!(model.output_shape(2, &[1, 2]), Err(QueryError::NoOutput { idx: 2 })));
}

#[test]
fn tables_describe_the_contract() {
    let model = fake::model();
    let symbols: Vec<String> =
        model.symbols().iter().map(|symbol| format!("{}: {symbol}", symbol.name())).collect();
    assert_eq!(symbols, ["N: 1..=64", "S: one of 2, 4, 8"]);
    assert_eq!(model.symbols()[0].count(), 64);
    assert_eq!(model.symbols()[1].nth(2), Some(8));
    assert_eq!(model.inputs()[0].dims(), ["N", "S"]);
    assert_eq!(model.outputs()[1].rank(), 0);
}

#[test]
fn ragged_batches_are_described() {
    let model = fake::open(ModelDesc { ragged: fake::ragged(1), ..fake::desc() }).expect("well-formed");
    let ragged = model.ragged().expect("a ragged batch");
    assert_eq!((ragged.offsets(), ragged.sequences(), ragged.rows()), (1, 0, 1));
    assert_eq!((ragged.length().to_string().as_str(), ragged.mask()), ("1..=7", Some("mask")));
    assert_eq!(ragged.input_batch_axes(), [Some(0), None]);
    assert_eq!(ragged.output_batch_axes(), [Some(0), None]);
    assert!(fake::model().ragged().is_none());
}

#[test]
fn damaged_descriptors_are_refused() {
    let malformed = |spoil: fn(&mut ModelDesc)| {
        let mut desc = fake::desc();
        spoil(&mut desc);
        fake::open(desc).expect_err("damaged")
    };
    assert!(matches!(malformed(|desc| desc.magic = 0), OpenError::Malformed(_)));
    assert!(matches!(malformed(|desc| desc.abi_version += 1), OpenError::Version { .. }));
    assert!(matches!(malformed(|desc| desc.n_inputs = u32::MAX), OpenError::Malformed(_)));
    assert!(matches!(malformed(|desc| desc.symbols = std::ptr::null()), OpenError::Malformed(_)));
    assert!(matches!(malformed(|desc| desc.name = std::ptr::null()), OpenError::Malformed(_)));
    assert!(matches!(malformed(|desc| desc.arena_max = u64::MAX), OpenError::Malformed(_)));
    assert!(matches!(malformed(|desc| desc.ragged = fake::ragged(2)), OpenError::Malformed(_)));
}

#[test]
fn tensors_with_too_many_axes_are_refused() {
    let [widest, wider] = fake::wide();
    let of_input = |row| fake::open(ModelDesc { n_inputs: 1, inputs: row, ..fake::desc() });
    let of_output = |row| fake::open(ModelDesc { n_outputs: 1, outputs: row, ..fake::desc() });
    assert_eq!(of_input(widest).expect("the largest rank").inputs()[0].rank(), MAX_AXES);
    assert_eq!(of_output(widest).expect("the largest rank").outputs()[0].rank(), MAX_AXES);
    for refused in [of_input(wider), of_output(wider)] {
        let error = refused.expect_err("one axis too many").to_string();
        assert_eq!(error, "`wider` has 13 axes; inputs and outputs may have at most 12");
    }
}

#[test]
#[cfg(not(miri))]
fn files_that_are_not_artefacts_are_refused() {
    let message = |path: &str| symshape_runtime::Model::open(path).expect_err("not an artefact").to_string();
    assert!(message("no/such/file.so").starts_with("no/such/file.so: No such file"));
    assert!(message(file!()).contains("query.rs") || message("tests/query.rs").contains("query.rs"));
}
