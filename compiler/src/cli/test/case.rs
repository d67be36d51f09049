//! One case of `symc test`: compiles the model, runs every data set, and prints reports to standard output.

use super::program::{CallResult, MachineArgs, Program};
use crate::{
    cli::{
        args::{DimArgs, default_bounds},
        compare::{self, Tolerance},
        errors::at_path,
        feed,
        output::{Verdict, print_line},
        packed,
        ragged::RaggedArgs,
        source::milliseconds,
        stateful,
    },
    error::{At, Error, ErrorKind, Result},
    import::{self, InputConstant},
    options::CompileOptions,
    pipeline::Pipeline,
    tensor::{self, Bytes, Tensor},
};
use serde_json::{Value, json};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use symshape_runtime::{Context, DType, Model, State};

/// Arguments of `symc case`.
#[derive(clap::Args)]
pub(crate) struct CaseArgs {
    /// The case
    folder: PathBuf,
    /// Which inputs of data set 0 become compile-time constants
    #[arg(long, value_enum, default_value_t = BindInputs::None)]
    bind_inputs: BindInputs,
    /// Time limit in seconds, for programs of another machine
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    #[command(flatten)]
    dims: DimArgs,
    #[command(flatten)]
    ragged: RaggedArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Which inputs become compile-time constants.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BindInputs {
    /// None of them
    None,
    /// Integers and bools
    Int,
}

/// The result of a case or of a data set, from the best to the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Status {
    Pass,
    Unsupported,
    Fail,
    Error,
    Timeout,
    Crash,
}

impl Status {
    const ALL: [Status; 6] =
        [Status::Pass, Status::Unsupported, Status::Fail, Status::Error, Status::Timeout, Status::Crash];
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Pass => "pass",
            Status::Unsupported => "unsupported",
            Status::Fail => "fail",
            Status::Error => "error",
            Status::Timeout => "timeout",
            Status::Crash => "crash",
        })
    }
}

/// The report of a case.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) status: Status,
    pub(super) detail: String,
    pub(super) compile_ms: Option<f64>,
    pub(super) run_ms: Option<f64>,
    /// The status of each data set; its number is the key.
    pub(super) sets: Vec<(String, Status)>,
}

impl Report {
    /// A report without measurements.
    pub(super) fn new(status: Status, detail: String) -> Report {
        Report { status, detail, compile_ms: None, run_ms: None, sets: Vec::new() }
    }

    /// Prints the report so far as a line. The last line counts.
    fn print(&self) {
        let sets: Vec<Value> =
            self.sets.iter().map(|(set, status)| json!([set, status.to_string()])).collect();
        print_line(
            &json!({"status": self.status.to_string(), "detail": self.detail, "compile_ms": self.compile_ms,
            "run_ms": self.run_ms, "sets": sets})
            .to_string(),
        );
    }

    /// The last report among printed lines.
    pub(super) fn read(text: &str) -> Report {
        let parsed = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let Some(value) = parsed else {
            return Report::new(Status::Crash, "the process printed no report".into());
        };

        let status = |value: &Value| {
            Status::ALL.into_iter().find(|status| Some(status.to_string().as_str()) == value.as_str())
        };
        let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_string(), status(pair.get(1)?)?));
        Report {
            status: status(&value["status"]).unwrap_or(Status::Crash),
            detail: value["detail"].as_str().unwrap_or_default().to_string(),
            compile_ms: value["compile_ms"].as_f64(),
            run_ms: value["run_ms"].as_f64(),
            sets: value["sets"]
                .as_array()
                .map(|sets| sets.iter().filter_map(pair).collect())
                .unwrap_or_default(),
        }
    }

    /// Adds the result of data set `set`. The status of the case is its worst status.
    fn add(&mut self, set: &str, status: Status, detail: String) {
        self.sets.push((set.to_string(), status));
        if status > self.status {
            self.status = status;
            self.detail = format!("set {set}: {detail}");
        }
    }
}

/// Runs one case and prints its reports. The exit code is 0 for any status.
pub(crate) fn case_main(args: &CaseArgs) -> Result<Verdict> {
    // This report counts if the process dies while it compiles.
    let mut report = Report::new(Status::Crash, "while compiling".into());
    report.print();

    let start = Instant::now();
    let model = match compile(args) {
        Ok(model) => model,
        Err(error) => {
            let is_failure = matches!(error.kind(), ErrorKind::Internal | ErrorKind::Io);
            let status = if is_failure { Status::Error } else { Status::Unsupported };
            Report::new(status, error.to_string()).print();
            return Ok(Verdict::Yes);
        }
    };

    report.compile_ms = Some(milliseconds(start));
    report.print();
    let limit = Limit { start, timeout: Duration::from_secs(args.timeout) };
    match run(&args.folder, &model, limit, &mut report) {
        Ok(()) => report.print(),
        Err(error) => {
            report.status = Status::Error;
            report.detail = error.to_string();
            report.print();
        }
    }
    Ok(Verdict::Yes)
}

