//! Emission of a [`Body`] for one vector of iterations, through the caller's [`LaneAccess`].

use super::{
    bf16::{self, RoundingStores},
    body_value::BodyValue,
    byte_quads::ByteQuads,
    cast::cast,
    distribution::Distributions,
    exponential::Exponentials,
    lane_access::LaneAccess,
    logistic::Logistics,
    math, memory,
    narrow_products::NarrowProducts,
    op::{Body, Op, Ty, is_computed_in_double},
    power,
    quantise::Quantisations,
    quotient, remainder, trigonometry,
    wide::{self, Wide},
};
use crate::codegen::vector::{
    Builder,
    vcode::{Mask, MaskOp, ShiftOp, VBinary, VUnary, Vector},
};
use crate::scalar::{BinaryOp, CompareOp, UnaryOp};

/// Emits `body` for one vector of iterations.
pub(super) fn emit(body: &Body, b: &mut Builder, lanes: &mut dyn LaneAccess) {
    let fused_products = if b.shape().fma { fusible_products(body) } else { vec![false; body.insts.len()] };
    let quantisations = Quantisations::of(body, &b.shape());
    let rounding_stores = if b.shape().tiles { RoundingStores::of(body) } else { RoundingStores::default() };
    let exponentials = Exponentials::of(body);
    let distributions = Distributions::of(body);
    let logistics = Logistics::of(body, &b.shape());
    let mut quads = ByteQuads::of(body, &b.shape());
    let mut narrow_products = NarrowProducts::of(body, &b.shape());
    let only_stored = only_stored(body);
    let repeated_loads = repeated_loads(body);
    let values = Vec::with_capacity(body.insts.len());
    let mut emitter = Emitter { body, only_stored, repeated_loads, values };

    for (idx, &(op, _)) in body.insts.iter().enumerate() {
        let value = match op {
            _ if fused_products[idx]
                || quantisations.skips(idx)
                || rounding_stores.skips(idx)
                || exponentials.skips(idx)
                || distributions.skips(idx)
                || logistics.skips(idx)
                || quads.as_ref().is_some_and(|quads| quads.skips(idx)) =>
            {
                BodyValue::None
            }
            _ if let Some(quads) = &mut quads
                && let Some(sum) = quads.emit(b, lanes, idx, |reg| emitter.lanes(reg)) =>
            {
                BodyValue::Lanes(sum)
            }
            _ if narrow_products.skips(idx) => BodyValue::None,
            Op::Store(stream, x) if let Some(unrounded) = rounding_stores.unrounded(x) => {
                lanes.store(b, stream, Ty::RoundToBf16, emitter.lanes(unrounded));
                BodyValue::None
            }
            Op::Store(stream, x) if let Some(ty) = quantisations.clamping_store(x) => {
                lanes.store(b, stream, ty, emitter.lanes(x));
                BodyValue::None
            }
            _ if let Some(other) = quantisations.same_value(idx) => emitter.value(other),
            _ if let Some(value) = quantisations.emit(b, idx, |reg| emitter.lanes(reg)) => {
                BodyValue::Lanes(value)
            }
            _ if let Some(value) = exponentials.emit(b, idx, |reg| emitter.lanes(reg)) => {
                BodyValue::Lanes(value)
            }
            _ if let Some(value) = distributions.emit(b, idx, |reg| emitter.lanes(reg)) => {
                BodyValue::Lanes(value)
            }
            _ if let Some(value) = logistics.emit(b, idx, |reg| emitter.lanes(reg)) => {
                BodyValue::Lanes(value)
            }
            _ if let Some(value) = narrow_products.emit(b, body, idx, |reg| emitter.lanes(reg)) => {
                BodyValue::Lanes(value)
            }
            Op::Binary(BinaryOp::Add, x, y) if fused_products[y as usize] => {
                BodyValue::Lanes(emitter.fused(b, y, x))
            }
            Op::Binary(BinaryOp::Add, x, y) if fused_products[x as usize] => {
                BodyValue::Lanes(emitter.fused(b, x, y))
            }
            _ => emitter.inst(b, lanes, idx),
        };
        emitter.values.push(value);
    }
}

