//! WebAssembly: the C compiler of the command line, and the files that are written.

use super::{artefact::Summary, artefact::weights_name, errors::usage, progress::Progress};
use crate::{
    emit::{
        self,
        web::{WasmCompiler, WasmLevel, WebOptions},
    },
    error::Result,
    pipeline::Lowered,
};
use std::path::Path;

/// A C compiler for WebAssembly, and the level that it compiles for.
pub(super) struct Compiler {
    compiler: WasmCompiler,
    level: WasmLevel,
}

/// The compiler for the level `--cpu`.
///
/// # Errors
/// When the level is unknown, or no C compiler is found.
pub(super) fn compiler(level: Option<&str>) -> Result<Compiler> {
    let level = match level {
        None => WasmLevel::default(),
        Some(name) => {
            let known = WasmLevel::ALL.into_iter().find(|level| level.name() == name);
            known.ok_or_else(|| {
                usage(format!("--cpu {name}: the levels of WebAssembly are simd128 and relaxed-simd"))
            })?
        }
    };
    Ok(Compiler { compiler: WasmCompiler::find(level)?, level })
}

/// Writes the module, the ES module that calls it, its types and, if there is none, `package.json`.
pub(super) fn write(
    path: &Path,
    weights: Option<&Path>,
    lowered: &Lowered,
    compiler: &Compiler,
    progress: &Progress,
) -> Result<Summary> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let stem = stem.ok_or_else(|| usage(format!("-o {}: the name is not UTF-8", path.display())))?;
    let options = WebOptions {
        compiler: &compiler.compiler,
        level: compiler.level,
        stem,
        weights_file: weights.map(weights_name).transpose()?,
    };
    let web = lowered.web(&options)?;

    let mut staged = vec![
        emit::stage(&path.with_extension("mjs"), web.module.as_bytes())?,
        emit::stage(&path.with_extension("d.mts"), web.types.as_bytes())?,
    ];
    // The folder may be part of another package.
    let package = path.with_file_name("package.json");
    if !package.exists() {
        staged.push(emit::stage(&package, web.package.as_bytes())?);
    }
    if let (Some(file), Some(path)) = (&web.weights, weights) {
        staged.push(file.stage(path, &mut |done, total| progress.bytes(done, total))?);
    }
    emit::write_atomically(path, &web.wasm)?;
    staged.into_iter().try_for_each(emit::Staged::commit)?;

    let mut summary = Summary::of_source(lowered, web.code_bytes as u64, weights);
    summary.memory_bytes = Some(web.memory_bytes);
    Ok(summary)
}
