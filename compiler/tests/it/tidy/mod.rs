//! Invariants of the source that a machine can check; the text of a failure says what to do.

mod documents;
mod imports;

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// The modules that each module of the compiler may use. `graph` and `kernel` know no stage, and stages know only the
/// representations between them: only `pipeline` knows all.
const EDGES: &[(&str, &[&str])] = &[
    ("import", &["graph"]),
    ("opt", &["graph"]),
    ("offload", &["graph", "kernel"]),
    ("lower", &["graph", "kernel"]),
    ("schedule", &["kernel", "target"]),
    ("state", &["graph", "opt"]),
    ("ragged", &["graph", "kernel"]),
    ("plan", &["kernel"]),
    ("codegen", &["kernel", "options", "plan", "target"]),
    ("emit", &["codegen", "kernel", "options", "plan", "target"]),
    ("options", &["kernel", "partition", "plan", "target"]),
    ("partition", &["kernel"]),
    (
        "pipeline",
        &[
            "codegen",
            "emit",
            "graph",
            "kernel",
            "lower",
            "offload",
            "opt",
            "opt",
            "options",
            "partition",
            "plan",
            "ragged",
            "schedule",
            "state",
            "target",
        ],
    ),
    ("accuracy", &["emit", "graph", "kernel", "offload", "opt", "options", "pipeline", "state", "target"]),
    ("quantise", &["accuracy", "graph", "opt", "pipeline"]),
    ("profile", &["accuracy", "emit", "graph", "kernel", "partition", "pipeline", "scalar", "tensor"]),
    ("embed", &["accuracy", "emit", "graph", "import", "options", "pipeline", "quantise", "target"]),
    (
        "cli",
        &[
            "accuracy",
            "codegen",
            "emit",
            "graph",
            "import",
            "kernel",
            "offload",
            "opt",
            "options",
            "partition",
            "pipeline",
            "plan",
            "profile",
            "quantise",
            "ragged",
            "state",
            "target",
        ],
    ),
    ("bin", &[]),
    ("lib", &[]),
    ("graph", &[]),
    ("kernel", &[]),
    ("scalar", &[]),
    ("tensor", &[]),
    ("text", &[]),
    ("target", &[]),
    ("error", &[]),
    ("external", &[]),
    ("random", &[]),
    ("parallel", &[]),
];

/// Vocabulary that every module may use.
const SHARED: &[&str] = &["error", "external", "parallel", "random", "scalar", "tensor", "text"];

/// The only files that may hold unsafe code.
const UNSAFE: &[&str] = &[
    "compiler/src/bin/symc.rs",
    "compiler/src/emit/jit.rs",
    // Calls of functions with more features of the machine, which is checked first.
    "compiler/src/graph/eval/quick/wide.rs",
    "python/src/array.rs",
    // It generates unsafe code, and has none itself.
    "runtime/src/abi.rs",
    "runtime/src/arena.rs",
    "runtime/src/call.rs",
    "runtime/src/descriptor.rs",
    "runtime/src/element.rs",
    "runtime/src/external.rs",
    "runtime/src/linked.rs",
    "runtime/src/loader.rs",
    "runtime/src/mmap.rs",
    "runtime/src/model.rs",
    "runtime/src/partitions.rs",
    "runtime/src/pool.rs",
    "runtime/src/rehearsal.rs",
    "runtime/src/steps.rs",
    "runtime/src/violation.rs",
];

/// File names that say nothing about the content.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "misc"];

const MAX_FILE_LINES: usize = 600;
const MAX_FN_LINES: usize = 100;

struct Source {
    /// From the root of the repository.
    path: String,
    text: String,
}

impl Source {
    /// The lines that are code: without comments, and up to the unit tests.
    fn code(&self) -> impl Iterator<Item = &str> {
        let end = self.text.find("\n#[cfg(test)]\nmod ").unwrap_or(self.text.len());
        self.text[..end].lines().filter(|line| !line.trim_start().starts_with("//"))
    }
}

fn root() -> PathBuf {
    let compiler = Path::new(env!("CARGO_MANIFEST_DIR"));
    compiler.parent().map_or_else(|| compiler.to_path_buf(), Path::to_path_buf)
}

fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    for folder in ["compiler/src", "python/src", "runtime/src", "symshape/src"] {
        collect(&root().join(folder), &mut files);
    }
    assert!(files.len() > 20, "the sources were not found below {}", root().display());
    files.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        Source { path, text }
    };
    files.into_iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn check(what: &str, complain: impl Fn(&Source, &mut String)) {
    let mut complaints = String::new();
    for source in &sources() {
        complain(source, &mut complaints);
    }
    assert!(complaints.is_empty(), "{what}:\n{complaints}");
}

/// The modules of this crate that a file names after `crate::`.
fn used_modules(source: &Source) -> BTreeSet<String> {
    let text: String = source.code().flat_map(|line| [line, "\n"]).collect();
    let ident = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut modules = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        // The end of another crate's name does not count.
        if text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            modules.insert(ident(rest));
            continue;
        };
        let mut depth = 0;
        let mut item = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => _ = modules.insert(ident(std::mem::take(&mut item).trim())),
                c if depth == 0 => item.push(c),
                _ => {}
            }
        }
        modules.insert(ident(item.trim()));
    }
    // Types are re-exported at the root; only modules are stages.
    modules.into_iter().filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

#[test]
fn stages_use_only_their_representations() {
    check("a module uses what it must not know (EDGES in this test)", |source, out| {
        let Some(path) = source.path.strip_prefix("compiler/src/") else { return };
        let module = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == module) else {
            _ = writeln!(out, "  {}: `{module}` has no row in EDGES", source.path);
            return;
        };
        for used in used_modules(source) {
            let known = EDGES.iter().any(|(name, _)| *name == used);
            if known
                && used != module
                && !SHARED.contains(&used.as_str())
                && !allowed.contains(&used.as_str())
            {
                _ = writeln!(out, "  {}: crate::{used}", source.path);
            }
        }
    });
}

/// The folders of `codegen`, each above those that it may use.
const CODEGEN_EDGES: &[(&str, &[&str])] = &[
    ("mod.rs", &["artefact.rs", "body", "formulas", "function", "microkernel", "run", "vector"]),
    ("artefact.rs", &["body", "function", "microkernel", "run", "vector"]),
    ("run", &["body", "function", "microkernel", "vector"]),
    ("body", &["function", "microkernel", "vector"]),
    ("function", &["formulas", "microkernel", "vector"]),
    ("microkernel", &["formulas", "vector"]),
    ("formulas", &[]),
    ("vector", &[]),
];

#[test]
fn folders_of_codegen_use_only_those_below() {
    let sources = sources();
    let imports = imports::Imports::of("compiler/src", &sources);
    let room = |path: &str| {
        let path = path.strip_prefix("compiler/src/codegen/")?;
        Some(path.split('/').next().unwrap_or(path).to_string())
    };
    let mut complaints = String::new();
    for (file, targets) in imports.files.iter().zip(&imports.arrows) {
        let Some(from) = room(&file.path) else { continue };
        let Some((_, allowed)) = CODEGEN_EDGES.iter().find(|(name, _)| *name == from) else {
            _ = writeln!(complaints, "  {}: `{from}` has no row in CODEGEN_EDGES", file.path);
            continue;
        };
        for target in targets.iter().map(|idx| &imports.files[*idx].path) {
            if room(target).is_some_and(|to| to != from && !allowed.contains(&to.as_str())) {
                _ = writeln!(complaints, "  {} uses {target}", file.path);
            }
        }
    }
    assert!(complaints.is_empty(), "arrows that CODEGEN_EDGES lacks:\n{complaints}");
}

#[test]
fn tile_plans_emit_no_code() {
    let sources = sources();
    let imports = imports::Imports::of("compiler/src", &sources);
    let mut complaints = String::new();
    let mut n_files = 0;
    for (file, targets) in imports.files.iter().zip(&imports.arrows) {
        if !file.path.starts_with("compiler/src/codegen/body/tiles/plan/") {
            continue;
        }
        n_files += 1;
        if file.text.contains("cranelift") {
            _ = writeln!(complaints, "  {} names Cranelift", file.path);
        }
        let emits = |path: &str| path.starts_with("compiler/src/codegen/function") || path.contains("/emit/");
        for target in targets.iter().map(|idx| &imports.files[*idx].path).filter(|path| emits(path)) {
            _ = writeln!(complaints, "  {} uses {target}", file.path);
        }
    }
    assert!(n_files > 5, "the plans of tiles are not where this test looks");
    assert!(complaints.is_empty(), "plans that emit code:\n{complaints}");
}

