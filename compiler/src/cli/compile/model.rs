//! The model of the command line, lowered.

use super::{
    super::{
        args::{self, Chosen, PrecisionRequest},
        grow::{self, Bounded},
        passes,
        progress::Progress,
        source, stateful,
    },
    args::Args,
    request::Request,
};
use crate::{
    accuracy::{StateError, TrialReport},
    error::{At, Result},
    graph::Graph,
    import::ImportOptions,
    options::CompileOptions,
    pipeline::{Compiled, Ir, Lowered, Pipeline},
    quantise::{ActivationSummary, Quantised, RoundedActivations, WeightTable},
    target::Target,
};
use clap::{ValueEnum, builder::PossibleValue};
use std::{collections::BTreeSet, ffi::OsString};

/// A compiled model, and a note about the sizes that `--dynamic-memory` allows.
pub(super) struct ModelToCompile {
    pub(super) lowered: Lowered,
    /// The result of [`Generate`].
    pub(super) compiled: Option<Compiled>,
    pub(super) size_note: Option<String>,
    /// The types of the weights, if the command line names any.
    pub(super) weight_table: Option<WeightTable>,
    /// The effect of rounded activations, if the command line has them.
    pub(super) activations: Option<ActivationSummary>,
    /// The error of rows of another type, if the command line names one.
    pub(super) state_error: Option<StateError>,
    /// The nodes whose contractions stay `f32`.
    pub(super) kept: BTreeSet<String>,
    /// The accuracy check of the precision, if it ran.
    pub(super) trial: Option<TrialReport>,
}

/// Generates machine code, if the command line requests any, and sets the options of the model that it depends on.
pub(super) type Generate<'g> = dyn Fn(&mut Lowered) -> Result<Option<Compiled>> + 'g;

/// The importer's options of the command line.
pub(super) fn import_options(args: &Args) -> Result<ImportOptions> {
    Ok(ImportOptions { name: args.name.clone(), ..args.dims.options(&args.model)? })
}

/// Imports and compiles the model.
pub(super) fn compile(
    request: &Request<'_>,
    generate: &Generate<'_>,
    watch: &mut passes::Watch<'_>,
    progress: &Progress,
) -> Result<ModelToCompile> {
    let options = import_options(request.args)?;
    if request.args.dynamic_memory {
        compile_with_dynamic_memory(request, &options, generate, progress)
    } else {
        compile_with_bounds(request, &options, generate, watch, progress)
    }
}

/// Imports and compiles the model with the bounds of the command line.
fn compile_with_bounds(
    request: &Request<'_>,
    options: &ImportOptions,
    generate: &Generate<'_>,
    watch: &mut passes::Watch<'_>,
    progress: &Progress,
) -> Result<ModelToCompile> {
    let Request { args, targets, .. } = request;
    let graph = source::graph(&args.model, options)?;
    watch.lap("import");
    if args.weight_types.is_given() {
        progress.say("quantising weights");
    }
    let (graph, weight_table) = quantised(args, graph)?;
    let rounded = args.precision.round_activations(&args.model, &graph, progress)?;
    let (mut graph, activations) = match rounded {
        Some(RoundedActivations { graph, summary }) => (graph, Some(summary)),
        None => (graph, None),
    };
    watch.lap("quantise");
    let state = args.dims.state.request()?;
    // The text of a stage has no summary.
    let state_error =
        if args.emit.is_none() { stateful::row_error(&args.model, &graph, &state, progress)? } else { None };
    watch.lap("state error");

    let has_halves = weight_table.as_ref().is_some_and(WeightTable::has_halves);
    let is_observed = watch.is_observed();
    let mut compile = |graph: &Graph, options: CompileOptions| {
        watch.lap("accuracy");
        progress.say("lowering");
        let observer = &mut |name, result: Ir<'_>| watch.step(name, result);
        let pipeline = Pipeline::new(graph)
            .targets(targets)
            .options(options.half_weights(has_halves))
            .state(state.clone())
            .ragged(args.ragged.request())
            .observe(observer);
        let mut lowered = pipeline.lower().at(|| args.model.display().to_string())?;
        let compiled = generate(&mut lowered)?;
        watch.lap("code");
        Ok((lowered, compiled))
    };
    let (Chosen { kept, report, .. }, (lowered, compiled)) = if is_observed {
        // The times and texts of a check and of passes are those of a run one after another.
        let chosen = args.precision.choose(&args.model, &mut graph, targets, &request.options, progress)?;
        let compiled = compile(&graph, chosen.options)?;
        (chosen, compiled)
    } else {
        let request = PrecisionRequest { path: &args.model, targets, options: &request.options, progress };
        args.precision.choose_in_parallel(&request, &mut graph, &mut compile)?
    };
    let size_note = None;
    let trial = report;
    Ok(ModelToCompile { lowered, compiled, size_note, weight_table, activations, state_error, kept, trial })
}

