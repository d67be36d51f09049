//! How a model is compiled: one value that the stages share, from lowering to code generation.

use crate::{
    kernel::{MicrokernelSupport, Policies},
    partition,
    plan::problem::Budget,
    scalar::Precision,
    target::Target,
};

/// Threads that scratch memory is planned for by default. With more threads, a kernel that needs scratch memory uses
/// only this many of them.
pub const DEFAULT_THREADS: u32 = 4;

/// How a model is compiled.
///
/// Start from [`CompileOptions::default`] (code for this machine), [`CompileOptions::for_target`] or
/// [`CompileOptions::for_c_source`], then set fields with the methods of the same names:
///
/// ```
/// use symshape_compiler::{CompileOptions, scalar::Precision};
///
/// let options = CompileOptions::default().threads(1).precision(Precision::Bf16x3);
/// assert_eq!(options.threads, 1);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CompileOptions {
    /// Number of threads that scratch memory is planned for.
    pub threads: u32,
    /// Number of partitions of the network. `None` keeps it in one piece, without a partition table.
    pub partitions: Option<partition::Count>,
    /// Orders in which partitions may run; memory is planned for all of them.
    pub policies: Policies,
    /// How contractions of `f32` multiply on machines with tile registers.
    pub precision: Precision,
    /// Microkernels that the target machines support.
    pub support: MicrokernelSupport,
    /// How parts for an offload target are dealt with that don't fit into its device memory.
    pub oversized_parts: OversizedParts,
    /// How long to search for a lower arena than the greedy plans.
    pub budget: Budget,
    /// Contexts reserve address space and take memory only when a call needs it, see [`symshape_runtime::abi::GROWS`].
    pub dynamic_memory: bool,
    /// Calls fail on machines without tile registers, instead of running fallback code, if the model has contractions
    /// for tile registers.
    pub require_tiles: bool,
    /// C source calls the functions of `math.h`. Without them it contains its own, includes only `stddef.h` and
    /// `stdint.h`, and calls no function of a library.
    pub libm: bool,
    /// C source is for a compiler to WebAssembly: it multiplies vectors of four floats, and it uses instructions of
    /// WebAssembly in place of own functions.
    pub wasm_source: bool,
    /// The constants are in a file of their own, which callers open and pass to each call. An artefact in the memory of
    /// this process has none.
    pub weights_file: bool,
    /// Constant panels are stored in 16 bits if all their elements are f16, or all are bf16, however many rows are
    /// multiplied with them. By default, few rows decide so, because conversions delay many.
    pub half_weights: bool,
    /// Form of the inner loops; a switch for tests.
    pub microkernels: Microkernels,
    /// Keeps the text of every generated function, see [`crate::codegen::Summary::clif`].
    pub listing: bool,
}

/// How parts for an offload target are dealt with that don't fit into its device memory at the upper bounds of the
/// symbols.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OversizedParts {
    /// They are cut smaller. What still does not fit is left to the next target or the CPU. The warnings of the
    /// [lowered model](crate::pipeline::Lowered::warnings) name each such part and its largest buffer.
    #[default]
    Divide,
    /// They are an error.
    Refuse,
}

/// Form of the inner loops in generated code. Tests compare the slow forms with the native one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Microkernels {
    /// Microkernels for the target's vector and tile registers.
    #[default]
    Native,
    /// Microkernels for a machine with tile registers, which are emulated in memory. Slow.
    EmulatedTiles,
    /// Loops over single elements, without microkernels. Slow.
    ScalarLoops,
}

impl CompileOptions {
    /// Machine code for `target`.
    pub fn for_target(target: &Target) -> CompileOptions {
        CompileOptions::with(MicrokernelSupport::Native {
            multiplies_bytes: target.multiplies_bytes(),
            sums_pairs: target.sums_pairs(),
            tiles: target.has_tiles(),
            bf16_matrices: target.has_bf16_matrices(),
            reads_halves: target.reads_halves(),
            lanes: target.lanes(),
        })
    }

