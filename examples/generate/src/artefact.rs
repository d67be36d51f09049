//! The artefact of a model: opened, or compiled once.

use crate::{Error, Settings};
use indicatif::{ProgressBar, ProgressStyle};
use std::{path::Path, time::Duration};
use symshape_compiler::{
    StateRequest, emit,
    import::{self, ImportOptions},
    options::CompileOptions,
    pipeline::{self, Artifact, Pipeline},
    target::Target,
};
use symshape_runtime::{Model, Prefault};

/// Opens `model.so` in this folder. If it is missing or older than `model.onnx`, it is compiled first, with a progress
/// bar on a terminal.
///
/// # Errors
/// When there is neither file, the model does not compile, or the artefact can't be written or opened.
pub fn open(folder: &Path, settings: &Settings) -> Result<Model, Error> {
    let source = folder.join("model.onnx");
    let artefact = folder.join("model.so");
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    match (changed(&source), changed(&artefact)) {
        (None, None) => return Err(Error::file(&source, "there is no such file; export.py writes it")),
        (Some(source_time), artefact_time) if artefact_time.is_none_or(|time| time < source_time) => {
            compile(&source, &artefact, settings)?;
        }
        _ => {}
    }
    load(&artefact)
}

/// Opens an artefact and reads all of it, with a progress bar on a terminal. The first token then takes no longer than
/// later ones.
fn load(artefact: &Path) -> Result<Model, Error> {
    let bar = bar("reading {bar:30} {bytes} of {total_bytes}", 0);
    let show = |done: usize, total: usize| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    };
    let model = Model::open_with(artefact, Prefault::All, show)?;
    bar.finish_and_clear();
    Ok(model)
}

/// A progress bar on standard error, if that is a terminal.
fn bar(template: &str, steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Compiles a model for this machine. Its keys and values become state.
fn compile(source: &Path, artefact: &Path, settings: &Settings) -> Result<(), Error> {
    let steps: Vec<&str> = pipeline::steps().chain(["code", "file"]).collect();
    let bar = bar("compiling {bar:30} {msg} {elapsed}", steps.len() as u64);
    // Passes repeat, so the bar stands at the last pass that has begun.
    let show = |name: &'static str| {
        let position = steps.iter().rposition(|step| *step == name).unwrap_or(0) as u64;
        bar.set_position(bar.position().max(position));
        bar.set_message(name);
    };

    let import::Bounds { dims, relations } = import::parse_dims(&settings.dims)?;
    let options = ImportOptions { dims, relations, ..ImportOptions::default() };
    let graph = import::import(&import::Model::open(source)?, &options)?;
    let target = Target::host()?;
    let options = CompileOptions::for_target(&target);
    let pipeline = Pipeline::new(&graph).options(options).state(StateRequest::find());
    let lowered = pipeline.observe(&mut |name, _| show(name)).lower()?;
    show("code");
    let compiled = lowered.compile(&target, Artifact::Shared)?;
    show("file");
    emit::shared::shared(compiled.object, &[], artefact)?;
    bar.finish_and_clear();
    Ok(())
}
