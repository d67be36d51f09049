//! Addresses, and loads and stores of vectors: whole, partial, narrow, and lane by lane.

use super::{
    super::{
        instructions::Op,
        registers::{ADDRESS, STACK_POINTER, TEMP},
    },
    Selector, condition,
};
use crate::{
    codegen::vector::vcode::{Int, Mem, NarrowInt, VInst, Vector},
    scalar::CompareOp,
};

/// 32-bit lanes of a vector.
const LANES: usize = 4;

/// The instructions that load or store one register, by the form of the address.
#[derive(Clone, Copy)]
pub(super) struct MemoryOps {
    /// Bytes that are moved.
    bytes: i64,
    /// A base and a multiple of the bytes.
    offset: Op,
    /// A base and a small signed number.
    unscaled: Op,
    /// A base and an index.
    indexed: Op,
    /// A base and an index times the bytes.
    scaled: Option<Op>,
}

macro_rules! memory_ops {
    ($($name:ident: $bytes:literal, $offset:ident, $unscaled:ident, $indexed:ident, $scaled:expr;)*) => {
        impl MemoryOps {
            $(pub(super) const $name: MemoryOps = MemoryOps {
                bytes: $bytes,
                offset: Op::$offset,
                unscaled: Op::$unscaled,
                indexed: Op::$indexed,
                scaled: $scaled,
            };)*
        }
    };
}

memory_ops! {
    LDR_X: 8, LdrX, LdurX, LdrXIndexed, Some(Op::LdrXScaled);
    LDRSW: 4, Ldrsw, Ldursw, LdrswIndexed, Some(Op::LdrswScaled);
    LDRSH: 2, Ldrsh, Ldursh, LdrshIndexed, Some(Op::LdrshScaled);
    LDRH: 2, Ldrh, Ldurh, LdrhIndexed, Some(Op::LdrhScaled);
    LDRSB: 1, Ldrsb, Ldursb, LdrsbIndexed, None;
    LDRB: 1, Ldrb, Ldurb, LdrbIndexed, None;
    STR_X: 8, StrX, SturX, StrXIndexed, Some(Op::StrXScaled);
    STR_W: 4, StrW, SturW, StrWIndexed, Some(Op::StrWScaled);
    STRH: 2, Strh, Sturh, StrhIndexed, Some(Op::StrhScaled);
    STRB: 1, Strb, Sturb, StrbIndexed, None;
    LDR_Q: 16, LdrQ, LdurQ, LdrQIndexed, None;
    LDR_D: 8, LdrD, LdurD, LdrDIndexed, Some(Op::LdrDScaled);
    LDR_S: 4, LdrS, LdurS, LdrSIndexed, Some(Op::LdrSScaled);
    STR_Q: 16, StrQ, SturQ, StrQIndexed, None;
    STR_D: 8, StrD, SturD, StrDIndexed, Some(Op::StrDScaled);
    STR_S: 4, StrS, SturS, StrSIndexed, Some(Op::StrSScaled);
}

