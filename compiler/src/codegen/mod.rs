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
//! Functions are emitted one by one and compiled on all cores, see `function/definitions.rs`. The module has the same
//! bytes on any number of cores.
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
    parallel,
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
    generate_on(parallel::cores(), program, plan, form, options, module)
}

/// As [`generate`], with at most `threads` threads.
fn generate_on(
    threads: usize,
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
    unit.threads = threads;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::text,
        plan,
        target::{Placement, Target},
    };
    use cranelift_module::default_libcall_names;
    use cranelift_object::{ObjectBuilder, ObjectModule};
    use std::fmt::Write;

    /// Products of several depths, so that functions take different times to compile.
    fn products() -> Program {
        let mut source =
            String::from("program products {\n  symbol N = 1..64\n  @0 x: f32[4096*N] input 0\n");
        let depths = [4096, 7, 1000, 16, 3, 640, 31];
        for (idx, depth) in (1..).zip(depths) {
            writeln!(source, "  @{idx} w{idx}: f32[{}] const [{}] all 1.0", 16 * depth, 16 * depth)
                .expect("text");
        }
        source += "  @8 y: f32[16*N] output 0\n  input x[N, 4096] = @0\n  output y[N, 16] = @8\n";
        for (idx, depth) in (1..).zip(depths) {
            write!(
                source,
                "  kernel k{idx} {{
    contraction f32 by f32 {{
      m row in 0..N
      n column in 0..16
      k depth in 0..{depth}
      lhs @0[depth + 4096*row]
      rhs panels @{idx}[0] width 16
      %0 = sum
      store @8[column + 16*row], %0
    }}
  }}
"
            )
            .expect("text");
        }
        text::parse(&(source + "}\n")).expect("a program")
    }

    fn object(program: &Program, threads: usize) -> (Vec<u8>, Vec<String>) {
        let plan = plan::plan(program, &plan::problem::Budget::COMPILE).expect("a plan");
        let target = Target::host().expect("a target");
        let isa = target.isa(Placement::Object).expect("an ISA");
        let builder = ObjectBuilder::new(isa, "products", default_libcall_names()).expect("a builder");
        let mut module = ObjectModule::new(builder);
        let form = ModuleForm::new(ModuleKind::Object);
        let options = CompileOptions::default();
        let summary =
            generate_on(threads, program, &plan, &form, &options, &mut module).expect("the program compiles");
        let names = summary.functions.into_iter().map(|function| function.name).collect();
        (module.finish().emit().expect("an object"), names)
    }

    #[test]
    fn modules_have_the_same_bytes_on_any_number_of_threads() {
        let program = products();
        let (alone, names) = object(&program, 1);
        assert!(names.len() > 20, "{names:?}");
        for threads in [2, 3, 8, 64] {
            let (shared, in_order) = object(&program, threads);
            assert_eq!(in_order, names, "{threads} threads");
            assert!(shared == alone, "{threads} threads");
        }
    }
}
