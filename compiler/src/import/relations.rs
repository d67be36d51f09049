//! Relations between the symbols of a model that its operators require.
//!
//! Exporters name each dim of each input by itself. In a decoder, the mask has an axis `T`, though its length must be
//! that of the past and the new tokens together: the sum of the mask and the scores requires `T == P + S`. A symbol
//! without a declaration is replaced by such an expression, so the caller need not declare it, and no call can pass
//! another size.

use crate::{
    graph::Graph,
    import::model::{Model, given_inputs, options::ImportOptions, types},
};
use symshape::{Comparison, Dim, Facts, Node, Relation, Symbol};

/// Expressions for these symbols, from the relations that the operators of `graph` require.
pub(super) fn find(graph: &Graph, symbols: &[Symbol]) -> Vec<(String, Dim)> {
    let facts = declarations(graph);
    let mut found: Vec<(Symbol, Dim)> = Vec::new();
    for constraint in &graph.constraints {
        let replaced = |dim: &Dim| {
            dim.substitute(&|symbol| {
                found.iter().find(|(known, _)| known == symbol).map(|(_, dim)| dim.clone())
            })
        };
        let Relation { comparison: Comparison::Eq, a, b } = &constraint.relation else { continue };
        let difference = replaced(a) - replaced(b);
        let Some((symbol, dim)) = solve(graph, &facts, &difference, symbols) else { continue };

        let by = |other: &Symbol| (*other == symbol).then(|| dim.clone());
        for (_, earlier) in &mut found {
            *earlier = earlier.substitute(&by);
        }
        found.push((symbol, dim));
    }
    found.into_iter().map(|(symbol, dim)| (symbol.name().to_string(), dim)).collect()
}

/// Solves `difference == 0` for one of the symbols: the last of them with a solution that is at least 0 for all values
/// of the other symbols.
fn solve(graph: &Graph, facts: &Facts, difference: &Dim, symbols: &[Symbol]) -> Option<(Symbol, Dim)> {
    let is_input = |dim: &Dim| dim.symbols().iter().all(|symbol| graph.symbols.contains(symbol));
    symbols.iter().rev().find_map(|symbol| {
        let (step, rest) = facts.linear_in(difference, symbol)?;
        let solution = match step.as_i64()? {
            1 => Dim::zero() - rest,
            -1 => rest,
            _ => return None,
        };
        let solution = facts.simplify(&solution);
        let is_constant = solution.symbols().is_empty();
        let is_size = facts.prove_le(&Dim::zero(), &solution).is_yes();
        (is_size && !is_constant && is_input(&solution)).then(|| (symbol.clone(), solution))
    })
}

/// Notes for the caller: symbols that were replaced by expressions, and ranges that exclude sizes that the model's
/// operators require.
pub fn notes(model: &Model, options: &ImportOptions, graph: &Graph) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let given = |name: &str| options.inputs.iter().any(|(input, _)| input == name);
    let relations = options.relations.iter().chain(&options.bounds.relations);
    let stated: Vec<&str> = relations.map(|(name, _)| name.as_str()).collect();
    for info in model.proto.graph.iter().flat_map(given_inputs).filter(|info| !given(&info.name)) {
        let Some((_, value)) = graph.inputs.iter().find(|(name, _)| *name == info.name) else { continue };
        let Ok(declared) = types::input(info, &ImportOptions::default()) else { continue };
        for (k, (dim, now)) in declared.shape.iter().zip(graph.shape(*value)).enumerate() {
            let Node::Symbol(symbol) = dim.node() else { continue };
            if dim == now || stated.contains(&symbol.name()) {
                continue;
            }
            let name = symbol.name();
            if !notes.iter().any(|known| known.starts_with(&format!("`{name}` "))) {
                notes.push(format!(
                    "`{name}` (input `{}` axis {k}) is {now}, as the model requires",
                    info.name
                ));
            }
        }
    }

    notes.extend(options.dims.iter().filter_map(|(name, _)| narrow_range(graph, &Symbol::new(name))));
    notes
}

/// A note if the range of the symbol excludes sizes that the other symbols allow.
fn narrow_range(graph: &Graph, symbol: &Symbol) -> Option<String> {
    let range = graph.facts.declaration(symbol)?;
    let facts = declarations(graph);
    graph.constraints.iter().find_map(|constraint| {
        let Relation { comparison: Comparison::Eq, a, b } = &constraint.relation else { return None };
        let (_, dim) = solve(graph, &facts, &(a - b), std::slice::from_ref(symbol))?;
        let bounds = facts.bounds(&dim);
        let is_above = range.hi.is_some() && (bounds.hi.is_none() || bounds.hi > range.hi);
        let is_below = bounds.lo.is_none_or(|lo| lo < range.lo);
        (is_above || is_below).then(|| {
            format!(
                "calls need {symbol} == {dim} ({}), but the range of {symbol} excludes some of these sizes; \
                 --dim {symbol}={} allows all",
                constraint.origin,
                dim.to_string().replace(' ', "")
            )
        })
    })
}

/// The declarations of the model's symbols, without the relations between them.
fn declarations(graph: &Graph) -> Facts {
    let mut facts = Facts::new();
    for symbol in &graph.symbols {
        if let Some(declaration) = graph.facts.declaration(symbol) {
            let declared = facts.declare(symbol, declaration.clone());
            declared.expect("a declaration of a graph is not empty");
        }
    }
    facts
}
