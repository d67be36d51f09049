//! Runs `tests/filetests/**/*.ir`, one test a file: `cargo test -p symshape-compiler --test filetests depthwise` runs
//! those whose path contains `depthwise`.
//!
//! A file is a graph in text (a program of kernels for `codegen`), and after it, as comments, the output of one stage,
//! to the letter. `BLESS=1` rewrites the comments. The first line is `test STAGE [PASS]`, and a line of flags may
//! follow:
//!
//! ```text
//! test schedule unroll_and_jam
//! set precision=bf16x3 cpu=x86-64-v4-amx
//! ```
//!
//! | stage | output |
//! |---|---|
//! | `infer`, `error` | the graph as it is printed, with its types, or the error |
//! | `opt [PASS]` | the graph after all passes, or after one |
//! | `lower` | the kernels |
//! | `schedule [PASS]` | the kernels after all passes, or after one |
//! | `partition` | the table of partitions; flag `partitions=K` |
//! | `plan` | the arena's order and bound |
//! | `tiles` | the plans of contractions as tiles, at the level of the flag `cpu` |
//! | `codegen` | the functions of the kernels as CLIF, without microkernels |
//! | `microkernel` | the vector code of the microkernels at the level of the flag `cpu` |
//! | `c` | the functions of the kernels as C source |
//! | `run` | the outputs of the calls `; run NAME = TENSOR; …` by the reference evaluator; the optimised graph, the kernels' interpreter and compiled code must agree |
//!
//! Lists of more than eight elements are printed as a hash.

use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};
use symshape_compiler::{
    CompileOptions, Error, ErrorKind, Result,
    codegen::{self, ModuleForm, ModuleKind},
    graph::{Graph, eval, text, verify},
    kernel::{self, Policies, Program},
    lower, opt,
    options::Microkernels,
    partition,
    pipeline::{self, Lowered, Pipeline},
    plan,
    scalar::Precision,
    schedule,
    target::{Placement, Target},
    tensor::{Bytes, Tensor, fingerprint},
};
use symshape_runtime::{Context, TensorRef};

/// Longer lists of elements are printed as a hash.
const MAX_ELEMS: usize = 8;

/// Relative to the largest element of an output: how far compiled code may be from the reference evaluator.
const TOLERANCE: f64 = 1e-5;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut files = Vec::new();
    collect(&folder, &mut files);
    assert!(!files.is_empty(), "there are no filetests below {}", folder.display());

    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut tests: Vec<Trial> = files
        .into_iter()
        .map(|file| {
            let name = file.strip_prefix(&folder).unwrap_or(&file).with_extension("");
            let name = name.to_string_lossy().replace('\\', "/");
            Trial::test(name, move || check(&file, bless))
        })
        .collect();
    tests.push(Trial::test("docs/ir.md", documented_texts_are_printed_texts));
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "ir") {
            files.push(path);
        }
    }
}

/// Compares the file with its expected form, or rewrites it.
fn check(file: &Path, bless: bool) -> Result<(), Failed> {
    let found = fs::read_to_string(file)?;
    let want = expected(&found);
    if found == want {
        return Ok(());
    }
    if bless {
        fs::write(file, &want)?;
        return Ok(());
    }
    Err(format!("the output differs (BLESS=1 accepts it):\n{}", difference(&found, &want)).into())
}

/// The lines that differ, from the file and from the stage.
fn difference(found: &str, want: &str) -> String {
    let mut out = String::new();
    let mut old = found.lines();
    let mut new = want.lines();
    loop {
        match (old.next(), new.next()) {
            (None, None) => return out,
            (a, b) if a == b => {}
            (a, b) => {
                a.into_iter().for_each(|line| _ = writeln!(out, "  file    {line}"));
                b.into_iter().for_each(|line| _ = writeln!(out, "  output  {line}"));
            }
        }
    }
}

/// A test's head: `test STAGE [PASS]`, and the flags of a line `set KEY=VALUE …`.
struct Head<'a> {
    stage: &'a str,
    pass: Option<&'a str>,
    flags: BTreeMap<&'a str, &'a str>,
}