/// The graph with the types of weights that the command line names, and their table.
pub(super) fn quantised(args: &Args, graph: Graph) -> Result<(Graph, Option<WeightTable>)> {
    let quantised = args.weight_types.apply(&args.model, &graph)?;
    Ok(match quantised {
        Some(Quantised { graph, table }) => (graph, Some(table)),
        None => (graph, None),
    })
}

/// Imports and compiles the model with upper bounds for all symbols, see [`grow`].
fn compile_with_dynamic_memory(
    request: &Request<'_>,
    options: &ImportOptions,
    generate: &Generate<'_>,
    progress: &Progress,
) -> Result<ModelToCompile> {
    let Request { args, targets, .. } = request;
    progress.say("looking for bounds");
    let Bounded { mut graph, lowered, note } =
        grow::bounded(&args.model, options, targets, &request.options)?;
    let mut unchanged = Some(lowered);
    let mut compile = |graph: &Graph, options: CompileOptions| {
        let is_unchanged = options == request.options && graph.f32_nodes.is_empty();
        let mut lowered = match unchanged.take_if(|_| is_unchanged) {
            Some(lowered) => lowered,
            None => Pipeline::new(graph).targets(targets).options(options).lower()?,
        };
        let compiled = generate(&mut lowered)?;
        Ok((lowered, compiled))
    };
    let precision = PrecisionRequest { path: &args.model, targets, options: &request.options, progress };
    let (chosen, (lowered, compiled)) =
        args.precision.choose_in_parallel(&precision, &mut graph, &mut compile)?;
    Ok(ModelToCompile {
        lowered,
        compiled,
        size_note: Some(note),
        weight_table: None,
        activations: None,
        state_error: None,
        kept: chosen.kept,
        trial: chosen.report,
    })
}

/// The arguments that compile the same artefact from another model, separated by zero bytes. Names, levels and the
/// precision are those that were chosen. Empty if the path of a file is not UTF-8.
pub(super) fn command_line(args: &Args, target: &Target, model: &ModelToCompile) -> String {
    let ModelToCompile { lowered, weight_table, .. } = model;
    let mut words: Vec<OsString> = Vec::new();
    let mut flag = |name: &str, value: String| words.extend([name.into(), value.into()]);
    flag("--name", lowered.program.name.clone());
    flag("--cpu", target.level_names());
    flag("--threads", args.threads.to_string());
    flag("--precision", lowered.program.precision.name().to_string());
    flag("--max-error", "inf".into());
    model.kept.iter().for_each(|node| flag("--keep-f32", node.clone()));
    flag("--activations", args.precision.activations.to_string());
    if let Some(target) = &args.target {
        flag("--target", target.clone());
    }
    let named = |value: Option<PossibleValue>| value.map_or(String::new(), |value| value.get_name().into());
    match args.partitions {
        Some(partitions) => {
            flag("--partitions", partitions.to_string());
            flag("--policies", named(args.policies.to_possible_value()));
        }
        None => flag("--fallback", named(args.fallback.to_possible_value())),
    }
    flag("--oversized-parts", named(args.oversized.oversized_parts.to_possible_value()));
    if args.dims.bounds.is_none()
        && let Some(file) = args::default_bounds(&args.model)
    {
        words.extend(["--bounds".into(), args::absolute(&file).into()]);
    }
    if args.dynamic_memory {
        words.push("--dynamic-memory".into());
    }
    words.extend(args.dims.command_line());
    words.extend(args.ragged.command_line());
    words.extend(args.weight_types.command_line(weight_table.as_ref()));
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    words.unwrap_or_default().join("\0")
}
