//! The command line of `symc compile` after all checks that need no model.

use super::{
    super::{
        args,
        artefact::{self, Output, OutputKind},
        errors::usage,
        web,
    },
    args::{Args, Fallback, Orders},
};
use crate::{
    emit,
    error::Result,
    kernel::Policies,
    offload::{self, Selection},
    options::CompileOptions,
    quantise::Activations,
    scalar::Precision,
    target::Target,
};
use std::sync::Arc;

/// The command line after all checks that need no model.
pub(super) struct Request<'a> {
    pub(super) args: &'a Args,
    pub(super) targets: Vec<Arc<dyn offload::Target>>,
    pub(super) target: Target,
    /// `None` if only the text of a stage is printed.
    pub(super) output: Option<Output<'a>>,
    /// The options for the precision of the command line.
    pub(super) options: CompileOptions,
    /// The C compiler for WebAssembly, if that is the output.
    pub(super) web_compiler: Option<web::Compiler>,
}

/// Checks the command line, and whether the files can be written.
pub(super) fn validate(args: &Args) -> Result<Request<'_>> {
    if args.threads == 0 {
        return Err(usage("--threads 0: expected at least 1"));
    }

    if args.dynamic_memory && args.dims.state.is_given() {
        return Err(usage(
            "--dynamic-memory: the capacity of a state needs upper bounds; declare them with --dim",
        ));
    }
    if args.dynamic_memory && args.ragged.length.is_some() {
        return Err(usage("--dynamic-memory: a ragged batch needs upper bounds; declare them with --dim"));
    }
    if args.dynamic_memory {
        args.weight_types.require_bounds()?;
        if args.precision.activations != Activations::F32 {
            return Err(usage("--dynamic-memory: --activations needs upper bounds; declare them with --dim"));
        }
    }
    if let Some(file) = &args.weights_file
        && file.extension() != Some("weights".as_ref())
    {
        return Err(usage(format!("--weights-file {}: the name must end with .weights", file.display())));
    }
    args.weights_file.as_deref().map(artefact::weights_name).transpose()?;
    let Selection { targets, machine } = args::select_targets(args.target.as_deref())?;
    let output = args.output.as_deref().map(Output::named).transpose()?;
    let kind = output.as_ref().map(|output| output.kind);
    let is_web = kind == Some(OutputKind::Web);
    let (target, options) = if is_web {
        web_options(args, machine)?
    } else if kind == Some(OutputKind::Source) {
        source_options(args, machine)?
    } else {
        if args.no_libm {
            return Err(usage("--no-libm is for C source: name a file with .c; objects never call math.h"));
        }
        let target = Target::parse(machine, args.cpu.as_deref())?;
        output.as_ref().map_or(Ok(()), |output| output.require_platform(&target))?;
        let base = CompileOptions::for_target(&target).threads(args.threads);
        let options = compile_options(args, base.precision(args.precision.precision), &target)?;
        (target, options)
    };

    let output = output.filter(|_| args.emit.is_none());
    let web_compiler = match &output {
        Some(output) if is_web => Some(web::compiler(args.cpu.as_deref())?),
        _ => None,
    };
    if let Some(output) = &output {
        let files = [Some(output.path.to_path_buf()), args.weights_file.clone(), args.report.clone()];
        let files = files.into_iter().flatten().chain(output.companions());
        files.map(|file| emit::stage(&file, &[])).try_for_each(|staged| staged.map(drop))?;
        args.weights_file.as_deref().map_or(Ok(()), |file| output.require_folder_of(file))?;
    }
    Ok(Request { args, targets, target, output, options, web_compiler })
}

/// The options for C source. Its target only names the machine of the C compiler.
fn source_options(args: &Args, machine: Option<&str>) -> Result<(Target, CompileOptions)> {
    if args.cpu.is_some() {
        return Err(usage("C source is for any machine: omit --cpu, and pass it to the C compiler"));
    }
    if args.precision.precision != Precision::F32 {
        return Err(usage("C source multiplies f32: omit --precision"));
    }

    let is_bare = machine.map_or(Ok(false), Target::is_bare)?;
    let host = Target::host()?;
    let base = CompileOptions::for_c_source().libm(!args.no_libm && !is_bare);
    let options = compile_options(args, base, &host)?;
    Ok((host, options))
}

/// The options for WebAssembly, which is compiled from C source.
fn web_options(args: &Args, machine: Option<&str>) -> Result<(Target, CompileOptions)> {
    if let Some(machine) = machine {
        return Err(usage(format!("--target {machine}: a .wasm file is for all engines; omit --target")));
    }
    if args.no_libm {
        return Err(usage("--no-libm is for C source: a .wasm file never calls math.h"));
    }
    if args.dynamic_memory {
        return Err(usage(
            "--dynamic-memory: the memory of a .wasm file has a fixed size; declare upper bounds with --dim",
        ));
    }
    if args.partitions.is_some() {
        return Err(usage("--partitions: a .wasm file runs on one thread; omit --partitions"));
    }
    if args.precision.precision != Precision::F32 {
        return Err(usage("a .wasm file multiplies f32: omit --precision"));
    }

    let host = Target::host()?;
    let options = compile_options(args, CompileOptions::for_c_source().libm(false), &host)?;
    Ok((host, options))
}

/// The options of the command line on top of those for the machine or for C source.
fn compile_options(args: &Args, base: CompileOptions, target: &Target) -> Result<CompileOptions> {
    let precision = args.precision.precision;
    let require_tiles = args.fallback == Fallback::None && precision != Precision::F32;
    if require_tiles && !target.has_tiles() {
        let remedy = if target.grants_tiles() {
            "add --cpu x86-64-v4-amx"
        } else {
            "artefacts for this platform never use them; omit --fallback none"
        };
        return Err(usage(format!(
            "--precision {precision} --fallback none: no level has tile registers; {remedy}"
        )));
    }

    let policies = match args.policies {
        Orders::Serial => Policies::Serial,
        Orders::Any => Policies::Any,
    };
    Ok(base
        .partitions(args.partitions)
        .policies(policies)
        .oversized_parts(args.oversized.oversized_parts)
        .dynamic_memory(args.dynamic_memory)
        .require_tiles(require_tiles))
}
