//! Compiles the bundled model into this program.

fn main() {
    symshape_compiler::embed::Embed::new("../../compiler/examples/block.onnx")
        .dim("N=1..8")
        .dim("S=1..64")
        .compile_or_exit();
}
