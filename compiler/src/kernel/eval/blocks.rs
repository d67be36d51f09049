//! Runs the kernels once for each block of a batch.

use crate::{
    error::{At, Error, ErrorKind, Result},
    kernel::{BatchBlocks, Port, Program},
    scalar::Scalar,
    tensor::Tensor,
};

/// Runs a program on inputs.
type Run<'r> = dyn Fn(&Program, &[Tensor]) -> Result<Vec<Tensor>> + 'r;

/// Runs a program whose batch is divided; `run` runs the program for one block on the inputs of that block.
pub(super) fn eval(
    program: &Program,
    blocks: &BatchBlocks,
    inputs: &[Tensor],
    run: &Run<'_>,
) -> Result<Vec<Tensor>> {
    let of_block = blocks.program_of_block(program)?;
    for (port, input) in program.inputs.iter().zip(inputs) {
        if input.shape() != shape(program, port)? {
            let message = format!("{input:?} is given where {:?} is expected", port.shape);
            return Err(Error::new(ErrorKind::Usage, message).at(format!("input {}", port.name)));
        }
    }

    let elems = program.outputs.iter().map(|port| Ok(shape(program, port)?.iter().product()));
    let elems = elems.collect::<Result<Vec<usize>>>()?;
    let mut results: Vec<Vec<Option<Scalar>>> = elems.into_iter().map(|elems| vec![None; elems]).collect();
    for block in 0..blocks.count() {
        let first = blocks.first_image(block) as usize;
        let inputs = inputs.iter().enumerate().map(|(idx, input)| {
            let image = blocks.input_elems(program, idx).unwrap_or(0) as usize;
            input_of_block(input, image, first, blocks.block as usize)
        });
        let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
        let outputs = run(&of_block, &inputs).at(|| format!("images from {first} on"))?;
        for (idx, output) in outputs.iter().enumerate() {
            let begin = first * blocks.output_elems(program, idx).unwrap_or(0) as usize;
            let places = &mut results[idx][begin..begin + output.elems()];
            places.iter_mut().enumerate().for_each(|(at, place)| *place = Some(output.get(at)));
        }
    }
    program.outputs.iter().zip(results).map(|(port, elems)| output(program, port, elems)).collect()
}

fn shape(program: &Program, port: &Port) -> Result<Vec<usize>> {
    let sizes = port.shape.iter().map(|dim| usize::try_from(program.only_value(dim)?).ok());
    let shape = sizes.collect::<Option<_>>();
    shape.ok_or_else(|| Error::invalid("a size is no constant").at(format!("port {}", port.name)))
}

/// The elements of some images, or the whole input if all images share it.
fn input_of_block(input: &Tensor, image: usize, first: usize, images: usize) -> Result<Tensor> {
    let elems = if image == 0 { 0..input.elems() } else { first * image..(first + images) * image };
    let shape = vec![elems.len()];
    let scalars: Vec<Scalar> = elems.map(|at| input.get(at)).collect();
    let part = Tensor::from_scalars(input.dtype(), shape, &scalars);
    part.ok_or_else(|| Error::internal("a part of an input has another size"))
}

fn output(program: &Program, port: &Port, elems: Vec<Option<Scalar>>) -> Result<Tensor> {
    let elems = elems.into_iter().collect::<Option<Vec<Scalar>>>();
    let dtype = program.buffers[port.buffer].dtype;
    let shape = shape(program, port)?;
    let tensor = elems.and_then(|elems| Tensor::from_scalars(dtype, shape, &elems));
    tensor.ok_or_else(|| Error::invalid("no block computes an element").at(format!("output {}", port.name)))
}
