//! Two offload targets that use only the public interface of the compiler.
//!
//! [`blas`] hands matrix products to a library's `extern "C"` kernel. [`npu`] is a simulated accelerator with its
//! memory, layout and instructions. The program of this crate is `symc` with both:
//!
//! ```sh
//! cargo run -p symshape-example-targets -- selfcheck m.onnx --dim N=1..64 --target npu,blas,cpu
//! ```

pub mod blas;
pub mod models;
pub mod npu;
