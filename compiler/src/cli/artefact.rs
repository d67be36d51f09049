//! The files that `symc compile` writes, and the summary that it prints.

use super::{
    copies::Copies,
    errors::{at_path, usage},
    output::print_line,
    progress::Progress,
    stateful::StateSummary,
};
use crate::{
    accuracy::StateError,
    accuracy::TrialReport,
    emit,
    error::{Error, Result},
    kernel::{Program, RepeatedWeight},
    pipeline::{Artifact, Compiled, Lowered},
    quantise::{ActivationSummary, WeightTable},
    target::Target,
};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};

/// Lines about weights in several forms.
const MAX_LISTED_WEIGHTS: usize = 5;
/// Weights that repeat fewer bytes are not worth a line.
const MIN_LISTED_BYTES: u64 = 4096;

/// The file to write.
pub(super) struct Output<'a> {
    pub(super) path: &'a Path,
    pub(super) kind: OutputKind,
}

/// The format of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputKind {
    Artifact(Artifact),
    /// C source.
    Source,
    /// WebAssembly and an ES module.
    Web,
}

impl Output<'_> {
    /// The output at `path`, whose extension says the format.
    ///
    /// # Errors
    /// Any other extension.
    pub(super) fn named(path: &Path) -> Result<Output<'_>> {
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("o" | "obj") => OutputKind::Artifact(Artifact::Object),
            Some("a" | "lib") => OutputKind::Artifact(Artifact::Archive),
            Some("so" | "dll" | "dylib") => OutputKind::Artifact(Artifact::Shared),
            Some("c") => OutputKind::Source,
            Some("wasm") => OutputKind::Web,
            _ => {
                return Err(usage(format!(
                    "-o {}: the name must end with .o or .obj, .a or .lib, .so, .dll or .dylib, .c, or .wasm",
                    path.display()
                )));
            }
        };
        Ok(Output { path, kind })
    }

    /// The files that are written next to the artefact.
    pub(super) fn companions(&self) -> Vec<PathBuf> {
        match self.kind {
            OutputKind::Artifact(_) | OutputKind::Source => vec![self.path.with_extension("h")],
            OutputKind::Web => ["mjs", "d.mts"].map(|end| self.path.with_extension(end)).into(),
        }
    }

    /// Refuses a weights file in another folder than the library or module that looks for it there.
    pub(super) fn require_folder_of(&self, weights: &Path) -> Result<()> {
        let what = match self.kind {
            OutputKind::Artifact(Artifact::Shared) => "a shared library",
            OutputKind::Web => "a module",
            _ => return Ok(()),
        };
        let folder = |path: &Path| at_path(emit::folder(path)?.canonicalize(), path);
        if folder(self.path)? == folder(weights)? {
            return Ok(());
        }
        Err(usage(format!(
            "--weights-file {}: {what} and its weights must be in one folder, and {} is in another",
            weights.display(),
            self.path.display()
        )))
    }

    /// Refuses the name of a shared library for another platform than that of `target`.
    pub(super) fn require_platform(&self, target: &Target) -> Result<()> {
        let extension = target.platform().library_extension();
        let is_of_platform = self.path.extension().is_some_and(|own| own == extension);
        if self.kind != OutputKind::Artifact(Artifact::Shared) || is_of_platform {
            return Ok(());
        }
        Err(usage(format!(
            "-o {}: a shared library for {} ends with .{extension}; --target names another platform, such as \
             x86_64-pc-windows-msvc or aarch64-apple-darwin",
            self.path.display(),
            target.triple
        )))
    }
}

