//! The snippets in the documents work: every C snippet compiles with the header of the bundled model, and the Rust
//! snippets that need a build script occur in the example that has one.

use crate::foreign;

use symshape_compiler::{
    CompileOptions, import,
    pipeline::{Artifact, Lowered, Pipeline},
    target::Target,
};

/// The snippets in this language.
fn snippets<'c>(chapter: &'c str, language: &str) -> Vec<&'c str> {
    let fence = format!("```{language}\n");
    chapter.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The model that the chapters speak of.
fn lowered(options: CompileOptions) -> Lowered {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/block.onnx");
    let range = symshape::Declaration::range;
    let import_options = import::ImportOptions {
        dims: [("N".into(), range(1, 16)), ("S".into(), range(1, 128))].into(),
        ..Default::default()
    };
    let model = import::Model::open(std::path::Path::new(path)).expect("the bundled model");
    let graph = import::import(&model, &import_options).expect("the bundled model");
    Pipeline::new(&graph).options(options).lower().expect("supported")
}

/// Compiles each C snippet of a chapter in a folder that has this header.
fn check(chapter: &str, header: &str, folder: &std::path::Path) {
    std::fs::write(folder.join("block.h"), header).expect("a header");
    let list = snippets(chapter, "c");
    assert!(list.len() >= 2, "the chapter shows how to call the model");
    for snippet in list {
        let include = if snippet.contains("#include \"block.h\"") { "" } else { "#include \"block.h\"\n" };
        std::fs::write(folder.join("snippet.c"), format!("{include}{snippet}")).expect("a file");
        foreign::compile(folder, "cc", "snippet.c", &[]);
    }
}

#[test]
fn source_is_called_as_its_chapter_says() {
    let source = lowered(CompileOptions::for_c_source()).source("block.h").expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    check(include_str!("../../../docs/c-source.md"), &source.header, folder.path());
    std::fs::write(folder.path().join("block.c"), source.code).expect("a source");
    foreign::compile(folder.path(), "cc", "block.c", &[]);
    foreign::compile(folder.path(), "cc", "block.c", &["-DBLOCK_STATIC_ARENA"]);
}

#[test]
fn objects_are_called_as_their_chapter_says() {
    let target = Target::host().expect("this machine");
    let compiled = lowered(CompileOptions::default()).compile(&target, Artifact::Object).expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    check(include_str!("../../../docs/embedding-c.md"), &compiled.header, folder.path());
}

#[test]
fn requests_are_grouped_as_their_chapter_says() {
    let target = Target::host().expect("this machine");
    let compiled = lowered(CompileOptions::default()).compile(&target, Artifact::Object).expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    check(include_str!("../../../docs/serving.md"), &compiled.header, folder.path());
}

/// All Rust snippets of a chapter are from the files of its example.
#[track_caller]
fn shows(chapter: &str, language: &str, n_snippets: usize, example: &[&str]) {
    let list = snippets(chapter, language);
    assert_eq!(list.len(), n_snippets);
    for snippet in list {
        assert!(example.iter().any(|program| program.contains(snippet)), "not in the example:\n{snippet}");
    }
}

#[test]
fn the_chapter_on_build_scripts_shows_the_example() {
    let example = [
        include_str!("../../../examples/embed/build.rs"),
        include_str!("../../../examples/embed/src/main.rs"),
    ];
    shows(include_str!("../../../docs/build-rs.md"), "rust", 4, &example);
}

#[test]
fn the_chapter_on_bare_metal_shows_the_example() {
    let example = [
        include_str!("../../../examples/linked/build.rs"),
        include_str!("../../../examples/linked/src/main.rs"),
    ];
    shows(include_str!("../../../docs/bare-metal.md"), "rust,no_run", 2, &example);
}

#[test]
fn the_readme_shows_what_works() {
    let readme = include_str!("../../../README.md");
    // Snippets that occur in the example are compiled there.
    let code = |text: &str| text.split("//").next().unwrap_or_default().trim().to_string();
    let example: Vec<String> = include_str!("../../src/pipeline.rs")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("///").map(code))
        .collect();
    for line in snippets(readme, "rust")[0].lines().map(code) {
        assert!(example.contains(&line), "not in the example of `pipeline::jit`: {line}");
    }
    let target = Target::host().expect("this machine");
    let compiled = lowered(CompileOptions::default()).compile(&target, Artifact::Object).expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("block.h"), compiled.header).expect("a header");
    let (include, body) = snippets(readme, "c")[0].split_once("\n\n").expect("an include and statements");
    let program = format!(
        "{include}\nvoid call(const float *, float *, void *);\nvoid call(const float *x, float *y, void *arena) {{\n{body}}}\n"
    );
    std::fs::write(folder.path().join("snippet.c"), program).expect("a file");
    foreign::compile(folder.path(), "cc", "snippet.c", &[]);
}
