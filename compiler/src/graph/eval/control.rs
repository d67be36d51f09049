//! Branches, loops and data-dependent symbols.

use super::{Binding, Rounding, check_constraints, number, outputs, sizes, tensor};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::{Graph, Op},
    scalar::Scalar,
    tensor::Tensor,
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The results of a control-flow operator. A symbol that it binds is added to `binding`.
pub(super) fn eval(
    graph: &Graph,
    op: &Op,
    operands: &[Tensor],
    binding: &mut Binding,
    rounding: Rounding,
) -> Result<Vec<Tensor>> {
    match op {
        Op::Bind { symbol, lo, hi } => {
            let value = operands[0].get(0).as_i64();
            let (lo, hi) = (number(lo, binding)?, number(hi, binding)?);
            if !(lo..=hi).contains(&value) {
                let message = format!("{symbol} = {value}, allowed is {lo}..={hi}");
                return Err(Error::new(ErrorKind::Usage, message));
            }
            binding.insert(symbol.clone(), value);
            let known = |dim: &Dim| dim.symbols().iter().all(|symbol| binding.contains_key(symbol));
            check_constraints(graph, &known, binding)?;
            Ok(vec![operands[0].clone()])
        }
        Op::If { then, otherwise } => {
            let inputs = &operands[1..];
            let (first, second) = inputs.split_at(then.inputs.len());
            match operands[0].get(0).is_true() {
                true => region(then, binding, first, rounding),
                false => region(otherwise, binding, second, rounding),
            }
        }
        Op::Loop { counter, max_iterations, carried, body } => {
            rounds(counter, max_iterations, *carried, body, operands, (binding, rounding))
        }
        Op::Fail { why } => Err(Error::new(ErrorKind::Usage, why.clone())),
        _ => Err(Error::internal("not an operator that steers others")),
    }
}

fn region(graph: &Graph, binding: &Binding, inputs: &[Tensor], rounding: Rounding) -> Result<Vec<Tensor>> {
    check_constraints(graph, &|dim| !graph.is_data_dependent(dim), binding)?;
    outputs(graph, binding, inputs, rounding)
}

fn rounds(
    counter: &Symbol,
    most: &Dim,
    carried: usize,
    body: &Graph,
    operands: &[Tensor],
    (binding, rounding): (&Binding, Rounding),
) -> Result<Vec<Tensor>> {
    let (count, most) = (operands[0].get(0).as_i64(), number(most, binding)?);
    let mut goes_on = operands[1].get(0).is_true();
    let mut inputs = operands[2..].to_vec();
    let mut slices: Vec<Vec<Tensor>> = vec![Vec::new(); body.outputs.len() - 1 - carried];
    let mut round = 0;
    while goes_on && round < count {
        if round == most {
            let message = format!("{counter} = {round}, allowed is 0..{most}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let mut inner = binding.clone();
        inner.insert(counter.clone(), round);
        let mut results = region(body, &inner, &inputs, rounding)?.into_iter();
        goes_on = results.next().is_some_and(|again| again.get(0).is_true());
        for input in inputs.iter_mut().take(carried) {
            *input = results.next().ok_or_else(|| Error::internal("a body without its outputs"))?;
        }
        slices.iter_mut().zip(results).for_each(|(slices, slice)| slices.push(slice));
        round += 1;
    }
    let count = Tensor::from_scalars(DType::I64, Vec::new(), &[Scalar::i64(round)]);
    let count = count.ok_or_else(|| Error::internal("rank 0 holds one element"))?;
    let mut results = vec![count];
    results.extend(inputs.into_iter().take(carried));
    for (k, slices) in slices.iter().enumerate() {
        let (_, output) = body.outputs[1 + carried + k];
        results.push(collected(slices, most, body, output, binding)?);
    }
    Ok(results)
}

/// The slices one after another, and zeros up to the bound.
fn collected(
    slices: &[Tensor],
    most: i64,
    body: &Graph,
    output: crate::graph::Value,
    binding: &Binding,
) -> Result<Tensor> {
    let inner = match slices.first() {
        Some(slice) => slice.shape().to_vec(),
        None => sizes(body.shape(output), binding)?,
    };
    let shape = [&[usize::try_from(most).unwrap_or(0)], &inner[..]].concat();
    let dtype = body.dtype(output);
    let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.bytes().iter().copied()).collect();
    bytes.resize(shape.iter().product::<usize>() * dtype.size_bytes(), 0);
    tensor(dtype, &shape, bytes)
}