/// The products that are fused with the one sum that they are a term of. Of two such terms, the second is fused.
fn fusible_products(body: &Body) -> Vec<bool> {
    let uses = body.use_counts();
    let mut fusible = vec![false; body.insts.len()];

    for idx in 0..body.insts.len() {
        let is_product =
            |reg: u32| body.ty(reg) == Ty::F32 && matches!(body.op(reg), Op::Binary(BinaryOp::Mul, ..));
        if let Some((product, _)) = body.term(idx, &uses, is_product) {
            fusible[product as usize] = true;
        }
    }
    fusible
}

/// The loads of which lanes of groups are repeated, see [`Op::Repeat`]. Nothing else reads them.
fn repeated_loads(body: &Body) -> Vec<bool> {
    let mut repeated = vec![false; body.insts.len()];
    for (op, _) in &body.insts {
        if let Op::Repeat(load, _) = op {
            repeated[*load as usize] = true;
        }
    }
    repeated
}

fn only_stored(body: &Body) -> Vec<bool> {
    body.use_counts().iter().zip(body.store_counts()).map(|(uses, stores)| *uses == stores).collect()
}

/// The instructions of a body that are emitted so far.
struct Emitter<'a> {
    body: &'a Body,
    /// The instructions whose values only stores read.
    only_stored: Vec<bool>,
    /// The loads that instructions which repeat lanes emit.
    repeated_loads: Vec<bool>,
    values: Vec<BodyValue>,
}

