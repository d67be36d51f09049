//! Compilation of a model to a shared object.

use crate::errors::compile_error;
use pyo3::{prelude::*, types::PyDict};
use std::path::{Path, PathBuf};
use symshape_compiler::{
    CompileOptions, Error, ErrorKind, RaggedRequest, Result, StateRequest,
    accuracy::{self, PrecisionChoice},
    emit,
    graph::Graph,
    import::{self, Bounds, Custom, ImportOptions, InputConstant},
    pipeline::{self, Artifact, Compiled, Lowered, Pipeline},
    profile::{Baseline, KernelProfile, Machine, Profile, Profiler, Profiles},
    quantise::{self, Activations, Quantised, RoundedActivations, WeightRequest, WeightTable},
    scalar::Precision,
    state,
    target::Target,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::DType;

/// The largest number of passes and stages that one compilation reports.
pub(crate) fn step_count() -> usize {
    pipeline::steps().count()
}

/// The caller's options, as texts in the forms of `symc`.
#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    name: Option<String>,
    #[pyo3(item)]
    dims: Vec<String>,
    #[pyo3(item)]
    inputs: Vec<String>,
    #[pyo3(item)]
    binds: Vec<Bind>,
    #[pyo3(item)]
    customs: Vec<String>,
    #[pyo3(item)]
    libraries: Vec<PathBuf>,
    /// The text of a bounds.json.
    #[pyo3(item)]
    bounds: Option<String>,
    /// Pairs of an input and an output that are state.
    #[pyo3(item)]
    state: Vec<String>,
    /// Whether to find pairs that are state.
    #[pyo3(item)]
    stateful: bool,
    /// The type of appended rows of `f32`.
    #[pyo3(item)]
    state_type: Option<String>,
    /// The symbol of the length of sequences without padding.
    #[pyo3(item)]
    ragged: Option<String>,
    #[pyo3(item)]
    ragged_batch: Option<String>,
    #[pyo3(item)]
    mask: Option<String>,
    #[pyo3(item)]
    max_rows: Option<u64>,
    #[pyo3(item)]
    cpu: Option<String>,
    #[pyo3(item)]
    precision: String,
    /// The type of the weights.
    #[pyo3(item)]
    weights: Option<String>,
    /// Types of single weights, as NAME=TYPE.
    #[pyo3(item)]
    named_weights: Vec<String>,
    #[pyo3(item)]
    weight_error: Option<f64>,
    /// The type of activations where weights have few bits.
    #[pyo3(item)]
    activations: String,
    #[pyo3(item)]
    threads: u32,
}

/// A constant input: its name, the code of its element type, its shape and its bytes.
#[derive(FromPyObject)]
pub(crate) struct Bind(String, u32, Vec<usize>, Vec<u8>);

/// Compiles the model in `source`, or the file at `path`, and writes the shared object `artefact`.
///
/// `observer` is called with the name of each pass after it has run. Returns a dict: `notes` and `warnings` (lists of
/// sentences), `header` (the C header), `report` (an HTML page) and `weights` (the table of quantised weights as JSON).
#[pyfunction]
pub(crate) fn compile<'py>(
    py: Python<'py>,
    source: Option<Vec<u8>>,
    path: Option<PathBuf>,
    artefact: PathBuf,
    options: Options,
    observer: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut interrupt = None;
    let request = Request { source, path, options };
    let result = py.detach(|| {
        let mut observe = |step: &str| {
            if interrupt.is_none() {
                interrupt = Python::attach(|py| {
                    let called = observer.as_ref().map(|observer| observer.call1(py, (step,))).transpose();
                    called.and_then(|_| py.check_signals()).err()
                });
            }
            interrupt.is_none()
        };
        let model = request.compile(&mut observe)?;
        // After an exception, nothing is written.
        if interrupt.is_some() { Ok(None) } else { request.write(model, &artefact).map(Some) }
    });
    if let Some(error) = interrupt {
        return Err(error);
    }

    let output = result.map_err(|error| compile_error(&error))?.expect("no exception was raised");
    let dict = PyDict::new(py);
    dict.set_item("notes", output.notes)?;
    dict.set_item("warnings", output.warnings)?;
    dict.set_item("header", output.header)?;
    dict.set_item("report", output.report)?;
    dict.set_item("weights", output.weights)?;
    Ok(dict)
}

