//! Compiles models in a build script, for the program that it builds.
//!
//! In the `main` of build.rs:
//!
//! ```no_run
//! symshape_compiler::embed::Embed::new("model.onnx").dim("N=1..64").compile_or_exit();
//! ```
//!
//! In the program:
//!
//! ```text
//! symshape_runtime::include_model!("model");
//!
//! let mut model = Model::new()?;                 // the arena, reserved once
//! model.run(8, &x, &mut y)?;                     // N = 8; x and y are slices
//! ```
//!
//! The model becomes a static library in `OUT_DIR`, which Cargo links, and a Rust module next to it. Cargo runs the
//! build script again only if the model, its external data, a bounds.json next to it, or the script changes. A
//! bounds.json that is added later is read when the script runs next.

use crate::{
    accuracy::{self, PrecisionChoice},
    emit,
    error::{At, Error, ErrorKind, Result},
    graph::Graph,
    import::{self, ImportOptions},
    options::CompileOptions,
    pipeline::{Artifact, Pipeline},
    quantise::{self, Activations, Quantised, RoundedActivations, WeightRequest},
    scalar::Precision,
    target::Target,
};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// A model to compile into the program. All arguments have the syntax of the command line of `symc`.
#[derive(Clone, Debug)]
pub struct Embed {
    model: PathBuf,
    dims: Vec<String>,
    inputs: Vec<String>,
    binds: Vec<String>,
    name: Option<String>,
    cpu: Option<String>,
    precision: Precision,
    max_error: f64,
    weights: Option<String>,
    named_weights: Vec<String>,
    weight_error: f64,
    activations: Activations,
    customs: Vec<String>,
}

impl Embed {
    /// The ONNX model at this path, relative to the folder of the package.
    pub fn new(model: impl Into<PathBuf>) -> Embed {
        Embed {
            model: model.into(),
            dims: Vec::new(),
            inputs: Vec::new(),
            binds: Vec::new(),
            name: None,
            cpu: None,
            precision: Precision::F32,
            max_error: accuracy::MAX_ERROR,
            weights: None,
            named_weights: Vec::new(),
            weight_error: quantise::MAX_ERROR,
            activations: Activations::F32,
            customs: Vec::new(),
        }
    }

    /// Declares a symbol: `N=1..64`, `S=8..512/8`, `H=1,2,4`.
    pub fn dim(mut self, declaration: impl Into<String>) -> Embed {
        self.dims.push(declaration.into());
        self
    }

    /// Declares an input's shape: `x=N,3,H,W`.
    pub fn input(mut self, declaration: impl Into<String>) -> Embed {
        self.inputs.push(declaration.into());
        self
    }

    /// Makes an input a constant: `sr=16000`.
    pub fn bind(mut self, binding: impl Into<String>) -> Embed {
        self.binds.push(binding.into());
        self
    }

    /// Binds an operator to a function of the program, by a declaration such as
    /// `com.acme:Swish(x: T[D...]) -> T[D...] = acme_swish`. The program exports the function under that C name, see
    /// [`symshape_runtime::external`].
    pub fn custom(mut self, declaration: impl Into<String>) -> Embed {
        self.customs.push(declaration.into());
        self
    }

    /// The name of the module's file, and the prefix of the C symbols. The default is the name of the model's file.
    pub fn name(mut self, name: impl Into<String>) -> Embed {
        self.name = Some(name.into());
        self
    }

    /// The ISA level, such as `x86-64-v3`, or several levels separated by commas. The default is the level of this
    /// machine, if the program is built for it.
    pub fn cpu(mut self, level: impl Into<String>) -> Embed {
        self.cpu = Some(level.into());
        self
    }

    /// The precision of contractions on machines with tile registers; other machines multiply `f32`. Only code for a
    /// level with tile registers uses them, such as that of `cpu("x86-64-v3,x86-64-v4-amx")`. The default is `f32`.
    pub fn precision(mut self, precision: Precision) -> Embed {
        self.precision = precision;
        self
    }

    /// Sets the largest error that [`Precision::Bf16x3`] may show in the accuracy check, relative to an output's
    /// largest element. Contractions that cause a larger error stay `f32`, see [`accuracy::choose_precision`]. The
    /// default is [`accuracy::MAX_ERROR`]; infinity skips the check.
    pub fn max_error(mut self, limit: f64) -> Embed {
        self.max_error = limit;
        self
    }

    /// The type of the weights of matrix products and look-ups: `int8`, `int4`, `int4:64`, `f16`, `bf16` or `f32`, the
    /// default. Weights that change the outputs much more than others keep more bits, see [`quantise`]. Cargo prints
    /// the sizes and the error of the outputs.
    pub fn weights(mut self, weight_type: impl Into<String>) -> Embed {
        self.weights = Some(weight_type.into());
        self
    }

    /// The type of one weight, by the name of its ONNX initializer: `lm_head.weight=int8`.
    pub fn weight(mut self, named: impl Into<String>) -> Embed {
        self.named_weights.push(named.into());
        self
    }

    /// Sets the largest error of an output that one weight may cause, see [`quantise::WeightRequest::max_error`]. The
    /// default is [`quantise::MAX_ERROR`]; infinity skips the trial runs of single weights.
    pub fn weight_error(mut self, limit: f64) -> Embed {
        self.weight_error = limit;
        self
    }

