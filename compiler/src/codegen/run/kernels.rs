//! The functions of a range of kernels, in the order in which the driver calls them.
//!
//! Each kernel becomes one function or several, its [parts](crate::codegen::body::split); a control marker becomes
//! none, because the driver executes it in place.

use super::host::TASK_PARAMS;
use crate::{
    codegen::{
        body::{
            loops,
            split::{self, KernelPart, PartSplit},
        },
        function::ModuleBuilder,
    },
    error::{At, Result},
    kernel::{Control, Kernel, cost},
};
use cranelift_module::FuncId;
use std::ops::Range;
use symshape::Dim;

/// A kernel part and its function.
pub(crate) struct EmittedPart<'k> {
    /// `(frame, begin, end, copy)`.
    pub(crate) func: FuncId,
    pub(crate) part: KernelPart<'k>,
    /// The estimate of its work as an expression over the model's symbols, see [`cost`].
    pub(crate) work: Dim,
    /// The function may report an error in the frame.
    pub(crate) fails: bool,
    pub(crate) uses_scratch: bool,
    /// The function heeds the range that it is called with.
    pub(crate) is_divisible: bool,
}

impl EmittedPart<'_> {
    /// The parts that may run at once.
    pub(crate) fn split(&self) -> PartSplit<'_> {
        self.part.split
    }

    /// Whether several threads may share the part. With one worker there is a single copy of the scratch buffers, which
    /// threads must not share.
    pub(crate) fn can_share(&self, workers: u32) -> bool {
        self.is_divisible && (workers > 1 || !self.uses_scratch)
    }
}

/// A step of the driver: a kernel part to call, or a marker that controls later steps.
pub(crate) enum DriverStep<'k> {
    Part(EmittedPart<'k>),
    Control(&'k Control),
}

/// Emits the functions of these kernels, whose names end in `level`.
pub(crate) fn emit<'u>(
    unit: &mut ModuleBuilder<'u>,
    range: Range<usize>,
    level: &str,
) -> Result<Vec<DriverStep<'u>>> {
    let program = unit.program;
    let mut steps = Vec::with_capacity(range.len());
    for idx in range {
        let kernel = &program.kernels[idx];
        if let Some(control) = &kernel.control {
            steps.push(DriverStep::Control(control));
            continue;
        }

        for (part_idx, part) in split::parts(program, kernel).into_iter().enumerate() {
            let suffix = if part_idx == 0 { String::new() } else { format!("_{part_idx}") };
            let name = format!("kernel_{idx}{suffix}{level}");
            let emitted =
                emit_part(unit, kernel, part, &name).at(|| format!("kernel {idx} ({})", kernel.name))?;
            steps.push(DriverStep::Part(emitted));
        }
    }
    Ok(steps)
}

/// Emits the function of a kernel part.
fn emit_part<'u>(
    unit: &mut ModuleBuilder<'u>,
    kernel: &'u Kernel,
    part: KernelPart<'u>,
    name: &str,
) -> Result<EmittedPart<'u>> {
    let mut fails = false;
    let mut uses_scratch = false;
    let mut is_divisible = false;
    let func = unit.define_local(name, &TASK_PARAMS, &[], |f, params| {
        is_divisible = loops::part(f, kernel, &part, params)?;
        fails = f.fails;
        uses_scratch = f.uses_scratch;
        Ok(())
    })?;

    let work = cost::work(unit.program, part.body);
    Ok(EmittedPart { func, part, work, fails, uses_scratch, is_divisible })
}
