//! `--dynamic-memory`: symbols without an upper bound get one that no call reaches, as large as the arena's address
//! space allows.

use super::{args::Chosen, errors::usage, source};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
    import::ImportOptions,
    kernel::Program,
    offload::Targets,
    options::CompileOptions,
    pipeline::{Lowered, Pipeline},
};
use num_bigint::BigInt;
use std::path::Path;

/// Upper bounds that are tried for symbols without one.
const CAPS: [i64; 7] = [1 << 32, 1 << 28, 1 << 24, 1 << 20, 1 << 16, 1 << 12, 1 << 8];

/// Largest address space of an arena at the upper bounds.
const MAX_BYTES: u64 = 1 << 44;

/// The model at `path`, lowered with the largest possible upper bounds and the precision that `choose` chooses,
/// and a note that states the bounds.
///
/// # Errors
/// When every symbol has an upper bound already; as importing and lowering.
pub(super) fn lowered(
    path: &Path,
    options: &ImportOptions,
    targets: &Targets,
    compile_options: &CompileOptions,
    choose: &dyn Fn(&mut Graph) -> Result<Chosen>,
) -> Result<(Lowered, Chosen, String)> {
    if source::graph(path, options).is_ok() {
        return Err(usage(
            "--dynamic-memory: every symbol has an upper bound, so memory does not depend on larger sizes; omit the flag",
        ));
    }

    for cap in CAPS {
        let options = ImportOptions { cap: Some(cap), ..options.clone() };
        let mut graph = source::graph(path, &options)?;

        let lower = |graph: &Graph, options: CompileOptions| {
            Pipeline::new(graph).targets(targets).options(options).lower()
        };
        match lower(&graph, *compile_options) {
            Ok(lowered) if lowered.plan.arena_max <= MAX_BYTES => {
                let chosen = choose(&mut graph)?;
                let is_same = chosen.options == *compile_options && chosen.kept.is_empty();
                let lowered = if is_same { lowered } else { lower(&graph, chosen.options)? };
                let note = bounds_note(&lowered.program, cap);
                return Ok((lowered, chosen, note));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Limit => {}
            Err(error) => return Err(error),
        }
    }
    let smallest = CAPS[CAPS.len() - 1];
    let message = format!(
        "--dynamic-memory: the arena is too large even if symbols without an upper bound are at most {smallest}; declare upper bounds with --dim NAME=LO..HI"
    );
    Err(Error::new(ErrorKind::Limit, message).at(path.display().to_string()))
}

/// A note that states the bound of the symbols that had none.
fn bounds_note(program: &Program, cap: i64) -> String {
    let hi = |symbol| program.facts.declaration(symbol).and_then(|declared| declared.hi.as_ref());
    let open = program.symbols.iter().filter(|symbol| hi(symbol) == Some(&BigInt::from(cap)));
    let names: Vec<&str> = open.map(|symbol| symbol.name()).collect();
    format!("{} up to {cap}, so that the arena fits in its address space", names.join(", "))
}
