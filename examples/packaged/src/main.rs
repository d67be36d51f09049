//! A program outside of the workspace, which uses only the content of the packages.

use symshape::Declaration;
use symshape_compiler::{graph::Graph, pipeline};
use symshape_runtime::{Context, DType, TensorRef};

type Failure = Box<dyn std::error::Error>;

/// `max(x, 0)` for 1 to 64 rows.
fn relu() -> Result<Graph, Failure> {
    let mut g = Graph { name: "relu".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 64))?;
    let x = g.input("x", DType::F32, vec![n, 3.into()])?;
    let y = g.relu(x)?;
    g.output("y", y)?;
    Ok(g)
}

fn main() -> Result<(), Failure> {
    let model = pipeline::jit(&relu()?)?;
    let mut context = Context::new(&model)?;
    for rows in [1, 2, 63, 64] {
        let x: Vec<f32> = (0..3 * rows).map(|idx| idx as f32 - 5.0).collect();
        let outputs = context.run_views(&[TensorRef::new(&[rows, 3], &x)?])?;
        let expected: Vec<f32> = x.iter().map(|value| value.max(0.0)).collect();
        assert_eq!(outputs.get(0).elems::<f32>()?, expected);
    }
    let error = context.run_views(&[TensorRef::new(&[65, 3], &[0.0_f32; 195])?]).err();
    let error = error.ok_or("65 rows were accepted")?.to_string();
    assert!(error.contains("1..=64"), "the error does not name the range: {error}");
    println!("65 rows: {error}");
    Ok(())
}
