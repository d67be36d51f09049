//! Calls in blocks of rows have the results of a single call.

use crate::fake;

use symshape_runtime::{Context, TensorRef};

#[test]
fn blocks_have_the_rows_of_one_call() {
    let mut context = Context::new(&fake::rows()).unwrap();
    for (n, block) in [(1, 1), (7, 2), (8, 4), (64, 64), (5, 9), (64, 63)] {
        let x: Vec<f32> = (0..4 * n).map(|idx| idx as f32).collect();
        let y: Vec<f32> = (0..n).map(|idx| 0.25 * idx as f32).collect();
        let inputs = [TensorRef::new(&[n, 4], &x).unwrap(), TensorRef::new(&[n], &y).unwrap()];
        let whole = context.run_views(&inputs).unwrap().get(0).elems::<f32>().unwrap().to_vec();
        let (mut pieces, mut begins) = (Vec::new(), Vec::new());
        let each = |first: usize, outputs: symshape_runtime::Outputs<'_>| {
            begins.push(first);
            pieces.extend_from_slice(outputs.get(0).elems::<f32>().unwrap());
        };
        context.run_blocks("N", block, &inputs, each).unwrap();
        assert_eq!(pieces, whole);
        assert_eq!(begins, (0..n).step_by(block).collect::<Vec<_>>());
    }
}

#[test]
fn refusals_come_before_the_first_block() {
    let (x, y) = (vec![0f32; 4 * 65], vec![0f32; 65]);
    let refused = |model, symbol: &str, block, n| {
        let inputs = [TensorRef::new(&[n, 4], &x[..4 * n]).unwrap(), TensorRef::new(&[n], &y[..n]).unwrap()];
        let mut context = Context::new(model).unwrap();
        let result = context.run_blocks(symbol, block, &inputs, |_, _| panic!("nothing may run"));
        result.expect_err("refused").to_string()
    };
    let (rows, model) = (fake::rows(), fake::model());
    assert_eq!(refused(&rows, "N", 8, 65), "`x` axis 0 gives N = 65; N is declared 1..=64");
    assert_eq!(
        refused(&rows, "N", 0, 8),
        "can't run blocks of 0 rows: the symbol's declaration does not allow this size"
    );
    assert_eq!(refused(&rows, "K", 1, 8), "can't count rows: the model has no symbol of that name");
    let not_rows = "can't be split into rows: the symbol must be its first axis and occur in no other axis";
    assert_eq!(refused(&model, "N", 1, 8), format!("`rows` {not_rows}"));
    assert_eq!(refused(&rows, "S", 2, 8), format!("`z` {not_rows}"));
}