/// Measures the kernels of the model in calls at each of `sizes`, which give each symbol its size, and in ragged calls
/// of sequences of each of `lengths`.
///
/// `baseline` is an earlier page. Returns a dict: `page` (an HTML page), `machine` (multiply-adds of f32 and of bytes per
/// nanosecond), and `profiles`: for each call the time of a call in nanoseconds, and for each kernel its name,
/// time, bound, multiply-adds and bytes.
#[pyfunction]
pub(crate) fn profile<'py>(
    py: Python<'py>,
    source: Option<Vec<u8>>,
    path: Option<PathBuf>,
    options: Options,
    sizes: Vec<Vec<(String, i64)>>,
    lengths: Vec<Vec<usize>>,
    baseline: Option<PathBuf>,
) -> PyResult<Bound<'py, PyDict>> {
    let request = Request { source, path, options };
    let measured = py.detach(|| request.profile(&sizes, &lengths, baseline.as_deref()));
    let Measured { page, machine, profiles, names } = measured.map_err(|error| compile_error(&error))?;

    type Row = (String, f64, Option<f64>, f64, f64);
    let row = |kernel: &KernelProfile| -> Row {
        let KernelProfile { kernels, ns, demand, bound } = kernel;
        let multiplications = demand.multiplications + demand.byte_multiplications;
        let bound_ns = bound.map(|bound| bound.ns);
        (names[kernels.start].clone(), *ns, bound_ns, multiplications, demand.bytes)
    };
    let profiles: Vec<(f64, Vec<Row>)> =
        profiles.iter().map(|profile| (profile.call_ns, profile.kernels.iter().map(row).collect())).collect();
    let dict = PyDict::new(py);
    dict.set_item("page", page)?;
    dict.set_item("machine", (machine.multiplications, machine.byte_multiplications))?;
    dict.set_item("profiles", profiles)?;
    Ok(dict)
}

/// A model to compile.
struct Request {
    source: Option<Vec<u8>>,
    path: Option<PathBuf>,
    options: Options,
}

/// Profiles of a model, and the page that shows them.
struct Measured {
    page: String,
    machine: Machine,
    profiles: Vec<Profile>,
    /// The names of the kernels.
    names: Vec<String>,
}

/// A compiled model, and sentences for the caller.
struct CompiledModel {
    lowered: Lowered,
    /// `None` after an exception of the observer.
    compiled: Option<Compiled>,
    notes: Vec<String>,
    warnings: Vec<String>,
    weight_table: Option<WeightTable>,
}

/// The texts that a compilation gives.
struct Output {
    notes: Vec<String>,
    warnings: Vec<String>,
    header: String,
    report: String,
    /// JSON.
    weights: Option<String>,
}

impl Request {
    /// Compiles the model. `observe` sees the name of each pass after it has run, and returns whether code is needed.
    fn compile(&self, observe: &mut dyn FnMut(&str) -> bool) -> Result<CompiledModel> {
        let model = match (&self.source, &self.path) {
            (Some(bytes), _) => import::Model::from_bytes(bytes)?,
            (None, Some(path)) => import::Model::open(path)?,
            (None, None) => return Err(Error::new(ErrorKind::Usage, "no model is given")),
        };
        let state = self.options.state_request()?;
        let import_options = self.options.import_options(!state.is_empty())?;
        let graph = import::import(&model, &import_options)?;
        let mut notes = import::notes(&model, &import_options, &graph);
        let mut warnings = import::warnings(&model, &import_options, &graph);

        let (graph, weight_table) = self.options.quantised(graph)?;
        let mut graph = self.options.rounded(graph, &mut notes)?;
        let target = Target::parse(None, self.options.cpu.as_deref())?;
        let options = CompileOptions::for_target(&target).threads(self.options.threads.max(1));
        let options = options.half_weights(weight_table.as_ref().is_some_and(WeightTable::has_halves));
        let options = options.precision(self.options.precision()?);
        let state = &state;
        let mut lower_and_compile = |graph: &Graph, options: CompileOptions| {
            let mut needs_code = true;
            let mut observer = |step: &'static str, _: pipeline::Ir<'_>| needs_code = observe(step);
            let lowered = Pipeline::new(graph)
                .options(options)
                .state(state.clone())
                .ragged(self.options.ragged_request())
                .observe(&mut observer)
                .lower()?;
            let compiled = needs_code.then(|| lowered.compile(&target, Artifact::Shared)).transpose()?;
            Ok((lowered, compiled))
        };
        let (choice, compiled) = accuracy::choose_in_parallel(&graph, &options, accuracy::MAX_ERROR, || {
            lower_and_compile(&graph, options)
        })?;
        let PrecisionChoice { precision, kept, note, .. } = choice;
        notes.extend(note.map(|note| format!("precision bf16x3: {note}")));
        graph.keep_f32(&kept);
        let (lowered, compiled) =
            compiled.unwrap_or_else(|| lower_and_compile(&graph, options.precision(precision)))?;
        warnings.extend(lowered.warnings.iter().cloned());
        Ok(CompiledModel { lowered, compiled, notes, warnings, weight_table })
    }

