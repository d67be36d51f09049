//! `symc test`: runs cases in the directory layout of the ONNX backend tests, each in its own process.
//!
//! A case is a folder with `model.onnx` and `test_data_set_K/{input,output}_I.pb`. The model is compiled once, and
//! every data set runs on that code. If a case crashes or hangs, the other cases still run. A model that is refused
//! counts as skipped in the totals; the command fails unless refusals are allowed.
//!
//! With `--target`, `--cpu` or `--runner`, the model is compiled to an object, and each data set runs in a program that
//! is linked with it.

mod case;
mod process;
mod program;

pub(super) use case::{CaseArgs, case_main};

use super::{
    args::{self, DimArgs},
    errors::{at_path, usage},
    output::{Verdict, print_line},
    progress::Progress,
    ragged::RaggedArgs,
};
use crate::{error::Result, parallel};
use case::{Report, Status};
use program::MachineArgs;
use serde_json::{Map, Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Arguments of `symc test`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Test cases, or directories to search for test cases
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Number of cases that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Time limit of a case, in seconds
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
    /// Which inputs of data set 0 become compile-time constants
    #[arg(long, value_enum, default_value_t = case::BindInputs::None)]
    bind_inputs: case::BindInputs,
    /// Succeed although models are refused
    #[arg(long)]
    allow_refused: bool,
    #[command(flatten)]
    dims: DimArgs,
    #[command(flatten)]
    ragged: RaggedArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// File to write the results to, as JSON
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
}

/// Runs all cases.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    try_machine(args)?;
    let mut cases = Vec::new();
    for folder in &args.folders {
        let folder = at_path(fs::canonicalize(folder), folder)?;
        let before = cases.len();
        find(&folder, &mut cases)?;
        if cases.len() == before {
            return Err(usage(format!("{}: no model.onnx in this directory or below it", folder.display())));
        }
    }

    note_bounds(args, &cases);
    let progress = Progress::new("testing", cases.len() as u64);
    let results = parallel::map(cases.iter().collect(), args.jobs, |folder: &PathBuf| {
        let report = run(folder, args);
        let name = name(folder);
        progress.line(format!("{} {name} {}", report.status, report.detail).trim_end());
        progress.step();
        (name, report)
    });
    drop(progress);

    finish(args, &results)
}

/// Refuses flags that programs for another machine can't follow, and runs a small program there.
fn try_machine(args: &Args) -> Result<()> {
    let Some(machine) = args.machine.machine()? else { return Ok(()) };
    let refused = if args.ragged.is_given() {
        "--ragged"
    } else if args.dims.state.is_given() {
        "--state and --stateful"
    } else if !args.dims.customs.is_empty() {
        "--custom and --link"
    } else {
        return machine.try_out(Duration::from_secs(args.timeout));
    };
    Err(usage(format!(
        "{refused}: cases with them run in this process only; omit --target, --cpu and --runner"
    )))
}

/// How much longer than its time limit a case may take whose program has this limit.
const TIME_TO_REPORT: Duration = Duration::from_secs(5);

/// Says which cases get the ranges of their symbols from a bounds.json.
fn note_bounds(args: &Args, cases: &[PathBuf]) {
    if args.dims.bounds.is_some() {
        return;
    }
    let files: Vec<PathBuf> =
        cases.iter().filter_map(|case| args::default_bounds(&case.join("model.onnx"))).collect();
    let from = match &files[..] {
        [] => return,
        [file] => file.display().to_string(),
        files => format!("the bounds.json next to the model in {} of {} cases", files.len(), cases.len()),
    };
    eprintln!("symc: note: symbols without --dim get their ranges from {from}");
}

