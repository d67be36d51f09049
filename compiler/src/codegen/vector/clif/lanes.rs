//! Helpers for 128-bit vectors in Cranelift IR.

use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Type, Value, types};
use cranelift_frontend::FunctionBuilder;

/// The flags of accesses to memory that is mapped, at any alignment.
pub(super) fn no_trap() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// The bits of `value` as another type of the same size.
pub(super) fn cast(b: &mut FunctionBuilder, ty: Type, value: Value) -> Value {
    if b.func.dfg.value_type(value) == ty {
        return value;
    }
    // Cranelift wants a byte order wherever the number of lanes may change.
    b.ins().bitcast(ty, MemFlagsData::new().with_endianness(Endianness::Little), value)
}

/// 32 bits in all lanes.
pub(super) fn splat(b: &mut FunctionBuilder, ty: Type, bits: i32) -> Value {
    let lane = b.ins().iconst(types::I32, i64::from(bits as u32));
    b.ins().splat(ty, lane)
}
