//! `symc query`: the contract of a model, its sizes at given dims, and the largest dim for a budget of bytes.

use super::{
    args, at,
    errors::usage,
    output::{Verdict, print_line},
    ragged, source,
};
use crate::{
    accuracy::inputs,
    error::{Error, Result},
    graph::Graph,
    options::CompileOptions,
};
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use symshape_runtime::{Model, QueryError, RaggedInfo, SymbolInfo, TensorInfo};

/// Arguments of `symc query`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// ONNX file, or shared object from `symc compile`
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    #[command(flatten)]
    precision: args::PrecisionArgs,
    #[command(flatten)]
    offload: args::OffloadArgs,
    #[command(flatten)]
    ragged: ragged::RaggedArgs,
    /// Print the arena's bytes and the shapes of the outputs at these sizes
    #[arg(long, value_name = "N=8,S=128", conflicts_with_all = ["bytes", "fix"])]
    at: Option<String>,
    /// Print the largest value of the symbol without --fix whose calls need at most this many bytes of arena: a number,
    /// alone or with K, M, G or T for powers of 1024
    #[arg(long, value_name = "64M")]
    bytes: Option<String>,
    /// The other symbols of --bytes
    #[arg(long, value_name = "S=128", requires = "bytes")]
    fix: Vec<String>,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

/// Answers the query.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let budget = args.bytes.as_deref().map(parse_bytes).transpose()?;
    let support = CompileOptions::default().support;
    let loaded =
        source::load(&args.model, &args.dims, &args.precision, &args.offload, &args.ragged, support)?;
    let model = &loaded.model;

    if let Some(at) = &args.at {
        print_sizes(model, &at::dims(model, "--at", at)?, args.json)?;
        return Ok(Verdict::Yes);
    }
    if let Some(budget) = budget {
        let answer = Answer::new(model, budget, &args.fix.join(","))?;
        answer.print(args.json);
        return Ok(if answer.largest.is_some() { Verdict::Yes } else { Verdict::No });
    }

    let graph = loaded.source.as_ref().map(|(graph, _)| graph);
    print_contract(model, graph, args.json);
    Ok(Verdict::Yes)
}

/// Prints the call contract. `graph` is the source of a model that was just compiled.
fn print_contract(model: &Model, graph: Option<&Graph>, json: bool) {
    // An artefact checks relations by its code and has no table of them.
    let relations = graph.map(|graph| {
        let constraints = graph.constraints.iter();
        constraints.map(|assumption| assumption.relation.to_string()).collect::<Vec<_>>()
    });
    if json {
        let line = json!({
            "name": model.name(),
            "symbols": model.symbols().iter().map(symbol_json).collect::<Vec<_>>(),
            "inputs": model.inputs().iter().map(tensor_json).collect::<Vec<_>>(),
            "outputs": model.outputs().iter().map(tensor_json).collect::<Vec<_>>(),
            "relations": relations, "arena_max": model.arena_max(), "arena_formula": model.arena_formula(),
            "ragged": model.ragged().map(|ragged| ragged_json(model, ragged)),
        });
        print_line(&line.to_string());
        return;
    }

    for symbol in model.symbols() {
        print_line(&format!("{} in {symbol}", symbol.name()));
    }
    if let Some(ragged) = model.ragged() {
        let (length, offsets) = (ragged.length(), model.inputs()[ragged.offsets()].name());
        print_line(&format!("{} in {length}, of each sequence in `{offsets}`", length.name()));
    }
    for relation in relations.iter().flatten() {
        print_line(&format!("{relation} is required"));
    }
    for (kind, infos) in [("input", model.inputs()), ("output", model.outputs())] {
        for info in infos {
            let shape = info.dims().join(", ");
            print_line(&format!("{kind} {}: {}[{shape}]", info.name(), info.dtype()));
        }
    }
    print_line(&format!("arena: at most {} B", model.arena_max()));
}

fn symbol_json(symbol: &SymbolInfo) -> Json {
    let values = (!symbol.values().is_empty()).then(|| symbol.values());
    json!({
        "name": symbol.name(), "lo": symbol.lo(), "hi": symbol.hi(), "values": values,
        "declared": symbol.to_string(),
    })
}

fn ragged_json(model: &Model, ragged: &RaggedInfo) -> Json {
    json!({
        "offsets": model.inputs()[ragged.offsets()].name(), "mask": ragged.mask(), "lengths": ragged.lengths(),
        "sequences": model.symbols()[ragged.sequences()].name(), "rows": model.symbols()[ragged.rows()].name(),
        "length": symbol_json(ragged.length()),
    })
}

fn tensor_json(info: &TensorInfo) -> Json {
    let dtype = info.dtype().numpy_name();
    json!({"name": info.name(), "dtype": dtype, "shape": info.dims(), "max_bytes": info.max_bytes()})
}

