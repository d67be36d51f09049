//! Calls of a hand-written model: results, views, buffers, every refusal and its text.

use crate::fake;

use ndarray::{Array1, Array2, ArrayView2, s};
use symshape_runtime::{CallError, Context, DType, TensorError, TensorMut, TensorRef};

/// Input data for a size.
fn data(n: usize, s: usize) -> (Vec<f32>, Vec<f32>) {
    ((0..n * s).map(|idx| idx as f32).collect(), (0..n).map(|idx| 0.5 * idx as f32).collect())
}

/// The message of a call with inputs of these shapes.
fn refusal(x: &[usize], y: &[usize]) -> String {
    let (xs, ys) = (vec![0f32; x.iter().product()], vec![0f32; y.iter().product()]);
    let mut context = Context::new(&fake::model()).unwrap();
    let inputs = [TensorRef::new(x, &xs).unwrap(), TensorRef::new(y, &ys).unwrap()];
    context.run_views(&inputs).expect_err("out of contract").to_string()
}

#[test]
fn each_size_has_its_shape_and_values() {
    let mut context = Context::new(&fake::model()).unwrap();
    for (n, s) in [(1, 2), (64, 8), (3, 4), (2, 2), (63, 8)] {
        let (x, y) = data(n, s);
        let outputs = context
            .run_views(&[TensorRef::new(&[n, s], &x).unwrap(), TensorRef::new(&[n], &y).unwrap()])
            .unwrap();
        let z = outputs.by_name("z").unwrap().array::<f32>().unwrap();
        assert_eq!(z.shape(), [n, s]);
        assert!(z.indexed_iter().all(|(at, z)| *z == 2.0 * x[at[0] * s + at[1]] + y[at[0]]));
        assert_eq!(outputs.get(1).elems::<i64>().unwrap(), [n as i64]);
        assert!(outputs.by_name("w").is_none());
    }
}

#[test]
fn arrays_serve_as_inputs_and_outputs() {
    let mut context = Context::new(&fake::model()).unwrap();
    let x = Array2::from_shape_fn((3, 4), |(row, col)| (row * 4 + col) as f32);
    let y = Array1::<f32>::ones(3);
    let (mut z, mut rows) = (Array2::<f32>::zeros((3, 4)), [0i64]);
    let inputs = [TensorRef::from_array(&x).unwrap(), TensorRef::from_array(&y).unwrap()];
    context.run(&inputs, &mut [TensorMut::from_array(&mut z).unwrap(), TensorMut::new(&mut rows)]).unwrap();
    assert_eq!(z, &x * 2.0 + 1.0);
    assert_eq!(rows, [3]);

    let columns = x.t();
    assert_eq!(TensorRef::from_array(&columns).unwrap_err(), TensorError::NotStandardLayout);
    let part: ArrayView2<f32> = x.slice(s![1..3, ..]);
    assert_eq!(TensorRef::from_array(&part).unwrap().shape(), [2, 4]);
}

#[test]
fn refusals_name_symbol_value_range_tensor_and_axis() {
    assert_eq!(refusal(&[65, 2], &[65]), "`x` axis 0 gives N = 65; N is declared 1..=64");
    assert_eq!(refusal(&[0, 2], &[0]), "`x` axis 0 gives N = 0; N is declared 1..=64");
    assert_eq!(refusal(&[4, 3], &[4]), "`x` axis 1 gives S = 3; S is declared one of 2, 4, 8");
    assert_eq!(refusal(&[4, 2], &[5]), "`y` axis 0 is 5; 4 is expected (`x` axis 0 gave it first)");
    assert_eq!(refusal(&[4], &[4]), "`x` has 2 axes; got 1");
}

