//! A program as an object file: position-independent, importing nothing but the functions that the model calls by name.

use crate::{
    codegen::{self, ModuleForm, ModuleKind, Summary},
    error::{Error, Result},
    kernel::Program,
    options::CompileOptions,
    plan::{ALIGN_BYTES, Plan},
    target::{Placement, Target},
    tensor::Bytes,
};
use cranelift_module::{FuncId, default_libcall_names};
use cranelift_object::{
    ObjectBuilder, ObjectModule, ObjectProduct,
    object::{
        Architecture, BinaryFormat, RelocationEncoding, RelocationFlags, RelocationKind, SectionFlags,
        SectionKind, elf,
        write::{Relocation, StandardSection, SymbolId},
    },
};
use object::{Object as _, ObjectSymbol};
use std::fmt;

/// The section of addresses of functions that loaders run.
pub(super) const INIT_ARRAY: &str = ".init_array";

/// The section of weights in a file that has room for them only.
pub(super) const WEIGHTS: &str = ".rodata.weights";

/// An object file to be. Weights are most of it, and lent from the program until a file is made.
pub struct Object {
    product: ObjectProduct,
    weights: Vec<(SymbolId, Bytes)>,
    /// Functions that somebody else defines.
    callees: Vec<String>,
}

/// A file without its weights, and how far in the section [`WEIGHTS`] each of them begins.
pub(super) type Apart<'o> = (Vec<u8>, Vec<(u64, &'o [u8])>);

impl Object {
    /// The file.
    ///
    /// # Errors
    /// When it would import more than the functions that the program calls by name.
    pub fn into_bytes(mut self) -> Result<Vec<u8>> {
        let object = &mut self.product.object;
        let section = object.section_id(StandardSection::ReadOnlyData);
        for (symbol, bytes) in self.weights.drain(..) {
            object.add_symbol_data(symbol, section, &bytes, ALIGN_BYTES as u64);
        }
        self.write()
    }

    /// The file apart from its weights, for a linker that copies them from where they are.
    ///
    /// # Errors
    /// As [`Self::into_bytes`].
    pub(super) fn apart(&mut self) -> Result<Apart<'_>> {
        let object = &mut self.product.object;
        let section = object.add_section(Vec::new(), WEIGHTS.into(), SectionKind::UninitializedData);
        let flags = SectionFlags::Elf { sh_flags: u64::from(elf::SHF_ALLOC) };
        object.section_mut(section).flags = flags;
        let add = |(symbol, bytes): &(SymbolId, Bytes)| {
            object.add_symbol_bss(*symbol, section, bytes.len() as u64, ALIGN_BYTES as u64)
        };
        let places: Vec<u64> = self.weights.iter().map(add).collect();
        let bytes = self.write()?;
        Ok((bytes, places.into_iter().zip(self.weights.iter().map(|(_, bytes)| &**bytes)).collect()))
    }

    /// Whether somebody else defines functions that it calls.
    pub(super) fn has_callees(&self) -> bool {
        !self.callees.is_empty()
    }

    /// Whether it is ELF for x86-64.
    pub(super) fn is_x86_64_elf(&self) -> bool {
        let object = &self.product.object;
        (object.format(), object.architecture()) == (BinaryFormat::Elf, Architecture::X86_64)
    }

    fn write(&self) -> Result<Vec<u8>> {
        let bytes = self.product.object.write();
        let bytes = bytes.map_err(|error| Error::internal(format!("object: {error}")))?;
        match imports(&bytes)?.iter().find(|name| !self.callees.contains(name)) {
            Some(name) => Err(Error::internal(format!("the object would import `{name}`"))),
            None => Ok(bytes),
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("weights", &self.weights.len()).finish_non_exhaustive()
    }
}

/// The object file and what is in it.
///
/// # Errors
/// When the target is not supported, or the program asks for something that its code generator lacks.
pub fn object(
    program: &Program,
    plan: &Plan,
    target: &Target,
    kind: ModuleKind,
    options: &CompileOptions,
) -> Result<(Object, Summary)> {
    let isa = target.isa(Placement::Object)?;
    let builder = ObjectBuilder::new(isa, program.name.as_str(), default_libcall_names())
        .map_err(|error| Error::unsupported(error.to_string()))?;
    let mut module = ObjectModule::new(builder);
    let form = ModuleForm { kind, level: Some(target.level), wider: target.wider.clone() };
    let mut summary = codegen::generate(program, plan, &form, options, &mut module)?;
    let mut product = module.finish();
    if let Some(load) = summary.load {
        run_when_loaded(&mut product, load)?;
    }
    let lent = std::mem::take(&mut summary.lent);
    let weights = lent.into_iter().map(|(id, bytes)| (product.data_symbol(id), bytes)).collect();
    let callees = program.callees().iter().map(|callee| callee.symbol.clone()).collect();
    Ok((Object { product, weights, callees }, summary))
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