/// A compiled model, some of whose inputs may have become constants.
struct Compiled {
    code: Code,
    /// The names of all inputs, constants included.
    names: Vec<String>,
    /// Indices into `names` of the inputs that a call takes.
    taken: Vec<usize>,
    /// The names of all outputs, those of the state included.
    outputs: Vec<String>,
    /// The types of all outputs in the model file.
    output_types: Vec<DType>,
    /// Whether the results are random.
    is_random: bool,
}

/// The time limit of a case.
#[derive(Clone, Copy)]
struct Limit {
    start: Instant,
    timeout: Duration,
}

impl Limit {
    /// The time that is left.
    fn rest(self) -> Duration {
        self.timeout.saturating_sub(self.start.elapsed())
    }
}

/// Where the code of a model runs.
enum Code {
    /// In this process.
    Here(Model),
    /// In a program for the machine of the command line.
    There(Box<Program>),
}

/// Smallest upper bound of data-dependent sizes without a declared bound.
const MIN_BOUND: i64 = 64;

/// The upper bound of data-dependent sizes: twice the largest size in the data sets, or the largest input element that
/// may be a size. A fixed bound would be too small for some cases, or too large for the product of several sizes.
fn data_dependent_max(folder: &Path) -> Result<i64> {
    let mut max = MIN_BOUND / 2;
    for (_, set) in sets(folder)? {
        // Unreadable files are reported when the data set runs.
        let inputs = tensors(&set, "input").unwrap_or_default();
        let outputs = tensors(&set, "output").unwrap_or_default();
        for (_, tensor) in inputs.iter().chain(&outputs) {
            max = tensor.shape().iter().map(|size| *size as i64).fold(max, i64::max);
        }
        let lists = inputs.iter().map(|(_, tensor)| tensor).filter(|tensor| tensor.shape().len() <= 1);
        for list in lists.filter(|list| list.dtype().is_int()) {
            max = (0..list.elems()).map(|k| list.get(k).as_i64().min(MAX_SIZE)).fold(max, i64::max);
        }
    }

    Ok(2 * max)
}

/// Largest input element that is taken for a size.
const MAX_SIZE: i64 = 1 << 16;

fn compile(args: &CaseArgs) -> Result<Compiled> {
    let path = args.folder.join("model.onnx");
    let model = import::Model::open(&path)?;
    let names: Vec<String> = model.input_names().iter().map(|name| name.to_string()).collect();

    let bounds = args.dims.bounds.clone().or_else(|| default_bounds(&path));
    let dims = DimArgs { bounds, ..args.dims.clone() };
    // The data sets bound data-dependent sizes without --dim.
    let mut options = import::ImportOptions {
        data_dependent_max: Some(data_dependent_max(&args.folder)?),
        ..dims.options(&path)?
    };

    if args.bind_inputs == BindInputs::Int
        && let Some((_, first)) = sets(&args.folder)?.first()
    {
        for (name, tensor) in names.iter().zip(in_order(&names, tensors(first, "input")?)) {
            let is_given = options.binds.iter().any(|(bound, _)| bound == name);
            if !tensor.dtype().is_float() && !is_given {
                options.binds.push((name.clone(), InputConstant::Tensor(tensor)));
            }
        }
    }

    let is_bound = |name: &String| options.binds.iter().any(|(bound, _)| bound == name);
    let taken = (0..names.len()).filter(|idx| !is_bound(&names[*idx]));
    let graph = import::import(&model, &options)?;
    let is_random = import::seed::has_random_results(&model, &options, &graph);
    let outputs = graph.outputs.iter().map(|(name, _)| name.clone()).collect();
    let output_types = graph.outputs.iter().map(|(_, value)| graph.dtype(*value)).collect();
    let pipeline = Pipeline::new(&graph).state(args.dims.state.request()?).ragged(args.ragged.request());
    let (code, taken) = match args.machine.machine()? {
        None => {
            let model = pipeline.jit()?;
            // State is not read from the data sets.
            let is_state = |name: &String| model.state().iter().any(|tensor| tensor.input() == name);
            let taken = taken.filter(|idx| !is_state(&names[*idx])).collect();
            (Code::Here(model), taken)
        }
        Some(machine) => {
            let options = CompileOptions::for_target(&machine.target);
            let lowered = pipeline.options(options).lower()?;
            (Code::There(Box::new(machine.program(&lowered)?)), taken.collect())
        }
    };
    Ok(Compiled { code, names, taken, outputs, output_types, is_random })
}

