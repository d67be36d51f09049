//! A program as an object file: position-independent, importing nothing but the functions that the model calls by name.

use crate::{
    codegen::{self, Options, Summary},
    error::{Error, Result},
    kernel::Program,
    plan::Plan,
    target::{Placement, Target},
};
use cranelift_module::default_libcall_names;
use cranelift_object::{ObjectBuilder, ObjectModule};
use object::{Object, ObjectSymbol};

/// The object file and what is in it.
///
/// # Errors
/// When the target is not supported, or the program asks for something that its code generator lacks.
pub fn object(
    program: &Program,
    plan: &Plan,
    target: &Target,
    options: &Options,
) -> Result<(Vec<u8>, Summary)> {
    let isa = target.isa(Placement::Object)?;
    let builder = ObjectBuilder::new(isa, program.name.as_str(), default_libcall_names())
        .map_err(|error| Error::unsupported(error.to_string()))?;
    let mut module = ObjectModule::new(builder);
    let options = Options { level: Some(target.level), ..options.clone() };
    let summary = codegen::generate(program, plan, &options, &mut module)?;
    let bytes = module.finish().emit().map_err(|error| Error::internal(format!("object: {error}")))?;
    let callees = program.callees();
    let declared = |name: &String| callees.iter().any(|callee| callee.symbol == *name);
    match imports(&bytes)?.iter().find(|name| !declared(name)) {
        Some(name) => Err(Error::internal(format!("the object would import `{name}`"))),
        None => Ok((bytes, summary)),
    }
}

/// Names of the symbols that an object leaves to others.
///
/// # Errors
/// When it is no object.
pub fn imports(object: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(object).map_err(|error| Error::internal(format!("object: {error}")))?;
    let undefined = file.symbols().filter(|symbol| symbol.is_undefined());
    Ok(undefined
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty())
        .map(Into::into)
        .collect())
}
