//! Simplifies elementwise bodies. Operands that repeat one element become constants of the body, steps of constants are
//! computed, comparisons that the bounds of indices decide become constants, the laws of `laws.rs` are applied, and a
//! body that returns a parameter is removed.

use super::{index_ranges, laws, rebuild::rebuild};
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value},
    scalar::{Body, Reg, Scalar, Step},
};

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn bodies(graph: &mut Graph) -> Result<()> {
    rebuild(graph, |new, node| {
        let Op::Map(body) = &node.op else { return Ok(None) };
        let (body, operands) = inline_numbers(new, body, node);
        let body = index_ranges::decide(new, body, &operands);
        let (body, operands) = drop_unused(simplify(&body), &operands);
        let (body, operands) = through_producers(new, body, operands);
        if operands.is_empty() {
            return spread(new, &body, node.operands[0]).map(|value| value.map(|value| vec![value]));
        }
        match body.params.get(body.result.0 as usize) {
            Some(_) => Ok(Some(vec![operands[body.result.0 as usize]])),
            None => Ok(Some(vec![new.push(Op::Map(body), &operands)?])),
        }
    })?;
    super::dead::dead(graph)
}

/// The value of all elements of `value`, if they are equal.
pub(crate) fn number(graph: &Graph, value: Value) -> Option<Scalar> {
    match graph.op(value) {
        Op::Const(tensor) => {
            let first = (tensor.elems() > 0).then(|| tensor.get(0))?;
            // Comparing a large constant to its end costs no more than reading it once.
            (1..tensor.elems()).all(|i| tensor.get(i) == first).then_some(first)
        }
        Op::View { .. } => number(graph, graph.operands(value)[0]),
        _ => None,
    }
}

/// Inlines the bodies of producers where laws then apply, so that the result is no longer than `body` was.
fn through_producers(graph: &Graph, mut body: Body, mut operands: Vec<Value>) -> (Body, Vec<Value>) {
    let mut i = 0;
    while i < operands.len() {
        let shorter = match graph.op(operands[i]) {
            Op::Map(producer) if producer.steps.len() <= MAX_TAKEN_IN => {
                let (both, inputs) = inline(&body, &operands, i, producer, graph.operands(operands[i]));
                Some(drop_unused(simplify(&both), &inputs))
                    .filter(|(both, _)| both.steps.len() <= body.steps.len())
            }
            _ => None,
        };
        match shorter {
            Some((both, inputs)) => (body, operands, i) = (both, inputs, 0),
            None => i += 1,
        }
    }

    (body, operands)
}

/// The maximum length of an inlined producer. Laws look at two operators and their constants; a longer one would
/// remain.
const MAX_TAKEN_IN: usize = 3;

/// `body` with its parameter `i` computed by `producer` from `inputs`.
fn inline(
    body: &Body,
    operands: &[Value],
    i: usize,
    producer: &Body,
    inputs: &[Value],
) -> (Body, Vec<Value>) {
    let values: Vec<Value> = operands.iter().chain(inputs).copied().collect();
    let mut params = body.params.clone();
    params.extend_from_slice(&producer.params);
    let own = operands.len() as u32;

    // The producer's registers, then the body's, in the numbering of both.
    let mut inner: Vec<Reg> = (own..params.len() as u32).map(Reg).collect();
    let mut steps = Vec::new();
    for step in &producer.steps {
        inner.push(Reg((params.len() + steps.len()) as u32));
        steps.push(renamed(step, &inner));
    }
    let mut outer: Vec<Reg> = (0..own).map(Reg).collect();
    outer[i] = inner[producer.result.0 as usize];
    for step in &body.steps {
        let next = Reg((params.len() + steps.len()) as u32);
        steps.push(renamed(step, &outer));
        outer.push(next);
    }
    (Body { params, steps, result: outer[body.result.0 as usize] }, values)
}

/// Turns operands that repeat one element into constants of the body.
fn inline_numbers(graph: &Graph, body: &Body, node: &Node) -> (Body, Vec<Value>) {
    let constants: Vec<Option<Scalar>> = node.operands.iter().map(|value| number(graph, *value)).collect();
    let kept: Vec<usize> = (0..constants.len()).filter(|i| constants[*i].is_none()).collect();
    let fixed: Vec<Scalar> = constants.iter().flatten().copied().collect();
    let mut next_kept = 0..kept.len() as u32;
    let mut next_fixed = kept.len() as u32..;

    let mut regs: Vec<Reg> = constants
        .iter()
        .map(|number| match number {
            None => Reg(next_kept.next().unwrap_or(0)),
            Some(_) => Reg(next_fixed.next().unwrap_or(0)),
        })
        .collect();

    regs.extend((constants.len() as u32..).take(body.steps.len()).map(Reg));
    let mut steps: Vec<Step> = fixed.into_iter().map(Step::Const).collect();
    steps.extend(body.steps.iter().map(|step| renamed(step, &regs)));
    let params = kept.iter().map(|i| body.params[*i]).collect();
    let operands = kept.iter().map(|i| node.operands[*i]).collect();
    (Body { params, steps, result: regs[body.result.0 as usize] }, operands)
}

