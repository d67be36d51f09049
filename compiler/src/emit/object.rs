//! A program as an object file: position-independent, importing nothing but the functions that the model calls by name.

use crate::{
    codegen::{self, Options, Summary},
    error::{Error, Result},
    kernel::Program,
    plan::Plan,
    target::{Placement, Target},
};
use cranelift_module::{FuncId, default_libcall_names};
use cranelift_object::{
    ObjectBuilder, ObjectModule, ObjectProduct,
    object::{
        RelocationEncoding, RelocationFlags, RelocationKind, SectionFlags, SectionKind, elf,
        write::Relocation,
    },
};
use object::{Object, ObjectSymbol};

/// The section of addresses of functions that loaders run.
pub(super) const INIT_ARRAY: &str = ".init_array";

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
    let mut product = module.finish();
    if let Some(load) = summary.load {
        run_when_loaded(&mut product, load)?;
    }
    let bytes = product.emit().map_err(|error| Error::internal(format!("object: {error}")))?;
    let callees = program.callees();
    let declared = |name: &String| callees.iter().any(|callee| callee.symbol == *name);
    match imports(&bytes)?.iter().find(|name| !declared(name)) {
        Some(name) => Err(Error::internal(format!("the object would import `{name}`"))),
        None => Ok((bytes, summary)),
    }
}

/// Lists a function among those that run when the object is loaded, as ELF has it.
fn run_when_loaded(product: &mut ObjectProduct, function: FuncId) -> Result<()> {
    let symbol = product.function_symbol(function);
    let object = &mut product.object;
    let kind = SectionKind::Elf(elf::SHT_INIT_ARRAY);
    let section = object.add_section(Vec::new(), INIT_ARRAY.into(), kind);
    object.section_mut(section).flags =
        SectionFlags::Elf { sh_flags: u64::from(elf::SHF_ALLOC | elf::SHF_WRITE) };
    let offset = object.append_section_data(section, &[0; 8], 8);
    let flags = RelocationFlags::Generic {
        kind: RelocationKind::Absolute,
        encoding: RelocationEncoding::Generic,
        size: 64,
    };
    let relocation = Relocation { offset, symbol, addend: 0, flags };
    let added = object.add_relocation(section, relocation);
    added.map_err(|error| Error::internal(format!("object: {error}")))
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