impl Emitter<'_> {
    fn value(&self, reg: u32) -> BodyValue {
        self.values[reg as usize]
    }

    fn lanes(&self, reg: u32) -> Vector {
        self.value(reg).lanes()
    }

    fn wide(&self, reg: u32) -> Wide {
        self.value(reg).wide()
    }

    /// See [`Op::Checked`].
    fn checked(&self, b: &mut Builder, lanes: &mut dyn LaneAccess, x: u32, end: u32) -> BodyValue {
        let zero = match self.body.ty(x) {
            Ty::I64 => BodyValue::Wide(wide::bits(b, 0)),
            _ => BodyValue::Lanes(b.bits(0)),
        };
        let is_low = compare(b, CompareOp::Lt, self.body.ty(x), self.value(x), zero);
        let is_high = self.compare(b, CompareOp::Ge, x, end);
        let failures = b.mask_op(MaskOp::Or, is_low, is_high);
        lanes.fail_where(b, failures);
        let value = cast(b, self.body.ty(x), Ty::I32, self.value(x)).lanes();
        let zero = b.bits(0);
        BodyValue::Lanes(b.select(failures, zero, value))
    }

    /// `product + other` with one rounding.
    fn fused(&self, b: &mut Builder, product: u32, other: u32) -> Vector {
        let Op::Binary(_, x, y) = self.body.op(product) else { unreachable!("it is a product") };
        b.fma(self.lanes(x), self.lanes(y), self.lanes(other))
    }

    fn inst(&self, b: &mut Builder, lanes: &mut dyn LaneAccess, idx: usize) -> BodyValue {
        let (op, ty) = self.body.insts[idx];
        match op {
            Op::Const(bits) if ty == Ty::Bool => constant_truth(b, bits != 0),
            Op::Const(bits) => BodyValue::Lanes(b.bits(bits)),
            Op::WideConst(bits) => BodyValue::Wide(wide::bits(b, bits)),
            Op::Load(_) if self.repeated_loads[idx] => BodyValue::None,
            Op::Load(stream) if ty.is_wide() => BodyValue::Wide(lanes.load_wide(b, stream)),
            Op::Load(stream) if ty == Ty::Bool => {
                let byte = lanes.load(b, stream, ty);
                let zero = b.bits(0);
                BodyValue::Truth(b.compare_int(CompareOp::Ne, byte, zero))
            }
            Op::Load(stream) => BodyValue::Lanes(lanes.load(b, stream, ty)),
            Op::Column => BodyValue::Lanes(lanes.column(b)),
            Op::Repeat(x, lane) => {
                let Op::Load(stream) = self.body.op(x) else { unreachable!("loads are repeated") };
                BodyValue::Lanes(lanes.load_repeated(b, stream, ty, lane))
            }
            Op::Gather(stream, offsets) => BodyValue::Lanes(lanes.gather(b, stream, self.lanes(offsets))),
            Op::Checked(x, end) => self.checked(b, lanes, x, end),
            Op::Store(stream, x) => self.store(b, lanes, stream, x),
            Op::Splat(slot) if ty.is_wide() => BodyValue::Wide(lanes.splat_wide(b, slot)),
            Op::Splat(slot) => BodyValue::Lanes(lanes.splat(b, slot)),
            Op::Accumulator => BodyValue::Lanes(lanes.accumulator(b)),
            Op::Get(var) if ty.is_wide() => BodyValue::Wide([lanes.variable(var); 2]),
            Op::Get(var) => BodyValue::Lanes(lanes.variable(var)),
            Op::Set(var, x) => {
                let var = lanes.variable(var);
                b.set(var, self.value(x).first());
                BodyValue::None
            }
            Op::Reduce(op, x, var) => {
                lanes.reduce(b, op, self.value(x), var);
                BodyValue::None
            }
            Op::Unary(op, x) => unary(b, op, self.body.ty(x), self.value(x)),
            Op::Binary(op, x, y) => self.binary(b, op, ty, x, y),
            Op::Compare(op, x, y) => BodyValue::Truth(self.compare(b, op, x, y)),
            Op::Select(mask, x, y) => select(b, self.value(mask).truth(), self.value(x), self.value(y)),
            Op::Bits(x) => self.value(x),
            // The stores round.
            Op::Cast(x) if ty == Ty::F16 && self.only_stored[idx] => {
                cast(b, self.body.ty(x), Ty::F32, self.value(x))
            }
            // The operand is a bf16 already.
            Op::Cast(x) if ty == Ty::Bf16 && bf16::is_high(self.body, x) => BodyValue::Lanes(self.lanes(x)),
            Op::Cast(x) => cast(b, self.body.ty(x), ty, self.value(x)),
        }
    }

    fn store(&self, b: &mut Builder, lanes: &mut dyn LaneAccess, stream: u32, x: u32) -> BodyValue {
        let ty = self.body.ty(x);
        if ty.is_wide() {
            lanes.store_wide(b, stream, self.wide(x));
            return BodyValue::None;
        }
        let value = match ty {
            Ty::Bool => cast(b, Ty::Bool, Ty::I32, self.value(x)).lanes(),
            _ => self.lanes(x),
        };
        lanes.store(b, stream, ty, value);
        BodyValue::None
    }

    fn binary(&self, b: &mut Builder, op: BinaryOp, ty: Ty, x: u32, y: u32) -> BodyValue {
        if ty == Ty::Bool {
            return truth_binary(b, op, self.value(x).truth(), self.value(y).truth());
        }
        if ty.is_wide() {
            return BodyValue::Wide(wide::binary(b, op, ty, self.wide(x), self.wide(y)));
        }

        let value = match op {
            BinaryOp::Shr => {
                let distance = self.body.shift_distance(y).expect("`Body::push` checked the distance");
                b.shift(ShiftOp::RightSigned, self.lanes(x), distance)
            }
            BinaryOp::Mul
                if ty == Ty::I32
                    && let Some(exponent) = self.body.power_of_two(y) =>
            {
                b.shift(ShiftOp::Left, self.lanes(x), exponent)
            }
            _ if ty != Ty::F32 => {
                let value = int_binary(b, op, self.lanes(x), self.lanes(y));
                let may_exceed = matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul);
                if may_exceed && ty != Ty::I32 { memory::wrapped(b, value, ty) } else { value }
            }
            _ => self.float_binary(b, op, x, y),
        };

        BodyValue::Lanes(value)
    }

    fn compare(&self, b: &mut Builder, op: CompareOp, x: u32, y: u32) -> Mask {
        compare(b, op, self.body.ty(x), self.value(x), self.value(y))
    }

    fn float_binary(&self, b: &mut Builder, op: BinaryOp, x_reg: u32, y_reg: u32) -> Vector {
        let x = self.lanes(x_reg);
        let y = self.lanes(y_reg);

        let constant = |reg: u32| self.body.constant(reg).filter(|value| !value.is_nan());
        match (op, constant(x_reg), constant(y_reg)) {
            (BinaryOp::Add, ..) => b.binary(VBinary::Add, x, y),
            (BinaryOp::Sub, ..) => b.binary(VBinary::Sub, x, y),
            (BinaryOp::Mul, ..) => b.binary(VBinary::Mul, x, y),
            (BinaryOp::Div, _, Some(divisor)) => quotient::by_constant(b, x, divisor),
            (BinaryOp::Div, ..) => b.binary(VBinary::Div, x, y),
            (BinaryOp::Min, _, Some(bound)) => math::min_constant(b, x, bound),
            (BinaryOp::Min, Some(bound), _) => math::min_constant(b, y, bound),
            (BinaryOp::Max, _, Some(bound)) => math::max_constant(b, x, bound),
            (BinaryOp::Max, Some(bound), _) => math::max_constant(b, y, bound),
            (BinaryOp::Min, ..) => math::min(b, x, y),
            (BinaryOp::Max, ..) => math::max(b, x, y),
            (BinaryOp::Pow, _, Some(power)) if is_easy_power(power) => easy_power(b, x, power),
            (BinaryOp::Pow, ..) => power::pow(b, x, y),
            (BinaryOp::Atan2, ..) => wide::float_binary(b, op, x, y),
            (BinaryOp::Rem | BinaryOp::Mod, ..) => remainder::of_floats(b, op, x, y),
            _ => unreachable!("`Body::push` refuses {op:?}"),
        }
    }
}