/// `step` with `regs[i]` in place of register `i`.
fn renamed(step: &Step, regs: &[Reg]) -> Step {
    let operands: Vec<Reg> = step.operands().iter().map(|reg| regs[reg.0 as usize]).collect();
    step.with(&operands).expect("as many operands as before")
}

/// The body with constant steps computed, laws applied and unused steps dropped.
pub(crate) fn simplify(body: &Body) -> Body {
    let params = body.params.len();
    let mut out = Body { params: body.params.clone(), steps: Vec::new(), result: Reg(0) };

    let mut regs: Vec<Reg> = (0..params as u32).map(Reg).collect();
    for step in &body.steps {
        let step = renamed(step, &regs);
        let step = constant_step(&out, &step).unwrap_or(step);
        regs.push(match laws::apply(&out, &step) {
            Some(reg) => reg,
            None => emit(&mut out, step),
        });
    }

    out.result = regs[body.result.0 as usize];
    without_unused_steps(&out)
}

/// Returns the register of `step`, which is emitted unless an equal step exists.
fn emit(body: &mut Body, step: Step) -> Reg {
    let position = body.steps.iter().position(|other| *other == step);
    let position = position.unwrap_or_else(|| {
        body.steps.push(step);
        body.steps.len() - 1
    });
    Reg((body.params.len() + position) as u32)
}

fn constant_step(body: &Body, step: &Step) -> Option<Step> {
    let operands = step.operands();
    let values: Vec<Scalar> = operands
        .iter()
        .map(|reg| laws::constant(body, *reg))
        .collect::<Option<_>>()
        .filter(|_| !operands.is_empty())?;
    let params = values.iter().map(|value| value.dtype()).collect();
    let regs: Vec<Reg> = (0..values.len() as u32).map(Reg).collect();
    let alone = Body { params, steps: vec![step.with(&regs)?], result: Reg(values.len() as u32) };
    Some(Step::Const(alone.eval(&values, &mut Vec::new())))
}

fn without_unused_steps(body: &Body) -> Body {
    let params = body.params.len();
    let mut used = vec![false; params + body.steps.len()];
    used[body.result.0 as usize] = true;
    for (i, step) in body.steps.iter().enumerate().rev() {
        if used[params + i] {
            step.operands().iter().for_each(|reg| used[reg.0 as usize] = true);
        }
    }

    let mut out = Body { params: body.params.clone(), steps: Vec::new(), result: Reg(0) };
    let mut regs: Vec<Reg> = (0..params as u32).map(Reg).collect();
    for (i, step) in body.steps.iter().enumerate() {
        regs.push(Reg((params + out.steps.len()) as u32));
        if used[params + i] {
            out.steps.push(renamed(step, &regs));
        }
    }

    out.result = regs[body.result.0 as usize];
    out
}

/// Drops parameters that are not read, and merges parameters that have the same value.
fn drop_unused(body: Body, operands: &[Value]) -> (Body, Vec<Value>) {
    let mut read: Vec<bool> = vec![false; body.params.len()];
    for reg in body.steps.iter().flat_map(Step::operands).chain([body.result]) {
        if let Some(read) = read.get_mut(reg.0 as usize) {
            *read = true;
        }
    }

    let mut kept: Vec<usize> = Vec::new();
    let mut regs: Vec<Reg> = Vec::new();
    for (i, operand) in operands.iter().enumerate() {
        let same = kept.iter().position(|k| operands[*k] == *operand);
        regs.push(Reg(same.unwrap_or(kept.len()) as u32));
        if same.is_none() && read[i] {
            kept.push(i);
        }
    }

    regs.extend((kept.len() as u32..).take(body.steps.len()).map(Reg));
    let steps = body.steps.iter().map(|step| renamed(step, &regs)).collect();
    let params = kept.iter().map(|i| body.params[*i]).collect();
    let result = regs[body.result.0 as usize];
    (Body { params, steps, result }, kept.iter().map(|i| operands[*i]).collect())
}

/// Replaces a body without parameters by its constant, in the shape of `like`.
fn spread(graph: &mut Graph, body: &Body, like: Value) -> Result<Option<Value>> {
    let value = body.eval(&[], &mut Vec::new());
    let shape = graph.shape(like).to_vec();
    let scalar = graph.scalar(value)?;
    graph.broadcast_to(scalar, &shape).map(Some)
}