    /// Rounds the activations of products whose weights have few bits, see [`quantise::round_activations`]. Cargo
    /// prints how far that moves the outputs of a trial run.
    pub fn activations(mut self, activations: Activations) -> Embed {
        self.activations = activations;
        self
    }

    /// Compiles, and tells Cargo what to link and what to watch.
    ///
    /// # Errors
    /// As [`crate::import::import`] and [`Pipeline::lower`]; when the program is not a build script; when `OUT_DIR`
    /// can't be written.
    pub fn compile(&self) -> Result<()> {
        let folder = PathBuf::from(variable("OUT_DIR")?);
        let path = Path::new(&variable("CARGO_MANIFEST_DIR")?).join(&self.model);
        let bounds = path.with_file_name("bounds.json");

        watch(&path);
        // Cargo takes a missing file for changed in every build.
        if bounds.exists() {
            watch(&bounds);
        }
        watch(Path::new("build.rs"));

        let place = || path.display().to_string();
        let model = import::Model::open(&path)?;
        let graph = import::import(&model, &self.options(&bounds)?).at(place)?;
        model.external_files().iter().for_each(|file| watch(file));
        let (graph, has_halves) = self.quantised(graph).at(place)?;
        let mut graph = self.rounded(graph).at(place)?;

        let target = Target::parse(env::var("TARGET").ok().as_deref(), self.cpu.as_deref())?;
        let options = CompileOptions::for_target(&target).precision(self.precision);
        let options = options.half_weights(has_halves);
        let lower_and_compile = |graph: &Graph, options: CompileOptions| {
            let lowered = Pipeline::new(graph).options(options).lower().at(place)?;
            let compiled = lowered.compile(&target, Artifact::Archive).at(place)?;
            Ok((lowered, compiled))
        };
        let (choice, compiled) = accuracy::choose_in_parallel(&graph, &options, self.max_error, || {
            lower_and_compile(&graph, options)
        })
        .at(place)?;
        let PrecisionChoice { precision, kept, note, .. } = choice;
        if let Some(note) = note {
            println!("cargo:warning=symshape: {}: {}: {note}", self.model.display(), self.precision);
        }
        graph.keep_f32(&kept);
        let (lowered, compiled) =
            compiled.unwrap_or_else(|| lower_and_compile(&graph, options.precision(precision)))?;

        let name = &lowered.program.name;
        let archive = emit::archive(name, &compiled.object.into_bytes()?)?;
        emit::write_atomically(&folder.join(format!("lib{name}_symshape.a")), &archive)?;
        let module = emit::rust::module(&lowered.program, &lowered.plan);
        emit::write_atomically(&folder.join(format!("{name}.rs")), module.as_bytes())?;

        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:rustc-link-lib=static={name}_symshape");
        Ok(())
    }

    /// As [`Embed::compile`], but prints an error and exits.
    pub fn compile_or_exit(&self) {
        if let Err(error) = self.compile() {
            println!("cargo:warning=symshape: {error}");
            eprintln!("symshape: {error}");
            std::process::exit(1);
        }
    }

    /// The graph with the requested types of weights, and whether some are f16 or bf16.
    fn quantised(&self, graph: Graph) -> Result<(Graph, bool)> {
        let weight_type = self.weights.as_deref().map(str::parse).transpose()?;
        let Some(request) = WeightRequest::given(weight_type, &self.named_weights, self.weight_error)? else {
            return Ok((graph, false));
        };
        let Quantised { graph, table } = quantise::quantise(&graph, &request)?;
        println!("cargo:warning=symshape: {}: {}", self.model.display(), table.summary());
        Ok((graph, table.has_halves()))
    }

    /// The graph with the requested activations.
    fn rounded(&self, graph: Graph) -> Result<Graph> {
        if self.activations == Activations::F32 {
            return Ok(graph);
        }
        let RoundedActivations { graph, summary } = quantise::round_activations(&graph)?;
        println!("cargo:warning=symshape: {}: {}", self.model.display(), summary.line());
        Ok(graph)
    }

    fn options(&self, bounds: &Path) -> Result<ImportOptions> {
        let ranges = match fs::read_to_string(bounds) {
            Ok(text) => import::parse_bounds(&text).at(|| bounds.display().to_string())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => import::Bounds::default(),
            Err(error) => {
                return Err(Error::new(ErrorKind::Io, error.to_string()).at(bounds.display().to_string()));
            }
        };
        let import::Bounds { dims, relations } = import::parse_dims(&self.dims)?;
        Ok(ImportOptions {
            name: self.name.clone(),
            dims,
            relations,
            inputs: self.inputs.iter().map(|text| import::parse_input(text)).collect::<Result<_>>()?,
            binds: self.binds.iter().map(|text| import::parse_bind(text)).collect::<Result<_>>()?,
            bounds: ranges,
            customs: self.customs.iter().map(|text| import::Custom::parse(text)).collect::<Result<_>>()?,
            ..ImportOptions::default()
        })
    }
}

/// Tells Cargo to run the build script again when a file changes.
fn watch(file: &Path) {
    println!("cargo:rerun-if-changed={}", file.display());
}

/// An environment variable that Cargo sets for build scripts.
fn variable(name: &str) -> Result<String> {
    let missing = |_| Error::new(ErrorKind::Usage, format!("{name} is not set: this is for build scripts"));
    env::var(name).map_err(missing)
}