/// The summary of an artefact.
pub(super) struct Summary {
    code_bytes: u64,
    /// Bytes of the code outside of kernels and microkernels; not known for C source.
    driver_bytes: Option<u64>,
    weight_bytes: u64,
    /// Bytes of weights that are floats of 16 bits.
    half_weight_bytes: i64,
    n_kernels: usize,
    n_partitions: usize,
    /// Number of kernels that use tile registers on machines that have them.
    pub(super) tile_kernels: usize,
    /// External functions, which the user must define.
    callees: Vec<String>,
    /// Weights that are stored in two forms or more.
    repeated_weights: Vec<RepeatedWeight>,
    copies: Copies,
    state: Option<StateSummary>,
    /// The file with the weights, if the artefact does not contain them.
    weights_file: Option<String>,
    /// Bytes of the fixed memory of a WebAssembly module.
    pub(super) memory_bytes: Option<u64>,
    /// The types of quantised weights, if there are any.
    pub(super) weight_table: Option<WeightTable>,
    /// The effect of rounded activations.
    pub(super) activations: Option<ActivationSummary>,
    /// The accuracy check of the precision.
    pub(super) trial: Option<TrialReport>,
}

/// The accuracy check for `--json`, which has no infinity.
fn trial_json(trial: &TrialReport) -> serde_json::Value {
    let calls = trial.calls.iter().map(|call| json!({"at": call.at, "error": call.error.min(f64::MAX)}));
    json!({
        "calls": calls.collect::<Vec<_>>(), "contractions": trial.contractions, "share": trial.share,
    })
}

impl Summary {
    /// The summary of C source or of a module that was compiled from it.
    pub(super) fn of_source(lowered: &Lowered, code_bytes: u64, weights: Option<&Path>) -> Summary {
        let program = &lowered.program;
        Summary {
            code_bytes,
            driver_bytes: None,
            weight_bytes: program.const_bytes() as u64,
            half_weight_bytes: program.half_const_bytes(),
            n_kernels: program.kernels.iter().filter(|kernel| kernel.control.is_none()).count(),
            n_partitions: program.partitions.len(),
            tile_kernels: 0,
            callees: callees(lowered),
            repeated_weights: program.repeated_weights(&program.stored_constants()),
            copies: Copies::of(program),
            state: StateSummary::of(program),
            weights_file: weights.map(|path| path.display().to_string()),
            memory_bytes: None,
            weight_table: None,
            activations: None,
            trial: None,
        }
    }

    /// Adds the error of the rows of the state, if it was measured.
    pub(super) fn set_row_error(&mut self, error: Option<StateError>) {
        if let Some(state) = &mut self.state {
            state.row_error = error;
        }
    }

    pub(super) fn print(&self, path: &Path, bytes: u64, arena_max: u64, compile_ms: f64, json: bool) {
        if json {
            let mut line = json!({
                "artifact": path.display().to_string(), "bytes": bytes, "code_bytes": self.code_bytes,
                "driver_bytes": self.driver_bytes, "weight_bytes": self.weight_bytes,
                "half_weight_bytes": self.half_weight_bytes, "arena_max": arena_max,
                "compile_ms": compile_ms, "kernels": self.n_kernels, "partitions": self.n_partitions,
                "tile_kernels": self.tile_kernels, "calls": self.callees,
                "repeated_weights": self.repeated_weights.iter().map(repeated_json).collect::<Vec<_>>(),
                "copies": self.copies.json(),
            });
            if let Some(state) = &self.state {
                line["state"] = state.json();
            }
            if let Some(file) = &self.weights_file {
                line["weights_file"] = json!(file);
            }
            if let Some(bytes) = self.memory_bytes {
                line["memory_bytes"] = json!(bytes);
            }
            if let Some(table) = &self.weight_table {
                line["quantised"] = table.json();
            }
            if let Some(activations) = &self.activations {
                line["activations"] = activations.json();
            }
            if let Some(trial) = &self.trial {
                line["accuracy"] = trial_json(trial);
            }
            print_line(&line.to_string());
            return;
        }

        let mut code = format!("code {} B", self.code_bytes);
        if let Some(driver) = self.driver_bytes {
            code += &format!(", of which {driver} B driver and checks");
        }
        let mut weights = format!("weights {} B", self.weight_bytes);
        if self.half_weight_bytes > 0 {
            weights += &format!(", of which {} B stay in 16 bits", self.half_weight_bytes);
        }
        let mut kernels = format!("{} kernels", self.n_kernels);
        if self.n_partitions > 0 {
            kernels += &format!(" in {} partitions", self.n_partitions);
        }
        let mut line = format!(
            "{}: {bytes} B ({code}, {weights}), {kernels}, arena at most {arena_max} B, {}, \
             compiled in {compile_ms} ms",
            path.display(),
            self.copies.phrase(),
        );
        if self.tile_kernels > 0 {
            line +=
                &format!("; {} kernels use tile registers (AMX) if the machine has them", self.tile_kernels);
        }
        if let Some(state) = &self.state {
            line += &format!("; {}", state.phrase());
        }
        if let Some(bytes) = self.memory_bytes {
            line += &format!("; its memory has {bytes} B and never grows");
        }
        if let Some(file) = &self.weights_file {
            line += &format!("; its weights are in {file}");
        }
        if !self.callees.is_empty() {
            line += &format!("; link it with definitions of {}", self.callees.join(", "));
        }
        print_line(&line);
        self.copies.print_largest();
        self.print_repeated_weights();
        self.weight_table
            .iter()
            .flat_map(WeightTable::lines)
            .for_each(|line| print_line(&format!("  {line}")));
        if let Some(activations) = &self.activations {
            print_line(&format!("  {}", activations.line()));
        }
        if let Some(trial) = &self.trial {
            print_line(&format!("  accuracy of bf16x3: {trial}"));
        }
    }

