//! The portable backend: vector code as Cranelift IR on 128-bit vectors.
//!
//! Registers become variables of the function builder, and each step one to five instructions. Fused multiply-add is
//! used only if the target has the instruction, because Cranelift would call a library otherwise.

mod lanes;
mod memory;
mod tile_registers;
mod tiles;
mod wide;

use super::vcode::{
    BitsOp, Cond, Int, IntOp, IntOperand, Mask, MaskOp, ShiftOp, VBinary, VCode, VInst, VUnary, Vector,
    VectorHalf,
};
use super::{
    builder::VectorShape,
    convention::machine_code_signature,
    isa::{Caches, VectorIsa},
};
use crate::{codegen::vector::MachineCode, error::Result, scalar::CompareOp};
use cranelift_codegen::ir::{
    Block, ConstantData, Function, InstBuilder, StackSlot, StackSlotData, StackSlotKind, Type, UserFuncName,
    Value, condcodes::FloatCC, condcodes::IntCC, types,
};
use cranelift_codegen::isa::{TargetFrontendConfig, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use cranelift_module::FuncId;
use tile_registers::TileRegisters;

/// 32-bit lanes of a vector.
const LANES: usize = 4;

/// 128-bit vectors through Cranelift.
#[derive(Clone, Copy, Debug)]
pub struct Portable {
    fma: bool,
    registers: usize,
    tiles: bool,
}

impl Portable {
    /// The backend for this target.
    pub fn new(isa: &dyn TargetIsa) -> Portable {
        use target_lexicon::Architecture;
        let x86 = isa.triple().architecture == Architecture::X86_64;
        // RISC-V has 32 registers, but its conditional branches reach only 4 KB. Tiles for 16 registers stay within
        // that range.
        let few = x86 || matches!(isa.triple().architecture, Architecture::Riscv64(_));
        let fma =
            !x86 || isa.isa_flags().iter().any(|flag| flag.name == "has_fma" && flag.as_bool() == Some(true));
        Portable { fma, registers: if few { 16 } else { 32 }, tiles: false }
    }

    /// The backend with tile registers in memory. It is slow, but computes the same bits as machines with tile
    /// registers.
    pub fn with_tiles(self) -> Portable {
        Portable { tiles: true, ..self }
    }
}

impl VectorIsa for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn shape(&self) -> VectorShape {
        let Portable { fma, registers, tiles } = *self;
        VectorShape {
            lanes: LANES,
            registers,
            fma,
            fma_lanes: false,
            extrema: false,
            vnni: false,
            byte_quads: false,
            signed_dots: false,
            matrix_dots: false,
            bf16_matrix_dots: false,
            byte_pairs: false,
            slow_int_products: false,
            narrow_masks: false,
            clamping_stores: false,
            byte_triples: false,
            interleaving_stores: false,
            masked_stores: true,
            tiles,
            f16: false,
            long_ints: false,
        }
    }

    fn caches(&self) -> Caches {
        Caches::SMALL
    }

    fn compile(&self, func: FuncId, code: &VCode, target: &dyn TargetIsa) -> Result<MachineCode> {
        let signature = machine_code_signature(target, &[types::I64], &[]);
        let mut body = Function::with_name_signature(UserFuncName::user(0, func.as_u32()), signature);
        let mut frontend = FunctionBuilderContext::new();
        translate(&mut body, &mut frontend, code, self.fma, target.frontend_config());
        MachineCode::of(func, body, target)
    }
}

fn translate(
    func: &mut Function,
    frontend: &mut FunctionBuilderContext,
    code: &VCode,
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
    let mut translator =
        Translator { b, ints, vectors, masks, constants, scratch, open: Vec::new(), fma, tiles: None };
    for step in &code.steps {
        translator.step(step);
    }

    translator.b.ins().return_(&[]);
    translator.b.seal_all_blocks();
    translator.b.finalize(config);
}

/// Translates the steps of one function.
struct Translator<'a> {
    b: FunctionBuilder<'a>,
    ints: Vec<Variable>,
    vectors: Vec<Variable>,
    masks: Vec<Variable>,
    /// The bits of the registers that are constants. Each use emits the constant again, so that it occupies no
    /// register across a loop.
    constants: Vec<Option<[u32; LANES]>>,
    scratch: StackSlot,
    /// The block that an open loop returns to, or that an open branch ends in.
    open: Vec<Block>,
    fma: bool,
    tiles: Option<TileRegisters>,
}

