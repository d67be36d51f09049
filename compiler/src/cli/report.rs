//! `symc report`: an HTML page about a model, see [`crate::emit::report`].

use super::{
    args,
    copies::Copies,
    output::{Verdict, print_line},
    progress::Progress,
    source,
};
use crate::{
    codegen, emit,
    error::{At, Result},
    options::CompileOptions,
    pipeline::{Lowered, Pipeline},
};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `symc report`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    #[command(flatten)]
    precision: args::PrecisionArgs,
    /// HTML page to write
    #[arg(short, long, value_name = "R.html")]
    output: PathBuf,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

/// Lowers the model and writes the page.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let progress = Progress::new(format!("importing {}", args.model.display()), 0);
    let graph = source::graph(&args.model, &args.dims.options(&args.model)?)?;

    progress.say("lowering");
    let options = CompileOptions::default().precision(args.precision.precision);
    let Lowered { program, plan, .. } =
        Pipeline::new(&graph).options(options).lower().at(|| args.model.display().to_string())?;

    let page = emit::report::report(&program, &plan);
    emit::write_atomically(&args.output, page.as_bytes())?;
    drop(progress);

    let path = args.output.display().to_string();
    let kernels = program.kernels.len();
    let arena_max = plan.arena_max;
    let copies = Copies::of(&program);
    if args.json {
        let line = json!({
            "report": path, "bytes": page.len(), "kernels": kernels, "arena_max": arena_max,
            "copies": copies.json(), "scalar_loops": emit::report::scalar_loops(&program),
        });
        print_line(&line.to_string());
    } else {
        let copies = copies.phrase();
        print_line(&format!("{path}: {kernels} kernels, arena at most {arena_max} B, {copies}"));
        codegen::scalar_loops(&program).iter().for_each(|found| print_line(&found.to_string()));
    }
    Ok(Verdict::Yes)
}
