//! Runs `tests/filetests/**/*.ir`: a graph (for `codegen` a program of kernels) in text, and behind it as comments all that the stage says about it.
//!
//! The first line is `test STAGE`. What the stage prints must be the trailing comment lines, to the letter;
//! `BLESS=1 cargo test --test filetests` writes them. In a `run` test the comments `; run NAME = TENSOR; …` are calls,
//! and each is followed by its outputs.

#[path = "it/machine.rs"]
#[allow(dead_code, reason = "the runner needs the plan only")]
mod machine;

use std::{fmt::Write, fs, path::Path, path::PathBuf};
use symshape_compiler::{
    Result,
    codegen::{self, Options},
    graph::{Graph, eval, text, verify},
    kernel::{self, Program},
    lower, opt, schedule,
    target::{Placement, Target},
    tensor::Tensor,
};

#[test]
fn filetests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    collect(&folder, &mut files);
    assert!(!files.is_empty(), "no filetests below {}", folder.display());
    for file in &files {
        let name = file.strip_prefix(&folder).unwrap_or(file).display();
        let Ok(found) = fs::read_to_string(file) else { panic!("{name}: not readable") };
        let want = expected(&found);
        if found != want && bless {
            fs::write(file, &want).unwrap_or_else(|error| panic!("{name}: {error}"));
        } else if found != want {
            wrong.push(format!("{name}\n{}", difference(&found, &want)));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ (BLESS=1):\n{}", wrong.len(), files.len(), wrong.join("\n"));
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

/// The lines that differ, both ways.
fn difference(found: &str, want: &str) -> String {
    let mut out = String::new();
    let (mut old, mut new) = (found.lines(), want.lines());
    loop {
        match (old.next(), new.next()) {
            (None, None) => return out,
            (a, b) if a == b => {}
            (a, b) => {
                a.into_iter().for_each(|line| _ = writeln!(out, "  is      {line}"));
                b.into_iter().for_each(|line| _ = writeln!(out, "  wanted  {line}"));
            }
        }
    }
}

/// The file as it should be.
fn expected(file: &str) -> String {
    let lines: Vec<&str> = file.lines().collect();
    let code = lines.iter().rposition(|line| !line.trim().is_empty() && !line.starts_with(';'));
    let (head, tail) = lines.split_at(code.map_or(0, |last| last + 1));
    let stage = head.first().and_then(|line| line.strip_prefix("test ")).unwrap_or("");
    let source = std::iter::once("").chain(head.iter().skip(1).copied()).collect::<Vec<_>>().join("\n");
    let answer = match answer(stage, &source, tail) {
        Ok(answer) => answer,
        Err(error) => format!("error: {error}\n"),
    };
    let mut out = head.join("\n") + "\n\n";
    for line in answer.lines() {
        let space = if line.is_empty() { "" } else { " " };
        _ = writeln!(out, ";{space}{line}");
    }
    out
}

fn answer(stage: &str, source: &str, tail: &[&str]) -> Result<String> {
    if stage == "codegen" {
        return clif(&checked(kernel::text::parse(source)?)?);
    }
    let mut graph = text::parse(source)?;
    verify::verify(&graph)?;
    match stage {
        // The oracle of a text is its reading: printing must not change it.
        "infer" | "error" => {
            let printed = graph.to_string();
            let again = text::parse(&printed)?.to_string();
            Ok(if again == printed { printed } else { format!("{printed}is read as\n{again}") })
        }
        "opt" => {
            opt::optimize(&mut graph)?;
            Ok(graph.to_string())
        }
        "lower" => Ok(checked(lower::lower(&graph)?)?.to_string()),
        "schedule" => {
            let mut program = lower::lower(&graph)?;
            schedule::schedule(&mut program)?;
            Ok(checked(program)?.to_string())
        }
        "run" => run(&graph, tail),
        _ => Ok(format!("there is no stage `{stage}`\n")),
    }
}

/// The kernels' functions, without vector leaves.
fn clif(program: &Program) -> Result<String> {
    let target = Target::parse(Some("x86_64-unknown-linux-gnu"), Some("x86-64-v3"))?;
    let libcalls = cranelift_module::default_libcall_names();
    let builder = cranelift_object::ObjectBuilder::new(target.isa(Placement::Object)?, "test", libcalls);
    let mut module = cranelift_object::ObjectModule::new(builder.expect("a builder"));
    let options = Options { clif: true, scalar: true, ..Options::default() };
    let summary = codegen::generate(program, &machine::stacked(program), &options, &mut module)?;
    let mut wanted = false;
    let mut out = String::new();
    for line in summary.clif.lines() {
        if let Some(name) = line.strip_prefix("; ") {
            wanted = name.contains("_kernel_");
        } else if wanted {
            out += line;
            out.push('\n');
        }
    }
    Ok(out)
}

fn checked(program: Program) -> Result<Program> {
    kernel::verify::verify(&program)?;
    Ok(program)
}

fn run(graph: &Graph, tail: &[&str]) -> Result<String> {
    let mut optimized = graph.clone();
    opt::optimize(&mut optimized)?;
    let mut out = String::new();
    for call in tail.iter().filter_map(|line| line.strip_prefix("; run")) {
        _ = writeln!(out, "run{call}");
        match outputs(graph, call) {
            Ok(lines) => {
                out += &lines;
                let again = outputs(&optimized, call);
                if again.as_ref() != Ok(&lines) {
                    _ = writeln!(out, "but optimized: {again:?}");
                }
            }
            Err(error) => _ = writeln!(out, "error: {error}"),
        }
    }
    Ok(out)
}

fn outputs(graph: &Graph, call: &str) -> Result<String> {
    let mut given: Vec<(&str, Tensor)> = Vec::new();
    for part in call.split(';').filter(|part| !part.trim().is_empty()) {
        let (name, tensor) = part.split_once('=').unwrap_or((part, ""));
        given.push((name.trim(), tensor.trim().parse()?));
    }
    let input =
        |name: &String| given.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor.clone());
    let inputs: Vec<Tensor> = graph.inputs.iter().filter_map(|(name, _)| input(name)).collect();
    let results = eval::eval(graph, &inputs)?;
    let mut out = String::new();
    for ((name, _), tensor) in graph.outputs.iter().zip(results) {
        _ = writeln!(out, "  {name} = {tensor}");
    }
    Ok(out)
}

#[test]
fn the_texts_in_the_documentation_are_printed_graphs_and_kernels() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ir.md");
    let doc = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let blocks: Vec<&str> =
        doc.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let n_programs = blocks.iter().filter(|block| block.starts_with("program ")).count();
    assert!(0 < n_programs && n_programs < blocks.len(), "docs/ir.md shows no kernels, or no graph");
    for block in blocks {
        if block.starts_with("program ") {
            let program = kernel::text::parse(block).unwrap_or_else(|error| panic!("{error}"));
            let unproven = kernel::verify::verify(&program).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((program.to_string(), unproven.len()), (block.to_string(), 0));
        } else {
            let printed = text::parse(block).map(|graph| graph.to_string());
            assert_eq!(printed.as_deref(), Ok(block));
        }
    }
}