#[test]
fn every_module_has_documentation() {
    check("a module without `//!` in its first lines", |source, out| {
        if !source.text.starts_with("//!") {
            _ = writeln!(out, "  {}", source.path);
        }
    });
}

#[test]
fn file_names_are_specific() {
    check("a name that says nothing", |source, out| {
        let parts = source.path.trim_end_matches(".rs").split('/');
        if parts.into_iter().any(|part| EMPTY_NAMES.contains(&part)) {
            _ = writeln!(out, "  {}", source.path);
        }
    });
}

#[test]
fn comments_are_at_most_120_columns_wide() {
    check("a comment of more than 120 columns", |source, out| {
        for (idx, line) in source.text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            // Examples of operators and rules of a grammar are one line each.
            let is_unbreakable = comment.trim_start_matches(['/', '!']).trim_start().starts_with(['`', '|']);
            if line.chars().count() > 120 && !is_unbreakable {
                _ = writeln!(out, "  {}:{}", source.path, idx + 1);
            }
        }
    });
}

#[test]
fn files_and_functions_are_short() {
    check("too long: split by what the parts do", |source, out| {
        let lines: Vec<&str> = source.code().collect();
        if lines.len() > MAX_FILE_LINES {
            _ = writeln!(out, "  {}: {} lines, at most {MAX_FILE_LINES}", source.path, lines.len());
        }
        for (start, line) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            let indent = line.len() - line.trim_start().len();
            // rustfmt closes a function where it began.
            let close = format!("{}}}", " ".repeat(indent));
            let len = lines[start..].iter().position(|line| *line == close).map_or(0, |len| len + 1);
            if len > MAX_FN_LINES {
                _ = writeln!(out, "  {}: fn {name} has {len} lines, at most {MAX_FN_LINES}", source.path);
            }
        }
    });
}

/// The name of the function that begins in this line and continues on the next lines.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_head = before.trim().split([' ', '(']).all(|word| {
        ["", "pub", "crate)", "super)", "in", "const", "unsafe", "extern", "\"C\"", "async"].contains(&word)
    });
    let whole = line.trim_end().ends_with([';', '}']);
    (is_head && !whole).then(|| after.split(['(', '<']).next().unwrap_or(after))
}

#[test]
fn unsafe_code_is_only_in_listed_files() {
    check("unsafe code outside the list (UNSAFE in this test)", |source, out| {
        let is_unsafe = |line: &str| {
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|what| line.contains(what))
        };
        if source.code().any(is_unsafe) && !UNSAFE.contains(&source.path.as_str()) {
            _ = writeln!(out, "  {}", source.path);
        }
    });
}

/// A list with paths that don't exist hides new files of the same names.
#[test]
fn the_list_of_unsafe_files_is_exact() {
    let gone: Vec<&&str> = UNSAFE.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(gone.is_empty(), "in UNSAFE but not in the tree: {gone:?}");
}

/// The circles of files that exist, one a line, in `cycles.txt`. The list only shrinks: `BLESS=1` takes files out of
/// it and never puts one in.
#[test]
fn files_do_not_use_each_other_in_circles() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tidy/cycles.txt");
    let text = fs::read_to_string(&list).unwrap_or_else(|error| panic!("{}: {error}", list.display()));
    let known: BTreeSet<&str> = text.lines().collect();

    let sources = sources();
    let mut circles = BTreeSet::new();
    for folder in ["compiler/src", "python/src", "runtime/src", "symshape/src"] {
        circles.extend(imports::Imports::of(folder, &sources).cycles().iter().map(|files| files.join(" ")));
    }
    if circles.iter().map(String::as_str).eq(known.iter().copied()) {
        return;
    }

    // A circle that lost files is a subset of a known one.
    let files = |line: &str| line.split(' ').map(str::to_string).collect::<BTreeSet<_>>();
    let is_new = |circle: &&String| !known.iter().any(|line| files(circle).is_subset(&files(line)));
    let new: Vec<&String> = circles.iter().filter(is_new).collect();
    assert!(new.is_empty(), "files use each other in circles that cycles.txt does not list: {new:#?}");
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    assert!(bless, "circles are gone or smaller: BLESS=1 takes them out of {}", list.display());
    let text: String = circles.iter().map(|circle| format!("{circle}\n")).collect();
    fs::write(&list, text).unwrap_or_else(|error| panic!("{}: {error}", list.display()));
}
