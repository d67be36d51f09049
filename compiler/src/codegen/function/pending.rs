//! A function that is declared and emitted, but not compiled.

use crate::{
    codegen::{
        microkernel::MicrokernelKey,
        vector::{MachineCode, VectorIsa},
    },
    error::{At, Error, Result},
};
use cranelift_codegen::{ir::Function, isa::TargetIsa};
use cranelift_module::FuncId;
use std::sync::Arc;

/// A function before instruction selection, or after it.
pub(crate) enum Body {
    Clif(Box<Function>),
    Microkernel(Microkernel),
    Encoded(MachineCode),
}

/// A microkernel for an ISA.
pub(crate) struct Microkernel {
    pub(crate) key: MicrokernelKey,
    pub(crate) isa: Arc<dyn VectorIsa>,
    /// Whether it is for [`VectorIsa::narrower`] of the ISA.
    pub(crate) is_narrow: bool,
}

/// A function that is declared and emitted, but not defined.
pub(crate) struct Pending {
    pub(super) id: FuncId,
    pub(super) name: String,
    pub(super) body: Body,
}

impl Microkernel {
    /// The ISA of its instructions.
    pub(crate) fn isa(&self) -> Result<&dyn VectorIsa> {
        let isa = if self.is_narrow { self.isa.narrower() } else { Some(&*self.isa) };
        isa.ok_or_else(|| Error::internal("there is no narrower ISA"))
    }
}

impl Pending {
    /// Number of instructions that are left to compile. Microkernels are short, and have none yet.
    pub(super) fn insts(&self) -> usize {
        match &self.body {
            Body::Clif(function) => function.dfg.num_insts(),
            Body::Microkernel(_) | Body::Encoded(_) => 0,
        }
    }

    /// Compiles the function, and returns its code with its id and name.
    pub(super) fn compile(self, target: &dyn TargetIsa) -> Result<(FuncId, String, MachineCode)> {
        let Pending { id, name, body } = self;
        let code = match body {
            Body::Clif(function) => MachineCode::of(id, *function, target),
            Body::Microkernel(microkernel) => {
                let isa = microkernel.isa()?;
                isa.compile(id, &microkernel.key.code(isa), target)
            }
            Body::Encoded(code) => Ok(code),
        };
        let code = code.at(|| name.clone())?;
        Ok((id, name, code))
    }
}
