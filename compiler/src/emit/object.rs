//! Compiles a program to an object file. It is position-independent and imports only the external functions of the
//! model.

use super::{
    file::{self, Staged},
    link::{Format, INIT_ARRAY, WEIGHTS},
    seal::{WEIGHTS_PART, sealed_end},
    weights::WeightsFile,
};
use crate::{
    codegen::{self, ModuleForm, ModuleKind, Summary, WeightsLayout},
    error::{Error, ErrorKind, Result},
    kernel::Program,
    options::CompileOptions,
    plan::{ALIGN_BYTES, Plan},
    target::{Placement, Platform, Target},
    tensor::Bytes,
};
use cranelift_module::{FuncId, default_libcall_names};
use cranelift_object::{
    ObjectBuilder, ObjectModule, ObjectProduct,
    object::{
        BinaryFormat, RelocationEncoding, RelocationFlags, RelocationKind, SectionFlags, SectionKind, elf,
        write::{Relocation, SectionId, StandardSection, StreamingBuffer, SymbolId},
    },
};
use object::{Object as _, ObjectSymbol};
use std::{fmt, io::Write, mem::offset_of, path::Path};
use symshape_runtime::{PartHasher, SealedPart, abi::WeightsDesc};

/// An object file under construction. It shares the weights, which are most of its bytes, with the program.
pub struct Object {
    product: ObjectProduct,
    weights: Vec<(SymbolId, Bytes)>,
    /// The weights file, and the symbol of its description.
    file: Option<(SymbolId, WeightsFile)>,
    /// The arguments of the command line that compiled it, separated by zero bytes. The file keeps them, and they have
    /// no effect on it. Empty if it was compiled otherwise.
    pub(crate) command_line: String,
    /// External functions.
    callees: Vec<String>,
    platform: Platform,
    /// The format of the shared library that this compiler makes of the object, which is ELF in memory.
    library: Option<Format>,
}

/// The bytes of a file without weights, and each weight with its offset in the section [`WEIGHTS`].
pub(super) type WithoutWeights<'o> = (Vec<u8>, Vec<(u64, &'o Bytes)>);

impl Object {
    /// The bytes of the file, with its seal.
    ///
    /// # Errors
    /// When the file would import more than the external functions of the program.
    pub fn into_bytes(mut self) -> Result<Vec<u8>> {
        let command_line = std::mem::take(&mut self.command_line);
        let (mut bytes, weights) = self.in_memory()?;
        let end = sealed_end(&bytes, &command_line, weights.as_ref(), &mut |_| {});
        bytes.extend(end);
        Ok(bytes)
    }

    /// Writes the file with its seal under a temporary name, without a copy of the weights in memory if it is ELF.
    ///
    /// # Errors
    /// As [`Self::into_bytes`]; when the file can't be written.
    pub fn stage(mut self, path: &Path) -> Result<Staged> {
        if self.product.object.format() != BinaryFormat::Elf {
            return file::stage(path, &self.into_bytes()?);
        }
        let command_line = std::mem::take(&mut self.command_line);
        let section = self.place_weights();
        let mut weights = None;
        let staged = file::fill(path, 0o666, &mut |file| {
            let mut file = std::io::BufWriter::new(file);
            weights = self.stream(section, &mut file)?;
            file.flush()
        })?;
        staged.check(|bytes| self.check_imports(bytes))?;
        staged.seal(&command_line, weights.as_ref())?;
        Ok(staged)
    }

    /// The bytes of the file without a seal, for a linker.
    pub(super) fn into_unsealed(self) -> Result<Vec<u8>> {
        Ok(self.in_memory()?.0)
    }

    /// The bytes of the file without a seal, and the part of its weights if they have a section.
    fn in_memory(mut self) -> Result<(Vec<u8>, Option<SealedPart>)> {
        let section = self.place_weights();
        let mut bytes = Vec::new();
        let weights = self.stream(section, &mut bytes);
        let weights = weights.map_err(|error| Error::internal(format!("object: {error}")))?;
        self.check_imports(&bytes)?;
        Ok((bytes, weights))
    }