impl Selector<'_> {
    /// Loads or stores a register.
    pub(super) fn access(&mut self, ops: MemoryOps, reg: i64, mem: Mem) {
        let base = self.int(mem.base);
        if let (Some((index, scale)), 0) = (mem.index, mem.disp) {
            let index = self.int(index);
            if scale == 1 {
                return self.asm.op(ops.indexed, &[reg, base, index]);
            }
            if let Some(scaled) = ops.scaled.filter(|_| ops.bytes == i64::from(scale)) {
                return self.asm.op(scaled, &[reg, base, index]);
            }
        }

        let (base, disp) = self.without_index(mem);
        if disp >= 0 && disp % ops.bytes == 0 && disp / ops.bytes < 1 << 12 {
            self.asm.op(ops.offset, &[reg, base, disp]);
        } else if (-256..256).contains(&disp) {
            self.asm.op(ops.unscaled, &[reg, base, disp]);
        } else {
            self.add_immediate(ADDRESS, base, disp);
            self.asm.op(ops.offset, &[reg, ADDRESS, 0]);
        }
    }

    /// The register of an address without its displacement, and the displacement.
    fn without_index(&mut self, mem: Mem) -> (i64, i64) {
        let base = self.int(mem.base);
        match mem.index {
            None => (base, i64::from(mem.disp)),
            Some(index) => {
                self.add_index(ADDRESS, base, index);
                (ADDRESS, i64::from(mem.disp))
            }
        }
    }

    fn add_index(&mut self, dst: i64, base: i64, (index, scale): (Int, u8)) {
        let shift = i64::from(scale.trailing_zeros());
        self.asm.op(Op::AddShifted, &[dst, base, self.int(index), shift]);
    }

    /// Sets a register to an address.
    pub(super) fn set_address(&mut self, dst: i64, mem: Mem) {
        let disp = i64::from(mem.disp);
        let base = self.int(mem.base);
        match mem.index {
            None if disp == 0 && base != STACK_POINTER => self.move_int(dst, base),
            None => self.add_immediate(dst, base, disp),
            Some(index) => {
                self.add_index(dst, base, index);
                self.add_immediate(dst, dst, disp);
            }
        }
    }

    /// A register with this address, which is the base or [`ADDRESS`].
    fn plain_address(&mut self, mem: Mem) -> i64 {
        if mem.index.is_none() && mem.disp == 0 {
            return self.int(mem.base);
        }
        self.set_address(ADDRESS, mem);
        ADDRESS
    }

    pub(super) fn memory(&mut self, step: &VInst) {
        match step {
            VInst::Load(dst, mem) => self.access(MemoryOps::LDR_Q, self.vector(*dst), *mem),
            VInst::LoadFirst(dst, mem, n, _) => self.load_first(*dst, *mem, *n),
            VInst::LoadLanes(dst, _, mems) => self.load_lanes(*dst, mems),
            VInst::Gather(dst, _, mem, offsets) => self.gather(*dst, *mem, *offsets),
            VInst::LoadOne(dst, mem) => self.access(MemoryOps::LDR_S, self.vector(*dst), *mem),
            VInst::Broadcast(dst, mem) => {
                let at = self.plain_address(*mem);
                self.asm.op(Op::Ld1r, &[self.vector(*dst), at]);
            }
            VInst::LoadNarrow(dst, mem, narrow) => self.load_narrow(self.vector(*dst), *mem, *narrow),
            VInst::LoadHalves(dst, mem, narrow) => self.load_halves(self.vector(*dst), *mem, *narrow),
            VInst::BroadcastNarrow(dst, mem, narrow) => {
                let ops = match narrow {
                    NarrowInt::U8 => MemoryOps::LDRB,
                    NarrowInt::I8 => MemoryOps::LDRSB,
                    NarrowInt::I16 => MemoryOps::LDRSH,
                    NarrowInt::U16 => MemoryOps::LDRH,
                };
                self.access(ops, ADDRESS, *mem);
                self.asm.op(Op::DupInt, &[self.vector(*dst), ADDRESS]);
            }
            VInst::LoadF16(dst, mem) => {
                let dst = self.vector(*dst);
                self.access(MemoryOps::LDR_D, dst, *mem);
                self.asm.op(Op::FcvtlHalves, &[dst, dst]);
            }
            VInst::BroadcastF16(dst, mem) => {
                let dst = self.vector(*dst);
                let at = self.plain_address(*mem);
                self.asm.op(Op::Ld1rHalf, &[dst, at]);
                self.asm.op(Op::FcvtlHalves, &[dst, dst]);
            }
            VInst::StoreF16(mem, src) => {
                self.asm.op(Op::FcvtnHalves, &[TEMP, self.vector(*src)]);
                self.access(MemoryOps::STR_D, TEMP, *mem);
            }
            VInst::StoreNarrow(mem, src, temp, narrow) => {
                self.store_narrow(*mem, self.vector(*src), self.vector(*temp), *narrow);
            }
            VInst::Store(mem, src) => self.access(MemoryOps::STR_Q, self.vector(*src), *mem),
            VInst::StoreFirst(mem, src, n, _) => self.store_first(*mem, *src, *n),
            VInst::StoreLanes(mems, src, _) => self.store_lanes(mems, *src),
            VInst::StoreOne(mem, src) => self.access(MemoryOps::STR_S, self.vector(*src), *mem),
            VInst::Prefetch(mem) => {
                let at = self.plain_address(*mem);
                self.asm.op(Op::Prfm, &[at, 0]);
            }
            _ => self.refuse(step),
        }
    }

    fn load_first(&mut self, dst: Vector, mem: Mem, n: Int) {
        let dst = self.vector(dst);
        self.set_address(ADDRESS, mem);
        self.for_first(
            n,
            |selector| selector.asm.op(Op::LdrQ, &[dst, ADDRESS, 0]),
            |selector, lane| match lane {
                None => selector.asm.op(Op::MoviZero, &[dst]),
                Some(lane) => selector.asm.op(Op::Ld1LaneNext, &[dst, lane, ADDRESS]),
            },
        );
    }

    fn store_first(&mut self, mem: Mem, src: Vector, n: Int) {
        let src = self.vector(src);
        self.set_address(ADDRESS, mem);
        self.for_first(
            n,
            |selector| selector.asm.op(Op::StrQ, &[src, ADDRESS, 0]),
            |selector, lane| {
                if let Some(lane) = lane {
                    selector.asm.op(Op::St1LaneNext, &[src, lane, ADDRESS]);
                }
            },
        );
    }

    /// Runs `all` if `n` is at least the number of lanes. Otherwise, it runs `one` without a lane, and then for each
    /// lane below `n`.
    fn for_first(
        &mut self,
        n: Int,
        all: impl FnOnce(&mut Self),
        mut one: impl FnMut(&mut Self, Option<i64>),
    ) {
        let n = self.int(n);
        let part = self.asm.label();
        let end = self.asm.label();
        self.compare_immediate(n, LANES as i64);
        self.asm.branch(condition(CompareOp::Lt), part);
        all(self);
        self.jump(end);

        self.asm.place(part);
        one(self, None);
        for lane in 0..LANES as i64 - 1 {
            self.compare_immediate(n, lane);
            self.asm.branch(condition(CompareOp::Le), end);
            one(self, Some(lane));
        }
        self.asm.place(end);
    }

    fn load_lanes(&mut self, dst: Vector, mems: &[Mem]) {
        let dst = self.vector(dst);
        for (lane, mem) in mems.iter().enumerate() {
            if lane == 0 {
                self.access(MemoryOps::LDR_S, dst, *mem);
            } else {
                let at = self.plain_address(*mem);
                self.asm.op(Op::Ld1Lane, &[dst, lane as i64, at]);
            }
        }
    }

    fn store_lanes(&mut self, mems: &[Mem], src: Vector) {
        let src = self.vector(src);
        for (lane, mem) in mems.iter().enumerate() {
            if lane == 0 {
                self.access(MemoryOps::STR_S, src, *mem);
            } else {
                let at = self.plain_address(*mem);
                self.asm.op(Op::St1Lane, &[src, lane as i64, at]);
            }
        }
    }

    /// Each lane from its own offset.
    fn gather(&mut self, dst: Vector, mem: Mem, offsets: Vector) {
        let dst = self.vector(dst);
        let offsets = self.vector(offsets);
        for lane in 0..LANES as i64 {
            let base = self.int(mem.base);
            self.asm.op(Op::SmovLane, &[ADDRESS, offsets, lane]);
            self.asm.op(Op::AddShifted, &[ADDRESS, base, ADDRESS, 2]);
            self.add_immediate(ADDRESS, ADDRESS, i64::from(mem.disp));
            self.asm.op(Op::Ld1Lane, &[dst, lane, ADDRESS]);
        }
    }

    fn load_narrow(&mut self, dst: i64, mem: Mem, narrow: NarrowInt) {
        match narrow {
            NarrowInt::U8 | NarrowInt::I8 => {
                self.access(MemoryOps::LDR_S, dst, mem);
                let [bytes, halves] = match narrow {
                    NarrowInt::U8 => [Op::UxtlBytes, Op::UxtlHalves],
                    _ => [Op::SxtlBytes, Op::SxtlHalves],
                };
                self.asm.op(bytes, &[dst, dst]);
                self.asm.op(halves, &[dst, dst]);
            }
            NarrowInt::I16 | NarrowInt::U16 => {
                self.access(MemoryOps::LDR_D, dst, mem);
                let halves = if narrow == NarrowInt::U16 { Op::UxtlHalves } else { Op::SxtlHalves };
                self.asm.op(halves, &[dst, dst]);
            }
        }
    }

    fn load_halves(&mut self, dst: i64, mem: Mem, narrow: NarrowInt) {
        let extend = match narrow {
            NarrowInt::U8 => Op::UxtlBytes,
            NarrowInt::I8 => Op::SxtlBytes,
            NarrowInt::I16 | NarrowInt::U16 => return self.access(MemoryOps::LDR_Q, dst, mem),
        };
        self.access(MemoryOps::LDR_D, dst, mem);
        self.asm.op(extend, &[dst, dst]);
    }

    fn store_narrow(&mut self, mem: Mem, src: i64, temp: i64, narrow: NarrowInt) {
        self.asm.op(Op::XtnHalves, &[temp, src]);
        if narrow.bytes() == 2 {
            return self.access(MemoryOps::STR_D, temp, mem);
        }
        self.asm.op(Op::XtnBytes, &[temp, temp]);
        self.access(MemoryOps::STR_S, temp, mem);
    }
}
