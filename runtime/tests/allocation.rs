//! Calls and refusals allocate nothing, at old and new sizes.

#[allow(dead_code, reason = "this program uses only a part of it")]
#[path = "it/counting.rs"]
mod counting;
#[allow(dead_code, reason = "this program uses only a part of it")]
#[path = "it/fake.rs"]
mod fake;

use counting::calls;
use symshape_runtime::{Context, TensorMut, TensorRef};

#[test]
fn calls_and_refusals_allocate_nothing() {
    let model = fake::model();
    let mut context = Context::new(&model).unwrap();
    let (x, y) = (vec![1f32; 65 * 8], vec![1f32; 65]);
    let (mut z, mut rows) = (vec![0f32; 64 * 8], [0i64]);
    let before = calls();
    for (n, s) in [(1, 2), (64, 8), (33, 4), (65, 8), (7, 3), (2, 2)] {
        let (x_shape, y_shape) = ([n, s], [n]);
        let inputs =
            [TensorRef::new(&x_shape, &x[..n * s]).unwrap(), TensorRef::new(&y_shape, &y[..n]).unwrap()];
        let is_allowed = n <= 64 && s != 3;
        assert_eq!(context.run_views(&inputs).is_ok(), is_allowed);
        let outputs = &mut [TensorMut::new(&mut z), TensorMut::new(&mut rows)];
        assert_eq!(context.run(&inputs, outputs).is_ok(), is_allowed);
    }
    assert_eq!(calls(), before);
}
