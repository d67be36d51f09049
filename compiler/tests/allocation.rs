//! Calls with state allocate nothing: the first one, later ones at other lengths, calls with several states, and
//! refusals.

#[allow(dead_code, reason = "this program uses only a part of it")]
#[path = "../../runtime/tests/it/counting.rs"]
mod counting;

use counting::calls;
use symshape::{Declaration, Dim};
use symshape_compiler::{Result, StateRequest, graph::Graph, pipeline::Pipeline};
use symshape_runtime::{Context, DType, State, TensorMut, TensorRef};

/// `y[n, s] = softmax(x · all) · all`, where `all` is the cache after the rows `x`.
fn attention() -> Result<Graph> {
    let mut g = Graph { name: "attention".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 4))?;
    let s = g.symbol("S", Declaration::range(1, 3))?;
    let p = g.symbol("P", Declaration::range(0, 20))?;
    let width = Dim::from(8);
    let x = g.input("x", DType::F32, vec![n.clone(), s, width.clone()])?;
    let past = g.input("past", DType::F32, vec![n, p, width])?;
    let all = g.concat(&[past, x], 1)?;
    let turned = g.transpose(all, &[0, 2, 1])?;
    let scores = g.matmul(x, turned)?;
    let shares = g.softmax(scores, 2)?;
    let y = g.matmul(shares, all)?;
    g.output("y", y)?;
    g.output("present", all)?;
    Ok(g)
}

#[test]
fn calls_with_state_allocate_nothing() {
    let graph = attention().expect("a valid graph");
    let model = Pipeline::new(&graph).state(StateRequest::find()).jit().expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let state = |capacity| State::new(&model, capacity).expect("a capacity in range");
    let [mut a, mut b, mut c] = [state(9), state(23), state(4)];
    let x = vec![0.5_f32; 4 * 3 * 8];
    let mut y = vec![0.0_f32; 4 * 3 * 8];

    let before = calls();
    for (new, is_allowed) in [(3, true), (1, true), (2, false), (3, false)] {
        let shape = [1, new, 8];
        let input = [TensorRef::new(&shape, &x[..new * 8]).expect("sized")];
        assert_eq!(context.run_stateful_views(&input, &mut c).is_ok(), is_allowed);
        assert!(context.run_stateful(&input, &mut [TensorMut::new(&mut y)], &mut b).is_ok());
    }
    for (new, is_allowed) in [(1, true), (3, true), (2, true), (3, true), (1, false)] {
        let shape = [2, new, 8];
        let input = [TensorRef::new(&shape, &x[..2 * new * 8]).expect("sized")];
        let states = &mut [&mut a, &mut b];
        assert_eq!(context.run_states(&input, &mut [TensorMut::new(&mut y)], states).is_ok(), is_allowed);
    }
    assert_eq!(calls(), before);
    assert_eq!((a.length(), b.length(), c.length()), (9, 18, 4));
}
