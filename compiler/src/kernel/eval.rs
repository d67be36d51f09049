//! The interpreter of programs, one element at a time. It is the reference for all code that is generated from kernels.
//!
//! Sums and products of floats are accumulated in double precision and rounded once. Some faults that a machine ignores
//! are errors here: an access outside of its buffer, a read of an element that was never written, and an output with
//! gaps. Iterations of parallel loops run in descending order, each with unwritten scratch memory. So a program whose
//! iterations depend on each other gives different results or an error.

mod accumulator;
mod blocks;
mod control;
mod index;
mod machine;

use super::{Port, Program};
use crate::{
    error::{At, Error, ErrorKind, Result},
    scalar::Scalar,
    tensor::Tensor,
};
use machine::Machine;
use symshape::Dim;

/// Maximum number of elements of all buffers together.
const MAX_ELEMS: usize = 1 << 28;

/// Runs `program` at these values of its symbols, on these inputs, and returns its outputs.
///
/// The caller checks the call contract. Values outside of the declared ranges are not refused.
///
/// # Errors
/// Arguments that do not fit the program, a guard of the program that fails, or a fault as listed in this module.
pub fn eval(program: &Program, dims: &[i64], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    if dims.len() != program.symbols.len() || inputs.len() != program.inputs.len() {
        let symbols = program.symbols.len();
        let ports = program.inputs.len();
        return Err(Error::new(ErrorKind::Usage, format!("{symbols} dims and {ports} inputs expected")));
    }

    if program.ragged.is_some() {
        return Err(Error::unsupported(
            "the interpreter runs no ragged batches: interpret the program for one sequence",
        ));
    }

    if let Some(blocks) = &program.batch_blocks {
        return blocks::eval(program, blocks, inputs, &|of_block, inputs| eval(of_block, dims, inputs));
    }

    let values = |dim: &Dim| -> Result<usize> {
        let value = dim.eval_i64(&|symbol| {
            program.symbols.iter().position(|other| other == symbol).map(|idx| dims[idx])
        });
        let value = value.map_err(|error| Error::invalid(error.to_string()))?;
        usize::try_from(value).map_err(|_| Error::invalid(format!("`{dim}` = {value} is negative")))
    };

    let mut machine = Machine::new(program, dims);
    allocate(program, &mut machine, &values)?;

    for (port, input) in program.inputs.iter().zip(inputs) {
        fill(program, &mut machine, port, input, &values).at(|| format!("input {}", port.name))?;
    }

    control::run(program, &mut machine)?;
    let outputs = program.outputs.iter();
    outputs.map(|port| output(program, &mut machine, port).at(|| format!("output {}", port.name))).collect()
}

fn allocate(
    program: &Program,
    machine: &mut Machine<'_>,
    values: &dyn Fn(&Dim) -> Result<usize>,
) -> Result<()> {
    let mut total = 0usize;
    for (id, buffer) in &program.buffers {
        let elems = values(&buffer.elems).at(|| format!("buffer {id:?}"))?;
        total = total.saturating_add(elems);
        if total > MAX_ELEMS {
            return Err(Error::new(ErrorKind::Limit, format!("more than {MAX_ELEMS} elements of memory")));
        }
        machine.allocate(id, elems);
    }
    Ok(())
}

fn shape_of(port: &Port, values: &dyn Fn(&Dim) -> Result<usize>) -> Result<Vec<usize>> {
    port.shape.iter().map(values).collect()
}

fn fill(
    program: &Program,
    machine: &mut Machine<'_>,
    port: &Port,
    input: &Tensor,
    values: &dyn Fn(&Dim) -> Result<usize>,
) -> Result<()> {
    let shape = shape_of(port, values)?;
    let dtype = program.buffers[port.buffer].dtype;
    if input.dtype() != dtype || input.shape() != shape {
        let message = format!("{input:?} is given where {dtype}{shape:?} is expected");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    machine.fill(port.buffer, (0..input.elems()).map(|idx| input.get(idx)))
}

/// The tensor of an output. Its buffer can be larger.
fn output(program: &Program, machine: &mut Machine<'_>, port: &Port) -> Result<Tensor> {
    let mut shape = Vec::new();
    for dim in &port.shape {
        let value = machine.eval(dim)?;
        shape.push(usize::try_from(value).map_err(|_| Error::invalid(format!("`{dim}` is negative")))?);
    }
    let elems: Vec<Scalar> = machine.read_all(port.buffer, shape.iter().product())?;
    let dtype = program.buffers[port.buffer].dtype;
    Tensor::from_scalars(dtype, shape, &elems)
        .ok_or_else(|| Error::invalid("its buffer is smaller than its shape"))
}