#[test]
fn refusals_are_typed_and_write_nothing() {
    let mut context = Context::new(&fake::model()).unwrap();
    let (x, y) = data(4, 2);
    let inputs = [TensorRef::new(&[4, 2], &x).unwrap(), TensorRef::new(&[4], &y).unwrap()];
    let doubles = vec![0f64; 4];
    let doubles = TensorRef::new(&[4], &doubles).unwrap();

    assert!(matches!(
        context.run_views(&inputs[..1]),
        Err(CallError::WrongInputCount { expected: 2, got: 1 })
    ));
    match context.run_views(&[inputs[0], doubles]) {
        Err(CallError::WrongDType { tensor, expected: DType::F32, got: DType::F64 }) => {
            assert_eq!(tensor.as_str(), "y");
        }
        other => panic!("{other:?}"),
    }
    let (mut z, mut rows) = (vec![-1f32; 7], [-1i64]);
    let error = context.run(&inputs, &mut [TensorMut::new(&mut z), TensorMut::new(&mut rows)]).unwrap_err();
    assert_eq!(error.to_string(), "`z` needs 32 bytes in this call; its buffer has 28");
    let error = context.run(&inputs, &mut [TensorMut::new(&mut rows)]).unwrap_err();
    assert!(matches!(error, CallError::WrongOutputCount { expected: 2, got: 1 }));
    let mut wide = Array2::<f32>::zeros((2, 4));
    let error = context
        .run(&inputs, &mut [TensorMut::from_array(&mut wide).unwrap(), TensorMut::new(&mut rows)])
        .unwrap_err();
    assert_eq!(error.to_string(), "axis 0 of `z` is 4 in this call; the array has 2");
    assert!(z.iter().all(|z| *z == -1.0) && rows == [-1]);
    assert!(matches!(TensorRef::new(&[3, 2], &x), Err(TensorError::WrongSize { expected: 24, got: 32 })));
    assert!(matches!(TensorRef::new(&[usize::MAX, 2], &x), Err(TensorError::TooLarge)));
}

#[test]
fn errors_at_run_time_are_reported() {
    let mut context = Context::new(&fake::model()).unwrap();
    let (x, y) = ([0f32; 2], [f32::INFINITY]);
    let inputs = [TensorRef::new(&[1, 2], &x).unwrap(), TensorRef::new(&[1], &y).unwrap()];
    let error = context.run_views(&inputs).unwrap_err();
    assert!(matches!(error, CallError::IndexOutOfBounds(_)));
    assert_eq!(error.to_string(), "`y` has the index 9, outside 0..=7");
}

#[test]
fn guards_catch_a_stray_write() {
    let mut context = Context::new(&fake::model()).unwrap();
    for (first, expected) in [(1.0, true), (f32::NEG_INFINITY, false), (1.0, true)] {
        let (x, y) = ([3f32; 4], [first, 1.0]);
        let inputs = [TensorRef::new(&[2, 2], &x).unwrap(), TensorRef::new(&[2], &y).unwrap()];
        let (outputs, is_intact) = context.run_guarded(&inputs).unwrap();
        assert_eq!(outputs.get(0).elems::<f32>().unwrap()[2..], [7.0, 7.0]);
        assert_eq!(is_intact, expected);
    }
}

#[test]
fn contexts_run_in_lent_memory() {
    let model = fake::model();
    let small = Box::leak(vec![0u8; 64].into_boxed_slice());
    assert!(Context::in_memory(&model, small).is_err());
    let memory = Box::leak(vec![0u8; model.arena_max() + 63].into_boxed_slice());
    let mut context = Context::in_memory(&model, memory).unwrap();
    let (x, y) = data(2, 2);
    let inputs = [TensorRef::new(&[2, 2], &x).unwrap(), TensorRef::new(&[2], &y).unwrap()];
    let (mut z, mut rows) = ([0f32; 4], [0i64]);
    context.run(&inputs, &mut [TensorMut::new(&mut z), TensorMut::new(&mut rows)]).unwrap();
    assert_eq!(z, [0.0, 2.0, 4.5, 6.5]);
    assert!(matches!(context.run_views(&inputs), Err(CallError::NoOutputMemory)));
}

#[test]
fn threads_share_a_model_and_own_contexts() {
    fn shareable<T: Send + Sync>(value: T) -> T {
        value
    }
    let model = shareable(fake::model());
    std::thread::scope(|scope| {
        for n in 1..5 {
            let mut context = Context::new(&model).unwrap();
            scope.spawn(move || {
                let (x, y) = data(n, 8);
                for _ in 0..20 {
                    let inputs = [TensorRef::new(&[n, 8], &x).unwrap(), TensorRef::new(&[n], &y).unwrap()];
                    let outputs = context.run_views(&inputs).unwrap();
                    assert_eq!(outputs.get(0).elems::<f32>().unwrap()[0], 0.0);
                }
            });
        }
    });
}
