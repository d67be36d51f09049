//! Loads and stores of vectors: whole, masked, narrow, and lane by lane.

use super::Selector;
use crate::codegen::vector::{
    listing::Label,
    vcode::{Int, Mask, Mem, NarrowInt, Narrowing, VInst, Vector},
    x86::{asm::Operand, simd::Simd},
};
use iced_x86::{Code, MemoryOperand, Register};

/// The rounding mode of conversions to f16: to nearest, ties to even.
const TO_NEAREST: Operand = Operand::Imm(0);

/// The store of AVX-512 that narrows lanes.
fn narrowing_store(narrow: NarrowInt, narrowing: Narrowing) -> Code {
    match (narrow, narrowing) {
        (NarrowInt::U8 | NarrowInt::I8, Narrowing::Low) => Code::EVEX_Vpmovdb_xmmm128_k1z_zmm,
        (NarrowInt::U8, Narrowing::Clamp) => Code::EVEX_Vpmovusdb_xmmm128_k1z_zmm,
        (NarrowInt::I8, Narrowing::Clamp) => Code::EVEX_Vpmovsdb_xmmm128_k1z_zmm,
        // Lanes are in the range.
        (NarrowInt::I16 | NarrowInt::U16, _) => Code::EVEX_Vpmovdw_ymmm256_k1z_zmm,
    }
}

