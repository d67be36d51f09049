//! The portable backend: leaf code as Cranelift IR on 128-bit vectors.
//!
//! Registers become variables of the function builder, steps one to five instructions. Fused multiply-add is used only
//! where the target has the instruction; elsewhere Cranelift would call a library.

use super::code::{
    Code, Cond, Int, IntOp, Mask, MaskOp, Mem, Narrow, Op1, Op2, Operand, ShiftOp, Step, Vector, Width,
};
use super::{Caches, Shape, VectorIsa};
use crate::{
    error::{Error, Result},
    scalar::CompareOp,
};
use cranelift_codegen::ir::{
    AbiParam, Block, ConstantData, Function, InstBuilder, MemFlagsData, StackSlot, StackSlotData,
    StackSlotKind, Type, UserFuncName, Value, condcodes::FloatCC, condcodes::IntCC, types,
};
use cranelift_codegen::isa::{TargetFrontendConfig, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use cranelift_module::{FuncId, Module};

const LANES: usize = 4;

/// 128-bit vectors through Cranelift.
#[derive(Clone, Copy, Debug)]
pub struct Portable {
    fma: bool,
    registers: usize,
}

impl Portable {
    /// The backend for this target.
    pub fn new(isa: &dyn TargetIsa) -> Portable {
        use target_lexicon::Architecture;
        let x86 = isa.triple().architecture == Architecture::X86_64;
        // RISC-V has 32, but its conditional branches reach 4 KB: tiles of half as many sums keep a leaf within.
        let few = x86 || matches!(isa.triple().architecture, Architecture::Riscv64(_));
        let fma =
            !x86 || isa.isa_flags().iter().any(|flag| flag.name == "has_fma" && flag.as_bool() == Some(true));
        Portable { fma, registers: if few { 16 } else { 32 } }
    }
}

impl VectorIsa for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn shape(&self) -> Shape {
        Shape { lanes: LANES, registers: self.registers, fma: self.fma, quads: false }
    }

    fn caches(&self) -> Caches {
        Caches::SMALL
    }

    fn define(&self, func: FuncId, code: &Code, module: &mut dyn Module) -> Result<u64> {
        let mut ctx = module.make_context();
        ctx.func.signature.params.push(AbiParam::new(types::I64));
        ctx.func.name = UserFuncName::user(0, func.as_u32());
        let mut frontend = FunctionBuilderContext::new();
        translate(&mut ctx.func, &mut frontend, code, self.fma, module.target_config());
        module
            .define_function(func, &mut ctx)
            .map_err(|error| Error::internal(format!("leaf: {error:?}")))?;
        Ok(ctx.compiled_code().map_or(0, |code| u64::from(code.code_info().total_size)))
    }
}

fn translate(
    func: &mut Function,
    frontend: &mut FunctionBuilderContext,
    code: &Code,
    fma: bool,
    config: TargetFrontendConfig,
) {
    let mut b = FunctionBuilder::new(func, frontend);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let mut declare = |count: u32, dtype: Type| (0..count).map(|_| b.declare_var(dtype)).collect::<Vec<_>>();
    let ints = declare(code.ints, types::I64);
    let vectors = declare(code.vectors, types::F32X4);
    let masks = declare(code.masks, types::I32X4);
    let args = b.block_params(entry)[0];
    b.def_var(ints[0], args);
    let constants = vec![None; vectors.len()];
    let scratch = StackSlotData::new(StackSlotKind::ExplicitSlot, code.scratch_bytes, 4);
    let scratch = b.create_sized_stack_slot(scratch);
    let mut ctx = Ctx { b, ints, vectors, masks, constants, scratch, open: Vec::new(), fma };
    for step in &code.steps {
        ctx.step(step);
    }
    ctx.b.ins().return_(&[]);
    ctx.b.seal_all_blocks();
    ctx.b.finalize(config);
}

struct Ctx<'a> {
    b: FunctionBuilder<'a>,
    ints: Vec<Variable>,
    vectors: Vec<Variable>,
    masks: Vec<Variable>,
    /// Constants are made anew at each use, so that they never hold a register across a loop.
    constants: Vec<Option<u32>>,
    scratch: StackSlot,
    /// The block that an open loop returns to, or that an open branch ends in.
    open: Vec<Block>,
    fma: bool,
}

