//! Single microkernels in executable memory, and microkernels that measure the peak speeds of a machine.

use cranelift_codegen::{
    ir::{AbiParam, types},
    settings::{self, Configurable},
};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module};
use symshape_compiler::codegen::vector::{
    Builder, VectorIsa,
    vcode::{IntWidth, Mem, TILE_CONFIG, TILE_ROW_BYTES, TILE_ROWS, TILES, TileDot, TileReg, VBinary, VCode},
};

/// A microkernel in executable memory.
pub struct Compiled {
    module: JITModule,
    entry: *const u8,
}

impl Compiled {
    /// Compiles a microkernel.
    ///
    /// # Panics
    /// If it does not compile: a bug.
    pub fn new(isa: &dyn VectorIsa, code: &VCode) -> Compiled {
        let mut module = module();
        let mut signature = module.make_signature();
        signature.params.push(AbiParam::new(types::I64));
        let func = module.declare_function("microkernel", Linkage::Local, &signature).expect("a new name");
        let code = isa.compile(func, code, module.isa()).expect("microkernels compile");
        code.define(func, &mut module).expect("a declared function");
        module.finalize_definitions().expect("no undefined symbols");
        let entry = module.get_finalized_function(func);
        Compiled { module, entry }
    }

    /// Calls the microkernel. The arguments must cover the memory that it accesses.
    pub fn call(&self, args: &mut [i64]) {
        debug_assert_eq!(
            self.module.get_finalized_function(cranelift_module::FuncId::from_u32(0)),
            self.entry
        );
        // SAFETY: the microkernel has this signature, its memory is mapped, and the arguments cover the memory it
        // accesses.
        unsafe {
            let entry: extern "C" fn(*mut i64) = std::mem::transmute(self.entry);
            entry(args.as_mut_ptr());
        }
    }
}

/// A module for this machine.
///
/// # Panics
/// If there is no code generator for this machine.
pub fn module() -> JITModule {
    let mut flags = settings::builder();
    flags.set("opt_level", "speed").expect("known setting");
    let isa = cranelift_native::builder().expect("this machine is supported");
    let isa = isa.finish(settings::Flags::new(flags)).expect("valid flags");
    JITModule::new(JITBuilder::with_isa(isa, cranelift_module::default_libcall_names()))
}

/// Pseudo-random elements.
pub fn elements(count: usize) -> Vec<f32> {
    (0..count).map(|idx| (idx * 7919 % 1000) as f32 / 500.0 - 1.0).collect()
}

/// Multiply-adds of a round of [`multiply_adds`].
const CHAINED: usize = 48;

/// A microkernel that runs twelve independent chains of multiply-adds. Its arguments are the number of rounds, and 8
/// bytes for the result.
pub fn multiply_adds(isa: &dyn VectorIsa) -> Compiled {
    let mut b = Builder::new(isa.shape());
    let (rounds, zero) = (b.arg(0), b.float(0.0));
    let factor = b.broadcast(b.arg_mem(1));
    let sums: Vec<_> = (0..12).map(|_| b.variable(zero)).collect();
    b.repeat(rounds, 1, |b| {
        sums.iter().cycle().take(CHAINED).for_each(|sum| b.set_fma(*sum, factor, factor));
    });
    sums.iter().for_each(|sum| b.store_one(b.arg_mem(1), *sum));
    Compiled::new(isa, &b.finish())
}

/// Floating-point operations of a round of [`multiply_adds`].
pub fn operations(isa: &dyn VectorIsa) -> u64 {
    2 * (CHAINED * isa.shape().lanes) as u64
}

/// A microkernel that multiplies bytes on vector registers into twelve independent accumulators. Its arguments are
/// those of [`multiply_adds`].
pub fn byte_products(isa: &dyn VectorIsa) -> Compiled {
    let mut b = Builder::new(isa.shape());
    let (rounds, zero) = (b.arg(0), b.bits(0));
    let factor = b.broadcast(b.arg_mem(1));
    let sums: Vec<_> = (0..12).map(|_| b.variable(zero)).collect();
    let vnni = isa.shape().vnni;
    b.repeat(rounds, 1, |b| {
        for sum in sums.iter().cycle().take(CHAINED) {
            if vnni {
                b.set_dot_bytes(*sum, factor, factor);
            } else {
                let pairs = b.binary(VBinary::DotPairs, factor, factor);
                b.set_binary(VBinary::AddInt, *sum, pairs);
            }
        }
    });
    sums.iter().for_each(|sum| b.store_one(b.arg_mem(1), *sum));
    Compiled::new(isa, &b.finish())
}

