//! The laws against the oracle: whenever a law applies to a step, the register it names holds the step's value.

use symshape_compiler::{
    opt::laws::LAWS,
    scalar::{BinaryOp, Body, CompareOp, Reg, Scalar, Step, UnaryOp},
};
use symshape_runtime::DType;

/// Values at which laws break that don't hold.
fn box_of(dtype: DType) -> Vec<Scalar> {
    let numbers =
        [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 127.0, 255.0, 1e9, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let mut values: Vec<Scalar> = numbers.iter().map(|x| Scalar::from_f64(dtype, *x)).collect();
    values.dedup();
    values
}

/// Two steps in a row over one parameter and a constant, in all ways.
fn bodies(dtype: DType, constant: Scalar, other: DType) -> Vec<Body> {
    let (x, c, first) = (Reg(0), Reg(1), Reg(2));
    let mut firsts: Vec<Step> = UnaryOp::ALL.iter().map(|op| Step::Unary(*op, x)).collect();
    firsts.extend([Step::Cast(other, x), Step::Cast(dtype, x), Step::Compare(CompareOp::Ne, x, c)]);
    let mut bodies = Vec::new();
    for inner in firsts {
        let mut seconds: Vec<Step> = UnaryOp::ALL.iter().map(|op| Step::Unary(*op, first)).collect();
        seconds.extend(
            BinaryOp::ALL
                .iter()
                .flat_map(|op| [Step::Binary(*op, x, c), Step::Binary(*op, c, x), Step::Binary(*op, x, x)]),
        );
        seconds.extend([Step::Cast(dtype, first), Step::Select(first, x, c), Step::Select(first, x, x)]);
        seconds.extend(CompareOp::ALL.iter().map(|op| Step::Compare(*op, first, c)));
        for outer in seconds {
            let steps = vec![Step::Const(constant), inner.clone(), outer];
            bodies.push(Body { params: vec![dtype], steps, result: Reg(3) });
        }
    }
    bodies
}

fn same(a: Scalar, b: Scalar) -> bool {
    let nan = |x: Scalar| x.dtype().is_float() && x.as_f64().is_nan();
    a == b || (nan(a) && nan(b) && a.dtype() == b.dtype())
}

#[test]
fn laws_hold_on_their_domains() {
    let types = [DType::F32, DType::F16, DType::I64, DType::I8, DType::U8, DType::U64, DType::Bool];
    let mut applied = vec![0; LAWS.len()];
    for dtype in types {
        for (constant, other) in box_of(dtype).into_iter().flat_map(|c| types.map(|other| (c, other))) {
            for body in bodies(dtype, constant, other) {
                if symshape_compiler::graph::infer::check_body(&body).is_err() {
                    continue;
                }
                check(&body, &mut applied);
            }
        }
    }
    for (law, count) in LAWS.iter().zip(applied) {
        assert!(count > 0, "`{}` was never tried", law.law);
    }
}

fn check(body: &Body, applied: &mut [usize]) {
    let Some((last, before)) = body.steps.split_last() else { return };
    let known = Body { steps: before.to_vec(), ..body.clone() };
    let types = body.types();
    let dtype = types[last.operands()[0].0 as usize];
    for (i, law) in LAWS.iter().enumerate().filter(|(_, law)| (law.domain)(dtype)) {
        let Some(reg) = (law.apply)(&known, last) else { continue };
        applied[i] += 1;
        let shortened = Body { result: reg, ..known.clone() };
        for x in box_of(body.params[0]) {
            let (want, got) = (body.eval(&[x], &mut Vec::new()), shortened.eval(&[x], &mut Vec::new()));
            assert!(same(want, got), "`{}` on {body:?} with {x}: {want} became {got}", law.law);
        }
    }
}