/// Runs the data sets.
fn run(folder: &Path, compiled: &Compiled, limit: Limit, report: &mut Report) -> Result<()> {
    let tolerance = read_tolerance(folder)?;
    let sets = sets(folder)?;
    if sets.is_empty() {
        return Err(Error::invalid("the case has no folder test_data_set_K"));
    }

    let mut caller = match &compiled.code {
        Code::Here(model) => {
            let context = Context::new(model);
            let context = context.map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;
            Caller::Here { model, context: Box::new(context), state: None }
        }
        Code::There(program) => Caller::There(program, limit),
    };
    report.status = Status::Pass;
    report.detail.clear();
    let mut total_ms = 0.0;
    for (set, path) in sets {
        // If the call crashes, the parent knows the data set from this report.
        let started = Report { status: Status::Crash, detail: format!("in set {set}"), ..report.clone() };
        started.print();
        let result = run_set(&path, compiled, &mut caller, tolerance).unwrap_or_else(|error| SetResult {
            status: Status::Error,
            detail: error.to_string(),
            run_ms: 0.0,
        });
        total_ms += result.run_ms;
        report.run_ms = Some(total_ms);
        report.add(&set, result.status, result.detail);
    }
    Ok(())
}

/// The memory of calls.
enum Caller<'c> {
    /// Data sets of a model with state are consecutive steps.
    Here {
        model: &'c Model,
        context: Box<Context>,
        state: Option<State>,
    },
    There(&'c Program, Limit),
}

/// The result of a data set.
struct SetResult {
    status: Status,
    detail: String,
    /// Duration of the call.
    run_ms: f64,
}

/// Runs one data set.
fn run_set(
    path: &Path,
    compiled: &Compiled,
    caller: &mut Caller<'_>,
    tolerance: Tolerance,
) -> Result<SetResult> {
    let inputs = in_order(&compiled.names, tensors(path, "input")?);
    let want = in_order(&compiled.outputs, tensors(path, "output")?);
    let taken = |inputs: &[Tensor]| -> Vec<Tensor> {
        compiled.taken.iter().filter_map(|idx| inputs.get(*idx).cloned()).collect()
    };

    let start = Instant::now();
    let (result, run_ms) = match caller {
        Caller::Here { model, context, .. } if model.ragged().is_some() => {
            return run_ragged_set(compiled, model, context, inputs, &want, tolerance);
        }
        Caller::Here { model, context, state } => call_here(compiled, model, context, state, taken(&inputs))?,
        Caller::There(program, limit) => {
            let result = program.call(&program.with_seed(taken(&inputs)), limit.rest())?;
            (result, milliseconds(start))
        }
    };
    let (status, detail) = match result {
        CallResult::Outputs(got) => compare_outputs(compiled, &want, &got, tolerance),
        CallResult::Failed(detail) => (Status::Error, detail),
        CallResult::Crashed(detail) => (Status::Crash, detail),
        CallResult::Late => (Status::Timeout, "the program did not end in time".into()),
    };
    Ok(SetResult { status, detail, run_ms })
}

/// Calls the model in this process, and measures the call in milliseconds.
fn call_here(
    compiled: &Compiled,
    model: &Model,
    context: &mut Context,
    state: &mut Option<State>,
    mut inputs: Vec<Tensor>,
) -> Result<(CallResult, f64)> {
    // Data sets have no seed for random operators.
    inputs.extend(model.inputs().iter().skip(inputs.len()).filter_map(feed::default_seed));
    let refs = tensor::refs(&inputs)?;

    if state.is_none() && !model.state().is_empty() {
        let capacity = stateful::max_capacity(model);
        let sizes = stateful::sizes_of_inputs(model, &inputs);
        let new = State::with_dims(model, capacity, &sizes);
        *state = Some(new.map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?);
    }

    let start = Instant::now();
    let result = match state {
        Some(state) => context.run_stateful_views(&refs, state),
        None => context.run_views(&refs),
    };
    let run_ms = milliseconds(start);
    let result = match result {
        Ok(outputs) => {
            CallResult::Outputs(all_outputs(compiled, model, tensor::copies(&outputs), state.as_ref())?)
        }
        Err(error) => CallResult::Failed(error.to_string()),
    };
    Ok((result, run_ms))
}

/// Runs a data set of a padded model as a ragged batch. Padding is not compared: it has the elements of `want`.
fn run_ragged_set(
    compiled: &Compiled,
    model: &Model,
    context: &mut Context,
    inputs: Vec<Tensor>,
    want: &[Tensor],
    tolerance: Tolerance,
) -> Result<SetResult> {
    let given = |idx: &usize| Some((compiled.names[*idx].clone(), inputs.get(*idx)?.clone()));
    let batch = packed::data_set(model, compiled.taken.iter().filter_map(given).collect())?;
    let start = Instant::now();
    let result = context.run_ragged(&batch);
    let run_ms = milliseconds(start);
    let got = match result {
        Ok(outputs) => packed::padded(&outputs, Some(want))?,
        Err(error) => return Ok(SetResult { status: Status::Error, detail: error.to_string(), run_ms }),
    };
    let (status, detail) = compare_outputs(compiled, want, &got, tolerance);
    Ok(SetResult { status, detail, run_ms })
}