impl<'a> Head<'a> {
    fn read(lines: &[&'a str]) -> Head<'a> {
        let mut words = lines.first().and_then(|line| line.strip_prefix("test ")).unwrap_or("").split(' ');
        let flags = lines.get(1).and_then(|line| line.strip_prefix("set ")).unwrap_or("");
        Head {
            stage: words.next().unwrap_or(""),
            pass: words.next(),
            flags: flags.split(' ').filter_map(|flag| flag.split_once('=')).collect(),
        }
    }

    fn flag<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        let parse = |value: &&str| {
            value.parse().map_err(|_| Error::invalid(format!("flag `{name}`: `{value}` is not valid")))
        };
        self.flags.get(name).map(parse).transpose()
    }

    fn target(&self) -> Result<Target> {
        let cpu = self.flags.get("cpu").copied().unwrap_or("x86-64-v3");
        Target::parse(Some("x86_64-unknown-linux-gnu"), Some(cpu))
    }

    /// Options of the whole pipeline for the target of the flags.
    fn options(&self) -> Result<CompileOptions> {
        let partitions: Option<partition::Count> = self.flag("partitions")?;
        let precision = self.flags.get("precision").and_then(|name| Precision::from_name(name));
        Ok(CompileOptions::for_target(&self.target()?)
            .precision(precision.unwrap_or_default())
            .threads(self.flag("threads")?.unwrap_or(1))
            .policies(if partitions.is_some() { Policies::Any } else { Policies::Serial })
            .partitions(partitions))
    }
}

/// The file as it should be.
fn expected(file: &str) -> String {
    let lines: Vec<&str> = file.lines().collect();
    let code = lines.iter().rposition(|line| !line.trim().is_empty() && !line.starts_with(';'));
    let (source, tail) = lines.split_at(code.map_or(0, |last| last + 1));
    let head = Head::read(source);
    // Errors name lines of the file.
    let n_head = 1 + usize::from(!head.flags.is_empty());
    let text = "\n".repeat(n_head) + &source[n_head.min(source.len())..].join("\n");

    let answer = answer(&head, &text, tail).unwrap_or_else(|error| format!("error: {error}\n"));
    let mut out = source.join("\n") + "\n\n";
    for line in answer.lines() {
        let space = if line.is_empty() { "" } else { " " };
        _ = writeln!(out, ";{space}{}", elided(line));
    }
    out
}

/// The line with a long list of elements as its hash.
fn elided(line: &str) -> String {
    let Some(at) = line.find("const ") else { return line.to_string() };
    let Some(begin) = line[at..].find("] ").map(|end| at + end + 2) else { return line.to_string() };
    let (list, comment) = line[begin..].split_once(" ;").unwrap_or((&line[begin..], ""));
    if list.split(", ").count() <= MAX_ELEMS {
        return line.to_string();
    }
    let hash = fingerprint(list.trim_end().as_bytes());
    let comment = if comment.is_empty() { String::new() } else { format!(" ;{comment}") };
    format!("{}elided {hash:#018x}{comment}", &line[..begin])
}

fn answer(head: &Head<'_>, source: &str, tail: &[&str]) -> Result<String> {
    if head.stage == "codegen" {
        return clif(&verified(kernel::text::parse(source)?)?, head, true, "_kernel_");
    }
    let mut graph = text::parse(source)?;
    verify::verify(&graph)?;
    match head.stage {
        // Printing and reading a text must not change it.
        "infer" | "error" => {
            let printed = graph.to_string();
            let again = text::parse(&printed)?.to_string();
            Ok(if again == printed { printed } else { format!("{printed}is read as\n{again}") })
        }
        "opt" => {
            match head.pass {
                Some(pass) => find(&[opt::PASSES, opt::LATE_PASSES].concat(), pass)?(&mut graph)?,
                None => opt::optimize(&mut graph)?,
            }
            verify::verify(&graph)?;
            Ok(graph.to_string())
        }
        "lower" => Ok(verified(lower::lower(&graph)?)?.to_string()),
        "schedule" => {
            let mut program = lower::lower(&graph)?;
            program.microkernels = head.options()?.support;
            match head.pass {
                Some(pass) => find(schedule::PASSES, pass)?(&mut program)?,
                None => schedule::schedule(&mut program)?,
            }
            Ok(verified(program)?.to_string())
        }
        "partition" => {
            let program = Pipeline::new(&graph).options(head.options()?).lower()?.program;
            let is_row = |line: &&str| line.trim_start().starts_with("partition ");
            Ok(program.to_string().lines().filter(is_row).map(|line| format!("{line}\n")).collect())
        }
        "plan" => {
            let lowered = Pipeline::new(&graph).options(head.options()?).lower()?;
            Ok(plan::text::text(&lowered.program, &lowered.plan))
        }
        "tiles" => {
            let target = head.target()?;
            let program = Pipeline::new(&graph).options(head.options()?).lower()?.program;
            let level = target.wider.last().copied().unwrap_or(target.level);
            Ok(codegen::tile_plans(&program, level, &*target.isa(Placement::Object)?))
        }
        "microkernel" => {
            clif(&Pipeline::new(&graph).options(head.options()?).lower()?.program, head, false, "tile_")
        }
        "c" => {
            let lowered = Pipeline::new(&graph).options(CompileOptions::for_c_source()).lower()?;
            Ok(kernels_in_c(&lowered.source("model.h")?.code))
        }
        "run" => run(&graph, tail),
        stage => Err(Error::invalid(format!("there is no stage `{stage}`"))),
    }
}

/// The pass of this name.
fn find<F: Copy>(passes: &[(&str, F)], name: &str) -> Result<F> {
    let found = passes.iter().find(|(other, _)| *other == name).map(|(_, pass)| *pass);
    found.ok_or_else(|| Error::invalid(format!("there is no pass `{name}`")))
}

fn verified(program: Program) -> Result<Program> {
    kernel::verify::verify(&program)?;
    Ok(program)
}

/// The generated functions whose names contain `wanted`.
fn clif(program: &Program, head: &Head<'_>, scalar: bool, wanted: &str) -> Result<String> {
    let libcalls = cranelift_module::default_libcall_names();
    let isa = head.target()?.isa(Placement::Object)?;
    let builder = cranelift_object::ObjectBuilder::new(isa, "test", libcalls);
    let mut module = cranelift_object::ObjectModule::new(builder.expect("a builder"));
    let options = CompileOptions::default().listing(true).microkernels(if scalar {
        Microkernels::ScalarLoops
    } else {
        Microkernels::Native
    });
    let plan = plan::plan(program, &options.budget)?;
    let form = ModuleForm::new(ModuleKind::Object);
    let summary = codegen::generate(program, &plan, &form, &options, &mut module)?;

    let mut is_wanted = false;
    let mut out = String::new();
    for line in summary.clif.lines() {
        if let Some(name) = line.strip_prefix("; ") {
            is_wanted = name.contains(wanted);
        }
        if is_wanted && !(scalar && line.starts_with("; ")) {
            out += line;
            out.push('\n');
        }
    }
    Ok(out)
}

/// The functions of the kernels in a C source.
fn kernels_in_c(source: &str) -> String {
    let mut out = String::new();
    let mut is_wanted = false;
    for line in source.lines() {
        is_wanted |= line.starts_with("static") && line.contains("kernel");
        if is_wanted {
            _ = writeln!(out, "{line}");
        }
        is_wanted &= line != "}";
    }
    out
}

/// The outputs of each call by the reference evaluator, and a line where another way to run the graph disagrees.
fn run(graph: &Graph, tail: &[&str]) -> Result<String> {
    let mut optimized = graph.clone();
    opt::optimize(&mut optimized)?;
    let lowered = Pipeline::new(graph).lower()?;
    let model = pipeline::jit(graph)?;

    let mut out = String::new();
    for call in tail.iter().filter_map(|line| line.strip_prefix("; run")) {
        _ = writeln!(out, "run{call}");
        let inputs = inputs(graph, call)?;
        let want = eval::eval(graph, &inputs);
        match &want {
            Ok(results) => {
                for ((name, _), tensor) in graph.outputs.iter().zip(results) {
                    _ = writeln!(out, "  {name} = {tensor}");
                }
            }
            Err(error) => _ = writeln!(out, "  error: {error}"),
        }
        // Optimisation must not change a bit of the evaluator's results; kernels may add in another order.
        let others = [
            ("optimised", eval::eval(&optimized, &inputs), 0.0),
            ("interpreted", interpreted(graph, &lowered, &inputs), TOLERANCE),
            ("compiled", compiled(&model, &inputs), TOLERANCE),
        ];
        for (name, got, tolerance) in others {
            if !agree(&want, &got, tolerance) {
                _ = writeln!(out, "  but {name}: {got:?}");
            }
        }
    }
    Ok(out)
}

/// The inputs of a call `NAME = TENSOR; …`, in the order of the graph.
fn inputs(graph: &Graph, call: &str) -> Result<Vec<Tensor>> {
    let mut given: BTreeMap<&str, Tensor> = BTreeMap::new();
    for part in call.split(';').filter(|part| !part.trim().is_empty()) {
        let (name, tensor) = part.split_once('=').unwrap_or((part, ""));
        given.insert(name.trim(), tensor.trim().parse()?);
    }
    Ok(graph.inputs.iter().filter_map(|(name, _)| given.remove(name.as_str())).collect())
}

/// The outputs by the kernels' interpreter.
fn interpreted(graph: &Graph, lowered: &Lowered, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let binding = eval::bind(graph, &shapes)?;
    let dims: Vec<i64> = lowered.program.symbols.iter().map(|symbol| binding[symbol]).collect();
    kernel::eval::eval(&lowered.program, &dims, inputs)
}

/// The outputs by machine code.
fn compiled(model: &symshape_runtime::Model, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let failed = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Invalid, error.to_string());
    let mut context = Context::new(model).map_err(|error| failed(&error))?;
    let views: Vec<TensorRef<'_>> = inputs
        .iter()
        .map(|tensor| TensorRef::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes()))
        .collect::<Result<_, _>>()
        .map_err(|error| failed(&error))?;
    let outputs = context.run_views(&views).map_err(|error| failed(&error))?;
    let tensor = |idx: usize| {
        let output = outputs.get(idx);
        let bytes = Bytes::Owned(output.bytes().to_vec().into());
        Tensor::new(output.dtype(), output.shape().to_vec(), bytes).expect("an output has its shape's bytes")
    };
    Ok((0..outputs.len()).map(tensor).collect())
}

