//! Addresses, and loads and stores of vectors: whole, partial, narrow, and lane by lane.

use super::{
    super::{
        instructions::Op,
        registers::{ADDRESS, STACK_POINTER, TEMP},
        transfers::{AddressForm, Transfer},
    },
    Selector, condition,
};
use crate::{
    codegen::vector::vcode::{Int, Mem, NarrowInt, Narrowing, VInst, Vector},
    scalar::CompareOp,
};

/// 32-bit lanes of a vector.
const LANES: usize = 4;

impl Selector<'_> {
    /// Loads or stores a register.
    pub(super) fn access(&mut self, transfer: Transfer, reg: i64, mem: Mem) {
        let base = self.int(mem.base);
        if let (Some((index, scale)), 0) = (mem.index, mem.disp) {
            let form = match i64::from(scale) {
                1 => Some(AddressForm::Indexed),
                scale if scale == transfer.bytes => Some(AddressForm::Scaled),
                _ => None,
            };
            if let Some(form) = form {
                return self.asm.transfer(transfer, form, [reg, base, self.int(index)]);
            }
        }

        let (base, disp) = self.without_index(mem);
        if disp >= 0 && disp % transfer.bytes == 0 && disp / transfer.bytes < 1 << 12 {
            self.asm.transfer(transfer, AddressForm::Offset, [reg, base, disp]);
        } else if (-256..256).contains(&disp) {
            self.asm.transfer(transfer, AddressForm::Unscaled, [reg, base, disp]);
        } else {
            self.add_immediate(ADDRESS, base, disp);
            self.asm.transfer(transfer, AddressForm::Offset, [reg, ADDRESS, 0]);
        }
    }

    /// Loads a whole vector.
    fn load(&mut self, dst: i64, mem: Mem) {
        let disp = i64::from(mem.disp);
        if mem.index.is_none() && disp >= 0 && disp % 16 == 0 && disp / 16 < 1 << 12 {
            let base = self.int(mem.base);
            return self.asm.load(dst, base, disp);
        }
        self.access(Transfer::LDR_Q, dst, mem);
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
    pub(super) fn plain_address(&mut self, mem: Mem) -> i64 {
        if mem.index.is_none() && mem.disp == 0 {
            return self.int(mem.base);
        }
        self.set_address(ADDRESS, mem);
        ADDRESS
    }

    pub(super) fn memory(&mut self, step: &VInst) {
        match step {
            VInst::Load(dst, mem) => self.load(self.vector(*dst), *mem),
            VInst::LoadMask(dst, mem) => self.load(self.mask(*dst), *mem),
            VInst::LoadFirst(dst, mem, n, _) => self.load_first(*dst, *mem, *n),
            VInst::LoadLanes(dst, _, mems) => self.load_lanes(*dst, mems),
            VInst::LoadQuads(dst, mems) => self.access(Transfer::LDR_Q, self.vector(*dst), mems[0]),
            VInst::Gather(dst, _, mem, offsets) => self.gather(*dst, *mem, *offsets),
            VInst::LoadOne(dst, mem) => self.access(Transfer::LDR_S, self.vector(*dst), *mem),
            VInst::Broadcast(dst, mem) => {
                let at = self.plain_address(*mem);
                self.asm.op(Op::Ld1r, &[self.vector(*dst), at]);
            }
            VInst::LoadNarrow(dst, mem, narrow) => self.load_narrow(self.vector(*dst), *mem, *narrow),
            VInst::LoadHalves(dst, mem, narrow) => self.load_halves(self.vector(*dst), *mem, *narrow),
            VInst::BroadcastNarrow(dst, mem, narrow) => {
                let transfer = match narrow {
                    NarrowInt::U8 => Transfer::LDRB,
                    NarrowInt::I8 => Transfer::LDRSB,
                    NarrowInt::I16 => Transfer::LDRSH,
                    NarrowInt::U16 => Transfer::LDRH,
                };
                self.access(transfer, ADDRESS, *mem);
                self.asm.op(Op::DupInt, &[self.vector(*dst), ADDRESS]);
            }
            VInst::LoadF16(dst, mem) => {
                let dst = self.vector(*dst);
                self.access(Transfer::LDR_D, dst, *mem);
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
                self.access(Transfer::STR_D, TEMP, *mem);
            }
            VInst::StoreBf16(mem, src, temp) => {
                let temp = self.vector(*temp);
                self.asm.op(Op::Bfcvtn, &[temp, self.vector(*src)]);
                self.access(Transfer::STR_D, temp, *mem);
            }
            VInst::StoreBf16First(mem, src, temp, n, _) => {
                let temp = self.vector(*temp);
                self.asm.op(Op::Bfcvtn, &[temp, self.vector(*src)]);
                self.store_halves_first(*mem, temp, *n);
            }
            VInst::StoreNarrow(mem, src, temp, narrow, Narrowing::Low) => {
                self.store_narrow(*mem, self.vector(*src), self.vector(*temp), *narrow);
            }
            VInst::Store(mem, src) => self.access(Transfer::STR_Q, self.vector(*src), *mem),
            VInst::StoreMask(mem, src) => self.access(Transfer::STR_Q, self.mask(*src), *mem),
            VInst::StoreFirst(mem, src, n, _) => self.store_first(*mem, *src, *n),
            VInst::StoreLanes(mems, src, _) => self.store_lanes(mems, *src),
            VInst::StoreQuads(mems, src) => self.access(Transfer::STR_Q, self.vector(*src), mems[0]),
            VInst::StoreOne(mem, src) => self.access(Transfer::STR_S, self.vector(*src), *mem),
            VInst::Prefetch(mem) => {
                let at = self.plain_address(*mem);
                self.asm.op(Op::Prfm, &[at, 0]);
            }
            VInst::PrefetchWrite(mem) => {
                let at = self.plain_address(*mem);
                self.asm.op(Op::PrfmWrite, &[at, 0]);
            }
            _ => self.refuse(step),
        }
    }

    fn load_first(&mut self, dst: Vector, mem: Mem, n: Int) {
        let dst = self.vector(dst);
        self.set_address(ADDRESS, mem);
        self.for_first(
            n,
            |selector| selector.asm.transfer(Transfer::LDR_Q, AddressForm::Offset, [dst, ADDRESS, 0]),
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
            |selector| selector.asm.transfer(Transfer::STR_Q, AddressForm::Offset, [src, ADDRESS, 0]),
            |selector, lane| {
                if let Some(lane) = lane {
                    selector.asm.op(Op::St1LaneNext, &[src, lane, ADDRESS]);
                }
            },
        );
    }

    /// Stores the first `n` of four 16-bit lanes.
    fn store_halves_first(&mut self, mem: Mem, src: i64, n: Int) {
        self.set_address(ADDRESS, mem);
        self.for_first(
            n,
            |selector| selector.asm.transfer(Transfer::STR_D, AddressForm::Offset, [src, ADDRESS, 0]),
            |selector, lane| {
                if let Some(lane) = lane {
                    selector.asm.op(Op::St1HalfLaneNext, &[src, lane, ADDRESS]);
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
                self.access(Transfer::LDR_S, dst, *mem);
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
                self.access(Transfer::STR_S, src, *mem);
            } else {
                let at = self.plain_address(*mem);
                self.asm.op(Op::St1Lane, &[src, lane as i64, at]);
            }
        }
    }

    /// Loads each lane from the offset in that lane.
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
                self.access(Transfer::LDR_S, dst, mem);
                let [bytes, halves] = match narrow {
                    NarrowInt::U8 => [Op::UxtlBytes, Op::UxtlHalves],
                    _ => [Op::SxtlBytes, Op::SxtlHalves],
                };
                self.asm.op(bytes, &[dst, dst]);
                self.asm.op(halves, &[dst, dst]);
            }
            NarrowInt::I16 | NarrowInt::U16 => {
                self.access(Transfer::LDR_D, dst, mem);
                let halves = if narrow == NarrowInt::U16 { Op::UxtlHalves } else { Op::SxtlHalves };
                self.asm.op(halves, &[dst, dst]);
            }
        }
    }

    fn load_halves(&mut self, dst: i64, mem: Mem, narrow: NarrowInt) {
        let extend = match narrow {
            NarrowInt::U8 => Op::UxtlBytes,
            NarrowInt::I8 => Op::SxtlBytes,
            NarrowInt::I16 | NarrowInt::U16 => return self.access(Transfer::LDR_Q, dst, mem),
        };
        self.access(Transfer::LDR_D, dst, mem);
        self.asm.op(extend, &[dst, dst]);
    }

    fn store_narrow(&mut self, mem: Mem, src: i64, temp: i64, narrow: NarrowInt) {
        self.asm.op(Op::XtnHalves, &[temp, src]);
        if narrow.bytes() == 2 {
            return self.access(Transfer::STR_D, temp, mem);
        }
        self.asm.op(Op::XtnBytes, &[temp, temp]);
        self.access(Transfer::STR_S, temp, mem);
    }
}
