//! [`ModuleBuilder`]: the state that all functions of a program share while they are emitted.

use super::{
    data_pool::DataPool,
    pending::{Body, Microkernel, Pending},
};
use crate::{
    codegen::{
        microkernel::{self, MicrokernelKey},
        vector::{self, Portable, VectorIsa, compilation, convention::c_signature},
    },
    error::{Error, Result},
    kernel::{Program, contract::Contract},
    options::{CompileOptions, Microkernels},
    plan::Plan,
    target::{Level, grants_tiles},
};
use cranelift_codegen::ir::{Signature, Type};
use cranelift_module::{FuncId, FuncOrDataId, Linkage, Module, ModuleError};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// The kind and the ISA levels of a module.
#[derive(Clone, Debug)]
pub struct ModuleForm {
    /// Its kind.
    pub kind: ModuleKind,
    /// Its ISA level, if the flags of the code generator don't tell it.
    pub level: Option<Level>,
    /// Higher levels that the module has code for too. The first call decides which code is used.
    pub wider: Vec<Level>,
}

impl ModuleForm {
    /// A module for the one level that the flags of the code generator tell.
    pub fn new(kind: ModuleKind) -> ModuleForm {
        ModuleForm { kind, level: None, wider: Vec::new() }
    }
}

/// Kind of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModuleKind {
    /// Code in the memory of this process, which calls external functions by address.
    InProcess,
    /// An object file. Its writer adds large weights, see [`crate::codegen::Summary::lent`].
    Object,
    /// An object file that becomes a shared object. Its descriptor has the name that loaders look for.
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
pub(crate) struct ModuleBuilder<'u> {
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
    /// The functions that were defined on first use. Their names are their keys.
    pub(crate) on_demand: HashMap<String, FuncId>,
    /// Functions that are not defined yet.
    pub(super) pending: Vec<Pending>,
    /// The number of threads that compile functions. It has no effect on the module.
    pub(crate) threads: usize,
    /// The functions that are defined, in the order in which they were emitted.
    pub(crate) functions: Vec<FunctionSummary>,
    pub(crate) clif: String,
    pub(crate) data_pool: DataPool,
    last_id: u32,
    vector_isa: Arc<dyn VectorIsa>,
    /// The microkernels of the current level, and whether each is for the narrower ISA.
    microkernels: HashMap<(MicrokernelKey, bool), FuncId>,
    /// Number of microkernels so far, of all levels.
    n_microkernels: usize,
    /// The names of external functions.
    callees: HashSet<String>,
}

impl<'u> ModuleBuilder<'u> {
    /// A builder that has defined nothing yet.
    pub(crate) fn new(
        module: &'u mut dyn Module,
        program: &'u Program,
        contract: &'u Contract,
        plan: &'u Plan,
        form: &'u ModuleForm,
        options: &'u CompileOptions,
    ) -> ModuleBuilder<'u> {
        let vector_isa: Box<dyn VectorIsa> = match options.microkernels {
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
            pending: Vec::new(),
            threads: 1,
            functions: Vec::new(),
            clif: String::new(),
            data_pool: DataPool::default(),
            last_id: 0,
            vector_isa: vector_isa.into(),
            microkernels: HashMap::new(),
            n_microkernels: 0,
            callees: program.callees().into_iter().map(|callee| callee.symbol.clone()).collect(),
        }
    }

    /// The symbol of a function or data object of this program: its name after the name of the program.
    pub(crate) fn symbol(&self, name: &str) -> String {
        format!("{}_{name}", self.program.name)
    }

    /// The vector ISA that microkernels are compiled for.
    pub(crate) fn vector_isa(&self) -> &dyn VectorIsa {
        &*self.vector_isa
    }

    /// Compiles later microkernels for this level, which is at or above the module's.
    pub(crate) fn set_level(&mut self, level: Level) {
        self.vector_isa = vector::for_level(level, self.module.isa()).into();
        self.microkernels.clear();
    }

    /// Whether inner loops are microkernels, or loops over single elements.
    pub(crate) fn has_microkernels(&self) -> bool {
        self.options.microkernels != Microkernels::ScalarLoops
    }

    /// The levels above the module's own that there is code for. Levels with tile registers are among them only if a
    /// kernel uses the registers and the loader can request them.
    pub(crate) fn levels(&self) -> Vec<Level> {
        let with_tiles = grants_tiles(self.module.isa().triple()) && self.program.uses_tiles();
        self.form.wider.iter().copied().filter(|level| with_tiles || !level.has_tiles()).collect()
    }

    /// The function of a microkernel, which is defined on first use.
    pub(crate) fn microkernel(&mut self, key: MicrokernelKey) -> Result<FuncId> {
        self.microkernel_of(key, false)
    }

    /// The function of a microkernel for the narrower ISA of [`VectorIsa::narrower`], which must exist.
    pub(crate) fn narrow_microkernel(&mut self, key: MicrokernelKey) -> Result<FuncId> {
        self.microkernel_of(key, true)
    }

    fn microkernel_of(&mut self, key: MicrokernelKey, is_narrow: bool) -> Result<FuncId> {
        let known = (key, is_narrow);
        if let Some(id) = self.microkernels.get(&known) {
            return Ok(*id);
        }
        let key = known.0.clone();

        let name = self.symbol(&format!("microkernel_{}_{}", self.n_microkernels, key.name()));
        let microkernel = Microkernel { key, isa: self.vector_isa.clone(), is_narrow };
        if self.options.listing {
            let isa = microkernel.isa()?;
            let code = microkernel.key.code(isa);
            self.clif.push_str(&format!("; {name} ({})\n{code}\n", isa.name()));
        }

        let id = microkernel::declare(&name, self.module)?;
        self.define_later(id, name, Body::Microkernel(microkernel))?;
        self.microkernels.insert(known, id);
        self.n_microkernels += 1;

        Ok(id)
    }

    /// A number that no earlier call returned, which makes a name unique.
    pub(crate) fn unique_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    /// A signature in the target's C calling convention.
    pub(crate) fn signature(&self, params: &[Type], returns: &[Type]) -> Signature {
        c_signature(self.module.isa(), params, returns)
    }

    /// Declares a function of this name.
    pub(crate) fn declare(
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

    /// Whether a declaration is an external function.
    pub(crate) fn is_callee(&self, known: FuncOrDataId) -> bool {
        let declarations = self.module.declarations();
        matches!(known, FuncOrDataId::Func(id) if declarations.get_function_decl(id).linkage == Linkage::Import)
    }

    /// Refuses to define a symbol that is the name of an external function.
    pub(super) fn refuse_callee(&self, name: &str, linkage: Linkage) -> Result<()> {
        if linkage != Linkage::Import && self.callees.contains(name) { Err(own_name(name)) } else { Ok(()) }
    }
}

/// The error for an external function whose name the artefact defines itself.
pub(crate) fn own_name(symbol: &str) -> Error {
    Error::invalid(format!(
        "the external function `{symbol}` has the name of a symbol of the model itself: rename the function, or the model (--name)"
    ))
}

/// An error of Cranelift as an error of this crate.
pub(crate) fn internal(name: &str, error: ModuleError) -> Error {
    match error {
        ModuleError::Compilation(error) => compilation(error).at(name),
        ModuleError::Allocation { .. } => {
            let message =
                "the weights take more memory than code in a process can address: compile to an object file";
            Error::new(crate::ErrorKind::Limit, message).at(name)
        }
        error => Error::internal(error.to_string()).at(name),
    }
}
