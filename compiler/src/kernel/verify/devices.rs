//! The rule about devices: only calls of a device's target access its memory.

use crate::{
    error::{At, Error, Result},
    kernel::{BufferId, Control, Kernel, Program, walk},
};

/// Checks all kernels.
pub(super) fn verify(program: &Program) -> Result<()> {
    if program.devices.is_empty() {
        return Ok(());
    }
    program
        .kernels
        .iter()
        .try_for_each(|kernel| verify_kernel(program, kernel).at(|| format!("kernel {}", kernel.name)))
}

fn verify_kernel(program: &Program, kernel: &Kernel) -> Result<()> {
    let target = match &kernel.control {
        Some(Control::Call(call)) => call.callee.target.as_str(),
        _ => "",
    };

    let mut touched: Vec<BufferId> = Vec::new();
    walk::accesses(&kernel.body, &mut |site| touched.push(site.access.buffer));

    let (read, written) = kernel.control.as_ref().map(Control::touched).unwrap_or_default();
    for id in touched.into_iter().chain(read).chain(written) {
        let device =
            program.buffers[id].space.device().and_then(|number| program.devices.get(number as usize));
        if let Some(device) = device.filter(|device| device.target != target) {
            return Err(Error::invalid(format!("{id:?} is in the memory of {}", device.target)));
        }
    }

    Ok(())
}