impl Translator<'_> {
    fn int(&mut self, int: Int) -> Value {
        self.b.use_var(self.ints[int.0 as usize])
    }

    fn vector(&mut self, vector: Vector) -> Value {
        match self.constants[vector.0 as usize] {
            None => self.b.use_var(self.vectors[vector.0 as usize]),
            Some(lanes) => self.constant(types::F32X4, lanes),
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

    fn operand(&mut self, operand: IntOperand) -> Value {
        match operand {
            IntOperand::Int(int) => self.int(int),
            IntOperand::Imm(value) => self.b.ins().iconst(types::I64, i64::from(value)),
        }
    }

    fn as_type(&mut self, dtype: Type, value: Value) -> Value {
        lanes::cast(&mut self.b, dtype, value)
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

    fn count_from(&mut self, dst: Vector, first: Int) {
        let first = self.int(first);
        let first = self.b.ins().ireduce(types::I32, first);
        let first = self.b.ins().splat(types::I32X4, first);
        let lanes = self.constant(types::I32X4, [0, 1, 2, 3]);
        let value = self.b.ins().iadd(first, lanes);
        self.set(dst, value);
    }

    fn step(&mut self, step: &VInst) {
        match step {
            VInst::Imm(dst, value) => {
                let value = self.b.ins().iconst(types::I64, *value);
                self.set_int(*dst, value);
            }
            VInst::Copy(dst, src) => {
                let value = self.int(*src);
                self.set_int(*dst, value);
            }
            VInst::Int(op, dst, a, operand) => self.int_op(*op, *dst, *a, *operand),
            VInst::Address(dst, mem) => {
                let (base, disp) = self.address(*mem);
                let value = self.b.ins().iadd_imm_s(base, i64::from(disp));
                self.set_int(*dst, value);
            }
            VInst::Scratch(dst) => {
                let value = self.b.ins().stack_addr(types::I64, self.scratch, 0);
                self.set_int(*dst, value);
            }
            VInst::LoadInt(dst, mem, width) => self.load_int(*dst, *mem, *width),
            VInst::StoreInt(mem, src, width) => self.store_int(*mem, *src, *width),
            VInst::Constant(dst, bits) => self.constants[dst.0 as usize] = Some([*bits; LANES]),
            VInst::CountFrom(dst, first) => self.count_from(*dst, *first),
            VInst::Move(dst, src) => {
                let value = self.vector(*src);
                self.set(*dst, value);
            }
            VInst::Fma(dst, x, y, z) => self.fma(*dst, *x, *y, *z),
            VInst::Bits(op, dst, x, y, z) => self.bits(*op, *dst, [*x, *y, *z]),
            VInst::Binary(op, dst, x, y) => self.binary(*op, *dst, *x, *y),
            VInst::Unary(op, dst, x) => self.unary(*op, *dst, *x),
            step if step.is_wide() => self.wide(step),
            VInst::RoundBf16(dst, x) => {
                let value = self.bf16(*x);
                self.set(*dst, value);
            }
            VInst::PackBf16(dst, x, y) => {
                let halves = [x, y].map(|x| self.bf16(*x));
                let [x, y] = halves.map(|value| self.b.ins().sshr_imm_u(value, 16));
                let value = self.b.ins().snarrow(x, y);
                self.set(*dst, value);
            }
            VInst::UnpackBf16(dst, x, half) => {
                let value = self.vector(*x);
                let value = self.as_type(types::I16X8, value);
                let value = match half {
                    VectorHalf::First => self.b.ins().uwiden_low(value),
                    VectorHalf::Second => self.b.ins().uwiden_high(value),
                };
                let value = self.b.ins().ishl_imm_u(value, 16);
                self.set(*dst, value);
            }
            VInst::UnlessInfinite(dst, x, y) => {
                let value = self.unless_infinite(*x, *y);
                self.set(*dst, value);
            }
            VInst::Shift(op, dst, x, by) => self.shift(*op, *dst, *x, *by),
            VInst::Butterfly(dst, x, distance) => self.butterfly(*dst, *x, *distance),
            VInst::Compare(op, dst, x, y) => {
                let x = self.vector(*x);
                let y = self.vector(*y);
                let value = self.b.ins().fcmp(float_cc(*op), x, y);
                self.set_mask(*dst, value);
            }
            VInst::CompareInt(op, dst, x, y) => {
                let x = self.ints_of(*x);
                let y = self.ints_of(*y);
                let value = self.b.ins().icmp(int_cc(*op), x, y);
                self.set_mask(*dst, value);
            }
            VInst::Mask(op, dst, x, y) => self.mask_op(*op, *dst, *x, *y),
            VInst::MaskFirst(dst, n, _) => self.mask_first(*dst, *n),
            VInst::LoadMask(..) | VInst::StoreMask(..) => {
                unreachable!("Cranelift allocates its registers itself")
            }
            VInst::Select(dst, mask, x, y) => {
                let mask = self.mask(*mask);
                let x = self.ints_of(*x);
                let y = self.ints_of(*y);
                let value = self.b.ins().bitselect(mask, x, y);
                self.set(*dst, value);
            }
            VInst::Loop | VInst::EndLoop(_) | VInst::If(_) | VInst::EndIf => self.control(step),
            VInst::TileConfig(_)
            | VInst::TileRelease
            | VInst::TileZero(_)
            | VInst::TileLoad(..)
            | VInst::TileStore(..)
            | VInst::TileDot(..) => self.tile(step),
            _ => self.memory(step),
        }
    }

    /// For each lane, the sum of the products of its two halves.
    fn dot_pairs(&mut self, x: Value, y: Value) -> Value {
        let x = self.as_type(types::I16X8, x);
        let y = self.as_type(types::I16X8, y);
        let low_x = self.b.ins().swiden_low(x);
        let low_y = self.b.ins().swiden_low(y);
        let high_x = self.b.ins().swiden_high(x);
        let high_y = self.b.ins().swiden_high(y);
        let low = self.b.ins().imul(low_x, low_y);
        let high = self.b.ins().imul(high_x, high_y);
        self.b.ins().iadd_pairwise(low, high)
    }

    fn control(&mut self, step: &VInst) {
        match step {
            VInst::Loop => {
                let head = self.b.create_block();
                self.b.ins().jump(head, &[]);
                self.b.switch_to_block(head);
                self.open.push(head);
            }
            VInst::EndLoop(cond) => {
                let head = self.open.pop().expect("loops are closed where they were opened");
                let done = self.b.create_block();
                let again = self.cond(*cond);
                self.b.ins().brif(again, head, &[], done, &[]);
                self.b.switch_to_block(done);
            }
            VInst::If(cond) => {
                let then = self.b.create_block();
                let end = self.b.create_block();
                let holds = self.cond(*cond);
                self.b.ins().brif(holds, then, &[], end, &[]);
                self.b.switch_to_block(then);
                self.open.push(end);
            }
            VInst::EndIf => {
                let end = self.open.pop().expect("branches are closed where they were opened");
                self.b.ins().jump(end, &[]);
                self.b.switch_to_block(end);
            }
            _ => unreachable!("not a control step: {step:?}"),
        }
    }

    fn cond(&mut self, cond: Cond) -> Value {
        let a = self.int(cond.a);
        let b = self.operand(cond.b);
        self.b.ins().icmp(int_cc(cond.op), a, b)
    }

    fn int_op(&mut self, op: IntOp, dst: Int, a: Int, operand: IntOperand) {
        let x = self.int(a);
        let y = self.operand(operand);
        let value = match op {
            IntOp::Add => self.b.ins().iadd(x, y),
            IntOp::Sub => self.b.ins().isub(x, y),
            IntOp::Mul => self.b.ins().imul(x, y),
            IntOp::And => self.b.ins().band(x, y),
            IntOp::Xor => self.b.ins().bxor(x, y),
            IntOp::Shl => self.b.ins().ishl(x, y),
            IntOp::Shr => self.b.ins().sshr(x, y),
        };
        self.set_int(dst, value);
    }

    fn fma(&mut self, dst: Vector, x: Vector, y: Vector, z: Vector) {
        let x = self.vector(x);
        let y = self.vector(y);
        let z = self.vector(z);
        let value = if self.fma {
            self.b.ins().fma(x, y, z)
        } else {
            let product = self.b.ins().fmul(x, y);
            self.b.ins().fadd(product, z)
        };
        self.set(dst, value);
    }

    fn bits(&mut self, op: BitsOp, dst: Vector, operands: [Vector; 3]) {
        let [x, y, z] = operands.map(|vector| self.ints_of(vector));
        let both = self.b.ins().band(x, y);
        let third = match op {
            BitsOp::AndOr => z,
            BitsOp::Majority => {
                let either = self.b.ins().bor(x, y);
                self.b.ins().band(either, z)
            }
        };
        let value = self.b.ins().bor(both, third);
        self.set(dst, value);
    }

    fn binary(&mut self, op: VBinary, dst: Vector, x: Vector, y: Vector) {
        let value = match op {
            VBinary::Add | VBinary::Sub | VBinary::Mul | VBinary::Div | VBinary::Min | VBinary::Max => {
                let x = self.vector(x);
                let y = self.vector(y);
                self.float_binary(op, x, y)
            }
            _ => {
                let x = self.ints_of(x);
                let y = self.ints_of(y);
                self.int_binary(op, x, y)
            }
        };
        self.set(dst, value);
    }

    fn float_binary(&mut self, op: VBinary, x: Value, y: Value) -> Value {
        match op {
            VBinary::Add => self.b.ins().fadd(x, y),
            VBinary::Sub => self.b.ins().fsub(x, y),
            VBinary::Mul => self.b.ins().fmul(x, y),
            VBinary::Div => self.b.ins().fdiv(x, y),
            // Cranelift recognises this form as one x86 instruction.
            VBinary::Min | VBinary::Max => {
                let (a, b) = if op == VBinary::Min { (x, y) } else { (y, x) };
                let less = self.b.ins().fcmp(FloatCC::LessThan, a, b);
                let less = self.as_type(types::F32X4, less);
                self.b.ins().bitselect(less, x, y)
            }
            _ => unreachable!("not a float operation: {op:?}"),
        }
    }

    fn int_binary(&mut self, op: VBinary, x: Value, y: Value) -> Value {
        match op {
            VBinary::And => self.b.ins().band(x, y),
            VBinary::AndNot => self.b.ins().band_not(y, x),
            VBinary::Or => self.b.ins().bor(x, y),
            VBinary::Xor => self.b.ins().bxor(x, y),
            VBinary::AddInt => self.b.ins().iadd(x, y),
            VBinary::SubInt => self.b.ins().isub(x, y),
            VBinary::MulInt => self.b.ins().imul(x, y),
            VBinary::MinInt => self.b.ins().smin(x, y),
            VBinary::MaxInt => self.b.ins().smax(x, y),
            VBinary::DotPairs => self.dot_pairs(x, y),
            VBinary::Exchange { stage, second } => self.exchange(stage, second, x, y),
            VBinary::ZipBytes(half) => {
                let first = if half == VectorHalf::First { 0 } else { 8 };
                self.shuffled_bytes(x, y, (first..first + 8).flat_map(|byte| [byte, 16 + byte]).collect())
            }
            VBinary::EvenThenOdd => self.shuffled(x, y, [0, 2, 5, 7]),
            VBinary::Permute => unreachable!("permutations need 8 lanes"),
            VBinary::Even => self.shuffled(x, y, [0, 2, 4, 6]),
            VBinary::Odd => self.shuffled(x, y, [1, 3, 5, 7]),
            _ => unreachable!("not an integer operation: {op:?}"),
        }
    }

    fn exchange(&mut self, stage: u8, second: bool, x: Value, y: Value) -> Value {
        let lanes: [u8; LANES] = match (stage, second) {
            (0, false) => [0, 4, 1, 5],
            (0, true) => [2, 6, 3, 7],
            (1, false) => [0, 1, 4, 5],
            (1, true) => [2, 3, 6, 7],
            _ => unreachable!("the transposition of four lanes has two stages"),
        };

        self.shuffled(x, y, lanes)
    }

    fn unary(&mut self, op: VUnary, dst: Vector, x: Vector) {
        let x = self.vector(x);
        let value = match op {
            VUnary::Sqrt => self.b.ins().sqrt(x),
            VUnary::Floor => self.b.ins().floor(x),
            VUnary::Ceil => self.b.ins().ceil(x),
            VUnary::Nearest => self.b.ins().nearest(x),
            VUnary::Trunc => self.b.ins().trunc(x),
            VUnary::ToInt => self.b.ins().fcvt_to_sint_sat(types::I32X4, x),
            VUnary::ToNearest => {
                let whole = self.b.ins().nearest(x);
                self.b.ins().fcvt_to_sint_sat(types::I32X4, whole)
            }
            VUnary::ToFloat => {
                let x = self.as_type(types::I32X4, x);
                self.b.ins().fcvt_from_sint(types::F32X4, x)
            }
            VUnary::RepeatOfFour(_) => unreachable!("groups of lanes need 8 lanes"),
            VUnary::ReciprocalEstimate => unreachable!("estimates need 16 lanes"),
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
        let x = self.mask(x);
        let y = self.mask(y);
        let value = match op {
            MaskOp::And => self.b.ins().band(x, y),
            MaskOp::Or => self.b.ins().bor(x, y),
            MaskOp::Xor => self.b.ins().bxor(x, y),
            MaskOp::Join => self.join_masks(x, y),
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