    fn profile(
        &self,
        sizes: &[Vec<(String, i64)>],
        lengths: &[Vec<usize>],
        baseline: Option<&Path>,
    ) -> Result<Measured> {
        let baseline = baseline.map(Baseline::read).transpose()?;
        let CompiledModel { lowered, .. } = self.compile(&mut |_| false)?;
        let profiler = Profiler::new(&lowered)?;
        let mut profiles =
            sizes.iter().map(|sizes| profiler.at(&profiler.dims(sizes)?)).collect::<Result<Vec<_>>>()?;
        for lengths in lengths {
            profiles.push(profiler.at_lengths(lengths)?);
        }
        let machine = profiler.machine().clone();
        let shown = Profiles { machine: &machine, sizes: &profiles, baseline: baseline.as_ref() };
        let page = shown.report(&lowered);
        let names = lowered.program.kernels.iter().map(|kernel| kernel.name.clone()).collect();
        Ok(Measured { page, machine, profiles, names })
    }

    fn write(&self, model: CompiledModel, artefact: &Path) -> Result<Output> {
        let CompiledModel { lowered, compiled, notes, warnings, weight_table } = model;
        let compiled = compiled.ok_or_else(|| Error::internal("an artefact without code"))?;
        emit::shared::shared(compiled.object, &self.options.libraries, artefact)?;
        let weights = weight_table.map(|table| table.json().to_string());
        Ok(Output { notes, warnings, header: compiled.header, report: lowered.report(), weights })
    }
}

impl Options {
    fn import_options(&self, keeps_state: bool) -> Result<ImportOptions> {
        let Bounds { dims, relations } = import::parse_dims(&self.dims)?;
        let bounds = self.bounds.as_deref().map(import::parse_bounds).transpose()?;
        Ok(ImportOptions {
            name: self.name.clone(),
            dims,
            relations,
            bounds: bounds.unwrap_or_default(),
            inputs: self.inputs.iter().map(|text| import::parse_input(text)).collect::<Result<_>>()?,
            binds: self.binds.iter().map(Bind::constant).collect::<Result<_>>()?,
            customs: self.customs.iter().map(|text| Custom::parse(text)).collect::<Result<_>>()?,
            keeps_state,
            ..ImportOptions::default()
        })
    }

    fn state_request(&self) -> Result<StateRequest> {
        let request = StateRequest::new(self.state.iter().map(String::as_str), self.stateful)?;
        Ok(request.row_type(self.state_type.as_deref().map(state::row_type).transpose()?))
    }

    fn ragged_request(&self) -> RaggedRequest {
        RaggedRequest {
            length: self.ragged.clone(),
            batch: self.ragged_batch.clone(),
            mask: self.mask.clone(),
            max_rows: self.max_rows,
        }
    }

    /// The graph with the requested types of weights.
    fn quantised(&self, graph: Graph) -> Result<(Graph, Option<WeightTable>)> {
        let weight_type = self.weights.as_deref().map(str::parse).transpose()?;
        let max_error = self.weight_error.unwrap_or(quantise::MAX_ERROR);
        let Some(request) = WeightRequest::given(weight_type, &self.named_weights, max_error)? else {
            return Ok((graph, None));
        };
        let Quantised { graph, table } = quantise::quantise(&graph, &request)?;
        Ok((graph, Some(table)))
    }

    /// The graph with the requested activations.
    fn rounded(&self, graph: Graph, notes: &mut Vec<String>) -> Result<Graph> {
        if self.activations.parse::<Activations>()? == Activations::F32 {
            return Ok(graph);
        }
        let RoundedActivations { graph, summary } = quantise::round_activations(&graph)?;
        notes.push(summary.line());
        Ok(graph)
    }

    /// The requested precision.
    fn precision(&self) -> Result<Precision> {
        let known = Precision::ALL.iter().find(|precision| precision.name() == self.precision);
        known.copied().ok_or_else(|| {
            let names: Vec<&str> = Precision::ALL.iter().map(|precision| precision.name()).collect();
            let message = format!("precision {:?}: expected one of {}", self.precision, names.join(", "));
            Error::new(ErrorKind::Usage, message)
        })
    }
}

impl Bind {
    fn constant(&self) -> Result<(String, InputConstant)> {
        let Bind(name, code, shape, bytes) = self;
        let dtype = DType::from_code(*code);
        let tensor =
            dtype.and_then(|dtype| Tensor::new(dtype, shape.clone(), Bytes::Owned(bytes.as_slice().into())));
        let tensor = tensor.ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                format!("the constant of `{name}` has an unknown type or a wrong size"),
            )
        })?;
        Ok((name.clone(), InputConstant::Tensor(tensor)))
    }
}