/// Compares the outputs of a call with those of the data set.
fn compare_outputs(
    compiled: &Compiled,
    want: &[Tensor],
    got: &[Tensor],
    tolerance: Tolerance,
) -> (Status, String) {
    if got.len() < want.len() {
        return (Status::Fail, format!("{} outputs instead of {}", got.len(), want.len()));
    }
    for ((want, got), name) in want.iter().zip(got).zip(&compiled.outputs) {
        // The generator of the data set is unknown, so types and shapes of random results are compared only.
        let problem = match compare::distance(want, got, tolerance) {
            Err(problem) => problem,
            Ok(distance) if distance.n_wrong > 0 && !compiled.is_random => {
                compare::describe(want, got, &distance)
            }
            Ok(_) => continue,
        };
        return (Status::Fail, format!("`{name}`: {problem}"));
    }
    (Status::Pass, String::new())
}

/// The outputs of a call and the content of the state, in the order of the model's outputs.
fn all_outputs(
    compiled: &Compiled,
    model: &Model,
    outputs: Vec<Tensor>,
    state: Option<&State>,
) -> Result<Vec<Tensor>> {
    let mut outputs = outputs.into_iter();
    let tensor = |(name, dtype): (&String, &DType)| {
        let at = model.state().iter().position(|tensor| tensor.output() == name);
        let tensor = match (at, state) {
            (Some(at), Some(state)) => {
                let bytes = Bytes::Owned(state.tensor_bytes(at).into());
                let own = Tensor::new(model.state()[at].dtype(), state.shape(at), bytes);
                // Rows of --state-type are compared as those of the model.
                own.and_then(|own| if own.dtype() == *dtype { Some(own) } else { as_f32(&own) })
            }
            _ => outputs.next(),
        };
        tensor.ok_or_else(|| Error::internal("the outputs of a call and the state are all outputs"))
    };
    compiled.outputs.iter().zip(&compiled.output_types).map(tensor).collect()
}

/// The elements of a tensor of floats as `f32`.
fn as_f32(tensor: &Tensor) -> Option<Tensor> {
    let elems: Vec<f32> = (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64() as f32).collect();
    Tensor::from_f32(tensor.shape().to_vec(), &elems)
}

/// The data sets of a case with their numbers, which may have gaps.
fn sets(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut sets = Vec::new();
    for entry in at_path(fs::read_dir(folder), folder)? {
        let path = at_path(entry, folder)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(number) = name.strip_prefix("test_data_set_") {
            sets.push((number.to_string(), path));
        }
    }
    sets.sort_by_key(|(number, _)| (number.parse::<u64>().unwrap_or(u64::MAX), number.clone()));
    Ok(sets)
}

/// The tensors `KIND_0.pb`, `KIND_1.pb`, … of a data set.
fn tensors(folder: &Path, kind: &str) -> Result<Vec<(String, Tensor)>> {
    let paths = (0..).map(|idx| folder.join(format!("{kind}_{idx}.pb"))).take_while(|path| path.is_file());
    paths
        .map(|path| {
            let (name, tensor) = import::read_tensor(&path)?;
            Ok((name, feed::aligned(tensor)))
        })
        .collect()
}

/// The tensors in the order of `names` if these are their names, or else in the order of their files.
fn in_order(names: &[String], tensors: Vec<(String, Tensor)>) -> Vec<Tensor> {
    let of = |name: &String| tensors.iter().find(|(own, _)| own == name).map(|(_, tensor)| tensor.clone());
    let named: Option<Vec<Tensor>> = names.iter().map(of).collect();
    match named.filter(|named| named.len() == tensors.len()) {
        Some(named) => named,
        None => tensors.into_iter().map(|(_, tensor)| tensor).collect(),
    }
}

/// The tolerance in data.json, or the default of the ONNX backend tests.
fn read_tolerance(folder: &Path) -> Result<Tolerance> {
    let path = folder.join("data.json");
    let mut value = Value::Null;
    if path.is_file() {
        let text = at_path(fs::read_to_string(&path), &path)?;
        let parsed = serde_json::from_str(&text).map_err(|error| Error::invalid(error.to_string()));
        value = parsed.at(|| path.display().to_string())?;
    }
    Ok(Tolerance {
        rtol: value["rtol"].as_f64().unwrap_or(1e-3),
        atol: value["atol"].as_f64().unwrap_or(1e-7),
    })
}