    /// Places the weights in a section. That of ELF files holds zeros, which [`Self::stream`] replaces; memory of zeros
    /// that is never read takes no pages.
    fn place_weights(&mut self) -> Option<SectionId> {
        let object = &mut self.product.object;
        if object.format() != BinaryFormat::Elf {
            let section = object.section_id(StandardSection::ReadOnlyData);
            for (symbol, bytes) in self.weights.drain(..) {
                object.add_symbol_data(symbol, section, &bytes, ALIGN_BYTES as u64);
            }
            return None;
        }
        if self.weights.is_empty() {
            return None;
        }

        let section = object.add_section(Vec::new(), WEIGHTS.into(), SectionKind::ReadOnlyData);
        let mut end = 0_usize;
        let mut places = Vec::with_capacity(self.weights.len());
        for (symbol, bytes) in &self.weights {
            let begin = end.next_multiple_of(ALIGN_BYTES as usize);
            end = begin + bytes.len();
            places.push((*symbol, begin as u64, bytes.len() as u64));
        }
        object.section_mut(section).set_data(vec![0; end], ALIGN_BYTES as u64);
        places.into_iter().for_each(|(symbol, at, len)| object.set_symbol_data(symbol, section, at, len));
        Some(section)
    }

    /// Writes the file, with the weights in `section` if there is one. Their mapped memory is released on the way.
    /// Returns the part of the weights.
    fn stream(&self, section: Option<SectionId>, out: &mut dyn Write) -> std::io::Result<Option<SealedPart>> {
        let object = &self.product.object;
        let zeros = section.map_or(&[][..], |section| object.section(section).data());
        let mut with_weights = WithWeights { out, zeros, weights: &self.weights, n_bytes: 0, part: None };
        let mut buffer = StreamingBuffer::new(&mut with_weights);
        object.emit(&mut buffer).map_err(std::io::Error::other)?;
        buffer.result()?;
        Ok(with_weights.part)
    }

    /// The file without weights, for a linker that copies them from memory.
    ///
    /// # Errors
    /// As [`Self::into_bytes`].
    pub(super) fn without_weights(&mut self) -> Result<WithoutWeights<'_>> {
        let object = &mut self.product.object;
        let section = object.add_section(Vec::new(), WEIGHTS.into(), SectionKind::UninitializedData);
        let flags = SectionFlags::Elf { sh_flags: u64::from(elf::SHF_ALLOC) };
        object.section_mut(section).flags = flags;

        let reserve = |(symbol, bytes): &(SymbolId, Bytes)| {
            object.add_symbol_bss(*symbol, section, bytes.len() as u64, ALIGN_BYTES as u64)
        };
        let offsets: Vec<u64> = self.weights.iter().map(reserve).collect();

        let bytes = self.write()?;
        let weights = self.weights.iter().map(|(_, bytes)| bytes);
        Ok((bytes, offsets.into_iter().zip(weights).collect()))
    }

    /// The weights file that calls of the artefact need, if it has one.
    pub fn weights_file(&self) -> Option<&WeightsFile> {
        self.file.as_ref().map(|(_, file)| file)
    }

    /// Keeps in the artefact the name under which loaders look for the weights file, in the folder of the artefact. The
    /// name may change without making other artefacts of the same weights.
    ///
    /// # Errors
    /// The name is empty, has more than 255 bytes, or names a file in another folder.
    pub fn name_weights_file(&mut self, name: &str) -> Result<()> {
        let field = WeightsDesc::name_field(name).ok_or_else(|| {
            let message = format!(
                "`{}` can't be the name of a weights file: it has at most 255 bytes and no folder",
                name.escape_debug()
            );
            Error::new(ErrorKind::Usage, message)
        })?;
        match self.file {
            Some((symbol, _)) => self.put(symbol, offset_of!(WeightsDesc, file_name), &field),
            None => Ok(()),
        }
    }

    /// Sets the hash by which weights files name the artefact: that of the object while the description of the weights
    /// is zero.
    fn identify(&mut self, levels: String, symbol: SymbolId, layout: WeightsLayout) -> Result<()> {
        let artefact = *blake3::hash(&self.write()?).as_bytes();
        let file = WeightsFile { artefact, levels, layout };
        self.put(symbol, offset_of!(WeightsDesc, artefact), &artefact)?;
        self.put(symbol, offset_of!(WeightsDesc, table_offset), &file.table_offset().to_le_bytes())?;
        self.file = Some((symbol, file));
        Ok(())
    }

    /// Replaces bytes of a data object that is defined.
    fn put(&mut self, symbol: SymbolId, offset: usize, bytes: &[u8]) -> Result<()> {
        let object = &mut self.product.object;
        let place = object.symbol(symbol);
        let section = place.section.id().ok_or_else(|| Error::internal("a data object has no section"))?;
        let at = place.value as usize + offset;
        let data = object.section_mut(section).data_mut().get_mut(at..at + bytes.len());
        data.ok_or_else(|| Error::internal("a data object is outside of its section"))?
            .copy_from_slice(bytes);
        Ok(())
    }

    /// The format of the shared library that [`super::link`] makes of the object; `None` if a C compiler must link it.
    pub(super) fn library(&self) -> Option<Format> {
        self.library
    }

    /// The platform that the object is for.
    pub(super) fn platform(&self) -> Platform {
        self.platform
    }

    fn write(&self) -> Result<Vec<u8>> {
        let bytes = self.product.object.write();
        let bytes = bytes.map_err(|error| Error::internal(format!("object: {error}")))?;
        self.check_imports(&bytes)?;
        Ok(bytes)
    }

    /// Refuses an object that imports more than the external functions of the program.
    fn check_imports(&self, bytes: &[u8]) -> Result<()> {
        match imports(bytes)?.iter().find(|name| !self.callees.contains(name)) {
            Some(name) => Err(Error::internal(format!("the object would import `{name}`"))),
            None => Ok(()),
        }
    }
}

