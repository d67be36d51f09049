//! A program that calls a model from a static library, in borrowed memory. First write the library, in the root folder:
//!
//! ```sh
//! symc compile compiler/examples/block.onnx --dim N=1..16 --dim S=1..128 -o examples/linked/native/libblock.a
//! ```

use symshape_runtime::{Linked, LinkedError, TensorMut, TensorRef, abi::ModelDesc};

const CHANNELS: usize = 64;

unsafe extern "C" {
    static block_model: ModelDesc; // exported by libblock.a
}

fn call(x: &[f32], y: &mut [f32], arena: &mut [u8]) -> Result<(), LinkedError> {
    // SAFETY: symshape made the object that exports this descriptor.
    let model = unsafe { Linked::from_desc(&raw const block_model) }?;
    let x = TensorRef::new(&[1, x.len() / CHANNELS, CHANNELS], x).map_err(|_| LinkedError::Malformed("x"))?;
    model.run(&[x], &mut [TensorMut::new(y)], arena)?;
    Ok(())
}

fn main() {
    let mut arena = vec![0; 1 << 20];
    for rows in [1, 2, 127, 128] {
        let x: Vec<f32> = (0..rows * CHANNELS).map(|idx| (idx as f32 * 0.37).sin()).collect();
        let mut y = vec![0.0; x.len()];
        call(&x, &mut y, &mut arena).expect("in contract");
        assert!(y.iter().all(|value| value.is_finite()) && y.iter().any(|value| *value != 0.0));
        println!("S={rows}: {:?} …", &y[..4]);
    }

    let x = [0.0; 129 * CHANNELS];
    let error = call(&x, &mut x.clone(), &mut arena).expect_err("too long");
    println!("S=129: {error}");
}
