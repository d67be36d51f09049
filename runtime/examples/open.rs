//! Opens a shared library of `symc`, and calls it on two threads with floats that are the same on every machine.
//!
//! The arguments are the path, and the shape of each input, such as `2x7x64`. One line for each output has its name,
//! its shape, and a hash of its bytes, so the lines of two machines are equal if all bits are.

use std::error::Error;
use symshape_runtime::{Context, Model, TensorRef};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: open LIBRARY SHAPE…")?;
    let shapes: Vec<Vec<usize>> =
        args.map(|text| text.split('x').map(str::parse).collect()).collect::<Result<_, _>>()?;

    let model = Model::open(path)?;
    let mut context = Context::new(&model)?;
    context.set_threads(2)?;

    let elem = |idx: usize| (idx % 23) as f32 / 16.0 - 0.5;
    let elems: Vec<Vec<f32>> =
        shapes.iter().map(|shape| (0..shape.iter().product()).map(elem).collect()).collect();
    let inputs: Vec<TensorRef<'_>> = shapes
        .iter()
        .zip(&elems)
        .map(|(shape, elems)| TensorRef::new(shape, elems))
        .collect::<Result<_, _>>()?;

    let outputs = context.run_views(&inputs)?;
    for (idx, info) in model.outputs().iter().enumerate() {
        let output = outputs.get(idx);
        println!("{} {:?} {}", info.name(), output.shape(), blake3::hash(output.bytes()));
    }
    Ok(())
}
