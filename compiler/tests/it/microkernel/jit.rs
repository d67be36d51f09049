//! Compiles and calls single microkernels, and builds the keys that tests vary.

use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
#[cfg(target_arch = "aarch64")]
use symshape_compiler::codegen::vector::Aarch64;
#[cfg(target_arch = "x86_64")]
use symshape_compiler::codegen::vector::X86;
use symshape_compiler::codegen::{
    microkernel::{
        self, MicrokernelKey,
        contraction::{DotOp, ReductionPart, Rhs, TileKey},
        op::{Body, StreamStep, Ty},
    },
    vector::VectorIsa,
};

/// A module for this machine, without fused multiply-add if `fma` is false.
fn module(fma: bool) -> JITModule {
    let mut flags = settings::builder();
    flags.set("opt_level", "speed").expect("known setting");
    let mut isa = cranelift_native::builder().expect("this machine is supported");
    if !fma && cfg!(target_arch = "x86_64") {
        isa.set("has_fma", "false").expect("known setting");
    }
    let isa = isa.finish(settings::Flags::new(flags)).expect("valid flags");
    JITModule::new(JITBuilder::with_isa(isa, cranelift_module::default_libcall_names()))
}

/// The ISAs that this machine runs, each with the module flags to test it under.
pub(crate) fn isas() -> Vec<(Box<dyn VectorIsa>, bool)> {
    let mut isas: Vec<(Box<dyn VectorIsa>, bool)> = Vec::new();
    for fma in [true, false] {
        let module = module(fma);
        let portable =
            symshape_compiler::codegen::vector::Portable::new(cranelift_module::Module::isa(&module));
        isas.push((Box::new(portable), fma));
    }
    isas.extend(own_encodings().into_iter().map(|isa| (isa, true)));
    isas
}

/// The ISAs whose instructions the compiler encodes itself, as far as this machine has them.
#[cfg(target_arch = "x86_64")]
fn own_encodings() -> Vec<Box<dyn VectorIsa>> {
    let mut isas: Vec<Box<dyn VectorIsa>> = Vec::new();
    for (level, runs) in [
        (X86::AVX2, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")),
        (X86::AVX2_VNNI, is_x86_feature_detected!("avxvnni") && is_x86_feature_detected!("fma")),
        (X86::AVX512, is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq")),
    ] {
        if runs {
            isas.push(Box::new(level));
        }
    }
    isas
}

/// The ISAs whose instructions the compiler encodes itself, as far as this machine has them.
#[cfg(target_arch = "aarch64")]
fn own_encodings() -> Vec<Box<dyn VectorIsa>> {
    let mut isas: Vec<Box<dyn VectorIsa>> = vec![Box::new(Aarch64::NEON)];
    if std::arch::is_aarch64_feature_detected!("dotprod") {
        isas.push(Box::new(Aarch64::DOTPROD));
    }
    if std::arch::is_aarch64_feature_detected!("i8mm") {
        isas.push(Box::new(Aarch64::I8MM));
    }
    if std::arch::is_aarch64_feature_detected!("bf16") {
        isas.push(Box::new(Aarch64::BF16));
    }
    isas
}

/// The ISAs whose instructions the compiler encodes itself, as far as this machine has them.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn own_encodings() -> Vec<Box<dyn VectorIsa>> {
    Vec::new()
}

/// The ISAs that round to bf16 and run here: the one with emulated tile registers, and that of the machine if it has
/// them.
pub(crate) fn isas_of_tiles() -> Vec<(Box<dyn VectorIsa>, bool)> {
    let module = module(true);
    let portable = symshape_compiler::codegen::vector::Portable::new(cranelift_module::Module::isa(&module));
    let mut isas: Vec<(Box<dyn VectorIsa>, bool)> = vec![(Box::new(portable.with_tiles()), true)];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vl") {
        isas.push((Box::new(X86::AVX512_AMX), true));
    }
    isas
}

/// A microkernel in executable memory.
pub(crate) struct Compiled {
    /// Keeps the memory.
    _module: JITModule,
    entry: *const u8,
}

impl Compiled {
    /// Compiles a microkernel.
    pub(crate) fn new(key: &MicrokernelKey, isa: &dyn VectorIsa, fma: bool) -> Compiled {
        let mut module = module(fma);
        let (func, _) =
            microkernel::emit(key, "microkernel", isa, &mut module).expect("microkernels compile");
        module.finalize_definitions().expect("no undefined symbols");
        let entry = module.get_finalized_function(func);
        Compiled { _module: module, entry }
    }

    /// Calls it with these arguments, which it may write results into.
    pub(crate) fn call(&self, args: &mut [i64]) {
        // SAFETY: the microkernel was compiled with this signature and its memory is still mapped. Tests pass pointers
        // that cover the memory of the key's streams.
        unsafe {
            let entry: extern "C" fn(*mut i64) = std::mem::transmute(self.entry);
            entry(args.as_mut_ptr());
        }
    }
}

/// A tile of `f32` or bytes whose reduction is one dense loop over packed panels, without prefetch. Its epilogue has
/// `streams` streams along the columns.
pub(crate) fn tile([rows, vectors]: [usize; 2], product: DotOp, streams: usize, epilogue: Body) -> TileKey {
    TileKey {
        rows: rows as u8,
        vectors: vectors as u8,
        dot: product,
        tail: false,
        dense: true,
        flips_signs: false,
        shared_bytes: 0,
        levels: 1,
        rhs: Rhs::Panels(16),
        rhs_element: Ty::F32,
        prefetch_panels: false,
        part: ReductionPart::Whole,
        paired: false,
        line_batch: false,
        streams: vec![StreamStep::Unit; streams],
        scalars: 0,
        row_invariant: 0,
        prefetch_epilogue: false,
        epilogue,
    }
}

/// The address of a slice as an argument.
pub(crate) fn address<T>(slice: &[T]) -> i64 {
    slice.as_ptr() as i64
}

/// The address of a slice that is written, as an argument.
pub(crate) fn address_mut<T>(slice: &mut [T]) -> i64 {
    slice.as_mut_ptr() as i64
}

/// A pseudo-random sequence, the same at every run.
pub(crate) fn elements(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
