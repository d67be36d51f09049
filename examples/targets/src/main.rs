//! `symc` with the targets of this crate.

use std::{process::ExitCode, sync::Arc};
use symshape_compiler::cli;
use symshape_example_targets::{blas::Blas, npu::Npu};

fn main() -> ExitCode {
    cli::main_with(vec![Arc::new(Npu::default()), Arc::new(Blas::default())], || 0)
}
