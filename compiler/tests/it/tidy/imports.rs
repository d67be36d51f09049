//! Which file uses which: paths in `use` declarations and in code, resolved to the files that define the modules.
//!
//! A re-export (`pub use child::Item`) is resolved to the file of the child, and is not an arrow itself.

use super::Source;
use std::collections::{BTreeMap, BTreeSet};

/// A module's path from the root of its crate, such as `["codegen", "run"]`.
type Module = Vec<String>;

/// The arrows between the files of one crate, as indices into its files.
pub(super) struct Imports<'s> {
    pub(super) files: Vec<&'s Source>,
    pub(super) arrows: Vec<BTreeSet<usize>>,
}

impl<'s> Imports<'s> {
    /// The arrows of the crate whose sources are in `folder`, such as `compiler/src`.
    pub(super) fn of(folder: &str, sources: &'s [Source]) -> Imports<'s> {
        let files: Vec<&Source> = sources.iter().filter(|source| source.path.starts_with(folder)).collect();
        let modules: BTreeMap<Module, usize> =
            files.iter().enumerate().map(|(idx, file)| (module_of(folder, &file.path), idx)).collect();
        let texts: Vec<String> = files.iter().map(|file| statements(file)).collect();

        let mut exports = BTreeMap::new();
        for (module, idx) in &modules {
            for (path, name) in declarations(&texts[*idx], true) {
                exports.insert((module.clone(), name), absolute(&path, module, &modules));
            }
        }

        let arrows = modules.iter().map(|(module, idx)| (*idx, module)).collect::<BTreeMap<_, _>>();
        let arrows = arrows.into_iter().map(|(idx, module)| {
            let uses = declarations(&texts[idx], false).into_iter().map(|(path, _)| path);
            let paths: Vec<Module> = uses.chain(inline_paths(&texts[idx])).collect();
            let resolve = |path: &Module| resolve(absolute(path, module, &modules)?, &modules, &exports);
            paths.iter().filter_map(resolve).filter(|target| *target != idx).collect()
        });
        Imports { arrows: arrows.collect(), files }
    }

    /// The groups of files that use one another in circles, each sorted by path.
    pub(super) fn cycles(&self) -> Vec<Vec<&'s str>> {
        let reach: Vec<BTreeSet<usize>> = (0..self.files.len()).map(|idx| self.reachable(idx)).collect();
        let mut cycles: Vec<Vec<&str>> = Vec::new();
        let mut done = BTreeSet::new();
        for idx in 0..self.files.len() {
            let circle: Vec<usize> =
                reach[idx].iter().copied().filter(|other| reach[*other].contains(&idx)).collect();
            if circle.len() > 1 && done.insert(circle.clone()) {
                let mut paths: Vec<&str> = circle.iter().map(|idx| self.files[*idx].path.as_str()).collect();
                paths.sort_unstable();
                cycles.push(paths);
            }
        }
        cycles
    }

    fn reachable(&self, from: usize) -> BTreeSet<usize> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(idx) = open.pop() {
            open.extend(self.arrows[idx].iter().filter(|target| seen.insert(**target)));
        }
        seen
    }
}

/// `compiler/src/codegen/run/mod.rs` and `compiler/src/codegen/run.rs` are the module `codegen::run`.
fn module_of(folder: &str, path: &str) -> Module {
    let path = path.trim_start_matches(folder).trim_start_matches('/').trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let parts = path.split('/').filter(|part| !["", "lib"].contains(part));
    parts.map(str::to_string).collect()
}

/// The code of a file, one line for each statement that may hold a path; strings and comments at line ends are cut.
fn statements(source: &Source) -> String {
    let lines = source.code().map(|line| line.split("//").next().unwrap_or(line).split('"').step_by(2));
    lines.flat_map(|parts| parts.chain(["\n"])).collect()
}

/// The paths and names of the `use` declarations: of re-exports, or of the others.
fn declarations(text: &str, exports: bool) -> Vec<(Module, String)> {
    let mut out = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let head = text[..at].rsplit(['\n', ';', '}']).next().unwrap_or("").trim();
        let is_export = head.starts_with("pub");
        if (head.is_empty() || is_export) && is_export == exports {
            let tree = text[at + 4..].split(';').next().unwrap_or("");
            let tree: String = tree.split_whitespace().collect::<Vec<_>>().join(" ");
            expand(&tree, &mut Vec::new(), &mut out);
        }
    }
    out
}

/// Expands a tree such as `a::{self, b::C as D}` into its paths.
fn expand(tree: &str, prefix: &mut Module, out: &mut Vec<(Module, String)>) {
    let tree = tree.trim();
    let Some((before, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut full = prefix.clone();
        full.extend(path.split("::").map(|part| part.trim().to_string()));
        if full.last().is_some_and(|last| last == "self") {
            full.pop();
        }
        let name = if alias.is_empty() {
            full.last().cloned().unwrap_or_default()
        } else {
            alias.trim().to_string()
        };
        out.push((full, name));
        return;
    };
    let depth = prefix.len();
    prefix.extend(before.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_string));
    let group = group.rsplit_once('}').map_or(group, |(inside, _)| inside);
    let mut nested = 0;
    let parts = group.split(|c| {
        nested += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && nested == 0
    });
    for part in parts.filter(|part| !part.trim().is_empty()) {
        expand(part, prefix, out);
    }
    prefix.truncate(depth);
}

/// Paths of at least two parts in code.
fn inline_paths(text: &str) -> Vec<Module> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_word(c) && c != ':');
    // A word that ends with `::` is the head of a group in a `use` declaration.
    let paths = words.filter(|word| word.contains("::") && !word.ends_with("::"));
    let paths = paths.map(|word| word.split("::").map(str::to_string).collect());
    paths.filter(|path: &Module| path[0].starts_with(char::is_lowercase)).collect()
}

/// The path from the crate's root; `None` for paths into other crates.
fn absolute(path: &[String], module: &Module, modules: &BTreeMap<Module, usize>) -> Option<Module> {
    let first = path.first()?.as_str();
    let mut base = match first {
        "crate" => Module::new(),
        "self" | "super" => module.clone(),
        child => {
            let inner: Module = module.iter().cloned().chain([child.to_string()]).collect();
            modules.contains_key(&inner).then(|| module.clone())?
        }
    };
    for part in path.iter().skip_while(|part| ["crate", "self"].contains(&part.as_str())) {
        if part == "super" {
            base.pop()?;
        } else {
            base.push(part.clone());
        }
    }
    Some(base)
}

/// The file of the module that a path leads to, through re-exports.
fn resolve(
    mut path: Module,
    modules: &BTreeMap<Module, usize>,
    exports: &BTreeMap<(Module, String), Option<Module>>,
) -> Option<usize> {
    'follow: for _ in 0..8 {
        for len in (0..path.len()).rev() {
            let (module, rest) = path.split_at(len);
            if modules.contains_key(&path[..=len].to_vec()) {
                break;
            }
            let key = (module.to_vec(), rest[0].clone());
            if let Some(Some(target)) = exports.get(&key).filter(|_| modules.contains_key(&key.0)) {
                path = target.iter().chain(&rest[1..]).cloned().collect();
                continue 'follow;
            }
        }
        break;
    }
    (0..=path.len()).rev().find_map(|len| modules.get(&path[..len].to_vec()).copied())
}