/// Whether both fail, or give the same within `tolerance`, relative to the largest element of an output.
fn agree(want: &Result<Vec<Tensor>>, got: &Result<Vec<Tensor>>, tolerance: f64) -> bool {
    match (want, got) {
        (Ok(want), Ok(got)) => {
            want.len() == got.len() && want.iter().zip(got).all(|(want, got)| close(want, got, tolerance))
        }
        (Err(_), Err(_)) => true,
        _ => false,
    }
}

fn close(want: &Tensor, got: &Tensor, tolerance: f64) -> bool {
    let elems = || (0..want.elems()).map(|idx| want.get(idx).as_f64());
    let largest =
        elems().filter(|elem| elem.is_finite()).fold(0.0, |largest: f64, elem| largest.max(elem.abs()));
    (want.dtype(), want.shape()) == (got.dtype(), got.shape())
        && elems().zip((0..got.elems()).map(|idx| got.get(idx).as_f64())).all(|(want, got)| {
            want == got || want.is_nan() && got.is_nan() || (want - got).abs() <= tolerance * largest
        })
}

fn documented_texts_are_printed_texts() -> Result<(), Failed> {
    let doc = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ir.md"))?;
    let blocks: Vec<&str> =
        doc.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let n_programs = blocks.iter().filter(|block| block.starts_with("program ")).count();
    assert!(0 < n_programs && n_programs < blocks.len(), "docs/ir.md shows no kernels, or no graph");
    for block in blocks {
        let printed = if block.starts_with("program ") {
            let program = kernel::text::parse(block)?;
            let unproven = kernel::verify::verify(&program)?;
            assert!(unproven.is_empty(), "{unproven:?}");
            program.to_string()
        } else {
            text::parse(block)?.to_string()
        };
        if printed != block {
            return Err(format!("docs/ir.md:\n{}", difference(block, &printed)).into());
        }
    }
    Ok(())
}
