//! The models of the tests and of the C programs in `c`, built through the graph interface.

use symshape::Declaration;
use symshape_compiler::{
    Result,
    graph::{Graph, Value},
    tensor::Tensor,
};
use symshape_runtime::DType;

/// The largest number of rows `N` of every model here.
pub const ROWS: i64 = 9;

/// Floats from -1 to 1 that the seed chooses.
pub fn constant(g: &mut Graph, shape: &[usize], seed: u32) -> Result<Value> {
    let elems: Vec<f32> = (0..shape.iter().product::<usize>() as u32)
        .map(|idx| ((idx + seed).wrapping_mul(2_654_435_761) >> 20) as f32 / 2048.0 - 1.0)
        .collect();
    g.constant(Tensor::from_f32(shape.to_vec(), &elems).expect("as many as the shape"))
}

/// Two dense layers with a gate between them, a softmax, and a residual product of activations.
pub fn net() -> Result<Graph> {
    let mut g = Graph { name: "net".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, ROWS))?;
    let x = g.input("x", DType::F32, vec![n, 20.into()])?;
    let (w1, w2, w3) =
        (constant(&mut g, &[20, 24], 1)?, constant(&mut g, &[24, 10], 2)?, constant(&mut g, &[20, 24], 3)?);
    let bias = constant(&mut g, &[24], 4)?;
    g.origin = "first".into();
    let h = g.matmul(x, w1)?;
    let h = g.add(h, bias)?;
    let h = g.relu(h)?;
    g.origin = "gate".into();
    let gate = g.matmul(x, w3)?;
    let h = g.sub(h, gate)?;
    g.origin = "second".into();
    let y = g.matmul(h, w2)?;
    g.origin = "soft".into();
    let soft = g.softmax(y, 1)?;
    g.origin = "residual".into();
    let back = g.transpose(y, &[1, 0])?;
    let square = g.matmul(soft, back)?;
    let mixed = g.matmul(square, y)?;
    g.output("y", mixed)?;
    Ok(g)
}

/// Four towers from one input: a dense layer, a softmax, a dense layer.
pub fn towers() -> Result<Graph> {
    let mut g = Graph { name: "towers".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, ROWS))?;
    let x = g.input("x", DType::F32, vec![n, 20.into()])?;
    let mut sum = None;
    for seed in 0..4 {
        g.origin = format!("tower {seed}");
        let w1 = constant(&mut g, &[20, 16], seed)?;
        let w2 = constant(&mut g, &[16, 10], seed + 7)?;
        let h = g.matmul(x, w1)?;
        let h = g.softmax(h, 1)?;
        let y = g.matmul(h, w2)?;
        // The sum is not one of the device's operators.
        let y = g.exp(y)?;
        sum = Some(sum.map_or(Ok(y), |sum| g.add(sum, y))?);
    }
    g.output("y", sum.expect("four towers"))?;
    Ok(g)
}

/// A chain of dense layers, which is one part.
pub fn chain() -> Result<Graph> {
    let mut g = Graph { name: "chain".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, ROWS))?;
    let mut h = g.input("x", DType::F32, vec![n, 20.into()])?;
    for (seed, (from, to)) in [(20, 24), (24, 40), (40, 16), (16, 33), (33, 10)].into_iter().enumerate() {
        g.origin = format!("layer {seed}");
        let w = constant(&mut g, &[from, to], seed as u32)?;
        h = g.matmul(h, w)?;
        h = g.relu(h)?;
    }
    g.output("y", h)?;
    Ok(g)
}
