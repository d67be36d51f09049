//! Straight-line code in C: one expression or line for each instruction.

use super::{constants, function, kernel_printer::KernelPrinter, names, scalars, text::identifiers};
use crate::{
    error::{Error, Result},
    kernel::{Check, Inst, InstSeq, contract::Failure},
    scalar::{BinaryOp, ReduceOp, Reg, Scalar, UnaryOp},
};
use symshape_runtime::DType;

/// Expressions with more characters get a name.
const MAX_CHARS: usize = 50;

/// The value of a register as a C expression. It has no effects, and it only uses variables that keep their values.
#[derive(Clone)]
pub(super) struct RegisterText {
    text: String,
    dtype: DType,
    /// Whether the expression is an operand without parentheses.
    is_name: bool,
    /// The value, if it is a constant.
    constant: Option<Scalar>,
}

impl RegisterText {
    pub(super) fn name(text: String, dtype: DType) -> RegisterText {
        RegisterText { text, dtype, is_name: true, constant: None }
    }

    fn expression(text: String, dtype: DType) -> RegisterText {
        RegisterText { text, dtype, is_name: false, constant: None }
    }

    /// The expression as an operand.
    fn operand(&self) -> String {
        if self.is_name { self.text.clone() } else { format!("({})", self.text) }
    }
}

/// The registers of straight-line code so far; `None` for instructions without a result or a use.
struct Registers(Vec<Option<RegisterText>>);

impl Registers {
    fn get(&self, reg: &Reg) -> Result<RegisterText> {
        let text = self.0.get(reg.0 as usize).cloned().flatten();
        text.ok_or_else(|| Error::internal(format!("register {} has no value", reg.0)))
    }
}

/// A symbol that the code binds.
struct BoundSymbol {
    name: String,
    /// Where the lines after its definition begin in the function's body.
    body_at: usize,
}

