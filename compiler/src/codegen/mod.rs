//! Code generation: a program becomes machine code and data in any cranelift [`Module`], for the JIT or an object file.
//!
//! The input is a scheduled [`Program`] with its arena plan. The output is a Cranelift function for each kernel part,
//! the functions that an artefact exports, and the tables that describe it:
//!
//! - [`run`]: one call, from the exported functions to the calls of kernels;
//! - [`body`]: one kernel: loops, strips and contractions;
//! - [`microkernel`] and [`vector`]: the hot loops, written over a vector ISA;
//! - [`function`]: one function, and the module that it goes to;
//! - [`artefact`]: the descriptor and the summary.
//!
//! The generated code imports only the program's external functions: maths is emitted, see [`function::math`], and no
//! instruction is used that the target would lower to a library call. The plan's sizes and every index stay within 64
//! bits for all allowed values of the symbols; [`generate`] refuses programs for which that does not hold.

mod artefact;
mod body;
pub(crate) mod formulas;
mod function;
pub mod microkernel;
mod run;
pub mod vector;

pub use artefact::Summary;
pub use body::scalar_loops::{ScalarLoop, scalar_loops};
pub(crate) use function::ModuleBuilder;
pub use function::{
    module::{ModuleForm, ModuleKind},
    weights::{WeightsLayout, WeightsSegment},
};

use crate::{
    error::Result,
    kernel::{Program, contract::Contract},
    options::{CompileOptions, Microkernels},
    plan::Plan,
    target::Level,
};
use artefact::ExportedFunctions;
use cranelift_codegen::isa::TargetIsa;
use cranelift_module::Module;
use run::{contract, levels, sizes, state};
use target_lexicon::Architecture;

/// Emits a program and its call contract into `module`.
///
/// # Errors
/// - a symbol that the shapes of the inputs don't determine;
/// - a size without an upper bound, or beyond the address space;
/// - an input or output of more than [`symshape_runtime::MAX_AXES`] axes;
/// - an instruction that the target does not have.
pub fn generate(
    program: &Program,
    plan: &Plan,
    form: &ModuleForm,
    options: &CompileOptions,
    module: &mut dyn Module,
) -> Result<Summary> {
    sizes::require_bounds(program)?;
    sizes::require_axes(program)?;

    let scalar_options;
    let options = if has_vectors(module.isa()) {
        options
    } else {
        scalar_options = options.microkernels(Microkernels::ScalarLoops);
        &scalar_options
    };
    let contract = Contract::of(program)?;
    let unit = &mut ModuleBuilder::new(module, program, &contract, plan, form, options);

    let arena_bytes = sizes::arena_bytes(unit)?;
    let run = levels::run(unit, arena_bytes)?;
    let check = contract::check(unit)?;
    let output_shape = sizes::output_shape(unit)?;
    let state = state::functions(unit, &run)?;
    artefact::summary(unit, &ExportedFunctions { check, arena_bytes, output_shape, run, state })
}

/// Bytes of the frame that the partitions of one call share.
pub fn frame_bytes(program: &Program) -> usize {
    function::frame::bytes(program) as usize
}

/// The plans by which tiles compute the contractions of a program at a level, as text: operands, loops and
/// microkernels.
pub fn tile_plans(program: &Program, level: Level, isa: &dyn TargetIsa) -> String {
    body::tiles::plans_text(program, &*vector::for_level(level, isa))
}

/// Whether the machine has vector registers. RISC-V is the only target without them in its base level.
fn has_vectors(isa: &dyn TargetIsa) -> bool {
    if !matches!(isa.triple().architecture, Architecture::Riscv64(_)) {
        return true;
    }
    isa.isa_flags().iter().any(|flag| flag.name == "has_v" && flag.as_bool() == Some(true))
}
