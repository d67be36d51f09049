//! The functions of a range of kernels, in the order in which the driver calls them.
//!
//! Each kernel becomes one function or several, its [parts](crate::codegen::body::split); a control marker becomes
//! none, because the driver executes it in place.

use super::{
    host::TASK_PARAMS,
    ragged,
    steps::{DriverStep, EmittedPart},
};
use crate::{
    codegen::{
        body::{
            loops,
            split::{self, KernelPart},
        },
        function::ModuleBuilder,
    },
    error::{At, Result},
    kernel::{Program, cost},
};
use std::ops::Range;
use symshape::Dim;

/// Emits the functions of these kernels, whose names end in `level`.
pub(crate) fn emit<'u>(
    unit: &mut ModuleBuilder<'u>,
    range: Range<usize>,
    level: &str,
) -> Result<Vec<DriverStep<'u>>> {
    let program = unit.program;
    let mut steps = Vec::with_capacity(range.len());
    let mut sequence_parts = Vec::new();
    let one_sequence = program.ragged.as_ref().map(|ragged| program.of_one_sequence(ragged));
    for idx in range {
        let kernel = &program.kernels[idx];
        if let Some(control) = &kernel.control {
            steps.push(DriverStep::Control(control));
            continue;
        }

        let group = program.ragged.as_ref().and_then(|ragged| Some((ragged, ragged.group_of(idx)?)));
        let sizes = one_sequence.as_ref().filter(|_| group.is_some()).unwrap_or(program);
        let parts = emit_parts(unit, idx, level, sizes)?;
        match group {
            None => steps.extend(parts.into_iter().map(DriverStep::Part)),
            Some((ragged, group)) => {
                sequence_parts.extend(parts);
                if idx + 1 == group.end {
                    let name = format!("sequences_{}{level}", group.start);
                    let parts = std::mem::take(&mut sequence_parts);
                    let group = ragged::emit(unit, ragged, group.clone(), parts, &name)?;
                    steps.push(DriverStep::Sequences(group));
                }
            }
        }
    }
    Ok(steps)
}

/// Emits the functions of a kernel's parts, whose names end in `level`. Their work is estimated with the symbols of
/// `sizes`.
fn emit_parts<'u>(
    unit: &mut ModuleBuilder<'u>,
    idx: usize,
    level: &str,
    sizes: &Program,
) -> Result<Vec<EmittedPart<'u>>> {
    let program = unit.program;
    let kernel = &program.kernels[idx];
    let mut emitted = Vec::new();
    for (part_idx, part) in split::parts(program, kernel).into_iter().enumerate() {
        let suffix = if part_idx == 0 { String::new() } else { format!("_{part_idx}") };
        let name = format!("kernel_{idx}{suffix}{level}");
        let work = cost::work(sizes, part.body);
        let part =
            emit_part(unit, idx, part, work, &name).at(|| format!("kernel {idx} ({})", kernel.name))?;
        emitted.push(part);
    }
    Ok(emitted)
}

/// Emits the function of a kernel part.
fn emit_part<'u>(
    unit: &mut ModuleBuilder<'u>,
    kernel: usize,
    part: KernelPart<'u>,
    work: Dim,
    name: &str,
) -> Result<EmittedPart<'u>> {
    let program = unit.program;
    let mut fails = false;
    let mut uses_scratch = false;
    let mut is_divisible = false;
    let func = unit.define_local(name, &TASK_PARAMS, &[], |f, params| {
        is_divisible = loops::part(f, &program.kernels[kernel], &part, params)?;
        fails = f.fails;
        uses_scratch = f.uses_scratch;
        Ok(())
    })?;

    Ok(EmittedPart { func, part, kernel, work, fails, uses_scratch, is_divisible })
}
