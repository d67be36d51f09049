//! Custom operators on the command line: their declarations, and the libraries that define their functions.

use super::errors::{at_path, usage};
use crate::{
    error::{At, Error, ErrorKind, Result},
    import::Custom,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use symshape_runtime::external::Function;

/// Arguments for custom operators.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct Customs {
    /// Bind an operator to a C function: a declaration such as "com.acme:Swish(x: T[D...]) -> T[D...] = acme_swish",
    /// or a file with one declaration per line
    #[arg(id = "custom_operators", long = "custom", value_name = "DECLARATION|FILE")]
    pub declarations: Vec<String>,
    /// Library with these functions; linked into shared objects, and loaded by this process if it is shared
    #[arg(id = "linked_libraries", long = "link", value_name = "LIB")]
    pub libraries: Vec<PathBuf>,
}

impl Customs {
    /// Whether no argument is given.
    pub(super) fn is_empty(&self) -> bool {
        self.declarations.is_empty() && self.libraries.is_empty()
    }

    /// Whether an argument of `--custom` is a file, and not a declaration.
    pub(super) fn is_file(text: &str) -> bool {
        !text.contains("->")
    }

    /// The declared operators, with their functions in the libraries.
    pub(super) fn list(&self) -> Result<Vec<Custom>> {
        let mut list = Vec::new();
        for text in &self.declarations {
            if Customs::is_file(text) {
                let path = Path::new(text);
                let read = at_path(fs::read_to_string(path), path).at(|| "--custom")?;
                list.extend(Custom::parse_all(&read).at(|| text.clone())?);
            } else {
                list.push(Custom::parse(text).at(|| "--custom")?);
            }
        }

        if list.is_empty() && !self.libraries.is_empty() {
            return Err(usage("--link: the library is not used; declare its functions with --custom"));
        }

        list.into_iter().map(|custom| self.resolved(custom)).collect()
    }

    /// The operator with its function, if a library that can be opened here has it.
    fn resolved(&self, custom: Custom) -> Result<Custom> {
        let mut failure = None;
        for library in self.libraries.iter().filter(|path| is_shared(path)) {
            match Function::load(library, custom.symbol()) {
                Ok(function) => return Ok(custom.function(function)),
                Err(error) => failure = Some(error),
            }
        }

        // A library that can't be opened here may have it; the linker finds out.
        match failure.filter(|_| self.libraries.iter().all(|path| is_shared(path))) {
            Some(error) => Err(Error::new(ErrorKind::Io, error.to_string()).at("--link")),
            None => Ok(custom),
        }
    }
}

/// Whether the name is that of a shared library.
fn is_shared(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    [".so", ".dylib", ".dll"].iter().any(|end| name.ends_with(end)) || name.contains(".so.")
}
