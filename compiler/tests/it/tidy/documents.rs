//! Paths that the documents name must exist.

use super::root;
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Folders whose files the documents may name.
const FOLDERS: &[&str] = &["benches", "compiler", "examples", "fuzz", "python", "runtime", "symshape"];

#[test]
fn documents_name_paths_that_exist() {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        collect_paths(&root().join(folder), &mut paths);
    }

    let mut n_checked = 0;
    let mut complaints = String::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap_or_else(|e| panic!("{}: {e}", document.display()));
        for (number, line) in text.lines().enumerate() {
            for path in named_paths(line) {
                n_checked += 1;
                if !paths.iter().any(|existing| existing.ends_with(&format!("/{path}"))) {
                    _ = writeln!(complaints, "  {}:{}: {path}", document.display(), number + 1);
                }
            }
        }
    }
    assert!(n_checked > 50, "found only {n_checked} paths in the documents");
    assert!(complaints.is_empty(), "documents name paths that don't exist:\n{complaints}");
}

/// The Markdown files for contributors and users.
fn documents() -> Vec<PathBuf> {
    let mut documents = Vec::new();
    for folder in [root(), root().join("docs")] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            // The changelog names files of older versions.
            let is_changelog = path.ends_with("CHANGELOG.md");
            if path.extension().is_some_and(|extension| extension == "md") && !is_changelog {
                documents.push(path);
            }
        }
    }
    documents
}

/// The paths in backticks: Rust files, and folders, which end with a slash.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let is_path_char = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(move |text| {
        let is_source = text.ends_with(".rs") || text.ends_with('/');
        is_source && text.len() > 1 && text.chars().all(is_path_char)
    })
}

/// All files and folders below `folder`, with a slash after each folder, from the root of the repository.
fn collect_paths(folder: &Path, paths: &mut Vec<String>) {
    let relative = folder.strip_prefix(root()).unwrap_or(folder).to_string_lossy().replace('\\', "/");
    paths.push(format!("/{relative}/"));

    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if !path.is_dir() {
            paths.push(format!("/{relative}/{}", name.to_string_lossy()));
        } else if name != "target" {
            collect_paths(&path, paths);
        }
    }
}