fn compare(b: &mut Builder, op: CompareOp, ty: Ty, x: BodyValue, y: BodyValue) -> Mask {
    match ty {
        ty if ty.is_wide() => wide::compare(b, op, ty, x.wide(), y.wide()),
        Ty::F32 | Ty::Bf16 | Ty::F16 => b.compare(op, x.lanes(), y.lanes()),
        _ => b.compare_int(op, x.lanes(), y.lanes()),
    }
}

/// Whether the power is a few multiplications, a division or roots, within the bound of [`power::pow`].
fn is_easy_power(power: f32) -> bool {
    [2.0, 3.0, 1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 0.75].contains(&power)
}

fn easy_power(b: &mut Builder, x: Vector, power: f32) -> Vector {
    if power == 1.0 {
        return x;
    }
    if [0.5, 0.25, 0.75].contains(&power.abs()) {
        return root_power(b, x, power);
    }
    let one = b.float(1.0);
    if power == -1.0 {
        return b.binary(VBinary::Div, one, x);
    }
    let square = b.binary(VBinary::Mul, x, x);
    if power == 2.0 { square } else { b.binary(VBinary::Mul, square, x) }
}

/// `x^±½`, `x^±¼` or `x^¾`. Unlike the square root, it has no negative zero, and -∞ is like ∞.
fn root_power(b: &mut Builder, x: Vector, power: f32) -> Vector {
    let root = b.unary(VUnary::Sqrt, x);
    let zero = b.float(0.0);
    let root = b.binary(VBinary::Add, root, zero);
    let minus_infinity = b.float(f32::NEG_INFINITY);
    let infinity = b.float(f32::INFINITY);
    let is_infinite = b.compare(CompareOp::Eq, x, minus_infinity);
    let square_root = b.select(is_infinite, infinity, root);
    let root = if power.abs() == 0.5 { square_root } else { b.unary(VUnary::Sqrt, square_root) };
    if power == 0.75 {
        return b.binary(VBinary::Mul, square_root, root);
    }
    if power > 0.0 {
        return root;
    }
    let one = b.float(1.0);
    b.binary(VBinary::Div, one, root)
}

fn constant_truth(b: &mut Builder, value: bool) -> BodyValue {
    let zero = b.bits(0);
    let op = if value { CompareOp::Eq } else { CompareOp::Ne };
    BodyValue::Truth(b.compare_int(op, zero, zero))
}

fn unary(b: &mut Builder, op: UnaryOp, ty: Ty, x: BodyValue) -> BodyValue {
    match ty {
        Ty::Bool => BodyValue::Truth(math::not(b, x.truth())),
        Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16 | Ty::ClampToI8 | Ty::ClampToU8 => {
            BodyValue::Lanes(int_unary(b, op, x.lanes()))
        }
        Ty::I64 | Ty::F64 => match op {
            UnaryOp::IsNan | UnaryOp::IsInf => BodyValue::Truth(wide::predicate(b, op, x.wide())),
            _ => BodyValue::Wide(wide::unary(b, op, ty, x.wide())),
        },
        Ty::F32 | Ty::Bf16 | Ty::F16 | Ty::RoundToBf16 => match op {
            UnaryOp::IsNan => BodyValue::Truth(math::is_nan(b, x.lanes())),
            UnaryOp::IsInf => BodyValue::Truth(math::is_inf(b, x.lanes())),
            _ => BodyValue::Lanes(float_unary(b, op, x.lanes())),
        },
    }
}

