//! `--dynamic-memory`: symbols without an upper bound get one that no call reaches, as large as the arena's address
//! space allows.

use super::{errors::usage, source};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::{Graph, Op},
    import::ImportOptions,
    kernel::Program,
    offload::Targets,
    options::CompileOptions,
    pipeline::{Lowered, Pipeline},
    plan,
};
use num_bigint::BigInt;
use std::path::Path;
use symshape::{Facts, Symbol};

/// Upper bounds that are tried for symbols without one.
const CAPS: [i64; 7] = [1 << 32, 1 << 28, 1 << 24, 1 << 20, 1 << 16, 1 << 12, 1 << 8];

/// Largest address space of an arena at the upper bounds.
const MAX_BYTES: u64 = 1 << 44;

/// How models are imported and lowered.
struct Attempts<'a> {
    path: &'a Path,
    import: &'a ImportOptions,
    targets: &'a Targets,
    options: &'a CompileOptions,
}

/// A model that fits in the arena, and the index of its bound in [`CAPS`].
struct Fitting {
    idx: usize,
    graph: Graph,
    lowered: Lowered,
}

/// A model with upper bounds for all symbols.
pub(super) struct Bounded {
    pub(super) graph: Graph,
    pub(super) lowered: Lowered,
    /// A sentence that states the bounds.
    pub(super) note: String,
}

/// The model at `path`, lowered with the largest possible upper bounds.
///
/// # Errors
/// When every symbol has an upper bound already; as importing and lowering.
pub(super) fn bounded(
    path: &Path,
    import: &ImportOptions,
    targets: &Targets,
    options: &CompileOptions,
) -> Result<Bounded> {
    if source::graph(path, import).is_ok() {
        return Err(usage(
            "--dynamic-memory: every symbol has an upper bound, so memory does not depend on larger sizes; omit the flag",
        ));
    }

    let attempts = Attempts { path, import, targets, options };
    let Fitting { idx, graph, lowered } = attempts.largest()?;
    let note = bounds_note(&lowered.program, CAPS[idx]);
    Ok(Bounded { graph, lowered, note })
}

impl<'a> Attempts<'a> {
    /// The model with the largest upper bound that fits. Most models are lowered once: the first bound that is tried
    /// fits, and the next larger one does not.
    fn largest(&self) -> Result<Fitting> {
        let first = first_to_try(&self.graph(CAPS[0])?);
        let mut fitting = None;
        for idx in first..CAPS.len() {
            fitting = self.lower(idx)?;
            if fitting.is_some() {
                break;
            }
        }
        let Some(mut fitting) = fitting else {
            let smallest = CAPS[CAPS.len() - 1];
            let message = format!(
                "--dynamic-memory: the arena is too large even if symbols without an upper bound are at most {smallest}; declare upper bounds with --dim NAME=LO..HI"
            );
            return Err(Error::new(ErrorKind::Limit, message).at(self.path.display().to_string()));
        };

        while (1..=first).contains(&fitting.idx)
            && may_fit(&fitting.lowered, CAPS[fitting.idx], CAPS[fitting.idx - 1])
        {
            match self.lower(fitting.idx - 1)? {
                Some(larger) => fitting = larger,
                None => break,
            }
        }
        Ok(fitting)
    }

    /// The graph with this upper bound for symbols without one.
    fn graph(&self, cap: i64) -> Result<Graph> {
        source::graph(self.path, &ImportOptions { cap: Some(cap), ..self.import.clone() })
    }

    /// The model, lowered with an upper bound of [`CAPS`]; `None` if its memory is too large.
    fn lower(&self, idx: usize) -> Result<Option<Fitting>> {
        let graph = self.graph(CAPS[idx])?;
        match self.pipeline(&graph).lower() {
            Ok(lowered) if lowered.plan.arena_max <= MAX_BYTES => Ok(Some(Fitting { idx, graph, lowered })),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Limit => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn pipeline<'g>(&self, graph: &'g Graph) -> Pipeline<'g>
    where
        'a: 'g,
    {
        Pipeline::new(graph).targets(self.targets).options(*self.options)
    }
}

/// The index of the largest bound at which each product and each concatenation takes less than half of the arena. The
/// graph has the first bound. An estimate: some products have no memory, and other values have.
fn first_to_try(graph: &Graph) -> usize {
    let fits = |cap: i64| {
        let value = values(&graph.facts, CAPS[0], cap);
        graph.nodes.values().filter(|node| matches!(node.op, Op::Contraction { .. } | Op::Concat { .. })).all(
            |node| {
                let ty = graph.ty(node.results[0]);
                let extents: Option<Vec<BigInt>> = ty.shape.iter().map(|dim| dim.eval(&value).ok()).collect();
                let bytes =
                    |extents: Vec<BigInt>| extents.into_iter().product::<BigInt>() * ty.dtype.size_bytes();
                extents.is_none_or(|extents| bytes(extents) * 2 <= BigInt::from(MAX_BYTES))
            },
        )
    };
    CAPS.iter().position(|cap| fits(*cap)).unwrap_or(CAPS.len() - 1)
}

/// Whether the arena of a lowered model would not be too large if the bound `cap` were `larger`.
fn may_fit(lowered: &Lowered, cap: i64, larger: i64) -> bool {
    let value = values(&lowered.program.facts, cap, larger);
    let bytes = plan::arena_bytes(&lowered.program, &lowered.plan, &value);
    bytes.is_ok_and(|bytes| bytes <= BigInt::from(MAX_BYTES))
}

/// The largest values of symbols, if the bound `cap` is replaced by `other`.
fn values(facts: &Facts, cap: i64, other: i64) -> impl Fn(&Symbol) -> Option<BigInt> {
    move |symbol| {
        let hi = facts.declaration(symbol)?.hi.clone()?;
        Some(if hi == BigInt::from(cap) { BigInt::from(other) } else { hi })
    }
}

/// A note that states the bound of the symbols that had none.
fn bounds_note(program: &Program, cap: i64) -> String {
    let hi = |symbol| program.facts.declaration(symbol).and_then(|declared| declared.hi.as_ref());
    let open = program.symbols.iter().filter(|symbol| hi(symbol) == Some(&BigInt::from(cap)));
    let names: Vec<&str> = open.map(|symbol| symbol.name()).collect();
    format!("{} up to {cap}, so that the arena fits in its address space", names.join(", "))
}
