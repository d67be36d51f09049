//! WebAssembly: the C source of a model, compiled for wasm32, and an ES module that calls it.
//!
//! The C compiler makes a module of the code alone. [`web`] lays out the rest of its memory, adds the weights as data,
//! and writes the contract into a custom section. The ES module is the same for all models: it reads that section.
//!
//! ```text
//! stack and constants of the code     as the C compiler laid them out
//! frame                               sizes, addresses and the error of a call
//! weights                             as in a weights file, without its table
//! inputs, outputs                     each at its upper bound
//! states                              the largest one, or several smaller ones
//! arena
//! ```

mod compiler;
mod contract;
mod level;
mod memory;
mod module;
mod state;

pub use compiler::WasmCompiler;
pub use level::WasmLevel;

use super::{
    c::{self, Source},
    weights::WeightsFile,
};
use crate::{
    error::{Error, Result},
    kernel::Program,
    options::CompileOptions,
    plan::Plan,
};
use memory::Memory;
use module::{Segment, WasmModule};

/// The files of a model for the web.
pub struct Web {
    /// `NAME.wasm`
    pub wasm: Vec<u8>,
    /// `NAME.mjs`
    pub module: String,
    /// `NAME.d.mts`
    pub types: String,
    /// `package.json`
    pub package: String,
    /// The weights file, if the module does not contain the weights.
    pub weights: Option<WeightsFile>,
    /// Bytes of the module's code.
    pub code_bytes: usize,
    /// Bytes of the module's memory, which never grows.
    pub memory_bytes: u64,
}

/// How a model is compiled for the web.
pub struct WebOptions<'a> {
    /// The C compiler.
    pub compiler: &'a WasmCompiler,
    /// The vector instructions of the module.
    pub level: WasmLevel,
    /// Name of the files, without an extension.
    pub stem: &'a str,
    /// Name of the weights file, if the module does not contain the weights.
    pub weights_file: Option<&'a str>,
}

/// Compiles a program that was lowered with [`CompileOptions::for_c_source`].
///
/// # Errors
/// A feature that needs functions outside of the module, sizes beyond 4 GiB, and failures of the C compiler.
pub(crate) fn web(program: &Program, plan: &Plan, web: &WebOptions<'_>) -> Result<Web> {
    refuse(program)?;
    let options = CompileOptions::for_c_source().libm(false).wasm_source(true).weights_file(true);
    let mut source = c::source(program, plan, compiler::HEADER, &options)?;
    source.code += &memory::layout_check();
    source.code += &state::functions(program);
    let weights = source.weights.as_ref().ok_or_else(|| Error::internal("C source without weights"))?;
    // The bounds are checked before the C compiler runs, which may take minutes.
    let no_code_bytes = 0;
    Memory::of(program, plan, weights, no_code_bytes)?;

    let code = compile(program, &source, web)?;
    let code = WasmModule::parse(&code)?;
    let memory = Memory::of(program, plan, weights, code.memory_bytes()?)?;
    let contract = contract::json(program, &memory, web.weights_file);

    let parts = weights.parts_for_calls();
    let is_inside = web.weights_file.is_none();
    let segments: Vec<Segment<'_>> = parts
        .iter()
        .filter(|_| is_inside)
        .map(|(offset, bytes)| Segment { address: memory.weights + offset, bytes })
        .collect();
    let wasm = code.complete(memory.end, &segments, &contract)?;

    Ok(Web {
        wasm,
        module: contract::module(web.stem),
        types: contract::types(program),
        package: contract::package(program, web.stem, web.weights_file),
        code_bytes: code.code_bytes(),
        memory_bytes: memory.end,
        weights: source.weights.filter(|_| !is_inside),
    })
}

/// Refuses programs that need functions of the host.
fn refuse(program: &Program) -> Result<()> {
    if let Some(callee) = program.callees().first() {
        return Err(Error::unsupported(format!(
            "a WebAssembly module imports no functions, and the model calls `{}`",
            callee.symbol
        )));
    }
    if !program.partitions.is_empty() {
        return Err(Error::unsupported("a WebAssembly module runs on one thread: omit --partitions"));
    }
    Ok(())
}

/// Compiles the source to a module with the functions of the model.
fn compile(program: &Program, source: &Source, web: &WebOptions<'_>) -> Result<Vec<u8>> {
    let name = &program.name;
    let run: &[&str] = if program.state.is_some() { &state::EXPORTS } else { &["run"] };
    let exports = ["check", "output_shape"].iter().chain(run);
    let exports: Vec<String> = exports.map(|function| format!("{name}_{function}")).collect();
    web.compiler.compile(source, web.level, &exports)
}
