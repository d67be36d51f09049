//! The program for one block of a batch that is divided.

use super::{BatchBlocks, BufferId, Port, Program};
use crate::{Error, Result};
use symshape::Dim;

impl BatchBlocks {
    /// Elements of an input that belong to an image; 0 if all images share it.
    pub(crate) fn input_elems(&self, program: &Program, input: usize) -> Option<i64> {
        let is_shared = self.shared.contains(&(input as u32));
        if is_shared { Some(0) } else { self.elems(program, program.inputs.get(input)?) }
    }

    /// Elements of an output that belong to an image.
    pub(crate) fn output_elems(&self, program: &Program, output: usize) -> Option<i64> {
        self.elems(program, program.outputs.get(output)?)
    }

    /// The program for one block: its inputs and outputs have one axis, and the images of the block alone.
    ///
    /// # Errors
    /// The numbers are out of range, the program has symbols of several values, control flow, state or partitions, or
    /// a port can't be divided into images.
    pub(crate) fn program_of_block(&self, program: &Program) -> Result<Program> {
        let has_control = program.kernels.iter().any(|kernel| kernel.control.is_some());
        let is_plain = program.has_constant_sizes()
            && program.state.is_none()
            && program.partitions.is_empty()
            && !has_control;
        let in_range = (1..=self.images).contains(&self.block) && self.slices > 0;
        if !is_plain || !in_range || self.shared.iter().any(|input| *input as usize >= program.inputs.len()) {
            return Err(Error::invalid("the blocks of the batch don't fit the program"));
        }

        let of_ports = |ports: &[Port], elems: &dyn Fn(usize) -> Option<i64>| {
            let ports = ports.iter().enumerate().map(|(idx, port)| {
                let elems = elems(idx);
                let elems = elems.ok_or_else(|| Error::invalid(format!("`{}` has no images", port.name)))?;
                Ok((port.buffer, elems))
            });
            ports.collect::<Result<Vec<(BufferId, i64)>>>()
        };
        let mut of_block = Program { batch_blocks: None, ..program.clone() };
        let inputs = of_ports(&program.inputs, &|idx| self.input_elems(program, idx))?;
        let outputs = of_ports(&program.outputs, &|idx| self.output_elems(program, idx))?;
        let ports = of_block.inputs.iter_mut().chain(&mut of_block.outputs);
        for (port, (buffer, elems)) in ports.zip(inputs.into_iter().chain(outputs)) {
            let buffer = &mut of_block.buffers[buffer];
            if elems != 0 {
                buffer.elems = Dim::from(elems * self.block);
            }
            port.shape = vec![buffer.elems.clone()];
        }
        Ok(of_block)
    }

    /// Elements of a port that belong to an image, if its images are of equal size.
    fn elems(&self, program: &Program, port: &Port) -> Option<i64> {
        let elems = program.only_value(&program.buffers[port.buffer].elems)?;
        (elems.checked_rem(self.images)? == 0).then(|| elems / self.images)
    }
}