    /// C source, which runs on one thread and has no microkernels.
    pub fn for_c_source() -> CompileOptions {
        CompileOptions::with(MicrokernelSupport::Loops).threads(1)
    }

    fn with(support: MicrokernelSupport) -> CompileOptions {
        CompileOptions {
            threads: DEFAULT_THREADS,
            partitions: None,
            policies: Policies::Any,
            precision: Precision::F32,
            support,
            oversized_parts: OversizedParts::Divide,
            budget: Budget::COMPILE,
            dynamic_memory: false,
            require_tiles: false,
            libm: true,
            wasm_source: false,
            weights_file: false,
            half_weights: false,
            microkernels: Microkernels::Native,
            listing: false,
        }
    }

    /// Sets [`CompileOptions::threads`].
    pub fn threads(self, threads: u32) -> CompileOptions {
        CompileOptions { threads, ..self }
    }

    /// Sets [`CompileOptions::partitions`].
    pub fn partitions(self, count: impl Into<Option<partition::Count>>) -> CompileOptions {
        CompileOptions { partitions: count.into(), ..self }
    }

    /// Sets [`CompileOptions::policies`].
    pub fn policies(self, policies: Policies) -> CompileOptions {
        CompileOptions { policies, ..self }
    }

    /// Sets [`CompileOptions::precision`].
    pub fn precision(self, precision: Precision) -> CompileOptions {
        CompileOptions { precision, ..self }
    }

    /// Sets [`CompileOptions::support`].
    pub fn support(self, support: MicrokernelSupport) -> CompileOptions {
        CompileOptions { support, ..self }
    }

    /// Sets [`CompileOptions::oversized_parts`].
    pub fn oversized_parts(self, oversized_parts: OversizedParts) -> CompileOptions {
        CompileOptions { oversized_parts, ..self }
    }

    /// Sets [`CompileOptions::budget`].
    pub fn budget(self, budget: Budget) -> CompileOptions {
        CompileOptions { budget, ..self }
    }

    /// Sets [`CompileOptions::dynamic_memory`].
    pub fn dynamic_memory(self, dynamic_memory: bool) -> CompileOptions {
        CompileOptions { dynamic_memory, ..self }
    }

    /// Sets [`CompileOptions::require_tiles`].
    pub fn require_tiles(self, require_tiles: bool) -> CompileOptions {
        CompileOptions { require_tiles, ..self }
    }

    /// Sets [`CompileOptions::libm`].
    pub fn libm(self, libm: bool) -> CompileOptions {
        CompileOptions { libm, ..self }
    }

    /// Sets [`CompileOptions::wasm_source`].
    pub fn wasm_source(self, wasm_source: bool) -> CompileOptions {
        CompileOptions { wasm_source, ..self }
    }

    /// Sets [`CompileOptions::weights_file`].
    pub fn weights_file(self, weights_file: bool) -> CompileOptions {
        CompileOptions { weights_file, ..self }
    }

    /// Sets [`CompileOptions::half_weights`].
    pub fn half_weights(self, half_weights: bool) -> CompileOptions {
        CompileOptions { half_weights, ..self }
    }

    /// Sets [`CompileOptions::microkernels`].
    pub fn microkernels(self, microkernels: Microkernels) -> CompileOptions {
        CompileOptions { microkernels, ..self }
    }

    /// Sets [`CompileOptions::listing`].
    pub fn listing(self, listing: bool) -> CompileOptions {
        CompileOptions { listing, ..self }
    }
}

impl Default for CompileOptions {
    /// Machine code for this machine. On a machine without a code generator, only lowering uses them.
    fn default() -> CompileOptions {
        match Target::host() {
            Ok(host) => CompileOptions::for_target(&host),
            Err(_) => CompileOptions::with(MicrokernelSupport::default()),
        }
    }
}
