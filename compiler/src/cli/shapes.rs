//! `symc shapes`: the symbolic shape of every value.
//!
//! Symbols need no upper bound. A model that contradicts itself gives exit code 1, as an answer; it is not bad input.

use super::{
    args,
    output::{Verdict, print_line},
};
use crate::{
    error::{At, ErrorKind, Result},
    graph::Graph,
    import::{self, ImportOptions, Named},
};
use num_traits::ToPrimitive;
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use symshape::Dim;

/// Arguments of `symc shapes`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

/// Infers the shapes and prints them.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    args.dims.state.refuse("shapes", "it infers the shapes of the model as it is")?;
    let model = import::Model::open(&args.model)?;
    let options = ImportOptions { unbounded: true, ..args.dims.options(&args.model)? };
    let (graph, names) = match import::import_named(&model, &options).at(|| args.model.display().to_string())
    {
        Ok(inferred) => inferred,
        Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Contract) => {
            eprintln!("symc: {error}");
            return Ok(Verdict::No);
        }
        Err(error) => return Err(error),
    };

    if args.json {
        print_line(&to_json(&graph, &names).to_string());
        return Ok(Verdict::Yes);
    }

    for symbol in &graph.symbols {
        if let Some(declared) = graph.facts.declaration(symbol) {
            print_line(&format!("{symbol} in {declared}"));
        }
    }
    for constraint in constraints(&graph) {
        print_line(&format!("{constraint} is required"));
    }
    for Named { name, value, dtype } in &names {
        let dims: Vec<String> = graph.shape(*value).iter().map(Dim::to_string).collect();
        print_line(&format!("{name}: {dtype}[{}]", dims.join(", ")));
    }
    Ok(Verdict::Yes)
}

/// The result of `--json`.
fn to_json(graph: &Graph, names: &[Named]) -> Json {
    let values: Map<String, Json> = names
        .iter()
        .map(|Named { name, value, dtype }| {
            let shape: Vec<Json> = graph.shape(*value).iter().map(dim).collect();
            (name.clone(), json!({"dtype": dtype, "shape": shape}))
        })
        .collect();

    let symbols: Map<String, Json> = graph
        .symbols
        .iter()
        .map(|symbol| {
            let declared = graph.facts.declaration(symbol);
            let lo = declared.and_then(|declared| declared.lo.to_i64());
            let hi = declared.and_then(|declared| declared.hi.as_ref()?.to_i64());
            (symbol.name().to_string(), json!([lo, hi]))
        })
        .collect();
    json!({"values": values, "symbols": symbols, "constraints": constraints(graph)})
}

/// A dim as an integer, if it is one, or else as text.
fn dim(dim: &Dim) -> Json {
    dim.as_i64().map_or_else(|| json!(dim.to_string()), |size| json!(size))
}

/// The relations between dims that the model requires, in addition to the ranges of symbols.
fn constraints(graph: &Graph) -> Vec<String> {
    graph.constraints.iter().map(|assumption| assumption.relation.to_string()).collect()
}
