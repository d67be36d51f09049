//! Compiles a program into memory of this process.

#![allow(unsafe_code)]

use crate::{
    codegen::{self, ModuleForm, ModuleKind, Summary},
    error::{Error, ErrorKind, Result},
    kernel::{Control, MemorySpace, Program},
    options::CompileOptions,
    plan::Plan,
    target::{Placement, Target},
};
use cranelift_jit::{ArenaMemoryProvider, JITBuilder, JITModule};
use cranelift_module::default_libcall_names;
use std::sync::{Arc, Mutex};
use symshape_runtime::{DType, Model, abi::ModelDesc, external::Function};

/// Largest distance between code and data: the reach of 32-bit displacements, with a margin.
const MAX_BYTES: usize = (1 << 31) - (1 << 28);

/// Address space for machine code and tables.
const CODE_BYTES: usize = 1 << 27;

/// The model, ready to be called, and a summary of the generated code.
///
/// # Errors
/// When this machine is not supported, or the constants in the forms that code reads exceed 1.6 GB.
pub fn jit(program: &Program, plan: &Plan, options: &CompileOptions) -> Result<(Model, Summary)> {
    let target = Target::host()?;
    let isa = target.isa(Placement::Jit)?;
    let mut builder = JITBuilder::with_isa(isa, default_libcall_names());
    let reserve = reserve_bytes(program)?;
    let memory = ArenaMemoryProvider::new_with_size(reserve).map_err(|error| {
        Error::new(ErrorKind::Limit, format!("can't reserve {reserve} bytes for code and weights: {error}"))
    })?;
    builder.memory_provider(Box::new(memory));

    // `Pages` frees the memory from here on, on errors too.
    let functions = functions(program);
    let mut pages = Pages { module: Some(JITModule::new(builder)), functions };
    let module = pages.module.as_mut().expect("just put there");

    let form = ModuleForm { kind: ModuleKind::InProcess, level: Some(target.level), wider: target.wider };
    let options = options.weights_file(false);
    let summary = codegen::generate(program, plan, &form, &options, module)?;
    module.finalize_definitions().map_err(|error| Error::internal(format!("jit: {error}")))?;
    if let Some(load) = summary.load {
        let load = module.get_finalized_function(load);
        // SAFETY: `generate` defines it with this signature; it writes to a word of the module.
        unsafe { std::mem::transmute::<*const u8, extern "C" fn()>(load)() };
    }

    let (desc, _) = module.get_finalized_data(summary.desc);
    // SAFETY: `generate` defines the descriptor and all that it refers to as the ABI says, in memory that `pages`
    // keeps mapped and that nothing writes to after `finalize_definitions`.
    let model = unsafe { Model::from_desc(desc.cast::<ModelDesc>(), Arc::new(Mutex::new(pages))) };
    let model = model.map_err(|error| Error::internal(format!("jit: {error}")))?;
    Ok((model, summary))
}

/// The external functions that the program calls in this process.
fn functions(program: &Program) -> Vec<Function> {
    let calls = program.kernels.iter().filter_map(|kernel| match &kernel.control {
        Some(Control::Call(call)) => call.callee.function.clone(),
        _ => None,
    });
    calls.collect()
}

/// Address space for constants and code, plus a page for each object, which may begin a page. Constants count once for
/// each of their possible packed forms, up to the reach of code; few models have all forms of all constants.
fn reserve_bytes(program: &Program) -> Result<usize> {
    let has_tiles = program.microkernels.has_tiles();
    let mut once = 0;
    let mut in_all_forms = 0;
    for id in program.used_constants() {
        let buffer = &program.buffers[id];
        let MemorySpace::Const(tensor) = &buffer.space else { continue };
        let bytes = tensor.size_bytes();
        once += bytes;

        // On tile registers, short reductions are padded to whole registers.
        let padding = if has_tiles { (63 * bytes).min(1 << 20) } else { 0 };
        in_all_forms += match buffer.dtype {
            // The packed form for microkernels may be twice as long.
            DType::U8 | DType::I8 => 3 * bytes + padding,
            // Packed pairs of bf16, whose runs are padded.
            DType::F32 if has_tiles => 3 * bytes + padding,
            // Eight bf16 of a column at least.
            DType::F32 if program.microkernels.has_bf16_matrices() => 5 * bytes,
            _ => bytes,
        };
    }

    let overhead = (program.buffers.len() + 4 * program.kernels.len()) * (2 << 12) + CODE_BYTES;
    if once + overhead > MAX_BYTES {
        let limit = MAX_BYTES - CODE_BYTES;
        let message = format!(
            "the model has {once} bytes of weights; code in memory can hold at most {limit}: compile it to a file"
        );
        return Err(Error::new(ErrorKind::Limit, message));
    }
    Ok((in_all_forms + overhead).min(MAX_BYTES))
}

/// The module that owns the memory of the code, and the functions that the code calls.
struct Pages {
    module: Option<JITModule>,
    #[expect(dead_code, reason = "they must live as long as the code that calls them")]
    functions: Vec<Function>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: the model keeps this value alive while its code can be called.
            unsafe { module.free_memory() };
        }
    }
}