impl Ctx<'_> {
    fn int(&mut self, int: Int) -> Value {
        self.b.use_var(self.ints[int.0 as usize])
    }

    fn vector(&mut self, vector: Vector) -> Value {
        match self.constants[vector.0 as usize] {
            None => self.b.use_var(self.vectors[vector.0 as usize]),
            Some(bits) => self.constant(types::F32X4, [bits; LANES]),
        }
    }

    fn constant(&mut self, dtype: Type, lanes: [u32; LANES]) -> Value {
        let bytes: Vec<u8> = lanes.iter().flat_map(|lane| lane.to_le_bytes()).collect();
        let handle = self.b.func.dfg.constants.insert(ConstantData::from(bytes));
        self.b.ins().vconst(dtype, handle)
    }

    fn ints_of(&mut self, vector: Vector) -> Value {
        let value = self.vector(vector);
        self.as_type(types::I32X4, value)
    }

    fn mask(&mut self, mask: Mask) -> Value {
        self.b.use_var(self.masks[mask.0 as usize])
    }

    fn operand(&mut self, operand: Operand) -> Value {
        match operand {
            Operand::Int(int) => self.int(int),
            Operand::Imm(value) => self.b.ins().iconst(types::I64, i64::from(value)),
        }
    }

    fn as_type(&mut self, dtype: Type, value: Value) -> Value {
        if self.b.func.dfg.value_type(value) == dtype {
            return value;
        }
        let flags = MemFlagsData::new().with_endianness(cranelift_codegen::ir::Endianness::Little);
        self.b.ins().bitcast(dtype, flags, value)
    }

    fn set_int(&mut self, int: Int, value: Value) {
        self.b.def_var(self.ints[int.0 as usize], value);
    }

    fn set(&mut self, vector: Vector, value: Value) {
        let value = self.as_type(types::F32X4, value);
        self.b.def_var(self.vectors[vector.0 as usize], value);
    }

    fn set_mask(&mut self, mask: Mask, value: Value) {
        let value = self.as_type(types::I32X4, value);
        self.b.def_var(self.masks[mask.0 as usize], value);
    }

    /// Base register and displacement of an address.
    fn address(&mut self, mem: Mem) -> (Value, i32) {
        let base = self.int(mem.base);
        let Some((index, scale)) = mem.index else { return (base, mem.disp) };
        let index = self.int(index);
        let scaled = self.b.ins().ishl_imm_u(index, i64::from(scale.trailing_zeros()));
        (self.b.ins().iadd(base, scaled), mem.disp)
    }

    fn load(&mut self, dtype: Type, mem: Mem) -> Value {
        let (base, disp) = self.address(mem);
        self.b.ins().load(dtype, flags(), base, disp)
    }

    fn store(&mut self, mem: Mem, value: Value) {
        let (base, disp) = self.address(mem);
        self.b.ins().store(flags(), value, base, disp);
    }

    /// Runs `body` for each lane below `n`.
    fn for_first(&mut self, n: Int, mut body: impl FnMut(&mut Self, usize)) {
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

    fn step(&mut self, step: &Step) {
        match step {
            Step::Imm(dst, value) => {
                let value = self.b.ins().iconst(types::I64, *value);
                self.set_int(*dst, value);
            }
            Step::Copy(dst, src) => {
                let value = self.int(*src);
                self.set_int(*dst, value);
            }
            Step::Int(op, dst, a, operand) => self.int_op(*op, *dst, *a, *operand),
            Step::Address(dst, mem) => {
                let (base, disp) = self.address(*mem);
                let value = self.b.ins().iadd_imm_s(base, i64::from(disp));
                self.set_int(*dst, value);
            }
            Step::Scratch(dst) => {
                let value = self.b.ins().stack_addr(types::I64, self.scratch, 0);
                self.set_int(*dst, value);
            }
            Step::LoadInt(dst, mem, width) => self.load_int(*dst, *mem, *width),
            Step::StoreInt(mem, src, width) => self.store_int(*mem, *src, *width),
            Step::Constant(dst, bits) => self.constants[dst.0 as usize] = Some(*bits),
            Step::Move(dst, src) => {
                let value = self.vector(*src);
                self.set(*dst, value);
            }
            Step::Fma(dst, x, y, z) => self.fma(*dst, *x, *y, *z),
            Step::DotQuads(..) => unreachable!("the shape has no such step"),
            Step::Op2(op, dst, x, y) => self.op2(*op, *dst, *x, *y),
            Step::Op1(op, dst, x) => self.op1(*op, *dst, *x),
            Step::Shift(op, dst, x, by) => self.shift(*op, *dst, *x, *by),
            Step::Butterfly(dst, x, distance) => self.butterfly(*dst, *x, *distance),
            Step::Compare(op, dst, x, y) => {
                let (x, y) = (self.vector(*x), self.vector(*y));
                let value = self.b.ins().fcmp(float_cc(*op), x, y);
                self.set_mask(*dst, value);
            }
            Step::CompareInt(op, dst, x, y) => {
                let (x, y) = (self.ints_of(*x), self.ints_of(*y));
                let value = self.b.ins().icmp(int_cc(*op), x, y);
                self.set_mask(*dst, value);
            }
            Step::Mask(op, dst, x, y) => self.mask_op(*op, *dst, *x, *y),
            Step::MaskFirst(dst, n, _) => self.mask_first(*dst, *n),
            Step::Select(dst, mask, x, y) => {
                let (mask, x, y) = (self.mask(*mask), self.ints_of(*x), self.ints_of(*y));
                let value = self.b.ins().bitselect(mask, x, y);
                self.set(*dst, value);
            }
            Step::Loop | Step::EndLoop(_) | Step::If(_) | Step::EndIf => self.control(step),
            _ => self.memory(step),
        }
    }

    fn memory(&mut self, step: &Step) {
        match step {
            Step::Load(dst, mem) => {
                let value = self.load(types::F32X4, *mem);
                self.set(*dst, value);
            }
            Step::LoadFirst(dst, mem, n, _) => {
                let zero = self.constant(types::F32X4, [0; LANES]);
                self.set(*dst, zero);
                self.for_first(*n, |ctx, lane| {
                    let value = ctx.load(types::F32, mem.plus(4 * lane));
                    ctx.insert(*dst, value, lane);
                });
            }
            Step::LoadLanes(dst, _, mems) => {
                for (lane, mem) in mems.iter().enumerate() {
                    let value = self.load(types::F32, *mem);
                    match lane {
                        0 => {
                            let value = self.b.ins().scalar_to_vector(types::F32X4, value);
                            self.set(*dst, value);
                        }
                        _ => self.insert(*dst, value, lane),
                    }
                }
            }
            Step::LoadOne(dst, mem) => {
                let value = self.load(types::F32, *mem);
                let value = self.b.ins().scalar_to_vector(types::F32X4, value);
                self.set(*dst, value);
            }
            Step::Broadcast(dst, mem) => {
                let value = self.load(types::F32, *mem);
                let value = self.b.ins().splat(types::F32X4, value);
                self.set(*dst, value);
            }
            Step::LoadNarrow(dst, mem, narrow) => {
                let dtype = if *narrow == Narrow::I16 { types::I64 } else { types::I32 };
                let value = self.load(dtype, *mem);
                self.extend(*dst, value, *narrow);
            }
            Step::LoadHalves(dst, mem, narrow) => {
                let value = self.load(types::I64, *mem);
                let value = self.b.ins().scalar_to_vector(types::I64X2, value);
                let value = self.as_type(types::I8X16, value);
                let value = match narrow {
                    Narrow::U8 => self.b.ins().uwiden_low(value),
                    Narrow::I8 => self.b.ins().swiden_low(value),
                    Narrow::I16 => unreachable!("16 bits are half a lane already"),
                };
                self.set(*dst, value);
            }
            Step::BroadcastNarrow(dst, mem, narrow) => {
                let dtype = if *narrow == Narrow::I16 { types::I16 } else { types::I8 };
                let value = self.load(dtype, *mem);
                let value = match narrow {
                    Narrow::U8 => self.b.ins().uextend(types::I32, value),
                    Narrow::I8 | Narrow::I16 => self.b.ins().sextend(types::I32, value),
                };
                let value = self.b.ins().splat(types::I32X4, value);
                self.set(*dst, value);
            }
            Step::StoreNarrow(mem, src, _, narrow) => self.store_narrow(*mem, *src, *narrow),
            Step::Store(mem, src) => {
                let value = self.vector(*src);
                self.store(*mem, value);
            }
            Step::StoreFirst(mem, src, n, _) => {
                self.for_first(*n, |ctx, lane| ctx.store_lane(mem.plus(4 * lane), *src, lane));
            }
            Step::StoreLanes(mems, src, _) => {
                for (lane, mem) in mems.iter().enumerate() {
                    self.store_lane(*mem, *src, lane);
                }
            }
            Step::StoreOne(mem, src) => self.store_lane(*mem, *src, 0),
            Step::Prefetch(_) => {}
            _ => unreachable!("not a memory step: {step:?}"),
        }
    }

    /// Four narrow integers as lanes.
    fn extend(&mut self, dst: Vector, packed: Value, narrow: Narrow) {
        let wide = if narrow == Narrow::I16 { types::I64X2 } else { types::I32X4 };
        let value = self.b.ins().scalar_to_vector(wide, packed);
        let value = match narrow {
            Narrow::U8 => {
                let bytes = self.as_type(types::I8X16, value);
                let wide = self.b.ins().uwiden_low(bytes);
                self.b.ins().uwiden_low(wide)
            }
            Narrow::I8 => {
                let bytes = self.as_type(types::I8X16, value);
                let wide = self.b.ins().swiden_low(bytes);
                self.b.ins().swiden_low(wide)
            }
            Narrow::I16 => {
                let halves = self.as_type(types::I16X8, value);
                self.b.ins().swiden_low(halves)
            }
        };
        self.set(dst, value);
    }

    fn store_narrow(&mut self, mem: Mem, src: Vector, narrow: Narrow) {
        let value = self.ints_of(src);
        if narrow == Narrow::I16 {
            let value = self.b.ins().snarrow(value, value);
            let value = self.as_type(types::I64X2, value);
            let value = self.b.ins().extractlane(value, 0);
            return self.store(mem, value);
        }
        let low = self.constant(types::I32X4, [255; LANES]);
        let value = self.b.ins().band(value, low);
        let value = self.b.ins().unarrow(value, value);
        let value = self.b.ins().unarrow(value, value);
        let value = self.as_type(types::I32X4, value);
        let value = self.b.ins().extractlane(value, 0);
        self.store(mem, value);
    }

    /// Of each lane the sum of the products of both halves.
    fn dot_pairs(&mut self, x: Value, y: Value) -> Value {
        let (x, y) = (self.as_type(types::I16X8, x), self.as_type(types::I16X8, y));
        let (low_x, low_y) = (self.b.ins().swiden_low(x), self.b.ins().swiden_low(y));
        let (high_x, high_y) = (self.b.ins().swiden_high(x), self.b.ins().swiden_high(y));
        let (low, high) = (self.b.ins().imul(low_x, low_y), self.b.ins().imul(high_x, high_y));
        self.b.ins().iadd_pairwise(low, high)
    }

    fn control(&mut self, step: &Step) {
        match step {
            Step::Loop => {
                let head = self.b.create_block();
                self.b.ins().jump(head, &[]);
                self.b.switch_to_block(head);
                self.open.push(head);
            }
            Step::EndLoop(cond) => {
                let head = self.open.pop().expect("loops are closed where they were opened");
                let done = self.b.create_block();
                let again = self.cond(*cond);
                self.b.ins().brif(again, head, &[], done, &[]);
                self.b.switch_to_block(done);
            }
            Step::If(cond) => {
                let (then, end) = (self.b.create_block(), self.b.create_block());
                let holds = self.cond(*cond);
                self.b.ins().brif(holds, then, &[], end, &[]);
                self.b.switch_to_block(then);
                self.open.push(end);
            }
            Step::EndIf => {
                let end = self.open.pop().expect("branches are closed where they were opened");
                self.b.ins().jump(end, &[]);
                self.b.switch_to_block(end);
            }
            _ => unreachable!("not a control step: {step:?}"),
        }
    }

    fn cond(&mut self, cond: Cond) -> Value {
        let (a, b) = (self.int(cond.a), self.operand(cond.b));
        self.b.ins().icmp(int_cc(cond.op), a, b)
    }

    fn insert(&mut self, dst: Vector, value: Value, lane: usize) {
        let old = self.vector(dst);
        let value = self.b.ins().insertlane(old, value, lane as u8);
        self.set(dst, value);
    }

    fn store_lane(&mut self, mem: Mem, src: Vector, lane: usize) {
        let value = self.vector(src);
        let value = self.b.ins().extractlane(value, lane as u8);
        self.store(mem, value);
    }

    fn int_op(&mut self, op: IntOp, dst: Int, a: Int, operand: Operand) {
        let (x, y) = (self.int(a), self.operand(operand));
        let value = match op {
            IntOp::Add => self.b.ins().iadd(x, y),
            IntOp::Sub => self.b.ins().isub(x, y),
            IntOp::Mul => self.b.ins().imul(x, y),
            IntOp::And => self.b.ins().band(x, y),
            IntOp::Shl => self.b.ins().ishl(x, y),
            IntOp::Shr => self.b.ins().sshr(x, y),
        };
        self.set_int(dst, value);
    }

    fn load_int(&mut self, dst: Int, mem: Mem, width: Width) {
        let (base, disp) = self.address(mem);
        let value = match width {
            Width::I64 => self.b.ins().load(types::I64, flags(), base, disp),
            Width::I32 => self.b.ins().sload32(flags(), base, disp),
            Width::I16 => self.b.ins().sload16(types::I64, flags(), base, disp),
            Width::U8 => self.b.ins().uload8(types::I64, flags(), base, disp),
            Width::I8 => self.b.ins().sload8(types::I64, flags(), base, disp),
        };
        self.set_int(dst, value);
    }

    fn store_int(&mut self, mem: Mem, src: Int, width: Width) {
        let (base, disp) = self.address(mem);
        let value = self.int(src);
        match width {
            Width::I64 => self.b.ins().store(flags(), value, base, disp),
            Width::I32 => self.b.ins().istore32(flags(), value, base, disp),
            Width::I16 => self.b.ins().istore16(flags(), value, base, disp),
            Width::U8 | Width::I8 => self.b.ins().istore8(flags(), value, base, disp),
        };
    }

    fn fma(&mut self, dst: Vector, x: Vector, y: Vector, z: Vector) {
        let (x, y, z) = (self.vector(x), self.vector(y), self.vector(z));
        let value = if self.fma {
            self.b.ins().fma(x, y, z)
        } else {
            let product = self.b.ins().fmul(x, y);
            self.b.ins().fadd(product, z)
        };
        self.set(dst, value);
    }

    fn op2(&mut self, op: Op2, dst: Vector, x: Vector, y: Vector) {
        let value = match op {
            Op2::Add | Op2::Sub | Op2::Mul | Op2::Div | Op2::Min | Op2::Max => {
                let (x, y) = (self.vector(x), self.vector(y));
                self.float_op2(op, x, y)
            }
            _ => {
                let (x, y) = (self.ints_of(x), self.ints_of(y));
                self.int_op2(op, x, y)
            }
        };
        self.set(dst, value);
    }

    fn float_op2(&mut self, op: Op2, x: Value, y: Value) -> Value {
        match op {
            Op2::Add => self.b.ins().fadd(x, y),
            Op2::Sub => self.b.ins().fsub(x, y),
            Op2::Mul => self.b.ins().fmul(x, y),
            Op2::Div => self.b.ins().fdiv(x, y),
            // The forms that Cranelift knows as one x86 instruction.
            Op2::Min | Op2::Max => {
                let (a, b) = if op == Op2::Min { (x, y) } else { (y, x) };
                let less = self.b.ins().fcmp(FloatCC::LessThan, a, b);
                let less = self.as_type(types::F32X4, less);
                self.b.ins().bitselect(less, x, y)
            }
            _ => unreachable!("not a float operation: {op:?}"),
        }
    }

    fn int_op2(&mut self, op: Op2, x: Value, y: Value) -> Value {
        match op {
            Op2::And => self.b.ins().band(x, y),
            Op2::AndNot => self.b.ins().band_not(y, x),
            Op2::Or => self.b.ins().bor(x, y),
            Op2::Xor => self.b.ins().bxor(x, y),
            Op2::AddInt => self.b.ins().iadd(x, y),
            Op2::SubInt => self.b.ins().isub(x, y),
            Op2::MulInt => self.b.ins().imul(x, y),
            Op2::MinInt => self.b.ins().smin(x, y),
            Op2::MaxInt => self.b.ins().smax(x, y),
            Op2::DotPairs => self.dot_pairs(x, y),
            _ => unreachable!("not an integer operation: {op:?}"),
        }
    }

    fn op1(&mut self, op: Op1, dst: Vector, x: Vector) {
        let x = self.vector(x);
        let value = match op {
            Op1::Sqrt => self.b.ins().sqrt(x),
            Op1::Floor => self.b.ins().floor(x),
            Op1::Ceil => self.b.ins().ceil(x),
            Op1::Nearest => self.b.ins().nearest(x),
            Op1::Trunc => self.b.ins().trunc(x),
            Op1::ToInt => self.b.ins().fcvt_to_sint_sat(types::I32X4, x),
            Op1::ToFloat => {
                let x = self.as_type(types::I32X4, x);
                self.b.ins().fcvt_from_sint(types::F32X4, x)
            }
        };
        self.set(dst, value);
    }

    fn shift(&mut self, op: ShiftOp, dst: Vector, x: Vector, by: u8) {
        let x = self.ints_of(x);
        let value = match op {
            ShiftOp::Left => self.b.ins().ishl_imm_u(x, i64::from(by)),
            ShiftOp::Right => self.b.ins().ushr_imm_u(x, i64::from(by)),
            ShiftOp::RightSigned => self.b.ins().sshr_imm_u(x, i64::from(by)),
        };
        self.set(dst, value);
    }

    fn butterfly(&mut self, dst: Vector, x: Vector, distance: u8) {
        let x = self.vector(x);
        let x = self.as_type(types::I8X16, x);
        let bytes: Vec<u8> = (0..16u8).map(|byte| byte ^ (4 * distance)).collect();
        let order = self.b.func.dfg.immediates.push(ConstantData::from(bytes));
        let value = self.b.ins().shuffle(x, x, order);
        self.set(dst, value);
    }

    fn mask_op(&mut self, op: MaskOp, dst: Mask, x: Mask, y: Mask) {
        let (x, y) = (self.mask(x), self.mask(y));
        let value = match op {
            MaskOp::And => self.b.ins().band(x, y),
            MaskOp::Or => self.b.ins().bor(x, y),
            MaskOp::Xor => self.b.ins().bxor(x, y),
        };
        self.set_mask(dst, value);
    }

    fn mask_first(&mut self, dst: Mask, n: Int) {
        let n = self.int(n);
        let n = self.b.ins().ireduce(types::I32, n);
        let n = self.b.ins().splat(types::I32X4, n);
        let lanes = self.constant(types::I32X4, [0, 1, 2, 3]);
        let value = self.b.ins().icmp(IntCC::SignedGreaterThan, n, lanes);
        self.set_mask(dst, value);
    }
}

fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// The condition code of a comparison of signed integers.
fn int_cc(op: CompareOp) -> IntCC {
    match op {
        CompareOp::Eq => IntCC::Equal,
        CompareOp::Ne => IntCC::NotEqual,
        CompareOp::Lt => IntCC::SignedLessThan,
        CompareOp::Le => IntCC::SignedLessThanOrEqual,
        CompareOp::Gt => IntCC::SignedGreaterThan,
        CompareOp::Ge => IntCC::SignedGreaterThanOrEqual,
    }
}

fn float_cc(op: CompareOp) -> FloatCC {
    match op {
        CompareOp::Eq => FloatCC::Equal,
        CompareOp::Ne => FloatCC::NotEqual,
        CompareOp::Lt => FloatCC::LessThan,
        CompareOp::Le => FloatCC::LessThanOrEqual,
        CompareOp::Gt => FloatCC::GreaterThan,
        CompareOp::Ge => FloatCC::GreaterThanOrEqual,
    }
}