/// Prints the totals and writes the JSON file.
fn finish(args: &Args, results: &[(String, Report)]) -> Result<Verdict> {
    let count =
        |wanted: &dyn Fn(Status) -> bool| results.iter().filter(|(_, report)| wanted(report.status)).count();
    let passed = count(&|status| status == Status::Pass);
    let skipped = count(&|status| status == Status::Unsupported);
    let failed = results.len() - passed - skipped;

    print_line(&format!("{passed} passed, {failed} failed, {skipped} skipped"));
    if let Some(path) = &args.json {
        let table: Map<String, Value> =
            results.iter().map(|(name, report)| (name.clone(), report.to_json())).collect();
        crate::emit::write_atomically(path, format!("{}\n", Value::Object(table)).as_bytes())?;
    }

    let is_refused = skipped > 0 && !args.allow_refused;
    if is_refused {
        let models = if skipped == 1 { "1 model is".to_string() } else { format!("{skipped} models are") };
        eprintln!(
            "symc: {models} refused, see the lines `unsupported`; --allow-refused succeeds nevertheless"
        );
    }
    Ok(if failed == 0 && !is_refused { Verdict::Yes } else { Verdict::No })
}

/// Adds the cases in and below a folder, in the order of their names.
fn find(folder: &Path, cases: &mut Vec<PathBuf>) -> Result<()> {
    if folder.join("model.onnx").is_file() {
        cases.push(folder.to_path_buf());
        return Ok(());
    }

    let mut inner = Vec::new();
    for entry in at_path(fs::read_dir(folder), folder)? {
        let path = at_path(entry, folder)?.path();
        // A link may point to a parent directory.
        if path.is_dir() && !path.is_symlink() {
            inner.push(path);
        }
    }
    inner.sort();
    inner.iter().try_for_each(|path| find(path, cases))
}

/// The name of a case: the last two parts of its path, `kind/name`.
fn name(folder: &Path) -> String {
    let part =
        |path: Option<&Path>| path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    match (part(folder.parent()), part(Some(folder))) {
        (Some(kind), Some(name)) => format!("{kind}/{name}"),
        (None, Some(name)) => name,
        _ => folder.display().to_string(),
    }
}

/// Runs one case in its own process.
fn run(folder: &Path, args: &Args) -> Report {
    let bind = if args.bind_inputs == case::BindInputs::Int { "int" } else { "none" };
    let spawned = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command
            .arg("case")
            .arg(folder)
            .args(["--bind-inputs", bind])
            .arg("--timeout")
            .arg(args.timeout.to_string())
            .args(args.dims.command_line())
            .args(args.ragged.command_line())
            .args(args.machine.command_line());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    });
    match spawned {
        Ok(child) => watch(child, args),
        Err(error) => Report::new(Status::Crash, format!("can't be started: {error}")),
    }
}

/// Waits for a case, and kills it when its time limit is over.
fn watch(child: Child, args: &Args) -> Report {
    let timeout = Duration::from_secs(args.timeout);
    let grace = if args.machine.is_given() { TIME_TO_REPORT } else { Duration::ZERO };
    let (status, out, err) = process::watch(child, timeout.saturating_add(grace));
    let out = String::from_utf8_lossy(&out);
    let err = String::from_utf8_lossy(&err);
    let mut report = Report::read(&out);
    match status {
        None => {
            report.status = Status::Timeout;
            report.detail = format!("after {} s", args.timeout);
        }
        Some(status) if !status.success() => {
            report.status = Status::Crash;
            let last = err.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
            let first = err.lines().find(|line| line.contains("panicked")).unwrap_or(last);
            report.detail = format!("{status}: {first} {}", if first == last { "" } else { last });
        }
        Some(_) => {}
    }
    report
}

impl Report {
    /// The report in the file of `--json`.
    fn to_json(&self) -> Value {
        let sets: Map<String, Value> =
            self.sets.iter().map(|(set, status)| (set.clone(), json!(status.to_string()))).collect();
        json!({
            "status": self.status.to_string(), "detail": self.detail, "compile_ms": self.compile_ms,
            "run_ms": self.run_ms, "sets": sets,
        })
    }
}