    /// One line for each of the largest weights that are stored in several forms.
    fn print_repeated_weights(&self) {
        let mut largest: Vec<(u64, &RepeatedWeight)> =
            self.repeated_weights.iter().map(|weight| (weight.repeated_bytes(), weight)).collect();
        largest.retain(|(bytes, _)| *bytes >= MIN_LISTED_BYTES);
        largest.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));

        for (bytes, weight) in largest.iter().take(MAX_LISTED_WEIGHTS) {
            let forms: Vec<String> =
                weight.forms.iter().map(|(form, bytes)| format!("{form} {bytes} B")).collect();
            print_line(&format!(
                "  {} is stored in {} forms ({}), {bytes} B more than one: its kernels are faster so",
                weight.name,
                forms.len(),
                forms.join(", ")
            ));
        }
        if let Some((_, rest)) = largest.split_at_checked(MAX_LISTED_WEIGHTS)
            && !rest.is_empty()
        {
            let bytes: u64 = rest.iter().map(|(bytes, _)| bytes).sum();
            print_line(&format!(
                "  {} smaller weights are stored in several forms, {bytes} B more",
                rest.len()
            ));
        }
    }
}

fn repeated_json(weight: &RepeatedWeight) -> Json {
    let forms: Vec<Json> =
        weight.forms.iter().map(|(form, bytes)| json!({"form": form, "bytes": bytes})).collect();
    json!({"name": weight.name, "forms": forms})
}

/// The names of the external functions that the model calls.
fn callees(lowered: &Lowered) -> Vec<String> {
    lowered.program.callees().into_iter().map(|callee| callee.symbol.clone()).collect()
}

/// The files of an artefact.
pub(super) struct Files<'a> {
    pub(super) path: &'a Path,
    /// The weights file, if the artefact has one.
    pub(super) weights: Option<&'a Path>,
    /// They define the external functions of a shared object.
    pub(super) libraries: &'a [PathBuf],
}

