//! Graph rewrites that preserve the result up to rounding, and reduce the work. Each pass is a function, listed once in
//! [`PASSES`].
//!
//! A pass rebuilds the graph node by node ([`rebuild`]). The nodes it emits go through the builder, which infers their
//! types again, and in debug builds the verifier runs after each pass. No rule makes a graph more expensive to compute.
//! Elementwise chains are not fused here: `lower` inlines them into their consumers.

pub(crate) mod affine;
pub(crate) mod bodies;
pub(crate) mod branches;
pub(crate) mod captures;
pub(crate) mod clamp;
pub(crate) mod concats;
pub(crate) mod dead;
pub(crate) mod f32_arithmetic;
pub(crate) mod fold;
pub(crate) mod gathered_channels;
pub(crate) mod index_ranges;
pub(crate) mod keep_f32;
pub(crate) mod kn2row;
pub mod laws;
pub(crate) mod negligible_weights;
pub(crate) mod padded_taps;
pub(crate) mod quantised;
pub(crate) mod rebuild;
pub(crate) mod rebuild_by_uses;
pub(crate) mod share;
pub(crate) mod state_operands;
pub mod store_bf16;
pub(crate) mod views;

use crate::{
    error::{At, Result},
    graph::{Graph, verify},
    scalar::Precision,
};

/// A pass over a graph.
pub(crate) type Pass = fn(&mut Graph) -> Result<()>;

/// The passes in order, by name.
pub const PASSES: &[(&str, Pass)] = &[
    // All other passes may take for granted that arithmetic on floats is `f32` or `f64`.
    ("f32_arithmetic", f32_arithmetic::f32_arithmetic),
    // Stored integers come before constants, because folding would turn them into floats.
    ("quantised", quantised::quantised),
    // Large weights of few bits stay integers.
    ("few_bits", quantised::few_bits::few_bits),
    // Constants come next: expressions over the weights alone are computed here.
    ("fold", fold::fold),
    // Regions come after the constants of the enclosing graph, which they may capture.
    ("captures", captures::captures),
    ("regions", regions),
    ("views", views::views),
    ("padded_taps", padded_taps::padded_taps),
    ("clamp", clamp::clamp),
    ("bodies", bodies::bodies),
    ("affine", affine::affine),
    // The affine pass leaves products of constants, and `bodies` leaves views of the operands that it inlined.
    ("fold again", fold::fold),
    // Constants of the branches are known now.
    ("branches", branches::branches),
    // Scales and biases of normalizations are now part of the weights.
    ("negligible_weights", negligible_weights::negligible_weights),
    ("share", share::share),
    ("dead", dead::dead),
];

/// The passes that run last, before lowering, by name. Offload targets see the graph before, with whole operators.
pub const LATE_PASSES: &[(&str, Pass)] = &[
    ("state_operands", state_operands::state_operands),
    ("concats", concats::concats),
    ("kn2row", kn2row::kn2row),
    ("gathered_channels", gathered_channels::gathered_channels),
];

/// Runs the passes that save copies or fill vectors.
///
/// # Errors
/// A bug in a pass.
pub fn optimize_late(graph: &mut Graph) -> Result<()> {
    for node in graph.nodes.values_mut() {
        node.op.regions_mut().into_iter().try_for_each(optimize_late)?;
    }

    for (name, pass) in LATE_PASSES {
        pass(graph).at(|| *name)?;
        if cfg!(debug_assertions) {
            verify::verify(graph).at(|| format!("after pass {name}"))?;
        }
    }
    Ok(())
}

/// Runs all passes.
///
/// # Errors
/// A bug in a pass.
pub fn optimize(graph: &mut Graph) -> Result<()> {
    optimize_observed(graph, &mut |_, _| {})
}

/// Runs all passes, and calls `observer` with the pass's name and the graph after each pass over the outermost graph.
///
/// # Errors
/// A bug in a pass.
pub(crate) fn optimize_observed(
    graph: &mut Graph,
    observer: &mut dyn FnMut(&'static str, &Graph),
) -> Result<()> {
    for (name, pass) in PASSES {
        pass(graph).at(|| *name)?;
        if cfg!(debug_assertions) {
            verify::verify(graph).at(|| format!("after pass {name}"))?;
        }
        observer(name, graph);
    }
    Ok(())
}

/// Runs all passes over the branches and loops of a graph.
fn regions(graph: &mut Graph) -> Result<()> {
    graph.nodes.values_mut().flat_map(|node| node.op.regions_mut()).try_for_each(optimize)
}

/// Gives an optimised graph the requested precision, as machines with tile registers compute it.
///
/// # Errors
/// None.
pub fn apply_precision(graph: &mut Graph, precision: Precision) -> Result<()> {
    graph.set_precision(precision);
    keep_f32::keep_f32(graph);
    store_bf16::store_bf16(graph).at(|| "halves")
}
