//! Writes an object and a C header of a model in `models`, for the C programs in the folder `c`.
//!
//! ```sh
//! cargo run -p symshape-example-targets --bin c-model -- net --target npu,blas,cpu -o model.o
//! ```

use clap::Parser;
use std::{path::PathBuf, process::ExitCode, sync::Arc};
use symshape_compiler::{
    CompileOptions,
    kernel::Policies,
    offload::{Target, select},
    partition::Count,
    pipeline::{Artifact, Pipeline},
    target,
};
use symshape_example_targets::{blas::Blas, models, npu::Npu};

#[derive(Parser)]
#[command(name = "c-model", about = "Writes an object and a C header of a model, for the C programs in c/")]
struct Args {
    /// The model
    #[arg(value_enum)]
    model: Model,
    /// Offload targets in order, then `cpu`
    #[arg(long, default_value = "npu,blas,cpu")]
    target: String,
    /// Partitions of the table that a driver runs: a number, `auto` or `none`
    #[arg(long, default_value = "none")]
    partitions: String,
    /// The object; the header is written next to it, with .h
    #[arg(short, default_value = "model.o")]
    output: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Model {
    Net,
    Towers,
    Chain,
}

fn main() -> ExitCode {
    match write(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("c-model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let known: Vec<Arc<dyn Target>> = vec![Arc::new(Npu::default()), Arc::new(Blas::default())];
    let targets = select(&args.target, &known)?.targets;
    let graph = match args.model {
        Model::Net => models::net(),
        Model::Towers => models::towers(),
        Model::Chain => models::chain(),
    }?;

    let partitions = match args.partitions.as_str() {
        "none" => None,
        count => Some(count.parse::<Count>()?),
    };
    let options = CompileOptions::default().partitions(partitions).policies(Policies::Any);
    let lowered = Pipeline::new(&graph).targets(&targets).options(options).lower()?;
    for warning in &lowered.warnings {
        eprintln!("c-model: warning: {warning}");
    }

    let compiled = lowered.compile(&target::Target::host()?, Artifact::Object)?;
    std::fs::write(&args.output, compiled.object.into_bytes()?)?;
    std::fs::write(args.output.with_extension("h"), compiled.header)?;
    Ok(())
}