/// Prints the sizes of a call.
fn print_sizes(model: &Model, dims: &[i64], json: bool) -> Result<()> {
    let arena_bytes = model.arena_bytes(dims).map_err(refused)?;
    let shapes = (0..model.outputs().len()).map(|idx| model.output_shape(idx, dims));
    let shapes = shapes.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    let outputs = model.outputs().iter().zip(&shapes);

    if json {
        let outputs = outputs.map(
            |(info, shape)| json!({"name": info.name(), "dtype": info.dtype().numpy_name(), "shape": shape}),
        );
        let outputs: Vec<Json> = outputs.collect();
        let line = json!({"dims": dims_json(model, dims), "arena_bytes": arena_bytes, "outputs": outputs});
        print_line(&line.to_string());
        return Ok(());
    }

    print_line(&format!("arena: {arena_bytes} B"));
    for (info, shape) in outputs {
        print_line(&format!("{}: {}{shape:?}", info.name(), info.dtype()));
    }
    Ok(())
}

fn dims_json(model: &Model, dims: &[i64]) -> Map<String, Json> {
    let symbols = model.symbols().iter().zip(dims);
    symbols.map(|(symbol, dim)| (symbol.name().to_string(), json!(dim))).collect()
}

/// The answer to `--bytes`.
struct Answer<'m> {
    model: &'m Model,
    /// The symbol that is searched.
    symbol: &'m SymbolInfo,
    budget: usize,
    /// Its largest value that fits.
    largest: Option<i64>,
    /// The dims with that value, or with the smallest one if none fits.
    dims: Vec<i64>,
    /// The bytes that a call with these dims needs.
    needed_bytes: usize,
}

impl<'m> Answer<'m> {
    /// Searches the largest value of the symbol that `fix` leaves free.
    fn new(model: &'m Model, budget: usize, fix: &str) -> Result<Answer<'m>> {
        let fixed = at::some_dims(model, "--fix", fix)?;
        let free: Vec<usize> = (0..fixed.len()).filter(|idx| fixed[*idx].is_none()).collect();
        let names: Vec<&str> = free.iter().map(|idx| model.symbols()[*idx].name()).collect();
        let [position] = free[..] else {
            return Err(usage(match names.as_slice() {
                [] if fixed.is_empty() => {
                    "--bytes: the model has no symbols, so its arena has one size".into()
                }
                [] => {
                    "--bytes: --fix sets every symbol; leave out the one to search, or use --at".to_string()
                }
                [first, ..] => format!(
                    "--bytes: {} are free, and only one can be searched; set the others, as in --fix {first}={}",
                    names.join(" and "),
                    model.symbols()[free[0]].nth(0).unwrap_or_default()
                ),
            }));
        };

        let symbol = &model.symbols()[position];
        let smallest = symbol.nth(0).unwrap_or(symbol.lo());
        let mut dims: Vec<i64> = fixed.into_iter().map(|dim| dim.unwrap_or(smallest)).collect();
        let largest = model.max_dim(symbol.name(), budget, &dims).map_err(refused)?;
        dims[position] = largest.unwrap_or(smallest);
        let needed_bytes = model.arena_bytes(&dims).map_err(refused)?;
        Ok(Answer { model, symbol, budget, largest, dims, needed_bytes })
    }

    fn print(&self, json: bool) {
        let Answer { model, symbol, budget, largest, dims, needed_bytes } = self;
        let name = symbol.name();
        if json {
            let line = json!({
                "symbol": name, "max": largest, "budget_bytes": budget, "dims": dims_json(model, dims),
                "arena_bytes": needed_bytes,
            });
            print_line(&line.to_string());
            return;
        }

        let binding = inputs::binding(model, dims);
        print_line(&match largest {
            Some(value) => format!("{name} = {value}: {binding} needs {needed_bytes} of {budget} B"),
            None => format!("no {name} fits in {budget} B: {binding}, the smallest, needs {needed_bytes} B"),
        });
    }
}

/// A number of bytes, such as `4096`, `64K` or `1GiB`.
fn parse_bytes(text: &str) -> Result<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => Some(0),
        "K" | "KiB" => Some(10),
        "M" | "MiB" => Some(20),
        "G" | "GiB" => Some(30),
        "T" | "TiB" => Some(40),
        _ => None,
    };
    let bytes = shift.and_then(|shift| digits.parse::<usize>().ok()?.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        usage(format!("--bytes {text}: expected a number of bytes, alone or with K, M, G or T, such as 64M"))
    })
}

fn refused(error: QueryError) -> Error {
    usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn budgets_have_units_of_powers_of_1024() {
        let bytes = |text| parse_bytes(text).ok();
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("64M"), Some(64 << 20));
        assert_eq!(bytes("3KiB"), Some(3 << 10));
        for wrong in ["", "M", "-1", "1.5G", "64MB", "6 4", "64m", "99999999999T", "64µ"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
