//! What the functions of one program share while they are emitted: the module, the program, and the data objects.

use crate::{
    codegen::{
        microkernel::{self, MicrokernelKey},
        vector::{self, Portable, VectorIsa},
    },
    error::{Error, Result},
    kernel::{BufferId, MemorySpace, Program, contract::Contract},
    options::{CompileOptions, Microkernels},
    plan::{ALIGN_BYTES, Plan},
    target::Level,
    tensor::Bytes,
};
use cranelift_codegen::{
    CodegenError,
    ir::{AbiParam, Signature, Type},
};
use cranelift_module::{DataDescription, DataId, FuncId, FuncOrDataId, Linkage, Module, ModuleError};
use std::collections::{HashMap, HashSet};

/// Constants of so many bytes are weights that may be lent.
const LENT_BYTES: usize = 4096;

/// The module that code is generated into.
#[derive(Clone, Debug)]
pub struct ModuleForm {
    /// Its kind.
    pub kind: ModuleKind,
    /// Its ISA level, where the code generator's flags don't tell it.
    pub level: Option<Level>,
    /// Higher levels that it has code for too; which code is used is decided at the first call.
    pub wider: Vec<Level>,
}

impl ModuleForm {
    /// Code for one level only, which the flags of the code generator tell.
    pub fn new(kind: ModuleKind) -> ModuleForm {
        ModuleForm { kind, level: None, wider: Vec::new() }
    }
}

/// Kind of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModuleKind {
    /// Memory of this process: external functions are called by address.
    InProcess,
    /// An object file: large weights are left to its writer, see [`crate::codegen::Summary::lent`].
    Object,
    /// An object file that becomes a shared object: the descriptor gets the name that loaders look for.
    SharedObject,
}

/// One emitted function.
#[derive(Clone, Debug)]
pub struct FunctionSummary {
    /// Its symbol.
    pub name: String,
    /// Size of its machine code.
    pub code_bytes: u64,
}

/// The state of one [`crate::codegen::generate`] call.
pub struct ModuleBuilder<'u> {
    /// The module under construction.
    pub module: &'u mut dyn Module,
    /// The program that is compiled.
    pub program: &'u Program,
    /// Its call contract.
    pub contract: &'u Contract,
    /// The order of its buffers in the arena.
    pub plan: &'u Plan,
    /// The options of the compilation.
    pub options: &'u CompileOptions,
    /// Kind and ISA levels of the module.
    pub form: &'u ModuleForm,
    /// Functions that were defined on first use, by a name that says everything about them.
    pub on_demand: HashMap<String, FuncId>,
    pub(crate) functions: Vec<FunctionSummary>,
    pub(crate) clif: String,
    pub(crate) const_bytes: u64,
    pub(crate) lent: Vec<(DataId, Bytes)>,
    constants: HashMap<BufferId, DataId>,
    strings: HashMap<String, DataId>,
    tables: HashMap<String, DataId>,
    numbers: u32,
    vector_isa: Box<dyn VectorIsa>,
    microkernels: HashMap<MicrokernelKey, FuncId>,
    /// Microkernels of all levels so far.
    n_microkernels: usize,
    /// Functions that somebody else defines.
    callees: HashSet<String>,
}

