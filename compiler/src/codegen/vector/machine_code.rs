//! The machine code of one function, before a module has it.

use crate::error::{Error, ErrorKind, Result};
use cranelift_codegen::{CodegenError, Context, control::ControlPlane, ir::Function, isa::TargetIsa};
use cranelift_module::{FuncId, Module, ModuleError, ModuleReloc};

/// Instructions, and the places in them that refer to other symbols of a module.
pub struct MachineCode {
    bytes: Vec<u8>,
    align_bytes: u64,
    relocations: Vec<ModuleReloc>,
}

impl MachineCode {
    /// Instructions without references to symbols.
    pub(crate) fn new(bytes: Vec<u8>, align_bytes: u64) -> MachineCode {
        MachineCode { bytes, align_bytes, relocations: Vec::new() }
    }

    /// Compiles the body of `id`.
    ///
    /// # Errors
    /// `Unsupported` for an instruction that the target does not have; `Limit` for more code than a function can hold.
    pub(crate) fn of(id: FuncId, body: Function, target: &dyn TargetIsa) -> Result<MachineCode> {
        let mut context = Context::for_function(body);
        let compiled = context.compile(target, &mut ControlPlane::default());
        let buffer = &compiled.map_err(|error| compilation(error.inner))?.buffer;
        let (bytes, align_bytes) = (buffer.data().to_vec(), u64::from(buffer.alignment));
        let relocations = buffer.relocs().to_vec();
        let relocation = |at| ModuleReloc::from_mach_reloc(at, &context.func, id);
        Ok(MachineCode { bytes, align_bytes, relocations: relocations.iter().map(relocation).collect() })
    }

    /// Size of the instructions and their constants.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Defines the declared function `id` by this code.
    ///
    /// # Errors
    /// The module has the function already, or no memory for it.
    pub fn define(&self, id: FuncId, module: &mut dyn Module) -> Result<(), Box<ModuleError>> {
        let defined = module.define_function_bytes(id, self.align_bytes, &self.bytes, &self.relocations);
        defined.map_err(Box::new)
    }
}

/// An error of Cranelift's compiler as an error of this crate.
pub(crate) fn compilation(error: CodegenError) -> Error {
    match error {
        CodegenError::Unsupported(feature) => Error::unsupported(format!("{feature} on this target")),
        CodegenError::CodeTooLarge => Error::new(ErrorKind::Limit, "more code than one function can hold"),
        CodegenError::Verifier(errors) => Error::internal(format!("{errors}")),
        error => Error::internal(error.to_string()),
    }
}