/// Writes weights in place of the zeros of their section.
struct WithWeights<'o> {
    out: &'o mut dyn Write,
    zeros: &'o [u8],
    weights: &'o [(SymbolId, Bytes)],
    /// Bytes that were written before.
    n_bytes: usize,
    /// The part of the weights, once they are written.
    part: Option<SealedPart>,
}

impl Write for WithWeights<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.zeros.is_empty() || !std::ptr::eq(bytes, self.zeros) {
            let n_bytes = self.out.write(bytes)?;
            self.n_bytes += n_bytes;
            return Ok(n_bytes);
        }
        let mut part = PartHasher::new(WEIGHTS_PART, self.n_bytes);
        for (_, weight) in self.weights {
            let begin = (part.end() - self.n_bytes).next_multiple_of(ALIGN_BYTES as usize) + self.n_bytes;
            self.out.write_all(&[0; ALIGN_BYTES as usize][..begin - part.end()])?;
            file::append_zeros(&mut part, begin);
            file::write_weight(self.out, weight, &mut part)?;
        }
        self.n_bytes = part.end();
        self.part = Some(part.finish());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("weights", &self.weights.len()).finish_non_exhaustive()
    }
}

/// The object file, and a summary of its contents.
///
/// # Errors
/// When the target or a part of the program is not supported.
pub fn object(
    program: &Program,
    plan: &Plan,
    target: &Target,
    kind: ModuleKind,
    options: &CompileOptions,
) -> Result<(Object, Summary)> {
    let library = if kind == ModuleKind::SharedObject { library(program, target) } else { None };
    let mut in_memory = target.clone();
    if library.is_some() {
        in_memory.triple.binary_format = target_lexicon::BinaryFormat::Elf;
    }
    let isa = in_memory.isa(Placement::Object)?;
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
    let mut object = Object {
        product,
        weights,
        file: None,
        command_line: String::new(),
        callees,
        platform: target.platform(),
        library,
    };
    if let Some((desc, layout)) = summary.weights.take() {
        let symbol = object.product.data_symbol(desc);
        object.identify(target.level_names(), symbol, layout)?;
    }
    Ok((object, summary))
}

/// The format of a shared library that this compiler can link itself.
fn library(program: &Program, target: &Target) -> Option<Format> {
    if program.callees().is_empty() { Format::of(target) } else { None }
}

/// Whether a shared library of the program needs a C compiler as linker.
pub fn needs_compiler(program: &Program, target: &Target) -> bool {
    library(program, target).is_none()
}

/// Adds a function to the list of functions that the loader of an ELF object runs.
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

/// The names of the undefined symbols of an object file.
///
/// # Errors
/// When `object` is not an object file.
pub fn imports(object: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(object).map_err(|error| Error::internal(format!("object: {error}")))?;
    let undefined = file.symbols().filter(|symbol| symbol.is_undefined());
    // C names have a leading underscore on Apple's systems.
    let prefix = if file.format() == object::BinaryFormat::MachO { "_" } else { "" };
    Ok(undefined
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty())
        .map(|name| name.strip_prefix(prefix).unwrap_or(name).into())
        .collect())
}
