//! Loads and stores of integers, and of vectors: whole, partial, narrow, and lane by lane.

use super::{LANES, Translator, lanes::no_trap};
use crate::codegen::vector::vcode::{Int, IntWidth, Mem, NarrowInt, Narrowing, VInst, Vector};
use cranelift_codegen::ir::{InstBuilder, Type, Value, condcodes::IntCC, types};

impl Translator<'_> {
    /// The base of an address, index included, and its displacement.
    pub(super) fn address(&mut self, mem: Mem) -> (Value, i32) {
        let base = self.int(mem.base);
        let Some((index, scale)) = mem.index else { return (base, mem.disp) };
        let index = self.int(index);
        let scaled = self.b.ins().ishl_imm_u(index, i64::from(scale.trailing_zeros()));
        (self.b.ins().iadd(base, scaled), mem.disp)
    }

    pub(super) fn load(&mut self, dtype: Type, mem: Mem) -> Value {
        let (base, disp) = self.address(mem);
        self.b.ins().load(dtype, no_trap(), base, disp)
    }

    /// Four lanes. They are loaded as integers: without AVX, Cranelift 0.135 makes a load of floats an operand of their
    /// comparison (`cmpps`), which needs an alignment that the memory lacks.
    fn load_vector(&mut self, mem: Mem) -> Value {
        let lanes = self.load(types::I32X4, mem);
        self.as_type(types::F32X4, lanes)
    }

    pub(super) fn store(&mut self, mem: Mem, value: Value) {
        let (base, disp) = self.address(mem);
        self.b.ins().store(no_trap(), value, base, disp);
    }

    /// Runs `body` for each lane below `n`.
    pub(super) fn for_first(&mut self, n: Int, mut body: impl FnMut(&mut Self, usize)) {
        let end = self.b.create_block();
        for lane in 0..LANES {
            let n = self.int(n);
            let inside = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, n, lane as i64);
            let next = self.b.create_block();
            self.b.ins().brif(inside, next, &[], end, &[]);
            self.b.switch_to_block(next);
            body(self, lane);
        }
        self.b.ins().jump(end, &[]);
        self.b.switch_to_block(end);
    }

    /// Each lane from its own offset.
    fn gather(&mut self, dst: Vector, mem: Mem, offsets: Vector) {
        let offsets = self.ints_of(offsets);
        let (base, disp) = self.address(mem);
        for lane in 0..LANES {
            let offset = self.b.ins().extractlane(offsets, lane as u8);
            let offset = self.b.ins().sextend(types::I64, offset);
            let offset = self.b.ins().ishl_imm_u(offset, 2);
            let address = self.b.ins().iadd(base, offset);
            let value = self.b.ins().load(types::F32, no_trap(), address, disp);
            if lane == 0 {
                let value = self.b.ins().scalar_to_vector(types::F32X4, value);
                self.set(dst, value);
            } else {
                self.insert(dst, value, lane);
            }
        }
    }

    pub(super) fn memory(&mut self, step: &VInst) {
        match step {
            VInst::Load(dst, mem) => {
                let value = self.load_vector(*mem);
                self.set(*dst, value);
            }
            VInst::LoadFirst(dst, mem, n, _) => {
                let zero = self.constant(types::F32X4, [0; LANES]);
                self.set(*dst, zero);
                self.for_first(*n, |translator, lane| {
                    let value = translator.load(types::F32, mem.plus(4 * lane));
                    translator.insert(*dst, value, lane);
                });
            }
            VInst::LoadLanes(dst, _, mems) => {
                for (lane, mem) in mems.iter().enumerate() {
                    let value = self.load(types::F32, *mem);
                    if lane == 0 {
                        let value = self.b.ins().scalar_to_vector(types::F32X4, value);
                        self.set(*dst, value);
                    } else {
                        self.insert(*dst, value, lane);
                    }
                }
            }
            VInst::LoadQuads(dst, mems) => {
                let value = self.load_vector(mems[0]);
                self.set(*dst, value);
            }
            VInst::Gather(dst, _, mem, offsets) => self.gather(*dst, *mem, *offsets),
            VInst::LoadOne(dst, mem) => {
                let value = self.load(types::F32, *mem);
                let value = self.b.ins().scalar_to_vector(types::F32X4, value);
                self.set(*dst, value);
            }
            VInst::Broadcast(dst, mem) => {
                let value = self.load(types::F32, *mem);
                let value = self.b.ins().splat(types::F32X4, value);
                self.set(*dst, value);
            }
            VInst::LoadNarrow(dst, mem, narrow) => {
                let dtype = if narrow.bytes() == 2 { types::I64 } else { types::I32 };
                let value = self.load(dtype, *mem);
                self.extend(*dst, value, *narrow);
            }
            VInst::LoadHalves(dst, mem, narrow) => {
                let value = self.load(types::I64, *mem);
                let value = self.b.ins().scalar_to_vector(types::I64X2, value);
                let value = self.as_type(types::I8X16, value);
                let value = match narrow {
                    NarrowInt::U8 => self.b.ins().uwiden_low(value),
                    NarrowInt::I8 => self.b.ins().swiden_low(value),
                    NarrowInt::I16 | NarrowInt::U16 => unreachable!("half a lane is 16 bits"),
                };
                self.set(*dst, value);
            }
            VInst::BroadcastNarrow(dst, mem, narrow) => {
                let dtype = if narrow.bytes() == 2 { types::I16 } else { types::I8 };
                let value = self.load(dtype, *mem);
                let value = match narrow {
                    NarrowInt::U8 | NarrowInt::U16 => self.b.ins().uextend(types::I32, value),
                    NarrowInt::I8 | NarrowInt::I16 => self.b.ins().sextend(types::I32, value),
                };
                let value = self.b.ins().splat(types::I32X4, value);
                self.set(*dst, value);
            }
            VInst::StoreNarrow(mem, src, _, narrow, Narrowing::Low) => self.store_narrow(*mem, *src, *narrow),
            VInst::StoreBf16(mem, src, _) => {
                let value = self.bf16(*src);
                let value = self.b.ins().sshr_imm_u(value, 16);
                self.store_halves(*mem, value);
            }
            VInst::StoreBf16First(mem, src, _, n, _) => {
                let value = self.bf16(*src);
                let value = self.b.ins().ushr_imm_u(value, 16);
                self.for_first(*n, |translator, lane| {
                    let one = translator.b.ins().extractlane(value, lane as u8);
                    let one = translator.b.ins().ireduce(types::I16, one);
                    translator.store(mem.plus(types::I16.bytes() as usize * lane), one);
                });
            }
            VInst::Store(mem, src) => self.store_vector(*mem, *src),
            VInst::StoreFirst(mem, src, n, _) => {
                self.for_first(*n, |translator, lane| translator.store_lane(mem.plus(4 * lane), *src, lane));
            }
            VInst::StoreLanes(mems, src, _) => {
                for (lane, mem) in mems.iter().enumerate() {
                    self.store_lane(*mem, *src, lane);
                }
            }
            VInst::StoreQuads(mems, src) => self.store_vector(mems[0], *src),
            VInst::StoreOne(mem, src) => self.store_lane(*mem, *src, 0),
            VInst::Prefetch(_) | VInst::PrefetchWrite(_) => {}
            _ => unreachable!("neither a memory step nor one that the shape allows: {step:?}"),
        }
    }

    fn store_vector(&mut self, mem: Mem, src: Vector) {
        let value = self.vector(src);
        self.store(mem, value);
    }

    /// Sets `dst` to four packed narrow integers, each extended to a lane.
    pub(super) fn extend(&mut self, dst: Vector, packed: Value, narrow: NarrowInt) {
        let wide = if narrow.bytes() == 2 { types::I64X2 } else { types::I32X4 };
        let value = self.b.ins().scalar_to_vector(wide, packed);
        let value = match narrow {
            NarrowInt::U8 => {
                let bytes = self.as_type(types::I8X16, value);
                let wide = self.b.ins().uwiden_low(bytes);
                self.b.ins().uwiden_low(wide)
            }
            NarrowInt::I8 => {
                let bytes = self.as_type(types::I8X16, value);
                let wide = self.b.ins().swiden_low(bytes);
                self.b.ins().swiden_low(wide)
            }
            NarrowInt::I16 => {
                let halves = self.as_type(types::I16X8, value);
                self.b.ins().swiden_low(halves)
            }
            NarrowInt::U16 => {
                let halves = self.as_type(types::I16X8, value);
                self.b.ins().uwiden_low(halves)
            }
        };

        self.set(dst, value);
    }

    pub(super) fn store_narrow(&mut self, mem: Mem, src: Vector, narrow: NarrowInt) {
        let value = self.ints_of(src);
        if narrow == NarrowInt::I16 {
            return self.store_halves(mem, value);
        }
        if narrow == NarrowInt::U16 {
            let value = self.b.ins().unarrow(value, value);
            return self.store_low_half(mem, value);
        }
        let low = self.constant(types::I32X4, [255; LANES]);
        let value = self.b.ins().band(value, low);
        let value = self.b.ins().unarrow(value, value);
        let value = self.b.ins().unarrow(value, value);
        let value = self.as_type(types::I32X4, value);
        let value = self.b.ins().extractlane(value, 0);
        self.store(mem, value);
    }

    /// Stores the low 16 bits of lanes that are in the range of 16 bits.
    fn store_halves(&mut self, mem: Mem, value: Value) {
        let value = self.b.ins().snarrow(value, value);
        self.store_low_half(mem, value);
    }

    fn store_low_half(&mut self, mem: Mem, value: Value) {
        let value = self.as_type(types::I64X2, value);
        let value = self.b.ins().extractlane(value, 0);
        self.store(mem, value);
    }

    pub(super) fn insert(&mut self, dst: Vector, value: Value, lane: usize) {
        let old = self.vector(dst);
        let value = self.b.ins().insertlane(old, value, lane as u8);
        self.set(dst, value);
    }

    pub(super) fn store_lane(&mut self, mem: Mem, src: Vector, lane: usize) {
        let value = self.vector(src);
        let value = self.b.ins().extractlane(value, lane as u8);
        self.store(mem, value);
    }

    pub(super) fn load_int(&mut self, dst: Int, mem: Mem, width: IntWidth) {
        let (base, disp) = self.address(mem);
        let value = match width {
            IntWidth::I64 => self.b.ins().load(types::I64, no_trap(), base, disp),
            IntWidth::I32 => self.b.ins().sload32(no_trap(), base, disp),
            IntWidth::I16 => self.b.ins().sload16(types::I64, no_trap(), base, disp),
            IntWidth::U8 => self.b.ins().uload8(types::I64, no_trap(), base, disp),
            IntWidth::I8 => self.b.ins().sload8(types::I64, no_trap(), base, disp),
        };
        self.set_int(dst, value);
    }

    pub(super) fn store_int(&mut self, mem: Mem, src: Int, width: IntWidth) {
        let (base, disp) = self.address(mem);
        let value = self.int(src);
        match width {
            IntWidth::I64 => self.b.ins().store(no_trap(), value, base, disp),
            IntWidth::I32 => self.b.ins().istore32(no_trap(), value, base, disp),
            IntWidth::I16 => self.b.ins().istore16(no_trap(), value, base, disp),
            IntWidth::U8 | IntWidth::I8 => self.b.ins().istore8(no_trap(), value, base, disp),
        };
    }
}
