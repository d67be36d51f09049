//! A model that calls an operator of this program's: it is declared in the build script, and exported here under its C
//! name.

use symshape_runtime::{abi, external};

symshape_runtime::include_model!("swish");

/// # Safety
/// `call` is the argument that a model passes to its external functions.
#[unsafe(no_mangle)]
unsafe extern "C" fn acme_swish(call: *const abi::Call) -> i32 {
    let swish = |call: external::Call<'_>| {
        let alpha = call.attribute("alpha").and_then(|alpha| alpha.floats()).ok_or(1)?[0];
        let x = call.inputs[0].elems::<f32>().map_err(|_| 2)?;
        let y = call.outputs[0].elems_mut::<f32>().map_err(|_| 3)?;
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x / (1.0 + alpha * x.abs()));
        // The error code for the model's call; here for an element that is NaN.
        if y.iter().any(|y| y.is_nan()) { Err(4) } else { Ok(()) }
    };
    // SAFETY: the model's promise.
    unsafe { external::serve(call, swish) }
}

/// Calls the model: `x + swish(x)`.
pub fn call() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = Swish::new()?;
    let (mut x, mut y) = ([0.0; 8 * 16], [0.0; 8 * 16]);
    x.iter_mut().enumerate().for_each(|(idx, x)| *x = idx as f32 / 8.0 - 8.0);
    for n in [1, 5, Swish::N_MAX] {
        model.run(n, &x[..8 * n], &mut y[..8 * n])?;
        let right = |(x, y): (&f32, &f32)| (x + x / (1.0 + 1.5 * x.abs()) - y).abs() < 1e-6;
        assert!(x[..8 * n].iter().zip(&y).all(right), "at N = {n}");
    }
    println!("an operator of this program's runs in the model");
    x[3] = f32::NAN;
    let failure = model.run(1, &x[..8], &mut y[..8]).unwrap_err();
    println!("and fails as it says: {failure}");
    Ok(())
}