fn float_unary(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    match op {
        UnaryOp::Neg => math::neg(b, x),
        UnaryOp::Abs => math::abs(b, x),
        UnaryOp::Sign => math::sign(b, x),
        UnaryOp::Floor => b.unary(VUnary::Floor, x),
        UnaryOp::Ceil => b.unary(VUnary::Ceil, x),
        UnaryOp::Round => b.unary(VUnary::Nearest, x),
        UnaryOp::Trunc => b.unary(VUnary::Trunc, x),
        UnaryOp::Sqrt => b.unary(VUnary::Sqrt, x),
        UnaryOp::Recip => {
            let one = b.float(1.0);
            b.binary(VBinary::Div, one, x)
        }
        UnaryOp::Exp => math::exp(b, x),
        UnaryOp::Expm1 => math::expm1(b, x),
        UnaryOp::Log => math::log(b, x),
        UnaryOp::Log1p => math::log1p(b, x),
        UnaryOp::Tanh => math::tanh(b, x),
        UnaryOp::Erf => math::erf(b, x),
        UnaryOp::Sin => trigonometry::sin(b, x),
        UnaryOp::Cos => trigonometry::cos(b, x),
        UnaryOp::Asin => trigonometry::asin(b, x),
        UnaryOp::Acos => trigonometry::acos(b, x),
        UnaryOp::Atan => trigonometry::atan(b, x),
        UnaryOp::RoundBf16 => bf16::high(b, x),
        _ if is_computed_in_double(op) => wide::float_unary(b, op, x),
        _ => unreachable!("`Body::push` refuses {op:?}"),
    }
}

fn int_unary(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    let zero = b.bits(0);
    match op {
        UnaryOp::Neg => b.binary(VBinary::SubInt, zero, x),
        UnaryOp::Abs => {
            let opposite = b.binary(VBinary::SubInt, zero, x);
            b.binary(VBinary::MaxInt, x, opposite)
        }
        UnaryOp::Sign => {
            let one = b.bits(1);
            let minus_one = b.bits(u32::MAX);
            let bounded = b.binary(VBinary::MinInt, x, one);
            b.binary(VBinary::MaxInt, bounded, minus_one)
        }
        UnaryOp::Not => {
            let all = b.bits(u32::MAX);
            b.binary(VBinary::Xor, x, all)
        }
        _ => x,
    }
}

fn int_binary(b: &mut Builder, op: BinaryOp, x: Vector, y: Vector) -> Vector {
    let op = match op {
        BinaryOp::Add => VBinary::AddInt,
        BinaryOp::Sub => VBinary::SubInt,
        BinaryOp::Mul => VBinary::MulInt,
        BinaryOp::Min => VBinary::MinInt,
        BinaryOp::Max => VBinary::MaxInt,
        BinaryOp::And => VBinary::And,
        BinaryOp::Or => VBinary::Or,
        BinaryOp::Xor => VBinary::Xor,
        _ => unreachable!("`Body::push` refuses {op:?}"),
    };
    b.binary(op, x, y)
}

fn truth_binary(b: &mut Builder, op: BinaryOp, x: Mask, y: Mask) -> BodyValue {
    let op = match op {
        BinaryOp::And => MaskOp::And,
        BinaryOp::Or => MaskOp::Or,
        BinaryOp::Xor => MaskOp::Xor,
        _ => unreachable!("`Body::push` refuses {op:?}"),
    };
    BodyValue::Truth(b.mask_op(op, x, y))
}

/// The first value where the mask holds, else the second.
fn select(b: &mut Builder, mask: Mask, x: BodyValue, y: BodyValue) -> BodyValue {
    match (x, y) {
        (BodyValue::Truth(x), BodyValue::Truth(y)) => {
            let first = b.mask_op(MaskOp::And, mask, x);
            let other = math::not(b, mask);
            let second = b.mask_op(MaskOp::And, other, y);
            BodyValue::Truth(b.mask_op(MaskOp::Or, first, second))
        }
        (BodyValue::Wide(x), BodyValue::Wide(y)) => BodyValue::Wide(wide::select(b, mask, x, y)),
        _ => BodyValue::Lanes(b.select(mask, x.lanes(), y.lanes())),
    }
}