impl KernelPrinter<'_> {
    /// Prints straight-line code. `sum` is the value of `Inst::Sum`, and `accumulators` are those of the reductions in
    /// their order.
    pub(super) fn code(
        &mut self,
        code: &InstSeq,
        sum: Option<RegisterText>,
        accumulators: &[String],
    ) -> Result<()> {
        let mut accumulators = accumulators.iter();
        let mut registers = Registers(Vec::new());
        let mut checks: Vec<&Check> = Vec::new();
        let mut bound: Vec<BoundSymbol> = Vec::new();
        for (inst, n_uses) in code.insts.iter().zip(count_uses(code)) {
            let value = match inst {
                Inst::Sum => sum.clone(),
                unused if n_uses == 0 && unused.has_result() => None,
                Inst::Load(access) => {
                    let dtype = self.dtype(access);
                    let text = scalars::load(dtype, &self.element(access)?);
                    Some(self.named(text, dtype))
                }
                Inst::Get(local) => Some(self.named(names::local(*local), self.kernel.locals[*local])),
                Inst::Store(access, x) => {
                    let stored = scalars::store(self.dtype(access), &registers.get(x)?.text);
                    let line = format!("{} = {stored};", self.element(access)?);
                    self.line(&line);
                    None
                }
                Inst::Set(local, x) => {
                    let line = format!("{} = {};", names::local(*local), registers.get(x)?.text);
                    self.line(&line);
                    None
                }
                Inst::Reduce(op, x, _) => {
                    let accumulator = accumulators.next().ok_or_else(|| Error::internal("no accumulator"))?;
                    let x = registers.get(x)?;
                    self.reduce(*op, accumulator, x)?;
                    None
                }
                Inst::Bind(symbol, x) => {
                    let name = self.names.symbol(symbol).unwrap_or_default().to_string();
                    self.line(&format!("const int64_t {name} = {};", registers.get(x)?.text));
                    bound.push(BoundSymbol { name, body_at: self.body.len() });
                    for check in checks.iter().filter(|check| check.value == *x) {
                        self.facts.declare_between(symbol, &check.lo, &(&check.end - 1));
                    }
                    None
                }
                Inst::Check(check) => {
                    self.check(check, &registers.get(&check.value)?)?;
                    checks.push(check);
                    None
                }
                pure => Some(self.pure(pure, &registers, n_uses)?),
            };
            registers.0.push(value);
        }

        // The index of an axis of one element is checked but not used.
        for BoundSymbol { name, body_at } in bound {
            if !identifiers(&self.body[body_at..]).any(|word| word == name) {
                self.line(&format!("(void){name};"));
            }
        }
        Ok(())
    }

    /// The value of an instruction without effects. It gets a name if it is long or used more than once.
    fn pure(&mut self, inst: &Inst, registers: &Registers, n_uses: u32) -> Result<RegisterText> {
        let of = |reg: &Reg| registers.get(reg);
        let (text, dtype) = match inst {
            Inst::Const(value) => {
                let text = constants::literal(*value);
                let is_name = !text.starts_with('-');
                return Ok(RegisterText { text, dtype: value.dtype(), is_name, constant: Some(*value) });
            }
            Inst::Index(dtype, dim) => {
                let text = self.dim(dim)?;
                let text = if *dtype == DType::I64 {
                    text
                } else {
                    format!("({})({text})", names::value_type(*dtype))
                };
                return Ok(RegisterText::expression(text, *dtype));
            }
            Inst::Unary(op, x) => {
                let x = of(x)?;
                let is_bool = matches!(op, UnaryOp::IsNan | UnaryOp::IsInf);
                let dtype = if is_bool { DType::Bool } else { x.dtype };
                (scalars::unary(*op, x.dtype, &x.operand())?, dtype)
            }
            Inst::Binary(op, x, y) => {
                let x = of(x)?;
                let y = of(y)?;
                let text = match limited(*op, &x, &y) {
                    Some(text) => text,
                    None => scalars::binary(*op, x.dtype, &x.operand(), &y.operand())?,
                };
                (text, x.dtype)
            }
            Inst::Compare(op, x, y) => {
                (scalars::compare(*op, &of(x)?.operand(), &of(y)?.operand()), DType::Bool)
            }
            Inst::Select(cond, x, y) => {
                let cond = of(cond)?;
                let x = of(x)?;
                let y = of(y)?;
                (format!("{} ? {} : {}", cond.operand(), x.operand(), y.operand()), x.dtype)
            }
            Inst::Cast(to, x) => {
                let x = of(x)?;
                (scalars::cast(x.dtype, *to, &x.operand()), *to)
            }
            Inst::Bits(to, x) => {
                let x = of(x)?;
                (scalars::bits(x.dtype, *to, &x.operand()), *to)
            }
            _ => return Err(Error::internal("an instruction with effects")),
        };

        if n_uses > 1 || text.len() > MAX_CHARS {
            Ok(self.named(text, dtype))
        } else {
            Ok(RegisterText::expression(text, dtype))
        }
    }

    /// Prints the line that adds `x` to an accumulator by the operator of its reduction. With vectors, sums have
    /// several accumulators.
    fn reduce(&mut self, op: ReduceOp, accumulator: &str, x: RegisterText) -> Result<()> {
        let line = match op {
            ReduceOp::Sum if x.dtype.is_float() && self.vectors => {
                // The additions inside of the term keep their order, so the term is outside of the block.
                let x = if x.is_name { x } else { self.named(x.text, x.dtype) };
                format!("{{ REASSOCIATED {accumulator} += {}; }}", x.text)
            }
            ReduceOp::Sum if x.dtype.is_float() => format!("{accumulator} += {};", x.text),
            _ => {
                let value = scalars::binary(op.binary(), x.dtype, accumulator, &x.operand())?;
                format!("{accumulator} = {value};")
            }
        };
        self.line(&line);
        Ok(())
    }

    /// Prints the definition of a variable with the value `text`.
    fn named(&mut self, text: String, dtype: DType) -> RegisterText {
        let name = self.fresh('r');
        self.line(&format!("const {} {name} = {text};", names::value_type(dtype)));
        RegisterText::name(name, dtype)
    }

    /// Returns an error from the kernel if `value` is out of the range of `check`.
    fn check(&mut self, check: &Check, value: &RegisterText) -> Result<()> {
        let failure = Failure::index_out_of_bounds(&check.context);
        let error = format!("error_{}", self.n_errors);
        self.n_errors += 1;
        self.error_constants.push_str(&function::error_constant(&error, &failure));
        self.can_fail = true;

        let lo = self.dim(&check.lo)?;
        let end = self.dim(&check.end)?;
        let value = value.operand();
        // An unsigned comparison would hide negative bounds.
        self.open(&format!("if ((int64_t){value} < {lo} || (int64_t){value} >= {end}) {{"));
        self.line(&format!("return fail(error, &{error}, (int64_t){value}, {lo}, {end} - 1);"));
        self.close("}");
        Ok(())
    }
}

/// A minimum or maximum of a single and a constant, which takes one comparison.
fn limited(op: BinaryOp, x: &RegisterText, y: &RegisterText) -> Option<String> {
    let helper = match op {
        BinaryOp::Min => "at_most_f32",
        BinaryOp::Max => "at_least_f32",
        _ => return None,
    };
    let (value, limit) = if y.constant.is_some() { (x, y) } else { (y, x) };
    let constant = limit.constant.filter(|_| limit.dtype == DType::F32)?.as_f64();
    // A negative zero is the minimum of both zeros, and a NaN is the result of both operators.
    let is_negative_zero = constant == 0.0 && constant.is_sign_negative();
    if constant.is_nan() || is_negative_zero {
        return None;
    }
    Some(format!("{helper}({}, {})", value.text, limit.text))
}

/// The number of uses of each result, without the uses by instructions whose own results are not used.
fn count_uses(code: &InstSeq) -> Vec<u32> {
    let mut uses = vec![0; code.insts.len()];
    for (idx, inst) in code.insts.iter().enumerate().rev() {
        if uses[idx] > 0 || !inst.has_result() {
            inst.operands().iter().for_each(|reg| uses[reg.0 as usize] += 1);
        }
    }
    uses
}

/// The line `sum += a*b`, which wraps on integers.
pub(super) fn accumulated(dtype: DType, sum: &str, a: &str, b: &str) -> Result<String> {
    if dtype.is_float() {
        return Ok(format!("{sum} += {a} * {b};"));
    }
    let product = scalars::binary(BinaryOp::Mul, dtype, a, &format!("({b})"))?;
    let total = scalars::binary(BinaryOp::Add, dtype, sum, &product)?;
    Ok(format!("{sum} = {total};"))
}
