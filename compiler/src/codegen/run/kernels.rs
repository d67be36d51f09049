//! The functions of a list of kernels.

use crate::{
    codegen::{
        body::{
            loops,
            split::{self, KernelPart, Split},
        },
        function::ModuleBuilder,
    },
    error::{At, Result},
    kernel::{Control, cost},
};
use cranelift_codegen::ir::types;
use cranelift_module::FuncId;
use std::ops::Range;
use symshape::Dim;

/// An emitted part of a kernel.
pub(crate) struct Emitted<'k> {
    pub(crate) func: FuncId,
    pub(crate) part: KernelPart<'k>,
    /// An expression over the model's symbols, see [`cost`].
    pub(crate) work: Dim,
    pub(crate) fails: bool,
    pub(crate) uses_scratch: bool,
    pub(crate) can_share: bool,
}

impl Emitted<'_> {
    /// The parts that may run at once.
    pub(crate) fn split(&self) -> Split<'_> {
        self.part.split
    }

    /// The work, and whether several threads can share it.
    pub(crate) fn estimate(&self, workers: u32) -> (&Dim, bool) {
        (&self.work, self.can_share && (workers > 1 || !self.uses_scratch))
    }
}

/// A step of the list of kernels: one to call, or one that steers others.
pub(crate) enum Step<'k> {
    Part(Emitted<'k>),
    Control(&'k Control),
}

/// Emits the functions of these kernels, whose names contain `level`.
pub(crate) fn emit<'u>(
    unit: &mut ModuleBuilder<'u>,
    range: Range<usize>,
    level: &str,
) -> Result<Vec<Step<'u>>> {
    let program = unit.program;
    let mut list = Vec::with_capacity(range.len());
    for idx in range {
        let kernel = &program.kernels[idx];
        if let Some(control) = &kernel.control {
            list.push(Step::Control(control));
            continue;
        }
        for (number, part) in split::parts(program, kernel).into_iter().enumerate() {
            let (mut fails, mut uses_scratch, mut can_share) = (false, false, false);
            let params = [types::I64, types::I64, types::I64, types::I32];
            let number = if number == 0 { String::new() } else { format!("_{number}") };
            let name = format!("kernel_{idx}{number}{level}");
            let func = unit
                .define_local(&name, &params, &[], |f, params| {
                    can_share = loops::part(f, kernel, &part, params)?;
                    (fails, uses_scratch) = (f.fails, f.uses_scratch);
                    Ok(())
                })
                .at(|| format!("kernel {idx} ({})", kernel.name))?;
            let work = cost::work(program, part.body);
            list.push(Step::Part(Emitted { func, part, work, fails, uses_scratch, can_share }));
        }
    }
    Ok(list)
}