impl<'u> ModuleBuilder<'u> {
    /// A unit in which nothing is defined yet.
    pub fn new(
        module: &'u mut dyn Module,
        program: &'u Program,
        contract: &'u Contract,
        plan: &'u Plan,
        form: &'u ModuleForm,
        options: &'u CompileOptions,
    ) -> ModuleBuilder<'u> {
        let vector_isa = match options.microkernels {
            Microkernels::EmulatedTiles => Box::new(Portable::new(module.isa()).with_tiles()),
            Microkernels::Native | Microkernels::ScalarLoops => vector::for_target(form.level, module.isa()),
        };
        ModuleBuilder {
            module,
            program,
            contract,
            plan,
            options,
            form,
            on_demand: HashMap::new(),
            functions: Vec::new(),
            clif: String::new(),
            const_bytes: 0,
            lent: Vec::new(),
            constants: HashMap::new(),
            strings: HashMap::new(),
            tables: HashMap::new(),
            numbers: 0,
            vector_isa,
            microkernels: HashMap::new(),
            n_microkernels: 0,
            callees: program.callees().into_iter().map(|callee| callee.symbol.clone()).collect(),
        }
    }

    /// `name` behind the program's name: the symbol of something of this program.
    pub fn symbol(&self, name: &str) -> String {
        format!("{}_{name}", self.program.name)
    }

    /// The vector ISA that microkernels are made for.
    pub fn vector_isa(&self) -> &dyn VectorIsa {
        &*self.vector_isa
    }

    /// From here on microkernels are made for this level, which is at or above the module's.
    pub fn set_level(&mut self, level: Level) {
        self.vector_isa = vector::for_level(level, self.module.isa());
        self.microkernels.clear();
    }

    /// Whether inner loops are microkernels, or loops over single elements.
    pub(crate) fn has_microkernels(&self) -> bool {
        self.options.microkernels != Microkernels::ScalarLoops
    }

    /// The levels above the module's own that there is code for: those with tile registers only where something uses them,
    /// and where loaders can ask for them.
    pub fn levels(&self) -> Vec<Level> {
        let elf = self.module.isa().triple().binary_format == target_lexicon::BinaryFormat::Elf;
        let tiles = elf && self.program.uses_tiles();
        self.form.wider.iter().copied().filter(|level| tiles || !level.has_tiles()).collect()
    }

    /// The microkernel's function; defined on first use.
    pub fn microkernel(&mut self, key: MicrokernelKey) -> Result<FuncId> {
        if let Some(id) = self.microkernels.get(&key) {
            return Ok(*id);
        }
        let name = self.symbol(&format!("microkernel_{}_{}", self.n_microkernels, key.name()));
        if self.options.listing {
            let code = key.code(&*self.vector_isa);
            self.clif.push_str(&format!("; {name} ({})\n{code}\n", self.vector_isa.name()));
        }
        let (id, code_bytes) = microkernel::emit(&key, &name, &*self.vector_isa, self.module)?;
        self.functions.push(FunctionSummary { name, code_bytes });
        self.microkernels.insert(key, id);
        self.n_microkernels += 1;
        Ok(id)
    }

    /// A number that was not given out before, for names.
    pub fn next_number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// A signature in the target's C calling convention.
    pub fn signature(&self, params: &[Type], returns: &[Type]) -> Signature {
        let mut signature = self.module.make_signature();
        signature.params.extend(params.iter().copied().map(AbiParam::new));
        signature.returns.extend(returns.iter().copied().map(AbiParam::new));
        signature
    }

    /// Declares a function of this name.
    pub fn declare(
        &mut self,
        name: &str,
        linkage: Linkage,
        params: &[Type],
        returns: &[Type],
    ) -> Result<FuncId> {
        self.refuse_callee(name, linkage)?;
        let signature = self.signature(params, returns);
        self.module.declare_function(name, linkage, &signature).map_err(|e| internal(name, e))
    }

    /// Whether what is declared under a name is a function that somebody else defines.
    pub(crate) fn is_callee(&self, known: FuncOrDataId) -> bool {
        let declarations = self.module.declarations();
        matches!(known, FuncOrDataId::Func(id) if declarations.get_function_decl(id).linkage == Linkage::Import)
    }

    /// Refuses to define what the program expects somebody else to define.
    fn refuse_callee(&self, name: &str, linkage: Linkage) -> Result<()> {
        match linkage != Linkage::Import && self.callees.contains(name) {
            true => Err(own_name(name)),
            false => Ok(()),
        }
    }

    /// The data object that holds a buffer of space `Const`.
    pub fn constant(&mut self, buffer: BufferId) -> Result<DataId> {
        if let Some(id) = self.constants.get(&buffer) {
            return Ok(*id);
        }
        let MemorySpace::Const(tensor) = &self.program.buffers[buffer].space else {
            return Err(Error::internal(format!("{buffer} is no constant")));
        };
        let (bytes, name) = (tensor.bytes(), format!("const_{}", buffer.as_u32()));
        self.const_bytes += bytes.len() as u64;
        let id = if self.form.kind != ModuleKind::InProcess && bytes.len() >= LENT_BYTES {
            let id = self.data(&name, [0].into(), 1)?;
            self.lent.push((id, tensor.shared_bytes()));
            id
        } else {
            self.data(&name, bytes.into(), ALIGN_BYTES as u64)?
        };
        self.constants.insert(buffer, id);
        Ok(id)
    }

    /// A constant in another form, made once for each name.
    pub fn constant_as(&mut self, name: &str, bytes: impl FnOnce() -> Vec<u8>) -> Result<DataId> {
        if let Some(id) = self.tables.get(name) {
            return Ok(*id);
        }
        let bytes = bytes();
        self.const_bytes += bytes.len() as u64;
        let id = self.data(name, bytes.into(), ALIGN_BYTES as u64)?;
        self.tables.insert(name.into(), id);
        Ok(id)
    }

    /// A string that ends with a zero byte.
    pub fn string(&mut self, text: &str) -> Result<DataId> {
        if let Some(id) = self.strings.get(text) {
            return Ok(*id);
        }
        // A zero byte inside would cut the string off for C.
        let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).chain([0]).collect();
        let id = self.data(&format!("string_{}", self.strings.len()), bytes.into(), 1)?;
        self.strings.insert(text.into(), id);
        Ok(id)
    }

    /// A local read-only array, made once for each name.
    pub fn table(&mut self, name: &str, words: &[i64]) -> Result<DataId> {
        if let Some(id) = self.tables.get(name) {
            return Ok(*id);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let id = self.data(name, bytes.into(), 8)?;
        self.tables.insert(name.into(), id);
        Ok(id)
    }

    /// A local read-only object with these bytes.
    pub fn data(&mut self, name: &str, bytes: Box<[u8]>, align: u64) -> Result<DataId> {
        let mut data = DataDescription::new();
        match bytes.is_empty() {
            // Not every object format has symbols for nothing.
            true => data.define([0].into()),
            false => data.define(bytes),
        }
        data.set_align(align);
        let symbol = self.symbol(name);
        self.define_data(&symbol, Linkage::Local, &data)
    }

    /// Declares and defines a read-only data object.
    pub fn define_data(&mut self, name: &str, linkage: Linkage, data: &DataDescription) -> Result<DataId> {
        self.refuse_callee(name, linkage)?;
        let id = self.module.declare_data(name, linkage, false, false).map_err(|e| internal(name, e))?;
        self.module.define_data(id, data).map_err(|e| internal(name, e))?;
        Ok(id)
    }
}

/// The error for an external function whose name the artefact defines itself.
pub(crate) fn own_name(symbol: &str) -> Error {
    Error::invalid(format!(
        "`{symbol}` is to be called, and is a name of the model's own: rename the function, or the model (--name)"
    ))
}

/// An error of the code generator below us, which takes everything that we may give it.
pub(crate) fn internal(name: &str, error: ModuleError) -> Error {
    match error {
        ModuleError::Compilation(CodegenError::Unsupported(what)) => {
            Error::unsupported(format!("{what} on this target")).at(name)
        }
        ModuleError::Compilation(CodegenError::CodeTooLarge) => {
            Error::new(crate::ErrorKind::Limit, "more code than one function can hold").at(name)
        }
        ModuleError::Compilation(CodegenError::Verifier(errors)) => {
            Error::internal(format!("{errors}")).at(name)
        }
        ModuleError::Allocation { .. } => {
            let message =
                "the weights, as code reads them, take more memory than code in a process can reach";
            Error::new(crate::ErrorKind::Limit, message).at(name)
        }
        error => Error::internal(error.to_string()).at(name),
    }
}