impl Selector<'_> {
    pub(super) fn memory(&mut self, step: &VInst) {
        match step {
            VInst::Load(dst, mem) => {
                self.asm.op(self.simd.load(), &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            VInst::LoadFirst(dst, mem, _, mask) => self.load_first(*dst, *mem, *mask),
            VInst::LoadLanes(dst, temp, mems) => self.load_lanes(*dst, *temp, mems),
            VInst::LoadQuads(dst, mems) => self.load_quads(*dst, mems),
            VInst::Gather(dst, mask, mem, offsets) => self.gather(*dst, *mask, *mem, *offsets),
            VInst::LoadOne(dst, mem) => self.load_one(self.low(*dst), *mem),
            VInst::Broadcast(dst, mem) => {
                self.asm.op(self.simd.broadcast(), &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            VInst::LoadNarrow(dst, mem, narrow) => {
                let code = self.simd.extend(*narrow);
                self.asm.op(code, &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            VInst::LoadNarrowFirst(dst, mem, mask, narrow) => {
                let operands = [self.vector(*dst).into(), self.mem(*mem).into()];
                self.asm.op_masked(self.simd.extend(*narrow), &operands, self.mask(*mask), true);
            }
            VInst::LoadHalves(dst, mem, narrow) => {
                let code = self.simd.extend_to_half(*narrow);
                self.asm.op(code, &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            VInst::LoadF16(dst, mem) => {
                let code = self.simd.floats_from_f16();
                self.asm.op(code, &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            VInst::BroadcastF16(dst, mem) => self.broadcast_f16(*dst, *mem),
            VInst::StoreF16(mem, src) => {
                let code = self.simd.f16_from_floats();
                self.asm.op(code, &[self.mem(*mem).into(), self.vector(*src).into(), TO_NEAREST]);
            }
            VInst::BroadcastNarrow(dst, mem, narrow) => self.broadcast_narrow(*dst, *mem, *narrow),
            VInst::StoreNarrow(mem, src, temp, narrow, narrowing) => {
                self.store_narrow(*mem, *src, *temp, *narrow, *narrowing);
            }
            VInst::StoreNarrowFirst(mem, src, mask, narrow, narrowing) => {
                let operands = [self.mem(*mem).into(), self.vector(*src).into()];
                self.asm.op_masked(narrowing_store(*narrow, *narrowing), &operands, self.mask(*mask), false);
            }
            VInst::StorePacked(mem, srcs, narrow, temps) => self.store_packed(*mem, srcs, *narrow, *temps),
            VInst::StoreTriples(mem, src, temp) => self.store_triples(*mem, *src, *temp),
            VInst::StoreInterleaved(mem, srcs, temps) => self.store_interleaved(*mem, srcs, *temps),
            VInst::Store(mem, src) => {
                self.asm.op(self.simd.store(), &[self.mem(*mem).into(), self.vector(*src).into()]);
            }
            VInst::StoreFirst(mem, src, _, mask) => self.store_first(*mem, *src, *mask),
            VInst::StorePart(mem, src, temp, n) => self.store_part(*mem, *src, *temp, *n),
            VInst::StoreLanes(mems, src, temp) => self.store_lanes(mems, *src, *temp),
            VInst::StoreQuads(mems, src) => self.store_quads(mems, *src),
            VInst::StoreOne(mem, src) => self.store_one(*mem, self.low(*src)),
            VInst::Prefetch(mem) => self.asm.op(Code::Prefetcht1_m8, &[self.mem(*mem).into()]),
            // Machines without it run it as a no-op.
            VInst::PrefetchWrite(mem) => self.asm.op(Code::Prefetchw_m8, &[self.mem(*mem).into()]),
            _ => unreachable!("not a memory step: {step:?}"),
        }
    }

    pub(super) fn load_first(&mut self, dst: Vector, mem: Mem, mask: Mask) {
        let dst = self.vector(dst).into();
        let mem = self.mem(mem).into();
        let mask = self.mask(mask);
        match self.simd {
            Simd::Avx2 => self.asm.op(Code::VEX_Vmaskmovps_ymm_ymm_m256, &[dst, mask.into(), mem]),
            Simd::Avx512 => self.asm.op_masked(self.simd.load(), &[dst, mem], mask, true),
        }
    }

    pub(super) fn store_first(&mut self, mem: Mem, src: Vector, mask: Mask) {
        let src = self.vector(src).into();
        let mem = self.mem(mem).into();
        let mask = self.mask(mask);
        match self.simd {
            Simd::Avx2 => self.asm.op(Code::VEX_Vmaskmovps_m256_ymm_ymm, &[mem, mask.into(), src]),
            Simd::Avx512 => self.asm.op_masked(self.simd.store(), &[mem, src], mask, false),
        }
    }

    /// Stores the first `n` lanes by branches. Some machines take a dozen cycles for a masked store on AVX2.
    fn store_part(&mut self, mem: Mem, src: Vector, temp: Vector, n: Int) {
        let n = self.int(n);
        let low = self.low(src);
        let high = self.low(temp);
        let half = self.asm.label();
        let end = self.asm.label();

        self.asm.op(Code::Cmp_rm64_imm8, &[n.into(), 8.into()]);
        self.asm.branch(Code::Jl_rel32_64, half);
        self.asm.op(self.simd.store(), &[self.mem(mem).into(), self.vector(src).into()]);
        self.asm.branch(Code::Jmp_rel32_64, end);

        self.asm.place(half);
        let quarter = self.asm.label();
        self.asm.op(Code::Cmp_rm64_imm8, &[n.into(), 4.into()]);
        self.asm.branch(Code::Jl_rel32_64, quarter);
        self.asm.op(Code::VEX_Vmovups_xmmm128_xmm, &[self.mem(mem).into(), low.into()]);
        self.asm
            .op(Code::VEX_Vextractf128_xmmm128_ymm_imm8, &[high.into(), self.vector(src).into(), 1.into()]);
        self.store_rest(mem.plus(16), high, n, end);
        self.asm.branch(Code::Jmp_rel32_64, end);

        self.asm.place(quarter);
        self.asm.op(Code::Cmp_rm64_imm8, &[n.into(), 0.into()]);
        self.asm.branch(Code::Jle_rel32_64, end);
        self.store_rest(mem, low, n, end);
        self.asm.place(end);
    }

    /// Stores the first lanes of `src`, as many as the two lowest bits of `n` say.
    fn store_rest(&mut self, mem: Mem, src: Register, n: Register, end: Label) {
        let one = self.asm.label();
        self.asm.op(Code::Test_rm64_imm32, &[n.into(), 2.into()]);
        self.asm.branch(Code::Je_rel32_64, one);
        self.asm.op(Code::VEX_Vmovlps_m64_xmm, &[self.mem(mem).into(), src.into()]);
        self.asm.op(Code::Test_rm64_imm32, &[n.into(), 1.into()]);
        self.asm.branch(Code::Je_rel32_64, end);
        self.asm
            .op(Code::VEX_Vextractps_rm32_xmm_imm8, &[self.mem(mem.plus(8)).into(), src.into(), 2.into()]);
        self.asm.branch(Code::Jmp_rel32_64, end);

        self.asm.place(one);
        self.asm.op(Code::Test_rm64_imm32, &[n.into(), 1.into()]);
        self.asm.branch(Code::Je_rel32_64, end);
        self.store_one(mem, src);
    }

    pub(super) fn load_one(&mut self, dst: Register, mem: Mem) {
        let code = self.simd.pick(Code::VEX_Vmovss_xmm_m32, Code::EVEX_Vmovss_xmm_k1z_m32);
        self.asm.op(code, &[dst.into(), self.mem(mem).into()]);
    }

    pub(super) fn store_one(&mut self, mem: Mem, src: Register) {
        let code = self.simd.pick(Code::VEX_Vmovss_m32_xmm, Code::EVEX_Vmovss_m32_k1_xmm);
        self.asm.op(code, &[self.mem(mem).into(), src.into()]);
    }

    fn broadcast_f16(&mut self, dst: Vector, mem: Mem) {
        let half = self.simd.first_half(self.allocated.place(dst));
        let spread =
            self.simd.pick(Code::VEX_Vpbroadcastw_xmm_xmmm16, Code::EVEX_Vpbroadcastw_ymm_k1z_xmmm16);
        self.asm.op(spread, &[half.into(), self.mem(mem).into()]);
        self.asm.op(self.simd.floats_from_f16(), &[self.vector(dst).into(), half.into()]);
    }

    pub(super) fn round_f16(&mut self, dst: Vector, src: Vector) {
        let half = self.simd.first_half(self.allocated.place(dst));
        self.asm.op(self.simd.f16_from_floats(), &[half.into(), self.vector(src).into(), TO_NEAREST]);
        self.asm.op(self.simd.floats_from_f16(), &[self.vector(dst).into(), half.into()]);
    }

    pub(super) fn broadcast_narrow(&mut self, dst: Vector, mem: Mem, narrow: NarrowInt) {
        let low = self.low(dst).into();
        let spread = match narrow {
            NarrowInt::U8 | NarrowInt::I8 => {
                self.simd.pick(Code::VEX_Vpbroadcastb_xmm_xmmm8, Code::EVEX_Vpbroadcastb_xmm_k1z_xmmm8)
            }
            NarrowInt::I16 | NarrowInt::U16 => {
                self.simd.pick(Code::VEX_Vpbroadcastw_xmm_xmmm16, Code::EVEX_Vpbroadcastw_xmm_k1z_xmmm16)
            }
        };
        self.asm.op(spread, &[low, self.mem(mem).into()]);

        // All elements of the broadcast are equal, so any part of it can be extended. 16 lanes of 16 bits take a `ymm`.
        let source = match (narrow, self.simd) {
            (NarrowInt::I16 | NarrowInt::U16, Simd::Avx512) => {
                let half = Register::YMM0 + (self.low(dst) as u32 - Register::XMM0 as u32);
                self.asm.op(Code::EVEX_Vpbroadcastw_ymm_k1z_xmmm16, &[half.into(), low]);
                half.into()
            }
            _ => low,
        };
        self.asm.op(self.simd.extend(narrow), &[self.vector(dst).into(), source]);
    }

    fn store_narrow(&mut self, mem: Mem, src: Vector, temp: Vector, narrow: NarrowInt, narrowing: Narrowing) {
        let whole = self.vector(src);
        let to = self.mem(mem);
        if self.simd == Simd::Avx512 {
            return self.asm.op(narrowing_store(narrow, narrowing), &[to.into(), whole.into()]);
        }

        // AVX2 gathers the low bits of the lanes within each 128-bit half, and stores the halves one after the other.
        let gathered = self.vector(temp);
        let low = self.low(temp);
        let (store, bytes) = match narrow {
            NarrowInt::U8 | NarrowInt::I8 if narrowing == Narrowing::Clamp => {
                let [words, bytes] = self.packs(narrow);
                self.asm.op(words, &[gathered.into(), whole.into(), whole.into()]);
                self.asm.op(bytes, &[gathered.into(), gathered.into(), gathered.into()]);
                (Code::VEX_Vmovd_rm32_xmm, 4)
            }
            NarrowInt::U8 | NarrowInt::I8 => {
                let order = self.splat(0x0c08_0400);
                self.asm.op(Code::VEX_Vpshufb_ymm_ymm_ymmm256, &[gathered.into(), whole.into(), order]);
                (Code::VEX_Vmovd_rm32_xmm, 4)
            }
            NarrowInt::I16 | NarrowInt::U16 => {
                let is_signed = narrow == NarrowInt::I16;
                let signed = Code::VEX_Vpackssdw_ymm_ymm_ymmm256;
                let pack = if is_signed { signed } else { Code::VEX_Vpackusdw_ymm_ymm_ymmm256 };
                self.asm.op(pack, &[gathered.into(), whole.into(), whole.into()]);
                (Code::VEX_Vmovq_xmmm64_xmm, 8)
            }
        };
        self.asm.op(store, &[to.into(), low.into()]);
        self.asm.op(Code::VEX_Vextracti128_xmmm128_ymm_imm8, &[low.into(), gathered.into(), 1.into()]);
        self.asm.op(store, &[self.mem(mem.plus(bytes)).into(), low.into()]);
    }

    /// The instructions that narrow the lanes of two vectors to 16 bits, and those to bytes, all to the nearest value.
    fn packs(&self, narrow: NarrowInt) -> [Code; 2] {
        let words =
            self.simd.pick(Code::VEX_Vpackssdw_ymm_ymm_ymmm256, Code::EVEX_Vpackssdw_zmm_k1z_zmm_zmmm512b32);
        let signed =
            self.simd.pick(Code::VEX_Vpacksswb_ymm_ymm_ymmm256, Code::EVEX_Vpacksswb_zmm_k1z_zmm_zmmm512);
        let unsigned =
            self.simd.pick(Code::VEX_Vpackuswb_ymm_ymm_ymmm256, Code::EVEX_Vpackuswb_zmm_k1z_zmm_zmmm512);
        [words, if narrow == NarrowInt::I8 { signed } else { unsigned }]
    }

    /// Packs the bytes of several vectors. Each four lanes of a vector are one word in each part of 16 bytes then,
    /// which a permutation brings into order.
    fn store_packed(&mut self, mem: Mem, srcs: &[Vector], narrow: NarrowInt, temps: [Vector; 2]) {
        let [words, bytes] = self.packs(narrow);
        let [packed, other] = temps.map(|temp| self.vector(temp));
        for (pair, to) in srcs.chunks(2).zip([packed, other]) {
            self.asm.op(words, &[to.into(), self.vector(pair[0]).into(), self.vector(pair[1]).into()]);
        }
        let second = if srcs.len() == 4 { other } else { packed };
        self.asm.op(bytes, &[packed.into(), packed.into(), second.into()]);

        let parts = self.simd.lanes() as u32 / 4;
        let order = (0..4).flat_map(|vector| (0..parts).map(move |part| 4 * part + vector));
        let order = Operand::Pool(self.asm.constant(order.flat_map(u32::to_le_bytes).collect()));
        self.asm.op(self.simd.load(), &[other.into(), order]);
        let permute =
            self.simd.pick(Code::VEX_Vpermd_ymm_ymm_ymmm256, Code::EVEX_Vpermd_zmm_k1z_zmm_zmmm512b32);
        self.asm.op(permute, &[packed.into(), other.into(), packed.into()]);

        let to = self.mem(mem).into();
        if srcs.len() == 4 {
            return self.asm.op(self.simd.store(), &[to, packed.into()]);
        }
        match self.simd {
            Simd::Avx2 => self.asm.op(Code::VEX_Vmovups_xmmm128_xmm, &[to, self.low(temps[0]).into()]),
            Simd::Avx512 => {
                self.asm.op(Code::EVEX_Vmovups_ymmm256_k1z_ymm, &[to, self.half(temps[0]).into()]);
            }
        }
    }

    /// Each vector of memory has lanes of the first two sources, and then of one further source after the other.
    fn store_interleaved(&mut self, mem: Mem, srcs: &[Vector], temps: [Vector; 2]) {
        let lanes = self.simd.lanes();
        for vector in 0..srcs.len() {
            let mut joined = srcs[0];
            for source in 1..srcs.len() {
                // Lanes of the source have the numbers from 16 on. Lanes of the sources before it are in place, except
                // those of source 0 in the first step.
                let number = |lane: usize| {
                    let place = vector * lanes + lane;
                    let (from, at) = (place % srcs.len(), place / srcs.len());
                    match from {
                        _ if from == source => lanes + at,
                        0 if source == 1 => at,
                        _ => lane,
                    }
                };
                let numbers = (0..lanes).flat_map(|lane| (number(lane) as u32).to_le_bytes()).collect();
                let numbers = Operand::Pool(self.asm.constant(numbers));
                let to = temps[source % 2];
                let operands = [to, joined, srcs[source]].map(|vector| self.vector(vector).into());
                self.asm.op(self.simd.load(), &[operands[0], numbers]);
                self.asm.op(Code::EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32, &operands);
                joined = to;
            }
            let to = self.mem(mem.plus(4 * lanes * vector));
            self.asm.op(self.simd.store(), &[to.into(), self.vector(joined).into()]);
        }
    }

    /// Moves the bytes of each four lanes together, and stores 16 bytes of them. The next four lanes overwrite the last
    /// four bytes.
    fn store_triples(&mut self, mem: Mem, src: Vector, temp: Vector) {
        const BYTES: [u8; 16] = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 15, 15, 15];
        const FOUR_LANES: usize = 12;
        let parts = self.simd.lanes() / 4;
        let order = Operand::Pool(self.asm.constant(BYTES.repeat(parts)));
        let moved = self.vector(temp);
        let low = self.low(temp);
        let shuffle =
            self.simd.pick(Code::VEX_Vpshufb_ymm_ymm_ymmm256, Code::EVEX_Vpshufb_zmm_k1z_zmm_zmmm512);
        self.asm.op(shuffle, &[moved.into(), self.vector(src).into(), order]);

        let store = self.simd.pick(Code::VEX_Vmovups_xmmm128_xmm, Code::EVEX_Vmovups_xmmm128_k1z_xmm);
        let extract = self
            .simd
            .pick(Code::VEX_Vextracti128_xmmm128_ymm_imm8, Code::EVEX_Vextracti32x4_xmmm128_k1z_zmm_imm8);
        self.asm.op(store, &[self.mem(mem).into(), low.into()]);
        for part in 1..parts - 1 {
            let to = self.mem(mem.plus(FOUR_LANES * part));
            self.asm.op(extract, &[to.into(), moved.into(), (part as i32).into()]);
        }

        let last = mem.plus(FOUR_LANES * (parts - 1));
        self.asm.op(extract, &[low.into(), moved.into(), (parts as i32 - 1).into()]);
        let store = self.simd.pick(Code::VEX_Vmovq_xmmm64_xmm, Code::EVEX_Vmovq_xmmm64_xmm);
        self.asm.op(store, &[self.mem(last).into(), low.into()]);
        let store = self.simd.pick(Code::VEX_Vpextrd_rm32_xmm_imm8, Code::EVEX_Vpextrd_rm32_xmm_imm8);
        self.asm.op(store, &[self.mem(last.plus(8)).into(), low.into(), 2.into()]);
    }

    /// Loads four lanes at a time, and inserts each four into their part of the vector.
    pub(super) fn load_lanes(&mut self, dst: Vector, temp: Vector, mems: &[Mem]) {
        let insert =
            self.simd.pick(Code::VEX_Vinsertps_xmm_xmm_xmmm32_imm8, Code::EVEX_Vinsertps_xmm_xmm_xmmm32_imm8);

        let join = self.insert_quad();
        for (part, four) in mems.chunks(4).enumerate() {
            let low = if part == 0 { self.low(dst) } else { self.low(temp) };
            for (lane, mem) in four.iter().enumerate() {
                if lane == 0 {
                    self.load_one(low, *mem);
                } else {
                    let lane = Operand::Imm((lane as i32) << 4);
                    self.asm.op(insert, &[low.into(), low.into(), self.mem(*mem).into(), lane]);
                }
            }

            if part > 0 {
                let dst: Operand = self.vector(dst).into();
                self.asm.op(join, &[dst, dst, low.into(), (part as i32).into()]);
            }
        }
    }

    /// Loads four lanes from each address. An insertion from memory needs no shuffle unit.
    fn load_quads(&mut self, dst: Vector, mems: &[Mem]) {
        let load = self.simd.pick(Code::VEX_Vmovups_xmm_xmmm128, Code::EVEX_Vmovups_xmm_k1z_xmmm128);
        let insert = self.insert_quad();
        for (part, mem) in mems.iter().enumerate() {
            let mem: Operand = self.mem(*mem).into();
            if part == 0 {
                self.asm.op(load, &[self.low(dst).into(), mem]);
            } else {
                let dst: Operand = self.vector(dst).into();
                self.asm.op(insert, &[dst, dst, mem, (part as i32).into()]);
            }
        }
    }

    fn store_quads(&mut self, mems: &[Mem], src: Vector) {
        let store = self.simd.pick(Code::VEX_Vmovups_xmmm128_xmm, Code::EVEX_Vmovups_xmmm128_k1z_xmm);
        let extract = self
            .simd
            .pick(Code::VEX_Vextractf128_xmmm128_ymm_imm8, Code::EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8);
        for (part, mem) in mems.iter().enumerate() {
            let mem: Operand = self.mem(*mem).into();
            if part == 0 {
                self.asm.op(store, &[mem, self.low(src).into()]);
            } else {
                self.asm.op(extract, &[mem, self.vector(src).into(), (part as i32).into()]);
            }
        }
    }

    /// The instruction that replaces four lanes of a vector.
    fn insert_quad(&self) -> Code {
        self.simd.pick(
            Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8,
            Code::EVEX_Vinsertf32x4_zmm_k1z_zmm_xmmm128_imm8,
        )
    }

    /// Gathers all lanes. The instruction keeps the lanes that its mask leaves out, so it would wait for the register's
    /// last value if that were not zero.
    fn gather(&mut self, dst: Vector, mask: Mask, mem: Mem, offsets: Vector) {
        let dst = self.vector(dst);
        let offsets = self.vector(offsets);
        let mask = self.mask(mask);
        let base = self.int(mem.base);
        let mem = MemoryOperand::with_base_index_scale_displ_size(base, offsets, 4, i64::from(mem.disp), 1);
        let clear = self.simd.pick(Code::VEX_Vpxor_ymm_ymm_ymmm256, Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32);
        self.asm.op(clear, &[dst.into(), dst.into(), dst.into()]);
        let all = self.simd.pick(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, Code::VEX_Kxnorw_kr_kr_kr);
        self.asm.op(all, &[mask.into(), mask.into(), mask.into()]);
        match self.simd {
            Simd::Avx2 => {
                self.asm.op(Code::VEX_Vgatherdps_ymm_vm32y_ymm, &[dst.into(), mem.into(), mask.into()]);
            }
            Simd::Avx512 => {
                self.asm.op_masked(
                    Code::EVEX_Vgatherdps_zmm_k1_vm32z,
                    &[dst.into(), mem.into()],
                    mask,
                    false,
                );
            }
        }
    }

    pub(super) fn store_lanes(&mut self, mems: &[Mem], src: Vector, temp: Vector) {
        let extract = self.simd.pick(Code::VEX_Vextractps_rm32_xmm_imm8, Code::EVEX_Vextractps_rm32_xmm_imm8);
        let split = self
            .simd
            .pick(Code::VEX_Vextractf128_xmmm128_ymm_imm8, Code::EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8);

        for (part, four) in mems.chunks(4).enumerate() {
            let low = if part == 0 { self.low(src) } else { self.low(temp) };
            if part > 0 {
                self.asm.op(split, &[low.into(), self.vector(src).into(), (part as i32).into()]);
            }
            for (lane, mem) in four.iter().enumerate() {
                if lane == 0 {
                    self.store_one(*mem, low);
                } else {
                    self.asm.op(extract, &[self.mem(*mem).into(), low.into(), (lane as i32).into()]);
                }
            }
        }
    }
}
