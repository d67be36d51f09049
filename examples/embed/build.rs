//! Compiles two models into this program: the bundled one, which uses tile registers where there are some, and one
//! with an operator of the program's own.

use symshape_compiler::scalar::Precision;

fn main() {
    symshape_compiler::embed::Embed::new("../../compiler/examples/block.onnx")
        .dim("N=1..8")
        .dim("S=1..64")
        .precision(Precision::Bf16x3)
        .compile_or_exit();
    symshape_compiler::embed::Embed::new("swish.onnx")
        .dim("N=1..16")
        .custom("com.acme:Swish(x: T[D...], alpha: float = 1.0) -> T[D...] = acme_swish")
        .compile_or_exit();
}