/// Operations of a round of [`byte_products`].
pub fn byte_operations(isa: &dyn VectorIsa) -> u64 {
    operations(isa) * if isa.shape().vnni { 4 } else { 2 }
}

/// Multiplications of tile registers in a round of [`tile_dots`].
const TILE_DOTS: usize = 16;

/// A microkernel that multiplies full tile registers into four independent accumulators. Its argument is the number of
/// rounds. The machine must have tile registers, and the operating system must have permitted their use.
pub fn tile_dots(isa: &dyn VectorIsa, op: TileDot) -> Compiled {
    let mut b = Builder::new(isa.shape());
    let rounds = b.arg(0);
    let config = b.scratch(TILE_CONFIG.bytes);
    let zero = b.imm(0);
    let one = b.imm(1);
    for offset in (0..TILE_CONFIG.bytes).step_by(8) {
        b.store_int(Mem::from(config).plus(offset), zero, IntWidth::I64);
    }
    b.store_int(config, one, IntWidth::U8);

    let row_bytes = b.imm(TILE_ROW_BYTES as i64);
    let rows = b.imm(TILE_ROWS as i64);
    for register in 0..TILES {
        b.store_int(Mem::from(config).plus(TILE_CONFIG.row_bytes + 2 * register), row_bytes, IntWidth::I16);
        b.store_int(Mem::from(config).plus(TILE_CONFIG.row_counts + register), rows, IntWidth::U8);
    }
    b.tile_config(config);
    (0..TILES as TileReg).for_each(|register| b.tile_zero(register));

    // Registers 0 to 3 are accumulators, 4 and 5 lhs, 6 and 7 rhs.
    b.repeat(rounds, 1, |b| {
        for idx in 0..TILE_DOTS as TileReg {
            let accumulator = idx % 4;
            b.tile_dot(op, accumulator, 4 + accumulator / 2, 6 + accumulator % 2);
        }
    });
    b.tile_release();
    Compiled::new(isa, &b.finish())
}

/// Operations of a round of [`tile_dots`].
pub fn tile_operations(op: TileDot) -> u64 {
    let depth = match op {
        TileDot::Bf16 => TILE_ROW_BYTES / 2,
        TileDot::Bytes => TILE_ROW_BYTES,
    };
    (2 * TILE_DOTS * TILE_ROWS * TILE_ROWS * depth) as u64
}

/// Vectors that a round of [`reads`] loads.
const LOADED: usize = 8;

/// A microkernel that reads memory. Its arguments are the address, the number of rounds of [`read_bytes`] each, and 8
/// bytes for the result.
pub fn reads(isa: &dyn VectorIsa) -> Compiled {
    let mut b = Builder::new(isa.shape());
    let (from, rounds, zero) = (b.arg(0), b.arg(1), b.bits(0));
    let sums: Vec<_> = (0..LOADED).map(|_| b.variable(zero)).collect();
    let bytes = 4 * b.lanes();
    b.repeat(rounds, 1, |b| {
        for (idx, sum) in sums.iter().enumerate() {
            let value = b.load(Mem::from(from).plus(idx * bytes));
            let both = b.binary(VBinary::Or, *sum, value);
            b.set(*sum, both);
        }
        b.advance(from, (LOADED * bytes) as i32);
    });
    sums.iter().for_each(|sum| b.store_one(b.arg_mem(2), *sum));
    Compiled::new(isa, &b.finish())
}

/// Bytes that a round of [`reads`] reads.
pub fn read_bytes(isa: &dyn VectorIsa) -> usize {
    4 * LOADED * isa.shape().lanes
}
