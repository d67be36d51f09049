//! Programs into machine code: one Cranelift function for each kernel, the contract's functions, the driver and the
//! tables of the artefact, into any [`Module`].
//!
//! The same code serves the JIT and object files. What comes out imports nothing but the
//! functions that the program calls by name: maths is emitted ([`function::math`]), and no
//! instruction is used that the target would turn into a call of a library. The plan's sizes and every index stay
//! within 64 bits for all allowed values of the symbols; what can't is refused here.

mod artefact;
mod body;
pub mod function;
pub mod microkernel;
mod run;
pub mod vector;

pub use artefact::Summary;
pub use function::{
    FuncCtx, ModuleBuilder,
    module::{ModuleForm, ModuleKind},
};

use crate::{
    error::Result,
    kernel::{Program, contract::Contract},
    options::{CompileOptions, Microkernels},
    plan::Plan,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_module::Module;
use run::{contract, levels, sizes};
use target_lexicon::Architecture;

/// Emits a program and its contract into `module`.
///
/// # Errors
/// A symbol that the inputs' shapes don't determine, a size without a bound or beyond what can be addressed, an input or
/// output of more than [`symshape_runtime::MAX_AXES`] axes, and
/// whatever the target cannot do.
pub fn generate(
    program: &Program,
    plan: &Plan,
    form: &ModuleForm,
    options: &CompileOptions,
    module: &mut dyn Module,
) -> Result<Summary> {
    let options =
        if has_vectors(module.isa()) { options } else { &options.microkernels(Microkernels::ScalarLoops) };
    sizes::require_bounds(program)?;
    sizes::require_axes(program)?;

    let call_contract = Contract::of(program)?;
    let unit = &mut ModuleBuilder::new(module, program, &call_contract, plan, form, options);
    let arena_bytes = sizes::arena_bytes(unit)?;
    let run = levels::run(unit, arena_bytes)?;
    let check = contract::check(unit)?;
    let output_shape = sizes::output_shape(unit)?;
    let functions = artefact::Functions { check, arena_bytes, output_shape, run };
    artefact::summary(unit, &functions)
}

/// Bytes of the frame that the partitions of one call share.
pub fn frame_bytes(program: &Program) -> usize {
    function::frame::bytes(program) as usize
}

/// Whether the machine has vectors at all; only RISC-V comes without.
fn has_vectors(isa: &dyn TargetIsa) -> bool {
    let has_v = || isa.isa_flags().iter().any(|flag| flag.name == "has_v" && flag.as_bool() == Some(true));
    !matches!(isa.triple().architecture, Architecture::Riscv64(_)) || has_v()
}