/// Writes the artefact, its header and its weights.
pub(super) fn write(
    files: &Files<'_>,
    artifact: Artifact,
    lowered: &Lowered,
    mut compiled: Compiled,
    target: &Target,
    progress: &Progress,
) -> Result<Summary> {
    let Files { path, weights, libraries } = *files;
    let summary = Summary {
        code_bytes: compiled.summary.code_bytes,
        driver_bytes: Some(compiled.summary.driver_bytes()),
        weight_bytes: compiled.summary.const_bytes,
        half_weight_bytes: lowered.program.half_const_bytes(),
        n_kernels: compiled.summary.kernels,
        n_partitions: lowered.program.partitions.len(),
        tile_kernels: lowered.program.on_tiles_count(),
        callees: callees(lowered),
        repeated_weights: compiled.summary.repeated_weights.clone(),
        copies: Copies::of(&lowered.program),
        state: StateSummary::of(&lowered.program),
        weights_file: weights.map(|path| path.display().to_string()),
        memory_bytes: None,
        weight_table: None,
        activations: None,
        trial: None,
    };

    let weights = weights.map(|path| stage_weights(&mut compiled.object, path, progress)).transpose()?;
    let header = emit::stage(&path.with_extension("h"), compiled.header.as_bytes())?;
    match artifact {
        Artifact::Object => compiled.object.stage(path)?.commit()?,
        Artifact::Archive => {
            let object = compiled.object.into_bytes()?;
            emit::write_atomically(path, &emit::archive(&lowered.program.name, &object)?)?;
        }
        Artifact::Shared => {
            require_linker(&lowered.program, &summary.callees, target, libraries)?;
            emit::shared::shared(compiled.object, libraries, path)?;
        }
    }
    weights.into_iter().chain([header]).try_for_each(emit::Staged::commit)?;
    Ok(summary)
}

/// Writes the weights file of an artefact under a temporary name, and keeps its name in the artefact.
fn stage_weights(object: &mut emit::Object, path: &Path, progress: &Progress) -> Result<emit::Staged> {
    object.name_weights_file(weights_name(path)?)?;
    let file = object.weights_file().ok_or_else(|| Error::internal("the artefact has no weights file"))?;
    file.stage(path, &mut |done, total| progress.bytes(done, total))
}

/// The name of a weights file, which its artefact keeps.
pub(super) fn weights_name(path: &Path) -> Result<&str> {
    let name = path.file_name().unwrap_or_default().to_str();
    name.ok_or_else(|| usage(format!("--weights-file {}: the name is not UTF-8", path.display())))
}

/// Refuses a shared object whose external functions or whose linker is missing.
fn require_linker(
    program: &Program,
    callees: &[String],
    target: &Target,
    libraries: &[PathBuf],
) -> Result<()> {
    if !callees.is_empty() && libraries.is_empty() {
        return Err(usage(format!(
            "a shared object needs the functions that the model calls ({}): name the library that has them with \
             --link, or emit an object (-o model.o)",
            callees.join(", ")
        )));
    }
    let needs_compiler = emit::object::needs_compiler(program, target);
    let is_host = target.triple == target_lexicon::Triple::host();
    if needs_compiler && !is_host && std::env::var_os("CC").is_none() {
        return Err(usage(format!(
            "a shared object for {} needs a C compiler for it: name it in the environment variable CC, such as {}; or \
             emit an object (-o model.o)",
            target.triple,
            target.c_compiler()
        )));
    }

    Ok(())
}

/// Writes the C file and its header.
pub(super) fn write_source(
    path: &Path,
    weights: Option<&Path>,
    lowered: &Lowered,
    progress: &Progress,
) -> Result<Summary> {
    let header_path = path.with_extension("h");
    let header_name = header_path.file_name().unwrap_or_default().to_string_lossy();
    let source = lowered.source(&header_name)?;
    let header = emit::stage(&header_path, source.header.as_bytes())?;
    let file = match (&source.weights, weights) {
        (Some(file), Some(path)) => Some(file.stage(path, &mut |done, total| progress.bytes(done, total))?),
        _ => None,
    };
    emit::write_atomically(path, source.code.as_bytes())?;
    file.into_iter().chain([header]).try_for_each(emit::Staged::commit)?;

    let code_bytes = source.code.len() as u64;
    Ok(Summary::of_source(lowered, code_bytes, weights))
}
