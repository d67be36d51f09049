//! Contexts of models without upper bounds grow when a call needs it, and count it; other contexts never grow.

use crate::fake;

use symshape_runtime::{Context, TensorMut, TensorRef};

#[test]
fn memory_grows_when_a_call_needs_more() {
    let mut context = Context::new(&fake::growing()).unwrap();
    assert_eq!((context.growths(), context.arena_capacity()), (0, 0));
    let mut grown = Vec::new();
    for n in [1_usize, 2, 1, 30, 7, 64, 64] {
        let (x, y) = (vec![1f32; 8 * n], vec![0.5f32; n]);
        let inputs = [TensorRef::new(&[n, 8], &x).unwrap(), TensorRef::new(&[n], &y).unwrap()];
        let outputs = context.run_views(&inputs).unwrap();
        assert_eq!(outputs.get(0).elems::<f32>().unwrap(), vec![2.5; 8 * n]);
        assert!(context.arena_capacity() >= 32 * n);
        grown.push(context.growths());
    }
    assert_eq!(grown, [1, 2, 2, 3, 3, 4, 4]);
}

#[test]
fn outputs_in_the_callers_memory_need_no_growth() {
    let mut context = Context::new(&fake::growing()).unwrap();
    let (x, y, mut z) = (vec![1f32; 8 * 64], vec![0.5f32; 64], vec![0f32; 8 * 64]);
    let inputs = [TensorRef::new(&[64, 8], &x).unwrap(), TensorRef::new(&[64], &y).unwrap()];
    context.run(&inputs, &mut [TensorMut::new(&mut z)]).unwrap();
    assert_eq!((context.growths(), z), (1, vec![2.5; 8 * 64]));
    let (outputs, is_intact) = context.run_guarded(&inputs).unwrap();
    assert!(is_intact);
    assert_eq!(outputs.get(0).elems::<f32>().unwrap()[0], 2.5);
    assert_eq!(context.growths(), 2);
}

#[test]
fn models_with_bounds_never_grow() {
    let mut context = Context::new(&fake::rows()).unwrap();
    let capacity = context.arena_capacity();
    assert_eq!(capacity, context.model().arena_max());
    for n in [1_usize, 64] {
        let (x, y) = (vec![1f32; 8 * n], vec![0.5f32; n]);
        let inputs = [TensorRef::new(&[n, 8], &x).unwrap(), TensorRef::new(&[n], &y).unwrap()];
        context.run_views(&inputs).unwrap();
        assert_eq!((context.growths(), context.arena_capacity()), (0, capacity));
    }
}
