//! `symc weights`: other weights for an artefact, by the arguments of `symc compile` that the artefact keeps.

use super::{
    compile,
    errors::usage,
    output::{Verdict, print_line},
    progress::Progress,
    sealed::SealedFile,
};
use crate::{
    emit,
    error::{At, Error, Result},
    pipeline::Artifact,
};
use clap::Parser;
use serde_json::json;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};
use symshape_runtime::Weights;

/// Examples at the end of `symc help weights`.
const EXAMPLES: &str = "\
Examples:
  # Other weights for an artefact that was compiled with --weights-file:
  symc weights tuned.onnx --for model.so -o tuned.weights
";

/// Arguments of `symc weights`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// ONNX file with the same structure as the model that the artefact was compiled from
    model: PathBuf,
    /// The artefact: a shared object or an object that was compiled with --weights-file. Libraries that it names with
    /// --link are loaded: name only artefacts that you trust
    #[arg(long = "for", value_name = "M.so")]
    artefact: PathBuf,
    /// The weights file to write
    #[arg(short, long, value_name = "NEW.weights")]
    output: PathBuf,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

/// The arguments of `symc compile` without its name.
#[derive(Parser)]
#[command(name = "symc compile")]
struct CommandLine {
    #[command(flatten)]
    args: compile::Args,
}

/// Writes the weights, or says why the artefact can't read them. The artefact itself stays as it is.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let place = || args.artefact.display().to_string();
    if args.output.extension() != Some("weights".as_ref()) {
        return Err(usage(format!("-o {}: the name must end with .weights", args.output.display())));
    }
    let file = SealedFile::read(&args.artefact)?.map_err(Error::invalid).at(place)?;
    let own = file.weights().at(place)?.ok_or_else(|| {
        Error::invalid("it contains its weights: compile it with --weights-file to exchange them").at(place())
    })?;
    let command_line = file.command_line().ok_or_else(|| {
        Error::invalid("it does not contain the command line of symc compile: compile it again").at(place())
    })?;
    let extension = match file.artifact().at(place)? {
        Artifact::Object => "o",
        Artifact::Archive => "a",
        Artifact::Shared => "so",
    };
    let command_line = parse(&command_line, &args.model, &args.output.with_extension(extension)).at(place)?;

    let progress = Progress::new(format!("importing {}", args.model.display()), 0);
    let object = compile::object(&command_line.args, &progress)?;
    let new = object.weights_file().ok_or_else(|| Error::internal("the artefact has no weights file"))?;
    if new.artefact() != own.artefact {
        let old = Weights::open(own.path(&args.artefact)).ok();
        let why = difference(new, old.as_ref());
        return Err(Error::invalid(format!("{} can't read its weights: {why}", args.artefact.display()))
            .at(args.model.display().to_string()));
    }
    progress.say("writing weights");
    new.stage(&args.output, &mut |done, total| progress.bytes(done, total))?.commit()?;
    drop(progress);
    let path = args.output.display();
    if args.json {
        let line = json!({"weights": path.to_string(), "bytes": new.bytes(), "for": place()});
        print_line(&line.to_string());
    } else {
        print_line(&format!("{path}: {} B of weights for {}", new.bytes(), place()));
    }
    Ok(Verdict::Yes)
}

/// The kept arguments for another model, and for an artefact of this name, which is not written.
fn parse(arguments: &[String], model: &Path, artefact: &Path) -> Result<CommandLine> {
    let own = [OsString::from("symc compile"), model.into(), "-o".into(), artefact.into()];
    let weights = [OsString::from("--weights-file"), artefact.with_extension("weights").into()];
    let words = own.into_iter().chain(weights).chain(arguments.iter().map(OsString::from));
    CommandLine::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        Error::invalid(format!("its command line of symc compile is not valid here: {}", text.trim()))
    })
}

/// Why an artefact with the weights `old` can't read the weights `new`. Their names may differ.
fn difference(new: &emit::WeightsFile, old: Option<&Weights>) -> String {
    let code = "the structure of the model differs: its code would differ, for instance because of a shape, an \
                attribute, or a scalar that became a part of the code, or because another version of symc compiled the \
                artefact";
    let Some(old) = old else { return code.to_string() };
    let count = |n: usize| if n == 1 { "1 weight".to_string() } else { format!("{n} weights") };
    let (n_new, n_old) = (new.segments().len(), old.segments().len());
    for (new, old) in new.segments().iter().zip(old.segments()) {
        if new.bytes.len() != old.range().len() {
            return format!(
                "the structure of the model differs: it has {} of {} bytes where the artefact has {} of {} bytes",
                new.name,
                new.bytes.len(),
                old.name(),
                old.range().len()
            );
        }
    }
    if n_new != n_old {
        return format!(
            "the structure of the model differs: it has {} and the artefact {}",
            count(n_new),
            count(n_old)
        );
    }
    code.to_string()
}
